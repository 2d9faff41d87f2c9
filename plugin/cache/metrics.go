package cache

import (
	"sync"
	"sync/atomic"

	"github.com/coredns/coredns/plugin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/block"
)

// namespace is of the metrics that CoreDNS's cache has not.
const namespace = "nearside"

var (
	byBlock = []string{"server", "zones", "view"}
	byKind  = []string{"server", "type", "zones", "view"}

	entries = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "entries",
		Help: "Answers in the cache, by type, with those that have expired and are not evicted yet.",
	}, byKind)
	requests = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "requests_total",
		Help: "Queries that the cache was asked for.",
	}, byBlock)
	hits = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "hits_total",
		Help: "Queries for which the cache had an answer, by type.",
	}, byKind)
	misses = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "misses_total",
		Help: "Queries for which the cache had no answer: requests without hits.",
	}, byBlock)
	prefetches = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "prefetch_total",
		Help: "Answers that were fetched again without a client waiting for it.",
	}, byBlock)
	drops = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "drops_total",
		Help: "Replies that were not kept because they answer another question.",
	}, byBlock)
	servedStale = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "served_stale_total",
		Help: "Queries answered with an answer that had expired.",
	}, byBlock)
	evictions = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "evictions_total",
		Help: "Answers that had to go before they expired, by type.",
	}, byKind)

	coalesced = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "coalesced_total",
		Help: "Queries answered with the reply that another query for the same was waiting for.",
	}, byBlock)
	skipped = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "refreshes_skipped_total",
		Help: "Answers that were not fetched again in the background since too many such queries were running, or too many of the client that had asked for them.",
	}, byBlock)
	_ = promauto.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "bytes",
		Help: "Memory that the answers of the whole process take.",
	}, func() float64 { return float64(answers.Shared.Bytes()) })
	_ = promauto.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "budget_bytes",
		Help: "Memory that the answers of the whole process may take.",
	}, func() float64 { return float64(answers.Shared.Budget()) })
)

// counters are the metrics of a block at one server.
type counters struct {
	requests, misses, prefetches, drops, stale, coalesced, skipped prometheus.Counter
	hits, evictions                                                [2]prometheus.Counter // by store.Kind
	entries                                                        [2]prometheus.Gauge
}

func newCounters(server, zones, view string) *counters {
	n := &counters{
		requests:   requests.WithLabelValues(server, zones, view),
		misses:     misses.WithLabelValues(server, zones, view),
		prefetches: prefetches.WithLabelValues(server, zones, view),
		drops:      drops.WithLabelValues(server, zones, view),
		stale:      servedStale.WithLabelValues(server, zones, view),
		coalesced:  coalesced.WithLabelValues(server, zones, view),
		skipped:    skipped.WithLabelValues(server, zones, view),
	}
	for _, k := range []answers.Kind{answers.Success, answers.Denial} {
		n.hits[k] = hits.WithLabelValues(server, k.String(), zones, view)
		n.evictions[k] = evictions.WithLabelValues(server, k.String(), zones, view)
		n.entries[k] = entries.WithLabelValues(server, k.String(), zones, view)
	}
	return n
}

// byServer finds the counters of a server. A block has one server for each of its addresses, so the one
// before is mostly the right one.
type byServer struct {
	last atomic.Pointer[serverCounters]
	all  sync.Map // of *serverCounters by the server's name
}

type serverCounters struct {
	server string
	counters
}

func (c *Cache) counters(server string) *counters {
	if last := c.metrics.last.Load(); last != nil && last.server == server {
		return &last.counters
	}
	found, ok := c.metrics.all.Load(server)
	if !ok {
		found, ok = c.metrics.all.LoadOrStore(server, &serverCounters{server, *newCounters(server, c.zonesLabel, c.view)})
	}
	n := found.(*serverCounters)
	if !ok { // once, or its entries would count twice
		for _, k := range []answers.Kind{answers.Success, answers.Denial} {
			c.space.Show(k, n.entries[k])
		}
	}
	c.metrics.last.Store(n)
	return &n.counters
}

// Counters implements fastpath.Cache.
func (c *Cache) Counters(server string) block.CacheCounters {
	n := c.counters(server)
	return block.CacheCounters{Requests: n.requests, Misses: n.misses, Hits: n.hits}
}

// evicted counts an answer that had to go. It is not known which server had put it in.
func (c *Cache) evicted(k answers.Kind) {
	if last := c.metrics.last.Load(); last != nil {
		last.evictions[k].Inc()
	}
}

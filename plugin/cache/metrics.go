package cache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// namespace of the metrics that CoreDNS's cache does not have.
const namespace = "nearside"

var (
	byBlock = []string{"server", "zones", "view"}
	byKind  = []string{"server", "type", "zones", "view"}
	byFile  = []string{"file"}

	entries = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "entries",
		Help: "Answers in the cache, by type, including expired ones that are not evicted yet.",
	}, byKind)
	requests    = counterVec(plugin.Namespace, "requests_total", "Queries to the cache.", byBlock)
	hits        = counterVec(plugin.Namespace, "hits_total", "Queries answered from the cache, by type.", byKind)
	misses      = counterVec(plugin.Namespace, "misses_total", "Queries without an answer in the cache: requests minus hits.", byBlock)
	prefetches  = counterVec(plugin.Namespace, "prefetch_total", "Answers fetched again without a client that waits for them.", byBlock)
	drops       = counterVec(plugin.Namespace, "drops_total", "Replies that were not cached because they answer another question.", byBlock)
	servedStale = counterVec(plugin.Namespace, "served_stale_total", "Queries answered with an expired answer.", byBlock)
	evictions   = counterVec(plugin.Namespace, "evictions_total", "Answers evicted before they expired, by type.", byKind)

	beyondTTL = counterVec(namespace, "hits_beyond_ttl_total",
		"Queries answered from the cache after the TTL of the answer, while its session vouches for it. They are hits, too.", byBlock)
	invalidated = counterVec(namespace, "invalidated_total", "Answers removed because their session has invalidated them.", byBlock)
	refetches   = counterVec(namespace, "refetches_total", "Popular answers fetched again because their session has invalidated them.", byBlock)

	restored        = counterVec(namespace, "restored_hits_total", "Queries answered with an answer that an earlier process has received.", byBlock)
	snapshotAnswers = counterVec(namespace, "snapshot_restored_total", "Answers restored from the file at the start of the process.", byFile)
	snapshotFailed  = gaugeVec("snapshot_failed", "1 while the file cannot be written.")
	snapshotWritten = gaugeVec("snapshot_written_timestamp_seconds", "Time of the last file that was written, in seconds since 1970.")

	coalesced = counterVec(namespace, "coalesced_total", "Queries answered with the reply to another query for the same question.", byBlock)
	skipped   = counterVec(namespace, "refreshes_skipped_total",
		"Answers that were not fetched again in the background, because too many such queries were running in the process or for the client.", byBlock)
	_ = gaugeFunc("bytes", "Memory of all cached answers of the process.", store.Shared.Bytes)
	_ = gaugeFunc("budget_bytes", "Maximum memory of all cached answers of the process.", store.Shared.Budget)
)

func counterVec(namespace, name, help string, labels []string) *prometheus.CounterVec {
	return promauto.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: pluginName, Name: name, Help: help}, labels)
}

func gaugeFunc(name, help string, bytes func() int64) prometheus.GaugeFunc {
	return promauto.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Subsystem: pluginName, Name: name, Help: help},
		func() float64 { return float64(bytes()) })
}

// gaugeVec returns a metric of snapshots.
func gaugeVec(name, help string) *prometheus.GaugeVec {
	return promauto.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: pluginName, Name: name, Help: help}, byFile)
}

// dropSnapshotMetrics removes the metrics of a file that is not written any more.
func dropSnapshotMetrics(file string) {
	snapshotAnswers.DeleteLabelValues(file)
	snapshotFailed.DeleteLabelValues(file)
	snapshotWritten.DeleteLabelValues(file)
}

// counters are the metrics of a server block at one server.
type counters struct {
	requests, misses, prefetches, drops, stale, coalesced, skipped prometheus.Counter
	beyondTTL, invalidated, refetches, restored                    prometheus.Counter
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

		beyondTTL:   beyondTTL.WithLabelValues(server, zones, view),
		invalidated: invalidated.WithLabelValues(server, zones, view),
		refetches:   refetches.WithLabelValues(server, zones, view),
		restored:    restored.WithLabelValues(server, zones, view),
	}
	for _, k := range []store.Kind{store.Success, store.Denial} {
		n.hits[k] = hits.WithLabelValues(server, k.String(), zones, view)
		n.evictions[k] = evictions.WithLabelValues(server, k.String(), zones, view)
		n.entries[k] = entries.WithLabelValues(server, k.String(), zones, view)
	}
	return n
}

// hit counts a query that is answered with a fresh entry.
func (n *counters) hit(e *store.Entry, now time.Duration) {
	n.hits[e.Kind].Inc()
	if now >= e.Expires {
		n.beyondTTL.Inc()
	}
	if e.Restored {
		n.restored.Inc()
	}
}

// byServer has the counters of the servers of a block, one for each of its addresses. Most blocks have one server, so that
// the last one is checked first.
type byServer struct {
	last atomic.Pointer[serverCounters]
	all  sync.Map // *serverCounters by server address
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
	if !ok { // once: a gauge that is added twice would count each entry twice
		for _, k := range []store.Kind{store.Success, store.Denial} {
			c.space.AddGauge(k, n.entries[k])
		}
	}
	c.metrics.last.Store(n)
	return &n.counters
}

// Counters implements block.Cache.
func (c *Cache) Counters(server string) block.CacheCounters {
	n := c.counters(server)
	return block.CacheCounters{Requests: n.requests, Misses: n.misses, Hits: n.hits, BeyondTTL: n.beyondTTL, Restored: n.restored}
}

// evicted counts an eviction for the last server, since the store does not know which server stored the entry.
func (c *Cache) evicted(k store.Kind) {
	if last := c.metrics.last.Load(); last != nil {
		last.evictions[k].Inc()
	}
}

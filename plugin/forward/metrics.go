package forward

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
)

// Metrics of CoreDNS's forward.
var (
	healthcheckBroken = promauto.NewCounter(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: "forward", Name: "healthcheck_broken_total",
		Help: "Counter of the number of complete failures of the healthchecks.",
	})
	maxConcurrentRejects = promauto.NewCounter(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: "forward", Name: "max_concurrent_rejects_total",
		Help: "Counter of the number of queries rejected because the concurrent queries were at maximum.",
	})
)

// Metrics of CoreDNS's package proxy, which registers them, and uses them for DNS over HTTPS and QUIC.
var (
	requestDuration = existing(prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: plugin.Namespace, Subsystem: "proxy", Name: "request_duration_seconds",
		Buckets: plugin.TimeBuckets, NativeHistogramBucketFactor: plugin.NativeHistogramBucketFactor,
		Help: "Histogram of the time each request took.",
	}, []string{"proxy_name", "to", "rcode"}))
	healthcheckFailures = existing(prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: "proxy", Name: "healthcheck_failures_total",
		Help: "Counter of the number of failed healthchecks.",
	}, []string{"proxy_name", "to"}))
	connCacheHits = existing(prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: "proxy", Name: "conn_cache_hits_total",
		Help: "Counter of connection cache hits per upstream and protocol.",
	}, []string{"proxy_name", "to", "proto"}))
	connCacheMisses = existing(prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: "proxy", Name: "conn_cache_misses_total",
		Help: "Counter of connection cache misses per upstream and protocol.",
	}, []string{"proxy_name", "to", "proto"}))
)

// existing returns the registered metric of a name, or registers it.
func existing[C prometheus.Collector](c C) C {
	err := prometheus.Register(c)
	if already := (prometheus.AlreadyRegisteredError{}); errors.As(err, &already) {
		if registered, ok := already.ExistingCollector.(C); ok {
			return registered
		}
	}
	if err != nil {
		panic(err) // CoreDNS has changed its metric
	}
	return c
}

// namespace is the namespace of metrics that CoreDNS does not have.
const namespace = "nearside"

var (
	up = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "up",
		Help: "Gauge that is 0 while an upstream is down by its checks, and 1 otherwise.",
	}, []string{"to"})
	connections = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "connections",
		Help: "Gauge of the open connections and UDP sockets to an upstream.",
	}, []string{"to", "proto"})
	inFlight = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "in_flight",
		Help: "Gauge of the queries in flight to an upstream.",
	}, []string{"to", "proto"})
	depth = promauto.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "pipelining_depth",
		Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000},
		Help:    "Histogram of the queries in flight on a connection when one is sent, including that one.",
	}, []string{"to", "proto"})
	fallbacks = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "fallbacks_total",
		Help: "Counter of fallbacks: queries answered over UDP because TCP does not work, or repeated over TCP because the answer was truncated, answers in another case than the query, and changes of an upstream to one query per connection.",
	}, []string{"to", "reason"})
	lateAnswers = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "late_answers_total",
		Help: "Counter of answers to queries that were cancelled, or answered by another upstream.",
	}, []string{"to", "proto"})
	droppedAnswers = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "dropped_answers_total",
		Help: "Counter of answers that do not match the query: with another id, question, or case of the name, malformed, or received before the query was sent.",
	}, []string{"to", "proto", "reason"})
	leaks = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "leaks_total",
		Help: "Counter of queries forwarded to outside resolvers with names that should not leave the cluster.",
	}, []string{"type", "zone"})
	packets = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "packets_total",
		Help: "Counter of datagrams and segments to and from an upstream.",
	}, []string{"to", "proto", "direction"})
)

// Metrics of the option coherent.
var (
	coherenceSessions = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "coherence_sessions",
		Help: "Gauge of the open sessions with an upstream.",
	}, []string{"to"})
	coherenceInvalidations = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "coherence_invalidations_total",
		Help: "Counter of the handles of answers that an upstream has invalidated.",
	}, []string{"to"})
	coherenceFallbacks = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: pluginName, Name: "coherence_fallbacks_total",
		Help: "Counter of the times that the answers of an upstream fell back to their TTL, because no session vouches for them.",
	}, []string{"to", "reason"})
)

// The values of the label reason of fallbacks.
const (
	fallbackUDP       = "udp"
	fallbackTruncated = "truncated"
	fallbackSingle    = "one_query_per_connection"
	fallbackCase      = "case"
)

// The values of the label proto.
const (
	protoUDP = "udp"
	protoTCP = "tcp"
	protoTLS = "tcp-tls"
)

// carrierMetrics returns the metrics of one carrier.
func carrierMetrics(to, proto string) *transport.Metrics {
	dropped := map[string]prometheus.Counter{}
	for _, reason := range transport.DropReasons() {
		dropped[reason] = droppedAnswers.WithLabelValues(to, proto, reason)
	}
	return &transport.Metrics{
		Connections: connections.WithLabelValues(to, proto), InFlight: inFlight.WithLabelValues(to, proto),
		Depth: depth.WithLabelValues(to, proto),
		Hits:  connCacheHits.WithLabelValues(pluginName, to, proto), Misses: connCacheMisses.WithLabelValues(pluginName, to, proto),
		Late: lateAnswers.WithLabelValues(to, proto), Single: fallbacks.WithLabelValues(to, fallbackSingle), Case: fallbacks.WithLabelValues(to, fallbackCase),
		Sent: packets.WithLabelValues(to, proto, "sent"), Received: packets.WithLabelValues(to, proto, "received"),
		Dropped: dropped,
	}
}

// series deletes the metrics of an address some time after its last upstream has ended, and the metrics of sessions after its last
// upstream with sessions: a hostname may have ever new addresses, and an alert fires for an upstream without a session.
type series struct {
	mu    sync.Mutex
	users map[string]users
	after time.Duration
}

// users are the numbers of the upstreams of an address.
type users struct{ all, coherent int }

var used = &series{users: map[string]users{}, after: time.Minute}

// begin counts an upstream of an address.
func (s *series) begin(to string, coherent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.add(to, coherent, 1).all == 1 {
		up.WithLabelValues(to).Set(1)
	}
}

// end ends the count of an upstream of an address, and deletes its metrics later.
func (s *series) end(to string, coherent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(to, coherent, -1)
	time.AfterFunc(s.after, func() { s.remove(to) })
}

// add adds n to the number of upstreams of an address. The mutex is locked.
func (s *series) add(to string, coherent bool, n int) users {
	u := s.users[to]
	u.all += n
	if coherent {
		u.coherent += n
	}
	s.users[to] = u
	return u
}

func (s *series) remove(to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own, u := prometheus.Labels{"to": to}, s.users[to]
	if u.coherent == 0 {
		for _, v := range []*prometheus.MetricVec{coherenceSessions.MetricVec, coherenceInvalidations.MetricVec, coherenceFallbacks.MetricVec} {
			v.DeletePartialMatch(own)
		}
	}
	if u.all > 0 {
		return
	}
	delete(s.users, to)
	for _, v := range []*prometheus.MetricVec{up.MetricVec, connections.MetricVec, inFlight.MetricVec, depth.MetricVec, fallbacks.MetricVec,
		lateAnswers.MetricVec, droppedAnswers.MetricVec, packets.MetricVec} {
		v.DeletePartialMatch(own)
	}
	own["proxy_name"] = pluginName
	for _, v := range []*prometheus.MetricVec{requestDuration.MetricVec, healthcheckFailures.MetricVec, connCacheHits.MetricVec, connCacheMisses.MetricVec} {
		v.DeletePartialMatch(own)
	}
}

// durations caches the histograms of one upstream by response code.
type durations struct {
	to     string
	byCode [16]atomic.Pointer[prometheus.Observer]
}

// forCode returns the histogram for a response code.
func (d *durations) forCode(rcode int) prometheus.Observer {
	if rcode >= len(d.byCode) {
		return d.find(rcode)
	}
	if known := d.byCode[rcode].Load(); known != nil {
		return *known
	}
	found := d.find(rcode)
	d.byCode[rcode].Store(&found)
	return found
}

func (d *durations) find(rcode int) prometheus.Observer {
	name, ok := dns.RcodeToString[rcode]
	if !ok {
		name = strconv.Itoa(rcode)
	}
	return requestDuration.WithLabelValues(pluginName, d.to, name)
}

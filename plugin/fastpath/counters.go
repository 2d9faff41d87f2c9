package fastpath

import (
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/coredns/coredns/plugin/pkg/rcode"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// counters count the answers for a zone as the plugins prometheus and cache do. A counter is looked up for the first answer,
// so that the metrics have no series without events.
type counters struct {
	server, zone string
	plugin       string      // name of the plugin after prometheus in the chain
	dns          bool        // prometheus is configured
	cache        block.Cache // that covers the zone, or nil

	requests  [protocols][families]lazy[*[monitoredTypes]lazy[prometheus.Counter]] // most zones have queries in few of these forms
	responses [16]lazy[prometheus.Counter]
	do        lazy[prometheus.Counter]
	observers [protocols]lazy[observers]
	lookups   lazy[block.CacheCounters]
}

type observers struct{ duration, requestSize, responseSize *histogram }

// The histograms of plugin prometheus.
var (
	requestDuration = export(vars.RequestDuration)
	requestSize     = export(vars.RequestSize)
	responseSize    = export(vars.ResponseSize)
)

// lazy is a value that is made at its first use. Concurrent first uses may make it twice, with equal results.
type lazy[T any] struct{ p atomic.Pointer[T] }

func (l *lazy[T]) get(make func() T) T {
	if p := l.p.Load(); p != nil {
		return *p
	}
	made := make()
	l.p.Store(&made)
	return made
}

// The labels of a query, by index.
const (
	protocols      = 2 // UDP, TCP
	protocolTCP    = 1
	families       = 2 // IPv4, IPv6
	monitoredTypes = 257
	otherType      = 256 // all types without a label of their own
)

var protocolLabels = [protocols]string{"udp", "tcp"}

// typeLabels are the labels of types in CoreDNS's metrics; those with a label of their own are below 256.
var typeLabels = func() (types [monitoredTypes]string) {
	for i := range types {
		types[i] = "other"
	}
	for _, t := range []uint16{
		dns.TypeA, dns.TypeAAAA, dns.TypeCNAME, dns.TypeDNSKEY, dns.TypeDS, dns.TypeHTTPS, dns.TypeMX, dns.TypeNS,
		dns.TypeNSEC, dns.TypeNSEC3, dns.TypePTR, dns.TypeRRSIG, dns.TypeSOA, dns.TypeSRV, dns.TypeSVCB, dns.TypeTXT,
		dns.TypeIXFR, dns.TypeAXFR, dns.TypeANY,
	} {
		types[t] = dns.TypeToString[t]
	}
	return types
}()

// hit is an answer from the store, with its labels and sizes in the metrics.
type hit struct {
	counters     *counters
	protocol     uint8 // 0 for UDP, 1 for TCP
	family       uint8 // 0 for IPv4, 1 for IPv6
	do           bool
	cached       bool
	beforeCache  bool // the answer is of a plugin before cache in the chain
	counted      bool // cache has counted it
	restored     bool // an earlier process has received it
	kind         store.Kind
	rcode        uint8
	qtype        uint16
	requestSize  uint16
	responseSize uint16 // without the OPT record that is added later, as prometheus counts
}

// set sets the hit for the answer of an entry to a query of queryLen bytes.
func (h *hit) set(c *counters, e *store.Entry, q *wire.Query, rcode int, client netip.Addr, queryLen int) {
	*h = hit{
		counters: c, do: q.DO, cached: e.Cached, beforeCache: e.Count != nil, kind: e.Kind, restored: e.Restored,
		rcode: uint8(rcode), qtype: q.Type, // #nosec G115 -- a code of four bits
		requestSize: uint16(queryLen), responseSize: uint16(e.CountedLen()), // #nosec G115 -- at most 64 KiB
	}
	if !client.Is4() {
		h.family = 1
	}
	if q.EDNS && len(e.Options) > 0 {
		h.responseSize += wire.OPTLen + uint16(len(e.Options)) // #nosec G115
	}
}

// lookup returns the counters of plugin cache.
func (c *counters) lookup() block.CacheCounters {
	return c.lookups.get(func() block.CacheCounters { return c.cache.Counters(c.server) })
}

// count counts an answer, given the time since the query was received.
func (h *hit) count(took time.Duration) { h.countMany(1, took) }

// countMany counts equal answers, given the time that each of them took.
func (h *hit) countMany(n uint64, took time.Duration) {
	c, number := h.counters, float64(n)
	if c.cache != nil && !h.beforeCache && !h.counted {
		l := c.lookup()
		l.Requests.Add(number)
		if h.cached {
			l.Hits[h.kind].Add(number)
			if h.restored {
				l.Restored.Add(number)
			}
		} else {
			l.Misses.Add(number) // a plugin after cache has answered
		}
	}
	if !c.dns {
		return
	}
	if h.do {
		c.do.get(func() prometheus.Counter { return vars.RequestDo.WithLabelValues(c.server, c.zone, "") }).Add(number)
	}
	qtype := min(h.qtype, otherType)
	requests := c.requests[h.protocol][h.family].get(func() *[monitoredTypes]lazy[prometheus.Counter] { return new([monitoredTypes]lazy[prometheus.Counter]) })
	requests[qtype].get(func() prometheus.Counter {
		family := strconv.Itoa(int(h.family) + 1)
		return vars.RequestCount.WithLabelValues(c.server, c.zone, "", protocolLabels[h.protocol], family, typeLabels[qtype])
	}).Add(number)
	c.responses[h.rcode].get(func() prometheus.Counter {
		return vars.ResponseRcode.WithLabelValues(c.server, c.zone, "", rcode.ToString(int(h.rcode)), c.plugin)
	}).Add(number)
	o := c.observers[h.protocol].get(func() observers {
		return observers{
			duration:     requestDuration.with(c.server, c.zone, ""),
			requestSize:  requestSize.with(c.server, c.zone, "", protocolLabels[h.protocol]),
			responseSize: responseSize.with(c.server, c.zone, "", protocolLabels[h.protocol]),
		}
	})
	o.duration.observe(n, took.Seconds())
	o.responseSize.observe(n, float64(h.responseSize))
	o.requestSize.observe(n, float64(h.requestSize))
}

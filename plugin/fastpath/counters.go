package fastpath

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/coredns/coredns/plugin/pkg/rcode"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/block"
)

// counters count the answers of a zone as the plugins prometheus and cache do. They are looked up when
// the first answer is counted, so that nothing shows up in the metrics that never happened.
type counters struct {
	server, zone string
	plugin       string      // the one behind prometheus
	dns          bool        // there is prometheus
	cache        block.Cache // the one that is asked for names of the zone, or nil

	requests  [families][monitoredTypes]lazy[prometheus.Counter]
	responses [16]lazy[prometheus.Counter]
	do        lazy[prometheus.Counter]
	observers lazy[observers]
	lookups   lazy[block.CacheCounters]
}

type observers struct{ duration, requestSize, responseSize prometheus.Observer }

// lazy is a value that is made when it is first asked for. Made twice it is the same.
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
	families       = 2 // IPv4, IPv6
	monitoredTypes = 257
	otherType      = 256 // what metrics do not name
)

// named are the types that CoreDNS's metrics name; what is asked for here is below 256.
var named = func() (types [monitoredTypes]string) {
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

// given is an answer that was given.
type given struct {
	counters     *counters
	family       uint8
	do           bool
	cached       bool
	ahead        bool // a plugin in front of the cache keeps it
	kind         answers.Kind
	rcode        uint8
	qtype        uint16
	requestSize  uint16
	responseSize uint16 // as metrics have it: before an OPT record is added
}

// count counts an answer, which took a time from its arrival.
func (g *given) count(took time.Duration) {
	c := g.counters
	if c.cache != nil && !g.ahead {
		l := c.lookups.get(func() block.CacheCounters { return c.cache.Counters(c.server) })
		l.Requests.Inc()
		if g.cached {
			l.Hits[g.kind].Inc()
		} else {
			l.Misses.Inc() // the plugin behind it has answered
		}
	}
	if !c.dns {
		return
	}
	if g.do {
		c.do.get(func() prometheus.Counter { return vars.RequestDo.WithLabelValues(c.server, c.zone, "") }).Inc()
	}
	qtype := min(g.qtype, otherType)
	c.requests[g.family][qtype].get(func() prometheus.Counter {
		family := strconv.Itoa(int(g.family) + 1)
		return vars.RequestCount.WithLabelValues(c.server, c.zone, "", "udp", family, named[qtype])
	}).Inc()
	c.responses[g.rcode].get(func() prometheus.Counter {
		return vars.ResponseRcode.WithLabelValues(c.server, c.zone, "", rcode.ToString(int(g.rcode)), c.plugin)
	}).Inc()
	o := c.observers.get(func() observers {
		return observers{
			duration:     vars.RequestDuration.WithLabelValues(c.server, c.zone, ""),
			requestSize:  vars.RequestSize.WithLabelValues(c.server, c.zone, "", "udp"),
			responseSize: vars.ResponseSize.WithLabelValues(c.server, c.zone, "", "udp"),
		}
	})
	o.duration.Observe(took.Seconds())
	o.responseSize.Observe(float64(g.responseSize))
	o.requestSize.Observe(float64(g.requestSize))
}

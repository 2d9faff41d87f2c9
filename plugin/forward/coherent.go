package forward

import (
	"context"
	"sync"
	"time"

	protocols "github.com/coredns/coredns/plugin/pkg/transport"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
)

// isCoherent reports whether connections to the upstream have sessions.
func (u *upstream) isCoherent() bool { return u.c.coherent && u.protocol == protocols.DNS }

// coherence returns the configuration of the sessions, nil for none. maxAge limits the age of a connection with a session.
func (u *upstream) coherence(maxAge time.Duration) *transport.Coherence {
	if !u.isCoherent() {
		return nil
	}
	byReason := map[string]prometheus.Counter{}
	for _, reason := range transport.FallbackReasons() {
		byReason[reason] = coherenceFallbacks.WithLabelValues(u.address, reason)
	}
	return &transport.Coherence{
		Now: validity.Now, MaxAge: maxAge, Lost: u.lost,
		Sessions:      coherenceSessions.WithLabelValues(u.address),
		Invalidations: coherenceInvalidations.WithLabelValues(u.address),
		Fallbacks:     byReason,
	}
}

// openSession opens a session before the first query.
func (u *upstream) openSession() {
	if u.pool != nil {
		u.pool.OpenSession()
	}
}

// notifies reports whether the upstream gets requests for notification.
func (u *upstream) notifies() bool { return u.pool != nil && u.pool.Notifies() }

// vouches reports whether a session of the upstream vouches for its answers now: the session of the call's connection, or any
// session if the call is nil.
func (u *upstream) vouches(call *transport.Call) bool { return u.pool != nil && u.pool.Vouches(call) }

type withoutVoucherKey struct{}

// withoutVoucher returns a context for a query that is passed on to the next plugin. The reply to the client also depends on the
// reply to this stanza, for which a voucher of the next stanza does not vouch.
func withoutVoucher(ctx context.Context) context.Context {
	return context.WithValue(ctx, withoutVoucherKey{}, true)
}

// setVoucher sets the voucher of the reply to a query, for the cache that has passed on the query.
func setVoucher(ctx context.Context, query *dns.Msg, v *vouch.Voucher) {
	if v == nil || ctx.Value(withoutVoucherKey{}) != nil {
		return
	}
	if p := store.PropertiesOf(ctx, query); p != nil {
		p.Voucher = v
	}
}

// heartbeatAges is the metric of the ages of heartbeats. It is computed when it is collected.
type heartbeatAges struct {
	desc *prometheus.Desc

	mu        sync.Mutex
	upstreams map[*upstream]struct{}
}

var ages = newHeartbeatAges()

func newHeartbeatAges() *heartbeatAges {
	a := &heartbeatAges{
		desc: prometheus.NewDesc(prometheus.BuildFQName(namespace, pluginName, "coherence_heartbeat_age_seconds"),
			"Gauge of the time since the last heartbeat of an upstream with an open session.", []string{"to"}, nil),
		upstreams: map[*upstream]struct{}{},
	}
	prometheus.MustRegister(a)
	return a
}

func (a *heartbeatAges) add(u *upstream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.upstreams[u] = struct{}{}
}

func (a *heartbeatAges) remove(u *upstream) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.upstreams, u)
}

// Describe implements prometheus.Collector.
func (a *heartbeatAges) Describe(to chan<- *prometheus.Desc) { to <- a.desc }

// Collect implements prometheus.Collector. Several stanzas may have the same upstream: the oldest heartbeat counts.
func (a *heartbeatAges) Collect(to chan<- prometheus.Metric) {
	a.mu.Lock()
	defer a.mu.Unlock()
	byAddress := map[string]time.Duration{}
	for u := range a.upstreams {
		if age, ok := u.pool.HeartbeatAge(); ok {
			byAddress[u.address] = max(byAddress[u.address], age)
		}
	}
	for address, age := range byAddress {
		to <- prometheus.MustNewConstMetric(a.desc, prometheus.GaugeValue, age.Seconds(), address)
	}
}

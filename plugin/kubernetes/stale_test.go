package kubernetes

import (
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// extendedError returns the extended error of a reply, -1 without one.
func extendedError(m *dns.Msg) int {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if e, ok := o.(*dns.EDNS0_EDE); ok {
				return int(e.InfoCode)
			}
		}
	}
	return -1
}

// TestStale answers from records of a snapshot, and then from those of the source.
func TestStale(t *testing.T) {
	k := smallCluster(t, "kubernetes cluster.local in-addr.arpa {\nttl 60\npods verified\nsnapshot /snapshot\n}")
	k.space = answers.NewStore(1 << 20).NewKeyspace()
	k.space.ByGeneration.Store(true)
	status := []source.Status{{Resource: source.Services, Restored: true}, {Resource: source.Nodes, Synced: true}}
	k.attach(k.index, func() []source.Status { return status })
	k.synced.Store(false)
	edns := func(r *dns.Msg) *dns.Msg { return r.SetEdns0(1232, false) }
	plain := func(r *dns.Msg) *dns.Msg { return r }
	check := func(t *testing.T, question string, edit func(*dns.Msg) *dns.Msg, ttl uint32, extended int) {
		t.Helper()
		name, qtype, _ := strings.Cut(question, " ")
		r := edit(new(dns.Msg).SetQuestion(name, dns.StringToType[qtype]))
		m := askMsg(t, k, r)
		all := append(append(append([]dns.RR{}, m.Answer...), m.Ns...), m.Extra...)
		for _, rr := range all {
			if rr.Header().Rrtype != dns.TypeOPT && rr.Header().Ttl != ttl {
				t.Errorf("%s: %s, want a TTL of %d", question, rr, ttl)
			}
			if soa, ok := rr.(*dns.SOA); ok && soa.Minttl != ttl {
				t.Errorf("%s: %s, want a minimum of %d", question, rr, ttl)
			}
		}
		if got := extendedError(m); got != extended {
			t.Errorf("%s: extended error %d, want %d", question, got, extended)
		}
		if m.Rcode == dns.RcodeServerFailure || len(all) == 0 {
			t.Errorf("%s: %s", question, m)
		}
	}
	for _, tc := range []struct {
		question string
		edit     func(*dns.Msg) *dns.Msg
		extended int
	}{
		{"web.shop.svc.cluster.local. A", edns, 3},
		{"web.shop.svc.cluster.local. A", plain, -1},
		{"_sql._tcp.db.shop.svc.cluster.local. SRV", edns, 3},
		{"1.0.0.10.in-addr.arpa. PTR", edns, 3},
		{"web.shop.svc.cluster.local. MX", edns, 3},
		{"none.shop.svc.cluster.local. A", edns, 19},
		{"none.shop.svc.cluster.local. A", plain, -1},
		{"in.shop.svc.cluster.local. A", edns, 3},
		{"web.default.svc.cluster.local. A", func(r *dns.Msg) *dns.Msg { return withList(t, edns(r), listShop...) }, 19},
	} {
		check(t, tc.question, tc.edit, staleTTL, tc.extended)
		check(t, tc.question, tc.edit, staleTTL, tc.extended) // nothing was stored, nor were its records changed
	}
	if k.Ready() {
		t.Error("ready")
	}
	k.staleIsReady = true
	if !k.Ready() {
		t.Error("not ready with snapshot_ready")
	}
	if _, err := k.Transfer("cluster.local.", 0); err == nil {
		t.Error("the zone is transferred")
	}
	if (exposedServices{k}).Synced() {
		t.Error("plugin k8s_external answers")
	}
	status = []source.Status{{Resource: source.Services}, {Resource: source.Nodes, Synced: true}} // the snapshot is refused afterwards
	if m := askMsg(t, k, new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA)); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("without records: %s", m)
	}
	status = []source.Status{{Resource: source.Services, Synced: true}, {Resource: source.Nodes, Synced: true}}
	check(t, "web.shop.svc.cluster.local. A", edns, 60, -1)
	if _, err := k.Transfer("cluster.local.", 0); err != nil {
		t.Errorf("the zone is not transferred: %v", err)
	}
}

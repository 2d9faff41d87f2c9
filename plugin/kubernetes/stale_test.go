package kubernetes

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
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
	k.space = store.NewStore(1 << 20).NewKeyspace()
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

// TestSnapshotFiles has two blocks with one file: it is an error if they read other records.
func TestSnapshotFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	block := func(zone, options string) string {
		return zone + ":0 {\nkubernetes " + zone + " {\nendpoint http://127.0.0.1:1\nstartup_timeout 0s\nsnapshot " + path + "\n" + options + "\n}\n}\n"
	}
	for _, tc := range []struct{ name, corefile, want string }{
		{"the same records", block("a.test", "ttl 30") + block("b.test", "pods insecure"), ""},
		{"other records", block("a.test", "") + block("b.test", "pods verified"), "Corefile:13 - Error during parsing: snapshot: " + path + " is the file of Corefile:5, which reads other records: want one for each"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inst, err := run(t, tc.corefile)
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("error %v, want %s", err, tc.want)
				}
				return
			}
			kit.Must(t, err)
			if errs := inst.ShutdownCallbacks(); len(errs) > 0 {
				t.Error(errs)
			}
			if err := inst.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStale_Optional has read all but ServiceImports and Nodes, which are those of a snapshot: only answers that depend on them are stale.
func TestStale_Optional(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	k.attach(indexOf(k), func() []source.Status {
		return []source.Status{{Resource: source.Services, Synced: true}, {Resource: source.Nodes, Restored: true}, {Resource: source.ServiceImports, Restored: true}}
	})
	k.synced.Store(false)
	k.nodesSynced.Store(false)
	for name, want := range map[string]int{"plain": -1, "close": 3} {
		r := new(dns.Msg).SetQuestion(name+".shop.svc.cluster.local.", dns.TypeA).SetEdns0(1232, false)
		if got := extendedError(askMsg(t, k, r)); got != want {
			t.Errorf("%s: extended error %d, want %d", name, got, want)
		}
	}
	if !k.synced.Load() || k.nodesSynced.Load() || !k.Ready() {
		t.Errorf("synced %t, nodes synced %t, ready %t", k.synced.Load(), k.nodesSynced.Load(), k.Ready())
	}
	k = placedImports(t, "kubernetes cluster.local clusterset.local {\nmulticluster clusterset.local\n}")
	k.attach(indexOf(k), func() []source.Status {
		return []source.Status{{Resource: source.Services, Synced: true}, {Resource: source.ServiceImports, Restored: true}}
	})
	for name, want := range map[string]int{"plain.shop.svc.clusterset.local.": 3, "plain.shop.svc.cluster.local.": -1} {
		r := new(dns.Msg).SetQuestion(name, dns.TypeA).SetEdns0(1232, false)
		if got := extendedError(askMsg(t, k, r)); got != want {
			t.Errorf("%s: extended error %d, want %d", name, got, want)
		}
	}
}

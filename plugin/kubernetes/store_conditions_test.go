package kubernetes

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

// storedObjects are a cluster with objects of every kind.
func storedObjects() []runtime.Object {
	web := service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80))
	db := service("shop", "db", headless, tcp("sql", 5432))
	return []runtime.Object{
		namespace("shop"), namespace("team"), web, db,
		service("shop", "idle", []string{"10.0.0.2"}),
		slice(web, "a", endpoint("10.1.0.1")), slice(db, "a", endpoint("10.1.0.2", hostname("db-0"), inZone("east"))),
		externalName("shop", "out", "www.example.org"), externalName("shop", "in", "web.shop.svc.cluster.local"),
		externalName("shop", "self", "ns.dns.cluster.local"),
		podIn("shop", "p", corev1.PodRunning, "10.1.0.7"),
	}
}

// questionFor returns a query for "owner TYPE" as it is unpacked.
func questionFor(t testing.TB, question string) *dns.Msg {
	t.Helper()
	owner, qtype, _ := strings.Cut(question, " ")
	if _, ok := dns.StringToType[qtype]; !ok {
		t.Fatalf("%q has no type", question)
	}
	return new(dns.Msg).SetQuestion(dns.Fqdn(owner), dns.StringToType[qtype])
}

// storedFor sends a query and returns the entry that is stored then, or nil.
func (s *storing) storedFor(t testing.TB, r *dns.Msg) *store.Entry {
	t.Helper()
	query := kit.Pack(t, r)
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	if _, err := s.front.ServeDNS(context.Background(), request.NewScrubWriter(r, w), r); err != nil {
		t.Fatal(err)
	}
	e, _ := s.entry(query)
	return e
}

// checkUntil stores the answer to a query, and asserts whether it is valid after a change.
func (s *storing) checkUntil(t *testing.T, r *dns.Msg, change func(*index.Index), outlives bool) {
	t.Helper()
	e := s.storedFor(t, r)
	if e == nil || !e.Fresh(validity.Now()) {
		t.Fatal("the answer is not stored")
	}
	change(indexOf(s.k))
	if got := e.Fresh(validity.Now()); got != outlives {
		t.Errorf("the answer is valid afterwards: %v, want %v", got, outlives)
	}
}

func (s *storing) len() int { return s.space.Len(store.Success) + s.space.Len(store.Denial) }

// TestStored_What asserts which answers are stored.
func TestStored_What(t *testing.T) {
	const options = "pods verified\nzonal\nfallthrough ip6.arpa"
	for _, c := range []struct {
		name, ask string
		stored    bool
		alter     func(*dns.Msg)
	}{
		{name: "ClusterIP", ask: "web.shop.svc.cluster.local A", stored: true},
		{name: "ClusterIP of the other family", ask: "web.shop.svc.cluster.local AAAA", stored: true},
		{name: "SRV", ask: "_http._tcp.web.shop.svc.cluster.local SRV", stored: true},
		{name: "headless", ask: "db.shop.svc.cluster.local A", stored: true},
		{name: "endpoint", ask: "db-0.db.shop.svc.cluster.local A", stored: true},
		{name: "zonal", ask: "east.pin._zone.db.shop.svc.cluster.local A", stored: true},
		{name: "type without records", ask: "web.shop.svc.cluster.local MX", stored: true},
		{name: "no Service", ask: "none.shop.svc.cluster.local A", stored: true},
		{name: "no namespace", ask: "web.none.svc.cluster.local A", stored: true},
		{name: "outside of the schema", ask: "www.example.org.shop.svc.cluster.local A", stored: true},
		{name: "pod", ask: "10-1-0-7.shop.pod.cluster.local A", stored: true},
		{name: "PTR", ask: "2.0.1.10.in-addr.arpa PTR", stored: true},
		{name: "no PTR", ask: "99.0.1.10.in-addr.arpa PTR", stored: true},
		{name: "namespace", ask: "shop.svc.cluster.local A", stored: true},
		{name: "apex, NODATA", ask: "cluster.local A", stored: true},
		{name: "schema version", ask: "dns-version.cluster.local TXT", stored: true},
		{name: "CNAME", ask: "out.shop.svc.cluster.local CNAME", stored: true},
		{name: "alias, NODATA", ask: "out.shop.svc.cluster.local TXT", stored: true},
		{name: "EDNS", ask: "web.shop.svc.cluster.local A", stored: true, alter: func(m *dns.Msg) { m.SetEdns0(1232, false) }},

		{name: "alias of a name elsewhere", ask: "out.shop.svc.cluster.local A"},
		{name: "alias of a name in the cluster", ask: "in.shop.svc.cluster.local A", stored: true},
		{name: "alias of a name of the server", ask: "self.shop.svc.cluster.local A"},
		{name: "SOA, with the serial as data", ask: "cluster.local SOA"},
		{name: "NS", ask: "cluster.local NS"},
		{name: "name of the server", ask: "ns.dns.cluster.local A"},
		{name: "fallthrough", ask: "9.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa PTR"},
		{name: "another zone", ask: "www.example.org A"},
		{name: "DS", ask: "web.shop.svc.cluster.local DS"},
		{name: "upper case", ask: "Web.shop.svc.cluster.local A"},
		{name: "another class", ask: "web.shop.svc.cluster.local A", alter: func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }},
		{name: "another opcode", ask: "web.shop.svc.cluster.local A", alter: func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := newStoring(t, allZones+" {\n"+options+"\n}", storedObjects()...)
			r := questionFor(t, c.ask)
			if c.alter != nil {
				c.alter(r)
			}
			e := s.storedFor(t, r)
			if got := s.len() > 0; got != c.stored {
				t.Errorf("stored is %v, want %v", got, c.stored)
			}
			if c.stored && (e == nil || !e.Fresh(validity.Now())) {
				t.Errorf("the entry %v is not valid under the key of the query", e)
			}
		})
	}
}

// No answer is stored before the first sync, not even a fixed one, and none without a store that uses it.
func TestStored_WhenNot(t *testing.T) {
	for _, question := range []string{"web.shop.svc.cluster.local A", "none.shop.svc.cluster.local A", "cluster.local A", "dns-version.cluster.local TXT"} {
		t.Run(question, func(t *testing.T) {
			s, _ := newStoring(t, allZones, storedObjects()...)
			unsynced(s.k)
			if s.storedFor(t, questionFor(t, question)); s.len() > 0 {
				t.Error("stored before the first sync")
			}
			s, _ = newStoring(t, allZones, storedObjects()...)
			s.space.ByGeneration.Store(false)
			if s.storedFor(t, questionFor(t, question)); s.len() > 0 {
				t.Error("stored though there is no fast path")
			}
		})
	}
}

// The first sync may end during a query. An answer made from a part of the records is not returned.
func TestServeDNS_SyncedDuringTheLook(t *testing.T) {
	s, _ := newStoring(t, allZones, storedObjects()...)
	ready := s.k.status
	unsynced(s.k)
	not := s.k.status
	asked := 0
	s.k.status = func() []source.Status {
		if asked++; asked == 1 {
			return not()
		}
		return ready()
	}
	if m := ask(t, s.k, "none.shop.svc.cluster.local A"); m.Rcode != dns.RcodeServerFailure || s.len() > 0 {
		t.Errorf("rcode is %s and %d answers are stored", dns.RcodeToString[m.Rcode], s.len())
	}
}

// TestStored_Until asserts which changes end the validity of an answer.
func TestStored_Until(t *testing.T) {
	ip := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	const (
		web  = "web.shop.svc.cluster.local A"
		none = "none.shop.svc.cluster.local A"
		ptr  = "2.0.1.10.in-addr.arpa PTR"
		pod  = "10-1-0-7.shop.pod.cluster.local A"
		idle = "idle.shop.svc.cluster.local A"
	)
	for _, c := range []struct {
		name, ask string
		change    func(*index.Index)
		outlives  bool
	}{
		{"another Service changes", web, func(ix *index.Index) { ix.PutService(&index.Service{Namespace: "shop", Name: "db"}) }, true},
		{"another Service is created", web, func(ix *index.Index) { ix.PutService(&index.Service{Namespace: "shop", Name: "new"}) }, true},
		{"another Service is deleted", web, func(ix *index.Index) { ix.DeleteService("shop", "db") }, true},
		{"the Service changes", web, func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "shop", Name: "web", IPs: ip("10.0.0.9")})
		}, false},
		{"the Service is deleted", web, func(ix *index.Index) { ix.DeleteService("shop", "web") }, false},
		{"the namespace is deleted", web, func(ix *index.Index) { ix.DeleteNamespace("shop") }, false},
		{"NXDOMAIN, another Service changes", none, func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "shop", Name: "web", IPs: ip("10.0.0.9")})
		}, true},
		{"NXDOMAIN, a Service of another namespace is created", none, func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "team", Name: "none"})
		}, true},
		{"NXDOMAIN, the Service is created", none, func(ix *index.Index) { ix.PutService(&index.Service{Namespace: "shop", Name: "none"}) }, false},
		{"NXDOMAIN, an EndpointSlice comes before its Service", none, func(ix *index.Index) {
			ix.PutSlice(&index.Slice{Namespace: "shop", Name: "none-1", Service: "none", Endpoints: []index.Endpoint{{Addr: ip("10.1.0.9")[0]}}})
		}, true},
		{"ignore empty_service, an endpoint becomes ready", idle, func(ix *index.Index) {
			ix.PutSlice(&index.Slice{Namespace: "shop", Name: "idle-1", Service: "idle", Endpoints: []index.Endpoint{{Addr: ip("10.1.0.9")[0]}}})
		}, false},
		{"PTR, the endpoint is deleted", ptr, func(ix *index.Index) { ix.DeleteSlice("shop", "db-a") }, false},
		{"PTR, its Service is deleted", ptr, func(ix *index.Index) { ix.DeleteService("shop", "db") }, false},
		{"PTR, another address", ptr, func(ix *index.Index) { ix.DeleteSlice("shop", "web-a") }, true},
		{"pod is deleted", pod, func(ix *index.Index) { ix.DeletePod("shop", "p") }, false},
		{"another pod is created", pod, func(ix *index.Index) { ix.PutPod(&index.Pod{Namespace: "shop", Name: "q", IPs: ip("10.1.0.8")}) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := newStoring(t, allZones+" {\npods verified\nignore empty_service\n}", storedObjects()...)
			s.checkUntil(t, questionFor(t, c.ask), c.change, c.outlives)
		})
	}
}

// A stored negative answer is returned with the current serial.
func TestStored_Serial(t *testing.T) {
	s, _ := newStoring(t, allZones, storedObjects()...)
	query := kit.Pack(t, questionFor(t, "none.shop.svc.cluster.local A"))
	if _, err := packedReply(s.front, query, testClients[0]); err != nil {
		t.Fatal(err)
	}
	before := s.stored(query, testClients[0])
	if before == nil {
		t.Fatal("the answer is not stored")
	}
	// The serial is in seconds.
	for port, was := int32(1), s.k.index.Modified(); s.k.index.Modified() == was; port++ {
		if port > 500 {
			t.Fatal("the serial does not change with changes")
		}
		time.Sleep(10 * time.Millisecond)
		indexOf(s.k).PutService(&index.Service{Namespace: "shop", Name: "web", Ports: []index.Port{{Number: port}}})
	}
	got := s.stored(query, testClients[0])
	if string(got) == string(before) {
		t.Error("the serial is the one of before")
	}
	want, err := packedReply(s.plain, query, testClients[0])
	kit.Must(t, err)
	if err := same(got, want); err != nil {
		t.Error(err)
	}
}

// afterwards is a client that changes the cluster after it received its answer and before the cache in front stores
// it.
type afterwards struct {
	dns.ResponseWriter
	change func()
}

func (w *afterwards) WriteMsg(m *dns.Msg) error {
	w.change()
	return w.ResponseWriter.WriteMsg(m)
}

// An answer that is stored after the change that outdated it is not valid.
func TestStored_PutTooLate(t *testing.T) {
	for _, question := range []string{"web.shop.svc.cluster.local A", "none.shop.svc.cluster.local A", "1.0.0.10.in-addr.arpa PTR"} {
		t.Run(question, func(t *testing.T) {
			s, _ := newStoring(t, allZones, storedObjects()...)
			s.withCache()
			r := questionFor(t, question)
			ctx, conditions := store.Record(context.Background(), r)
			w := dnstest.NewRecorder(&test.ResponseWriter{})
			late := &afterwards{w, func() {
				indexOf(s.k).DeleteService("shop", "web")
				indexOf(s.k).PutService(&index.Service{Namespace: "shop", Name: "none"})
			}}
			query := kit.Pack(t, r)
			if _, err := s.k.ServeDNS(ctx, late, r); err != nil {
				t.Fatal(err)
			}
			s.space.PutReply(r, w.Msg, &conditions.Properties)
			if e, _ := s.entry(query); e == nil || e.Fresh(validity.Now()) {
				t.Errorf("the entry is %v, want one that is not valid", e)
			}
		})
	}
}

// again is a plugin between a cache and kubernetes that queries other names first, as autopath does.
type again struct {
	next  plugin.Handler
	first string
}

func (a *again) Name() string { return "again" }

func (a *again) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	first := r.Copy()
	first.Question[0].Name = a.first
	if _, err := a.next.ServeDNS(ctx, dnstest.NewRecorder(&test.ResponseWriter{}), first); err != nil {
		return dns.RcodeServerFailure, err
	}
	return a.next.ServeDNS(ctx, w, r)
}

// nested is a server that looks up targets through the chain.
type nested struct{ h plugin.Handler }

func (n *nested) Lookup(ctx context.Context, _ request.Request, name string, qtype uint16) (*dns.Msg, error) {
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	_, err := n.h.ServeDNS(ctx, w, new(dns.Msg).SetQuestion(name, qtype))
	return w.Msg, err
}

// A cache in front receives the properties of the answer to its query, and of no other one.
func TestConditions(t *testing.T) {
	for _, c := range []struct {
		name, ask string
		first     string // queried first by a plugin between
		known     bool
	}{
		{name: "a Service", ask: "web.shop.svc.cluster.local A", known: true},
		{name: "upper case", ask: "Web.SHOP.svc.cluster.local A", known: true},
		{name: "NXDOMAIN", ask: "none.shop.svc.cluster.local A", known: true},
		{name: "alias of a name elsewhere", ask: "out.shop.svc.cluster.local A"},
		{name: "alias of a name in another zone of the server", ask: "other.shop.svc.cluster.local A"},
		{name: "another zone", ask: "www.example.org A"},
		{name: "another zone, after a name of the cluster", ask: "www.example.org A", first: "none.shop.svc.cluster.local."},
		{name: "fallthrough, after a name of the cluster", ask: "99.0.1.10.in-addr.arpa PTR", first: "none.shop.svc.cluster.local."},
		{name: "NS, after a name of the cluster", ask: "cluster.local NS", first: "none.shop.svc.cluster.local."},
		{name: "DS, after a name of the cluster", ask: "web.shop.svc.cluster.local DS", first: "none.shop.svc.cluster.local."},
	} {
		t.Run(c.name, func(t *testing.T) {
			objects := append(storedObjects(), externalName("shop", "other", "web.shop.svc.other.local"))
			s, _ := newStoring(t, allZones+" {\nfallthrough in-addr.arpa\n}", objects...)
			other := answering(t, "kubernetes other.local", storedObjects()...)
			other.Next = s.k.Next
			s.k.upstream = &nested{other}
			s.front = s.k
			if c.first != "" {
				s.front = &again{s.k, c.first}
			}
			r := questionFor(t, c.ask)
			ctx, conditions := store.Record(context.Background(), r)
			w := dnstest.NewRecorder(&test.ResponseWriter{})
			if _, err := s.front.ServeDNS(ctx, w, r); err != nil || w.Msg == nil {
				t.Fatalf("error %v, reply %v", err, w.Msg)
			}
			if got := conditions.ByGeneration(); got != c.known {
				t.Errorf("there are conditions: %v, want %v", got, c.known)
			}
			if c.first == "" && s.len() > 0 {
				t.Error("the handler keeps the answer itself")
			}
			if negative := len(w.Msg.Answer) == 0; c.known && negative != (conditions.Serial != nil) {
				t.Errorf("the present serial is %v", conditions.Serial)
			}
		})
	}
}

// An answer is correct for a query in another case unless another name in it follows the case of the query.
func TestConditions_AnyCase(t *testing.T) {
	for _, c := range []struct {
		ask string
		any bool
	}{
		{"web.shop.svc.cluster.local A", true},
		{"db.shop.svc.cluster.local A", true},
		{"out.shop.svc.cluster.local CNAME", true},
		{"1.0.0.10.in-addr.arpa PTR", true},
		{"dns-version.cluster.local TXT", true},
		{"web.shop.svc.cluster.local SRV", false},
		{"web.shop.svc.cluster.local TXT", false},
		{"none.shop.svc.cluster.local A", false},
	} {
		t.Run(c.ask, func(t *testing.T) {
			s, _ := newStoring(t, allZones, storedObjects()...)
			e := s.storedFor(t, questionFor(t, c.ask))
			if e == nil {
				t.Fatal("the answer is not stored")
			}
			if e.AnyCase != c.any {
				t.Errorf("it is right in any case: %v, want %v", e.AnyCase, c.any)
			}
		})
	}
}

package kubernetes

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

// readable asserts that a client can unpack a message.
func readable(t *testing.T, m *dns.Msg) {
	t.Helper()
	m.Compress = true
	packed, err := m.Pack()
	if err == nil {
		err = new(dns.Msg).Unpack(packed)
	}
	if err != nil {
		t.Errorf("%v of\n%v", err, m)
	}
}

// TestClusterset_OverlongNames has an endpoint whose name would be longer than 255 octets: the ServiceImport has its
// address, but the endpoint has no name of its own.
func TestClusterset_OverlongNames(t *testing.T) {
	name, ns := strings.Repeat("s", 63), strings.Repeat("n", 63)
	db := imported(ns, name, headless, tcp("sql", 5432))
	k := answering(t, clusterset(), namespace(ns), db,
		importedSlice(db, strings.Repeat("c", 63), "long", endpoint("10.2.1.1", hostname(strings.Repeat("h", 63)))),
		importedSlice(db, "east", "short", endpoint("10.2.1.2", hostname("b"))))
	for q, want := range map[string]int{" A": 2, " SRV": 1} {
		m := ask(t, k, name+"."+ns+inSet+q)
		readable(t, m)
		if len(m.Answer) != want {
			t.Errorf("%s: %d records, want %d", q, len(m.Answer), want)
		}
	}
	for _, rr := range transferred(t, k, "clusterset.local.") {
		readable(t, &dns.Msg{Answer: []dns.RR{rr}})
	}
}

// TestClusterset_UnvalidatedPorts has ports that a custom resource may have.
func TestClusterset_UnvalidatedPorts(t *testing.T) {
	k := answering(t, clusterset(), namespace("shop"),
		imported("shop", "web", []string{"10.100.0.1"}, tcp("http", 80), tcp("high", 65616), tcp("low", -5), tcp("none", 0), tcp("a..b", 81),
			tcp("a b", 82), tcp(strings.Repeat("p", 64), 83), corev1.ServicePort{Name: "odd", Protocol: "No such", Port: 84}))
	if m := ask(t, k, "web.shop"+inSet+" SRV"); len(m.Answer) != 1 || m.Answer[0].(*dns.SRV).Port != 80 {
		t.Errorf("got %v, want port 80", m.Answer)
	}
	for _, rr := range transferred(t, k, "clusterset.local.") {
		readable(t, &dns.Msg{Answer: []dns.RR{rr}})
	}
}

// TestClusterset_BelowTheCluster has the zone of the clusterset below that of the cluster, and an ExternalName with a
// target in it.
func TestClusterset_BelowTheCluster(t *testing.T) {
	const set = ".svc.set.cluster.local"
	k := answering(t, "kubernetes cluster.local set.cluster.local {\nmulticluster set.cluster.local\n}", namespace("shop"),
		imported("shop", "web", []string{"10.100.0.1"}, tcp("http", 80)), externalName("shop", "ext", "WEB.shop"+set))
	k.upstream = itself{k}
	if m := ask(t, k, "ext.shop.svc.cluster.local A"); len(m.Answer) != 2 || m.Answer[1].(*dns.A).A.String() != "10.100.0.1" {
		t.Errorf("got %v", m.Answer)
	}
}

// itself looks up names in the handler, as the server does.
type itself struct{ k *Kubernetes }

func (i itself) Lookup(ctx context.Context, state request.Request, name string, qtype uint16) (*dns.Msg, error) {
	w := &test.ResponseWriter{}
	recorder := &recordedReply{ResponseWriter: w}
	_, err := i.k.ServeDNS(ctx, recorder, new(dns.Msg).SetQuestion(name, qtype))
	return recorder.m, err
}

type recordedReply struct {
	dns.ResponseWriter
	m *dns.Msg
}

func (r *recordedReply) WriteMsg(m *dns.Msg) error {
	r.m = m
	return nil
}

// TestClusterset_TwoLines asserts that a second line adds zones.
func TestClusterset_TwoLines(t *testing.T) {
	k := answering(t, "kubernetes cluster.local a.local b.local {\nmulticluster a.local\nmulticluster b.local\n}", namespace("shop"),
		service("shop", "web", []string{"10.0.0.1"}, tcp("http", 80)))
	for zone, want := range map[string]int{"cluster.local": dns.RcodeSuccess, "a.local": dns.RcodeNameError, "b.local": dns.RcodeNameError} {
		if m := ask(t, k, "web.shop.svc."+zone+" A"); m.Rcode != want {
			t.Errorf("%s: %s", zone, dns.RcodeToString[m.Rcode])
		}
	}
}

// TestMulticluster_MetadataBesideKubernetes asserts that the directive does not overwrite the metadata of callers.
func TestMulticluster_MetadataBesideKubernetes(t *testing.T) {
	k := answering(t, "kubernetes cluster.local {\ntopology\n}", namespace("shop"))
	beside := parsed(t, multiclusterDirective, "multicluster clusterset.local {\ntopology\n}")
	beside.attach(index.New(), k.status)
	indexOf(k).PutSlice(&index.Slice{Namespace: "shop", Name: "x", Service: "web", Endpoints: []index.Endpoint{
		{Addr: parsedAddr(t, "10.240.0.1"), Node: index.NewSymbol("node-a")},
	}})
	ctx := metadata.ContextWithMetadata(context.Background())
	state := request.Request{W: &test.ResponseWriter{RemoteIP: "10.240.0.1"}, Req: new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA)}
	k.Metadata(ctx, state)
	beside.Metadata(ctx, state)
	if node := metadata.ValueFunc(ctx, "nearside/caller-node")(); node != "node-a" {
		t.Errorf("caller on %q", node)
	}
}

// TestClustersetStored_Fallthrough has a second directive that answers queries passed on by the first: its answers are
// not stored, since their validity also depends on the first one.
func TestClustersetStored_Fallthrough(t *testing.T) {
	for name, inFront := range map[string]bool{"alone": false, "a cache in front": true} {
		t.Run(name, func(t *testing.T) {
			s, _ := newStoring(t, "kubernetes cluster.local {\nfallthrough\n}", namespace("shop"))
			next := parsed(t, multiclusterDirective, "multicluster cluster.local")
			ix := index.New()
			ix.PutNamespace("shop")
			next.attach(ix, func() []source.Status { return nil })
			s.k.Next = next
			if inFront {
				s.withCache()
			}
			next.space = s.k.space
			if s.storedFor(t, questionFor(t, "web.shop.svc.cluster.local A")) != nil {
				t.Error("an answer is stored")
			}
			indexOf(s.k).PutService(&index.Service{Namespace: "shop", Name: "web", IPs: []netip.Addr{parsedAddr(t, "10.0.0.1")}})
			if m := ask(t, s.k, "web.shop.svc.cluster.local A"); len(m.Answer) != 1 {
				t.Errorf("got %v", m)
			}
		})
	}
}

// TestClustersetStored_NotSyncedAgain has the resource return after it was missing: stored answers are not valid any
// more, and answers from lookups before are not stored.
func TestClustersetStored_NotSyncedAgain(t *testing.T) {
	question := questionFor(t, "web.shop"+inSet+" A")
	t.Run("before", func(t *testing.T) {
		s, _ := newStoring(t, clusterset(), namespace("shop"))
		if s.storedFor(t, question) == nil {
			t.Fatal("NXDOMAIN is not stored")
		}
		indexOf(s.k).Outdate()
		if s.stored(kit.Pack(t, question), testClients[0]) != nil {
			t.Error("NXDOMAIN is stored still")
		}
	})
	t.Run("amid the look", func(t *testing.T) {
		s, _ := newStoring(t, clusterset(), namespace("shop"))
		status := s.k.status
		unread := func() []source.Status { return []source.Status{{Resource: source.ServiceImports}} }
		ix := indexOf(s.k)
		s.k.attach(duringTheLook{ix, func() {
			s.k.status = unread
			ix.Outdate()
		}}, status)
		if s.storedFor(t, question) != nil {
			t.Error("NXDOMAIN is stored")
		}
	})
}

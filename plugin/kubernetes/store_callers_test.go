package kubernetes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/caller"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

// nodesApart are three nodes, each in its own zone. The second octet of the addresses of endpoints and clients has the
// number of the node: 10.1.0.x and 10.101.0.x are on n1.
type nodesApart struct{ ix *index.Index }

const apartNodes = 3

// keysApart are Services with policies that never return an endpoint of another node.
var keysApart = map[string]*index.Topology{
	"local":   {Local: true},
	"host":    {Keys: []index.Symbol{index.NewSymbol(keyHostname)}},
	"zone":    {Keys: []index.Symbol{index.NewSymbol(keyZone)}},
	"or-rack": {Keys: []index.Symbol{index.NewSymbol("example.org/none"), index.NewSymbol(keyHostname)}},
}

func newNodesApart(ix *index.Index) *nodesApart {
	n := &nodesApart{ix}
	ix.PutNamespace("shop")
	for name := range keysApart {
		n.putService(name)
		for i := range apartNodes {
			n.putEndpoints(name, i+1, 2)
		}
	}
	ix.PutService(&index.Service{Namespace: "shop", Name: "alias", Kind: index.ExternalName, Target: "local.shop.svc.cluster.local."})
	for i := range apartNodes {
		n.putNode(i+1, "")
	}
	return n
}

func (n *nodesApart) putService(name string) {
	n.ix.PutService(&index.Service{Namespace: "shop", Name: name, Kind: index.Headless, Topology: keysApart[name]})
}

func (n *nodesApart) putEndpoints(service string, node, count int) {
	s := &index.Slice{Namespace: "shop", Name: fmt.Sprintf("%s-%d", service, node), Service: service,
		Ports: []index.Port{{Name: index.NewSymbol("http"), Protocol: index.NewSymbol("tcp"), Number: 80}}}
	for i := range count {
		s.Endpoints = append(s.Endpoints, index.Endpoint{
			Addr: netip.AddrFrom4([4]byte{10, byte(node), 0, byte(i + 1)}),
			Node: nodeSymbol(node), Zone: index.NewSymbol(fmt.Sprint("z", node)),
		})
	}
	n.ix.PutSlice(s)
}

func nodeSymbol(node int) index.Symbol { return index.NewSymbol(fmt.Sprint("n", node)) }

func (n *nodesApart) record(node int, rack string) *index.Node {
	return &index.Node{
		Name: nodeSymbol(node), UID: index.NewUID(fmt.Sprint(node)), CIDRs: prefixes(fmt.Sprintf("10.%d.0.0/24", 100+node)),
		Labels: []index.Label{
			{Key: index.NewSymbol(keyRack), Value: index.NewSymbol(rack)},
			{Key: index.NewSymbol(keyHostname), Value: nodeSymbol(node)},
			{Key: index.NewSymbol(keyZone), Value: index.NewSymbol(fmt.Sprint("z", node))},
		},
	}
}

func (n *nodesApart) putNode(node int, rack string) { n.ix.PutNode(n.record(node, rack)) }

// change makes a random change: endpoints, Services and nodes are added, removed and restored.
func (n *nodesApart) change(r *rand.Rand) {
	node, service := 1+r.IntN(apartNodes), pick(r, []string{"local", "host", "zone", "or-rack"})
	switch r.IntN(12) {
	case 0:
		n.ix.DeleteService("shop", service)
		n.putService(service)
	case 1:
		n.ix.DeleteNode(nodeSymbol(node))
	case 2:
		n.ix.DeleteNode(nodeSymbol(node))
		n.putNode(node, fmt.Sprint("r", r.IntN(3)))
	case 3, 4, 5:
		n.putNode(node, fmt.Sprint("r", r.IntN(3)))
	case 6:
		var all []*index.Node
		for i := range apartNodes {
			if r.IntN(3) > 0 {
				all = append(all, n.record(i+1, ""))
			}
		}
		n.ix.ReplaceNodes(all)
	case 7:
		n.ix.DeleteSlice("shop", fmt.Sprintf("%s-%d", service, node))
	default:
		n.putEndpoints(service, node, r.IntN(4))
	}
}

// query draws a query and its caller: a client on a node, identified by its address or by the option.
func (n *nodesApart) query(r *rand.Rand) (query []byte, from client, node int, err error) {
	name := pick(r, []string{"local", "host", "zone", "or-rack", "alias", "_http._tcp.local"})
	m := new(dns.Msg).SetQuestion(name+".shop.svc.cluster.local.", pick(r, []uint16{dns.TypeA, dns.TypeA, dns.TypeSRV}))
	node = 1 + r.IntN(apartNodes)
	switch r.IntN(4) {
	case 0:
		from.address = fmt.Sprintf("10.%d.0.%d", node, 1+r.IntN(3)) // sometimes an endpoint
	case 1:
		from.address = fmt.Sprintf("10.%d.0.%d", 100+node, 1+r.IntN(9))
	default:
		from.address = fmt.Sprintf("10.%d.0.9", 101+r.IntN(apartNodes)) // of any node: the option takes precedence
		data, _ := caller.Append(nil, fmt.Sprint("n", node), pick(r, []string{"", fmt.Sprint("z", node)}))
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: data}}
	}
	if r.IntN(3) == 0 { // with a search list whose first candidate does not exist or has no endpoint for the caller
		list := pick(r, [][]string{{"team.svc.cluster.local.", "shop.svc.cluster.local."}, {"none.shop.svc.cluster.local.", "shop.svc.cluster.local."}, {"shop.svc.cluster.local.", "svc.cluster.local."}})
		data, _ := searchlist.AppendSuffixes(nil, list)
		m.Question[0].Name = strings.TrimSuffix(m.Question[0].Name, "shop.svc.cluster.local.") + list[0]
		m = searchlist.WithOption(m, data)
	}
	from.fragments = 1480
	query, err = m.Pack()
	return query, from, node, err
}

// onlyOn returns an error if an address in a reply is not that of an endpoint on a node. It returns the number of
// addresses.
func onlyOn(node int, answer []byte) (n int, err error) {
	m := new(dns.Msg)
	if err := m.Unpack(answer); err != nil {
		return 0, err
	}
	for _, rr := range append(m.Answer, m.Extra...) {
		if a, ok := rr.(*dns.A); ok {
			if n++; int(a.A.To4()[1]) != node {
				return n, fmt.Errorf("a caller on node n%d is given\n%v", node, m)
			}
		}
	}
	return n, nil
}

// TestStored_CallersApart sends queries of callers on several nodes concurrently while nodes, Services and endpoints
// change. No policy here returns an endpoint of another node, and the address of an endpoint has its node.
func TestStored_CallersApart(t *testing.T) {
	for _, inFront := range []bool{false, true} {
		t.Run(fmt.Sprint("a cache in front ", inFront), func(t *testing.T) {
			s, _ := newStoring(t, allZones+" {\ntopology\n}")
			if inFront {
				s.withCache()
			}
			n := newNodesApart(indexOf(s.k))
			var stored, made atomic.Int64
			var stop atomic.Bool
			var readers sync.WaitGroup
			for i := range 3 {
				readers.Go(func() {
					r := rand.New(rand.NewPCG(uint64(i), 1))
					for !stop.Load() && !t.Failed() {
						if err := s.askApart(n, r, &stored, &made); err != nil {
							t.Error(err)
						}
					}
				})
			}
			r := rand.New(rand.NewPCG(7, 7))
			deadline := time.Now().Add(20 * time.Second)
			for i := 0; !t.Failed() && time.Now().Before(deadline) && (i < 2000 || stored.Load() < 200 || made.Load() < 200); i++ {
				n.change(r)
				for range r.IntN(3) {
					runtime.Gosched()
				}
			}
			stop.Store(true)
			readers.Wait()
			if t.Logf("%d addresses stored, %d made", stored.Load(), made.Load()); stored.Load() == 0 || made.Load() == 0 {
				t.Error("nothing was given")
			}
		})
	}
}

// askApart answers as the fast path does: with the stored answer, or else from the handler.
func (s *storing) askApart(n *nodesApart, r *rand.Rand, stored, made *atomic.Int64) error {
	query, from, node, err := n.query(r)
	if err != nil {
		return err
	}
	count, answer := stored, s.stored(query, from)
	if answer == nil {
		count = made
		if answer, err = packedReply(s.front, query, from); err != nil {
			return err
		}
	}
	addresses, err := onlyOn(node, answer)
	count.Add(int64(addresses))
	return err
}

// The fast path serves views over TCP, too: node caches send their queries over TCP.
func TestStored_CallersOverTCP(t *testing.T) {
	s, _ := newStoring(t, allZones+" {\ntopology\n}")
	n := newNodesApart(indexOf(s.k))
	for node := 1; node <= apartNodes; node++ {
		r := asNode(node, "local.shop.svc.cluster.local.")
		query := kit.Pack(t, r)
		w := dnstest.NewRecorder(&test.ResponseWriter{TCP: true})
		if _, err := s.k.ServeDNS(context.Background(), request.NewScrubWriter(r, w), r); err != nil {
			t.Fatal(err)
		}
		want := kit.Pack(t, w.Msg)
		if err := same(s.stored(query, testClients[0]), want); err != nil {
			t.Errorf("node %d: %v", node, err)
		}
		if addresses, err := onlyOn(node, want); addresses != 2 || err != nil {
			t.Errorf("node %d: %d addresses, error %v", node, addresses, err)
		}
	}
	n.putEndpoints("local", 1, 1)
	if query, err := asNode(1, "local.shop.svc.cluster.local.").Pack(); err != nil || s.stored(query, testClients[0]) != nil {
		t.Errorf("error %v, or an answer is stored after its endpoints have changed", err)
	}
}

// asNode returns a query as a node's cache sends it.
func asNode(node int, name string) *dns.Msg {
	data, _ := caller.Append(nil, fmt.Sprint("n", node), "")
	r := new(dns.Msg).SetQuestion(name, dns.TypeA)
	r.SetEdns0(1232, false)
	r.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: data}}
	return r
}

// through is a server that looks up targets in another handler, for the same client.
type through struct{ h plugin.Handler }

func (t *through) Lookup(ctx context.Context, state request.Request, name string, qtype uint16) (*dns.Msg, error) {
	next := state.NewWithQuestion(name, qtype)
	w := nonwriter.New(state.W)
	_, err := t.h.ServeDNS(ctx, w, next.Req)
	return w.Msg, err
}

// rewriting is a plugin between a cache and kubernetes that answers with the reply to another query, as autopath does.
type rewriting struct {
	next plugin.Handler
	name string
}

func (*rewriting) Name() string { return "rewriting" }

func (p *rewriting) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	other, nw := r.Copy(), nonwriter.New(w)
	other.Question[0].Name = p.name
	if rcode, err := p.next.ServeDNS(ctx, nw, other); err != nil || nw.Msg == nil {
		return rcode, err
	}
	nw.Msg.Question[0].Name = r.Question[0].Name
	return dns.RcodeSuccess, w.WriteMsg(nw.Msg)
}

// A cache in front is notified of an answer that depends on the caller, wherever the caller was used.
func TestConditions_Views(t *testing.T) {
	const target = "local.shop.svc.cluster.local."
	for _, c := range []struct {
		name, ask string
		forAll    bool
		front     func(s *storing, other *Kubernetes) plugin.Handler
	}{
		{name: "the Service", ask: target},
		{name: "its port", ask: "_http._tcp." + target},
		{name: "an endpoint", ask: "10-1-0-1." + target, forAll: true},
		{name: "a ClusterIP", ask: "web.shop.svc.cluster.local.", forAll: true},
		{name: "no Service", ask: "none.shop.svc.cluster.local.", forAll: true},
		{name: "a Service without topology", ask: "any.shop.svc.cluster.local.", forAll: true},
		{name: "an alias in the zone", ask: "alias.shop.svc.cluster.local."},
		{name: "an alias of a name that another block answers", ask: "alias.shop.svc.other.local.", front: func(s *storing, other *Kubernetes) plugin.Handler {
			other.upstream = &through{s.k}
			return other
		}},
		{name: "an alias of one that is behind a cache of its own", ask: "alias.shop.svc.other.local.", front: func(s *storing, other *Kubernetes) plugin.Handler {
			other.upstream = &through{&cacheInFront{s.k, s.space}}
			return other
		}},
		{name: "a plugin between that asks for it", ask: "local.shop.svc.", front: func(s *storing, _ *Kubernetes) plugin.Handler {
			return &rewriting{s.k, target}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := newStoring(t, allZones+" {\ntopology\n}")
			ix := newNodesApart(indexOf(s.k)).ix
			ix.PutService(&index.Service{Namespace: "shop", Name: "web", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}})
			ix.PutService(&index.Service{Namespace: "shop", Name: "any", Kind: index.Headless})
			ix.PutSlice(&index.Slice{Namespace: "shop", Name: "any-1", Service: "any", Endpoints: []index.Endpoint{{Addr: netip.MustParseAddr("10.1.0.7")}}})
			other := answering(t, "kubernetes other.local", namespace("shop"), externalName("shop", "alias", strings.TrimSuffix(target, ".")))
			front := plugin.Handler(s.k)
			if c.front != nil {
				front = c.front(s, other)
			}
			r := asNode(1, c.ask)
			ctx, conditions := store.Record(context.Background(), r)
			w := dnstest.NewRecorder(&test.ResponseWriter{})
			if _, err := front.ServeDNS(ctx, w, r); err != nil || w.Msg == nil {
				t.Fatalf("error %v, reply %v", err, w.Msg)
			}
			if !c.forAll && len(w.Msg.Answer) < 2 {
				t.Fatalf("not the two endpoints of the node: %v", w.Msg)
			}
			if conditions.ForAll() != c.forAll {
				t.Errorf("for all: %v, want %v; the reply is\n%v", conditions.ForAll(), c.forAll, w.Msg)
			}
		})
	}
}

// The same holds if the cluster changes during the lookup.
func TestConditions_ViewsAmidTheLook(t *testing.T) {
	outdated := 0
	for left := range 20 {
		s, _ := newStoring(t, allZones+" {\ntopology\n}")
		n := newNodesApart(indexOf(s.k))
		s.k.attach(&amid{Index: n.ix, left: left + 1, happens: func() {
			n.ix.DeleteService("shop", "local")
			for i := range apartNodes {
				n.ix.DeleteSlice("shop", fmt.Sprintf("local-%d", i+1))
			}
			n.putService("local") // a new one, so that the entry found first is outdated
			n.putEndpoints("local", 1, 1)
		}}, s.k.status)
		r := asNode(1, "local.shop.svc.cluster.local.")
		ctx, conditions := store.Record(context.Background(), r)
		w := dnstest.NewRecorder(&test.ResponseWriter{})
		if _, err := s.k.ServeDNS(ctx, w, r); err != nil {
			t.Fatal(err)
		}
		if (&store.Entry{Validity: validity.Validity{Bounds: conditions.Bounds}}).Current() {
			continue // the lookup was before or after the change
		}
		if outdated++; conditions.ForAll() && len(w.Msg.Answer) > 0 {
			t.Errorf("moment %d: the answer counts as one for all callers:\n%v", left+1, w.Msg)
		}
	}
	if outdated == 0 {
		t.Error("the change was never during the look")
	}
}

// While Nodes are not synced, answers that may lack endpoints for that reason are SERVFAIL, and are not stored.
func TestStored_BeforeNodes(t *testing.T) {
	for _, c := range []struct {
		service string
		rcode   int
		node    int // of the caller, by the option; 0 for a client with an unknown address
		answers int
	}{
		{"local", dns.RcodeSuccess, 1, 2},
		{"local", dns.RcodeServerFailure, 0, 0},
		{"host", dns.RcodeSuccess, 1, 2}, // the node's name is its host name
		{"zone", dns.RcodeServerFailure, 1, 0},
		{"zone", dns.RcodeServerFailure, 0, 0},
		{"soft", dns.RcodeSuccess, 0, 6},
		{"soft", dns.RcodeSuccess, 1, 2},
	} {
		t.Run(fmt.Sprintf("%s, node %d", c.service, c.node), func(t *testing.T) {
			s, _ := newStoring(t, allZones+" {\ntopology\n}")
			nodesRead := false
			s.k.status = func() []source.Status { return []source.Status{{Resource: source.Nodes, Synced: nodesRead}} }
			n := newNodesApart(indexOf(s.k))
			n.ix.PutService(&index.Service{Namespace: "shop", Name: "soft", Kind: index.Headless, Topology: &index.Topology{Distribution: index.PreferSameNode}})
			for i := range apartNodes {
				n.putEndpoints("soft", i+1, 2)
				n.ix.DeleteNode(nodeSymbol(i + 1))
			}
			r := asNode(max(c.node, 1), c.service+".shop.svc.cluster.local.")
			if c.node == 0 {
				r.Extra = nil
			}
			w := dnstest.NewRecorder(&test.ResponseWriter{})
			if _, err := s.k.ServeDNS(context.Background(), w, r); err != nil {
				t.Fatal(err)
			}
			if w.Msg.Rcode != c.rcode || len(w.Msg.Answer) != c.answers {
				t.Errorf("the reply is\n%v\nwant %s with %d addresses", w.Msg, dns.RcodeToString[c.rcode], c.answers)
			}
			query := kit.Pack(t, r)
			if stored := s.stored(query, testClients[0]); stored != nil && c.rcode != dns.RcodeSuccess {
				t.Error("it is stored that there is no answer")
			}
			nodesRead = true
			n.putNode(1, "")
			if _, err := s.k.ServeDNS(context.Background(), w, r); err != nil {
				t.Fatal(err)
			}
			if w.Msg.Rcode != dns.RcodeSuccess {
				t.Errorf("after Nodes have been read: %v", w.Msg)
			}
		})
	}
}

// The first sync of Nodes may end during a query. An answer without addresses that was made before is not NODATA.
func TestServeDNS_NodesReadDuringTheLook(t *testing.T) {
	s, _ := newStoring(t, allZones+" {\ntopology\n}")
	n := newNodesApart(indexOf(s.k))
	for i := range apartNodes {
		n.ix.DeleteNode(nodeSymbol(i + 1))
	}
	s.k.synced.Store(true)
	s.k.status = func() []source.Status {
		for i := range apartNodes {
			n.putNode(i+1, "")
		}
		return []source.Status{{Resource: source.Nodes, Synced: true}}
	}
	r := asNode(1, "zone.shop.svc.cluster.local.")
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	if _, err := s.k.ServeDNS(context.Background(), w, r); err != nil {
		t.Fatal(err)
	}
	if w.Msg.Rcode == dns.RcodeSuccess && len(w.Msg.Answer) == 0 {
		t.Errorf("there are endpoints, and Nodes have just been read; the reply is\n%v", w.Msg)
	}
}

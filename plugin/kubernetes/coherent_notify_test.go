package kubernetes

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/test/kit"
)

// sessionConn is the connection of a session, which records the invalidated handles.
type sessionConn struct {
	t           testing.TB
	mu          sync.Mutex
	invalidated []uint64
}

// Push implements push.Conn.
func (c *sessionConn) Push(message []byte) {
	m, err := dso.Parse(message)
	if err != nil {
		c.t.Errorf("message %x: %v", message, err)
		return
	}
	primary, _ := m.Primary()
	c.mu.Lock()
	defer c.mu.Unlock()
	if primary.Type == dso.Invalidate {
		c.invalidated, _ = dso.ReadHandles(c.invalidated, primary.Data)
	}
}

// take returns the handles invalidated since the last call.
func (c *sessionConn) take() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.invalidated = nil }()
	return c.invalidated
}

func (c *sessionConn) has(handle uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.invalidated, handle)
}

// await waits until a handle is invalidated.
func (c *sessionConn) await(handle uint64) bool {
	return waitFor(20*time.Second, func() bool { return c.has(handle) })
}

// nodeInZone returns node n1 with a zone.
func nodeInZone(zone string) *index.Node {
	return &index.Node{Name: nodeSymbol(1), UID: 1, Labels: []index.Label{{Key: index.NewSymbol(keyZone), Value: index.NewSymbol(zone)}}}
}

// putNotified adds what the cases of TestNotified need beside storedObjects.
func putNotified(t testing.TB, ix *index.Index) {
	ix.PutNode(nodeInZone("east"))
	zonal := &index.Topology{Keys: []index.Symbol{index.NewSymbol(keyZone)}}
	ix.PutService(&index.Service{Namespace: "shop", Name: "near", Kind: index.Headless, Topology: zonal})
	ix.PutSlice(&index.Slice{Namespace: "shop", Name: "near-1", Service: "near", Endpoints: []index.Endpoint{
		{Addr: parsedAddr(t, "10.1.0.20"), Zone: index.NewSymbol("east")}, {Addr: parsedAddr(t, "10.1.0.21"), Zone: index.NewSymbol("west")},
	}})
	ix.PutService(&index.Service{Namespace: "shop", Name: "mine", Kind: index.Headless, Topology: &index.Topology{Local: true}})
	ix.PutSlice(&index.Slice{Namespace: "shop", Name: "mine-1", Service: "mine", Endpoints: []index.Endpoint{
		{Addr: parsedAddr(t, "10.1.0.30"), Node: index.NewSymbol("n9")},
	}})
	ix.PutService(&index.Service{Namespace: "shop", Name: "to-near", Kind: index.ExternalName, Target: "near.shop.svc.cluster.local."})
	ix.PutService(&index.Service{Namespace: "shop", Name: "to-none", Kind: index.ExternalName, Target: "none.shop.svc.cluster.local."})
	ix.PutService(&index.Service{Namespace: "none", Name: "web", IPs: addrs(t, "10.0.0.30")})
	ix.PutImport(&index.Service{Namespace: "shop", Name: "web", IPs: addrs(t, "10.112.0.1")})
	ix.PutImport(&index.Service{Namespace: "none", Name: "far", IPs: addrs(t, "10.112.0.2")})
}

// unrelatedEvents change the cluster without an effect on the answers of TestNotified.
func unrelatedEvents(t testing.TB, ix *index.Index) {
	for range 2 {
		ix.PutNamespace("unrelated")
		ix.PutService(&index.Service{Namespace: "shop", Name: "unrelated", IPs: addrs(t, "10.0.0.40")})
		ix.PutService(&index.Service{Namespace: "unrelated", Name: "web", IPs: addrs(t, "10.0.0.41")})
		ix.PutImport(&index.Service{Namespace: "shop", Name: "unrelated", IPs: addrs(t, "10.112.0.40")})
		ix.PutSlice(&index.Slice{Namespace: "shop", Name: "unrelated-1", Service: "unrelated", Endpoints: []index.Endpoint{{Addr: parsedAddr(t, "10.1.0.40")}}})
		ix.PutPod(&index.Pod{Namespace: "shop", Name: "unrelated", IPs: addrs(t, "10.1.0.41")})
		ix.DeletePod("shop", "unrelated")
		ix.DeleteSlice("shop", "unrelated-1")
		ix.DeleteImport("shop", "unrelated")
		ix.DeleteNamespace("unrelated")
		ix.DeleteService("unrelated", "web")
		ix.DeleteService("shop", "unrelated")
	}
}

// notifiedCase is a query and an event that changes its answer.
type notifiedCase struct {
	ask    string
	node   string   // of the caller in the query's option, with its zone: "n1", "n1/east"; empty without the option
	list   []string // search list
	change func(*index.Index)
}

// notifiedCases are a case of each kind of query.
func notifiedCases(t testing.TB) map[string]notifiedCase {
	put := func(s index.Service) func(*index.Index) { return func(ix *index.Index) { ix.PutService(&s) } }
	slice := func(s index.Slice) func(*index.Index) { return func(ix *index.Index) { ix.PutSlice(&s) } }
	moved := index.Service{Namespace: "shop", Name: "web", IPs: addrs(t, "10.0.0.9")}
	db := index.Slice{Namespace: "shop", Name: "db-a", Service: "db", Endpoints: []index.Endpoint{{Addr: parsedAddr(t, "10.1.0.9"), Name: "db-1"}}}
	mine := index.Slice{Namespace: "shop", Name: "mine-1", Service: "mine", Endpoints: []index.Endpoint{{Addr: parsedAddr(t, "10.1.0.31"), Node: index.NewSymbol("n9")}}}
	record := func(node, zone string) func(*index.Index) {
		return func(ix *index.Index) { putNode(ix, node, zone, "", "") }
	}
	deleted := func(node string) func(*index.Index) {
		return func(ix *index.Index) { ix.DeleteNode(index.NewSymbol(node)) }
	}
	zone := func(name string) func(*index.Index) { return func(ix *index.Index) { ix.PutNode(nodeInZone(name)) } }
	create := func(ns string) func(*index.Index) { return func(ix *index.Index) { ix.PutNamespace(ns) } }
	destroy := func(ns string) func(*index.Index) { return func(ix *index.Index) { ix.DeleteNamespace(ns) } }
	return map[string]notifiedCase{
		"ClusterIP":                       {ask: "web.shop.svc.cluster.local A", change: put(moved)},
		"ClusterIP, the namespace":        {ask: "web.shop.svc.cluster.local A", change: destroy("shop")},
		"headless":                        {ask: "db.shop.svc.cluster.local A", change: slice(db)},
		"endpoint":                        {ask: "db-0.db.shop.svc.cluster.local A", change: slice(db)},
		"no endpoint":                     {ask: "db-1.db.shop.svc.cluster.local A", change: slice(db)},
		"SRV":                             {ask: "_http._tcp.web.shop.svc.cluster.local SRV", change: put(moved)},
		"PTR of a Service":                {ask: "1.0.0.10.in-addr.arpa PTR", change: put(moved)},
		"PTR of a Service, the Namespace": {ask: "1.0.0.10.in-addr.arpa PTR", change: destroy("shop")},
		"PTR of an endpoint":              {ask: "2.0.1.10.in-addr.arpa PTR", change: slice(db)},
		"PTR of an endpoint, namespace":   {ask: "2.0.1.10.in-addr.arpa PTR", change: destroy("shop")},
		"no PTR":                          {ask: "9.0.0.10.in-addr.arpa PTR", change: put(moved)},
		"no PTR without the namespace":    {ask: "30.0.0.10.in-addr.arpa PTR", change: create("none")},
		"no Service":                      {ask: "new.shop.svc.cluster.local A", change: put(index.Service{Namespace: "shop", Name: "new"})},
		"no namespace":                    {ask: "web.none.svc.cluster.local A", change: create("none")},
		"name of a namespace":             {ask: "shop.svc.cluster.local A", change: destroy("shop")},
		"name of no namespace":            {ask: "none.svc.cluster.local A", change: create("none")},
		"pod":                             {ask: "10-1-0-7.shop.pod.cluster.local A", change: func(ix *index.Index) { ix.DeletePod("shop", "p") }},
		"pod, the namespace":              {ask: "10-1-0-7.shop.pod.cluster.local A", change: destroy("shop")},
		"alias":                           {ask: "in.shop.svc.cluster.local A", change: put(index.Service{Namespace: "shop", Name: "in", IPs: addrs(t, "10.0.0.8")})},
		"alias, the target":               {ask: "in.shop.svc.cluster.local A", change: put(moved)},
		"alias, no target":                {ask: "to-none.shop.svc.cluster.local A", change: put(index.Service{Namespace: "shop", Name: "none", IPs: addrs(t, "10.0.0.8")})},
		"alias, the caller's zone":        {ask: "to-near.shop.svc.cluster.local A", node: "n1", change: zone("west")},
		"import":                          {ask: "web.shop.svc.clusterset.local A", change: func(ix *index.Index) { ix.DeleteImport("shop", "web") }},
		"import, the namespace":           {ask: "web.shop.svc.clusterset.local A", change: destroy("shop")},
		"no import":                       {ask: "new.shop.svc.clusterset.local A", change: func(ix *index.Index) { ix.PutImport(&index.Service{Namespace: "shop", Name: "new"}) }},
		"import of no namespace":          {ask: "far.none.svc.clusterset.local A", change: create("none")},
		"topology":                        {ask: "near.shop.svc.cluster.local A", node: "n1", change: func(ix *index.Index) { ix.DeleteSlice("shop", "near-1") }},
		"topology, the caller's zone":     {ask: "near.shop.svc.cluster.local A", node: "n1", change: zone("west")},
		"topology, Local":                 {ask: "mine.shop.svc.cluster.local A", node: "n9", change: slice(mine)},
		"the caller's node is created":    {ask: "near.shop.svc.cluster.local A", node: "n9/west", change: record("n9", "east")},
		"it is created, an alias":         {ask: "to-near.shop.svc.cluster.local A", node: "n9/west", change: record("n9", "east")},
		"it is created without a zone":    {ask: "near.shop.svc.cluster.local A", node: "n9/west", change: record("n9", "")},
		"it is created, not its zone":     {ask: "near.shop.svc.cluster.local A", node: "n9", change: record("n9", "east")},
		"the caller's node is deleted":    {ask: "near.shop.svc.cluster.local A", node: "n1/west", change: deleted("n1")},
		"an endpoint for a node to be":    {ask: "near.shop.svc.cluster.local A", node: "n9/west", change: func(ix *index.Index) { ix.DeleteSlice("shop", "near-1") }},
		"search list, a node to be":       {ask: "near.shop.svc.cluster.local A", node: "n9/west", list: listShop, change: record("n9", "east")},
		"search list, the caller's zone":  {ask: "near.shop.team.svc.cluster.local A", node: "n1", list: listTeam, change: zone("west")},
		"search list, none":               {ask: "new.shop.svc.cluster.local A", list: listShop, change: put(index.Service{Namespace: "shop", Name: "new"})},
		"search list, none in another":    {ask: "web.none.shop.svc.cluster.local A", list: listShop, change: create("none")},
		"search list, a later one":        {ask: "web.shop.team.svc.cluster.local A", list: listTeam, change: put(moved)},
		"search list, an earlier one": {ask: "db.shop.team.svc.cluster.local A", list: listTeam, change: func(ix *index.Index) {
			ix.PutSlice(&index.Slice{Namespace: "team", Name: "shop-1", Service: "shop", Endpoints: []index.Endpoint{{Addr: parsedAddr(t, "10.1.0.9"), Name: "db"}}})
			ix.PutService(&index.Service{Namespace: "team", Name: "shop", Kind: index.Headless})
		}},
	}
}

// TestNotified asserts that a session with a stored answer is notified of the event that changes the answer, and not of
// others.
func TestNotified(t *testing.T) {
	for name, tt := range notifiedCases(t) {
		t.Run(name, func(t *testing.T) {
			s, _ := newStoring(t, clusterset("pods verified", "topology"), storedObjects()...)
			ix := indexOf(s.k)
			putNotified(t, ix)
			r := questionFor(t, tt.ask)
			if tt.node != "" {
				withCaller(t, r, tt.node)
			}
			if tt.list != nil {
				r = withList(t, r, tt.list...)
			}
			before, validity := s.answerOf(t, r)
			c := &sessionConn{t: t}
			session := push.NewRegistry().Open(c, netip.Addr{})
			defer session.Close()
			var handles []uint64
			for _, b := range validity.Bounds {
				if g, ok := b.Generation.(push.Generation); ok {
					handles = append(handles, session.Subscribe(g))
				}
			}
			if !validity.Current() || len(handles) < 2 || slices.Contains(handles, 0) {
				t.Fatalf("handles %d of a current answer: %t", handles, validity.Current())
			}

			unrelatedEvents(t, ix)
			c.settle(t, ix, session)
			if got := c.take(); len(got) > 1 { // that of settle
				t.Errorf("unrelated events invalidated %d, the answer has %d", got, handles)
			}
			tt.change(ix)
			c.settle(t, ix, session)
			if got := c.take(); !slices.ContainsFunc(handles, func(h uint64) bool { return slices.Contains(got, h) }) {
				t.Errorf("the event invalidated %d, the answer has %d", got, handles)
			}
			if after, _ := s.answerOf(t, r); after == before {
				t.Errorf("the event did not change the answer\n%s", after)
			}
		})
	}
}

// settle waits until the session was notified of all events before the call: it changes a Service of its own.
func (c *sessionConn) settle(t testing.TB, ix *index.Index, session *push.Subscriber) {
	t.Helper()
	g := ix.NameGeneration("settle", "settle")
	handle := session.Subscribe(g)
	ix.PutService(&index.Service{Namespace: "settle", Name: "settle"})
	ix.DeleteService("settle", "settle")
	if !c.await(handle) {
		t.Fatal("the session is not notified")
	}
}

// answerOf returns the answer to a query as text without the serial, and the validity with which it is stored.
func (s *storing) answerOf(t testing.TB, r *dns.Msg) (string, validity.Validity) {
	t.Helper()
	query := kit.Pack(t, r)
	from := testClients[0]
	packed, err := packedReply(s.front, query, from)
	kit.Must(t, err)
	m := kit.Unpack(t, packed)
	var text strings.Builder
	text.WriteString(dns.RcodeToString[m.Rcode])
	for _, rr := range slices.Concat(m.Answer, m.Extra) {
		text.WriteString("\n" + rr.String())
	}
	e, q, key := s.entryAndKey(query)
	named := true
	if e != nil && e.Views != nil {
		var view store.View
		e, view = s.store.GetView(e, key, validity.Now(), netip.MustParseAddr(from.address), q.CallerData(query))
		named = view.Named
	}
	if e == nil || !named || !e.Shared() {
		t.Fatalf("the answer to %v is not stored, or for the address of the client:\n%s", r.Question, text.String())
	}
	return text.String(), e.Validity
}

// withCaller adds the caller option to a query, with a node and, after a slash, its zone.
func withCaller(t testing.TB, r *dns.Msg, node string) {
	t.Helper()
	node, zone, _ := strings.Cut(node, "/")
	r.SetEdns0(1232, false)
	r.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: naming(t, node, zone)}}
}

// TestNotified_Amid has a Service replaced or created at each moment of a lookup: the answer is stored, so that it has handles. It
// has ended if it differs from the answer after the event.
func TestNotified_Amid(t *testing.T) {
	replaced := index.Service{Namespace: "shop", Name: "web", IPs: addrs(t, "10.0.0.9")}
	for name, tt := range map[string]struct {
		ask     string
		happens func(*index.Index)
	}{
		"replaced": {"web.shop.svc.cluster.local A", func(ix *index.Index) {
			ix.DeleteService("shop", "web")
			s := replaced
			ix.PutService(&s)
		}},
		"deleted":   {"web.shop.svc.cluster.local A", func(ix *index.Index) { ix.DeleteService("shop", "web") }},
		"created":   {"new.shop.svc.cluster.local A", func(ix *index.Index) { ix.PutService(&index.Service{Namespace: "shop", Name: "new"}) }},
		"namespace": {"web.shop.svc.cluster.local A", func(ix *index.Index) { ix.DeleteNamespace("shop") }},
	} {
		t.Run(name, func(t *testing.T) {
			ended := 0
			for left := range 20 {
				s, _ := newStoring(t, clusterset("pods verified", "topology"), storedObjects()...)
				ix := indexOf(s.k)
				s.k.attach(&amid{Index: ix, left: left + 1, happens: func() { tt.happens(ix) }}, s.k.status)
				during, validity := s.answerOf(t, questionFor(t, tt.ask))
				s.k.attach(ix, s.k.status)
				if !validity.Current() {
					ended++
				} else if after, _ := s.answerOf(t, questionFor(t, tt.ask)); during != after {
					t.Errorf("moment %d: the answer has not ended:\n%s\nand after the event:\n%s", left+1, during, after)
				}
			}
			if ended == 0 {
				t.Error("the event was never during the lookup")
			}
		})
	}
}

// TestNotified_Outdate asserts that the loss of the access to a resource invalidates every answer.
func TestNotified_Outdate(t *testing.T) {
	s, _ := newStoring(t, clusterset("pods verified", "topology"), storedObjects()...)
	ix := indexOf(s.k)
	putNotified(t, ix)
	c := &sessionConn{t: t}
	session := push.NewRegistry().Open(c, netip.Addr{})
	defer session.Close()
	access := session.Subscribe(ix.AccessGeneration())
	for name, tt := range notifiedCases(t) {
		r := questionFor(t, tt.ask)
		if tt.node != "" {
			withCaller(t, r, tt.node)
		}
		_, validity := s.answerOf(t, r)
		g, ok := validity.Bounds[0].Generation.(push.Generation)
		if !ok || session.Subscribe(g) != access {
			t.Errorf("%s: the answer does not depend on the access", name)
		}
	}
	ix.Outdate()
	if !c.await(access) {
		t.Error("the session is not notified")
	}
}

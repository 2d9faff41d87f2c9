package autopath

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/test/kit"
)

// wireNames is names with a wire handler. It answers queries, or passes them to the plugin chain.
type wireNames struct {
	*names
	pass    bool // instead of an answer
	unknown bool // pass without a result: it has not handled the query
}

// handled is the result of wireNames for a query that it passes to the plugin chain.
type handled struct{ reply *dns.Msg }

func (n *wireNames) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	var reply *dns.Msg
	switch result := wirechain.Result(ctx, r).(type) {
	case *handled:
		reply = result.reply
	case *wirechain.StoredResult:
		if result.Entry.Cached {
			reply = result.Entry.State.(*dns.Msg)
		}
	}
	if reply == nil {
		return n.names.ServeDNS(ctx, w, r)
	}
	if c := store.PropertiesOf(ctx, r); c != nil {
		c.Expires = validity.Now() + 3600e9
	}
	return dns.RcodeSuccess, w.WriteMsg(reply)
}

func (n *wireNames) ServeWire(b *batch.Batch, q *wirechain.Request) {
	if n.unknown {
		q.Pass(b, q, nil)
		return
	}
	r := new(dns.Msg)
	if err := r.Unpack(q.Packed); err != nil {
		panic(err)
	}
	w := newWriter(q.Client.String())
	if _, err := n.names.ServeDNS(context.Background(), w, r); err != nil {
		panic(err)
	}
	e := &store.Entry{Stored: validity.Now(), Validity: validity.Validity{Expires: validity.Now() + time.Hour}, Cached: true, State: w.Msg}
	if n.pass || e.Fill(w.Msg) != nil {
		q.Pass(b, q, &handled{w.Msg})
		return
	}
	q.Answer(b, q, e, e.Patch(validity.Now()))
}

// wireClient is the Answerer of a client's query. It passes queries to the plugin.
type wireClient struct {
	a     *Autopath
	ctx   context.Context
	from  string
	r     *dns.Msg
	reply *dns.Msg
	err   error
}

func (c *wireClient) Answer(_ *batch.Batch, q *wirechain.Request, e *store.Entry, p store.Patch) {
	c.reply, c.err = e.Message(q.Packed, q.Query, &p)
}

func (c *wireClient) Pass(_ *batch.Batch, _ *wirechain.Request, result any) {
	if result != nil {
		c.ctx = wirechain.WithResult(c.ctx, c.r, result)
	}
	w := newWriter(c.from)
	_, c.err = c.a.ServeDNS(c.ctx, w, c.r)
	c.reply = w.Msg
}

// unformed is a wireClient that passes the answer to the plugin chain, as for a client with a small limit.
type unformed struct{ *wireClient }

func (c unformed) Answer(b *batch.Batch, q *wirechain.Request, e *store.Entry, p store.Patch) {
	c.Pass(b, q, &wirechain.StoredResult{Entry: e, Patch: p})
}

// TestServeWire asserts that ServeWire and ServeDNS give the same replies, count the same and query the same names.
func TestServeWire(t *testing.T) {
	list, _ := searchlist.AppendSuffixes(nil, shop.Suffixes)
	changes := map[string]func(*dns.Msg){
		"A":               func(*dns.Msg) {},
		"EDNS":            func(r *dns.Msg) { r.SetEdns0(1232, true) },
		"a list":          func(r *dns.Msg) { *r = *searchlist.WithOption(r, list) },
		"AXFR":            func(r *dns.Msg) { r.Question[0].Qtype = dns.TypeAXFR },
		"DS":              func(r *dns.Msg) { r.Question[0].Qtype = dns.TypeDS },
		"in another case": func(r *dns.Msg) { r.Question[0].Name = "W" + r.Question[0].Name[1:] },
	}
	for way, handler := range map[string]wireNames{
		"answers": {}, "answers without a form": {}, "passes with a result": {pass: true}, "passes without a result": {unknown: true},
	} {
		for what, change := range changes {
			for _, client := range []string{podIP, bankIP, hostIP, noIP, "fd00::1"} {
				for _, name := range []string{"www.shop.svc.cluster.local.", "no.shop.svc.cluster.local.", "first.shop.svc.cluster.local.", "www.cluster.local.", "www.example.org."} {
					r := new(dns.Msg).SetQuestion(name, dns.TypeA)
					change(r)
					compareWire(t, fmt.Sprintf("%s: %s of %s by %s", way, what, name, client), handler, client, r, way != "answers without a form")
				}
			}
		}
	}
}

// compareWire sends a query twice to each of two plugins, one of which has a wire handler behind it.
func compareWire(t *testing.T, what string, handler wireNames, client string, r *dns.Msg, withForm bool) {
	t.Helper()
	const server = "dns://wire"
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: server})
	byMessage, inWire := &names{exist: exist}, &names{exist: exist}
	messages, wire := newAutopath(byMessage), newAutopath(inWire)
	handler.names = inWire
	wire.Next = &handler
	for round := range 2 {
		before := counters(t, server)
		w := newWriter(client)
		if _, err := messages.ServeDNS(ctx, w, r); err != nil {
			t.Fatal(err)
		}
		want := increase(counters(t, server), before)
		before = counters(t, server)
		got := sendWire(t, ctx, wire, client, r, withForm)
		if counted := increase(counters(t, server), before); !maps.Equal(counted, want) {
			t.Errorf("%s, round %d: counted %v, want %v", what, round, counted, want)
		}
		if got.String() != w.Msg.String() {
			t.Errorf("%s, round %d: got %v, want %v", what, round, got, w.Msg)
		}
		if !slices.Equal(inWire.queried, byMessage.queried) {
			t.Errorf("%s, round %d: queried %q, want %q", what, round, inWire.queried, byMessage.queried)
		}
	}
}

var exist = []string{"www.", "first.shop.svc.cluster.local.", "www.cluster.local."}

// sendWire returns the reply to a query in wire form, or in the form of messages if there is no other.
func sendWire(t *testing.T, ctx context.Context, a *Autopath, client string, r *dns.Msg, withForm bool) *dns.Msg {
	t.Helper()
	packed := kit.Pack(t, r)
	c := &wireClient{a: a, ctx: ctx, from: client, r: r}
	q := &wirechain.Request{Packed: packed, Client: netip.MustParseAddr(client), Server: metricsServer(ctx), Answerer: c}
	if !withForm {
		q.Answerer = unformed{c}
	}
	if q.Parse(packed) {
		q.Key = a.Block.Keyspace.Key(make([]byte, 0, store.MaxKey), packed, &q.Query)
		a.ServeWire(new(batch.Batch), q)
	} else {
		c.Pass(nil, q, nil)
	}
	if c.err != nil || c.reply == nil {
		t.Fatalf("got %v, %v", c.reply, c.err)
	}
	return c.reply
}

func metricsServer(ctx context.Context) string {
	return ctx.Value(dnsserver.Key{}).(*dnsserver.Server).Addr
}

// TestWireWithoutHandler asserts that queries are passed to the plugin chain if the next plugin is no wire handler.
func TestWireWithoutHandler(t *testing.T) {
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: "dns://without"})
	for _, name := range []string{"www.shop.svc.cluster.local.", "www.cluster.local."} {
		before := counters(t, "dns://without")
		a := newAutopath(&names{exist: exist})
		if m := sendWire(t, ctx, a, podIP, new(dns.Msg).SetQuestion(name, dns.TypeA), true); len(m.Answer) == 0 {
			t.Errorf("%s: got %v", name, m)
		}
		if name == "www.cluster.local." {
			continue
		}
		if counted := increase(counters(t, "dns://without"), before); !maps.Equal(counted, expansions("success", "2", 2)) {
			t.Errorf("counted %v", counted)
		}
	}
}

// TestWireNamespace asserts that a query in wire form is counted once for the namespace of its pod.
func TestWireNamespace(t *testing.T) {
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: "dns://namespace"})
	list := searchlist.NewForPods("wire-test", shop.Suffixes)
	want := uint64(0)
	for _, handler := range []wireNames{{}, {pass: true}, {unknown: true}} {
		for _, name := range []string{"www.shop.svc.cluster.local.", "www.cluster.local."} {
			a := newAutopath(&names{exist: exist})
			handler.names = a.Next.(*names)
			a.Next = &handler
			a.lists.(lists)[netip.MustParseAddr(podIP)] = list
			sendWire(t, ctx, a, podIP, new(dns.Msg).SetQuestion(name, dns.TypeA), true)
			if want++; list.Namespace.Queries() != want {
				t.Errorf("%+v: %s: %d queries, want %d", handler, name, list.Namespace.Queries(), want)
			}
		}
	}
}

// TestWireNested asserts that a query of a plugin is neither expanded nor counted.
func TestWireNested(t *testing.T) {
	const server = "dns://nested"
	for _, client := range []string{podIP, noIP} {
		a := newAutopath(&names{exist: exist})
		next := &wireNames{names: a.Next.(*names)}
		a.Next = next
		packed := kit.Pack(t, new(dns.Msg).SetQuestion("www.shop.svc.cluster.local.", dns.TypeA))
		c := &wireClient{}
		q := &wirechain.Request{Packed: packed, Client: netip.MustParseAddr(client), Server: server, Nested: true, Answerer: c}
		if !q.Parse(packed) {
			t.Fatal("not parsed")
		}
		a.ServeWire(new(batch.Batch), q)
		if c.reply == nil || len(next.queried) != 1 || len(counters(t, server)) != 0 {
			t.Errorf("%s: got %v, queried %q, counted %v", client, c.reply, next.queried, counters(t, server))
		}
	}
}

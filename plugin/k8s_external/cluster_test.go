package external

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/exposed"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// generation counts the changes of a cluster.
type generation struct{ number uint64 }

func (g *generation) Load() uint64 { return g.number }

// cluster implements exposed.Services. Its names are those of a Service, with the targets of all their ports.
type cluster struct {
	generation
	targets  map[exposed.Name][]exposed.Target // of Services with external addresses
	headless map[exposed.Name][]exposed.Target // of headless Services
	servers  []netip.Addr
	unsynced bool
}

func (c *cluster) Modified() int64 { return 7 }

func (c *cluster) Synced() bool { return !c.unsynced }

func (c *cluster) depend(v *validity.Validity) {
	if v != nil {
		v.DependOn(&c.generation)
	}
}

func (c *cluster) Find(n exposed.Name, headless bool, v *validity.Validity) (targets []exposed.Target, exists bool) {
	c.depend(v)
	service := exposed.Name{Namespace: n.Namespace, Service: n.Service}
	all := c.targets[service]
	if len(all) == 0 && headless {
		all = c.headless[service]
	}
	for _, t := range all {
		if (n.Endpoint == "" || t.Endpoint == "" || n.Endpoint == t.Endpoint) && (n.Port == "" || n.Port == t.PortName) && (n.Protocol == "" || n.Protocol == t.Protocol) {
			targets = append(targets, t)
		}
	}
	return targets, len(targets) > 0 || n.Service == "" && n.Namespace == "shop"
}

func (c *cluster) At(reverse string, v *validity.Validity) (names []exposed.Name) {
	c.depend(v)
	for n, targets := range c.targets {
		if slices.ContainsFunc(targets, func(t exposed.Target) bool {
			name, err := dns.ReverseAddr(t.Addr.String())
			return err == nil && name == reverse
		}) {
			names = append(names, n)
		}
	}
	return names
}

func (c *cluster) All() (names []exposed.Name) {
	for _, all := range []map[exposed.Name][]exposed.Target{c.targets, c.headless} {
		for n := range all {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, func(a, b exposed.Name) int { return cmp.Compare(a.Service, b.Service) })
	return names
}

func (c *cluster) NameServers(bool) []netip.Addr { return c.servers }

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func tcp(t exposed.Target, name string, number int32) exposed.Target {
	t.PortName, t.Protocol, t.Port = name, "tcp", number
	return t
}

// newCluster returns a cluster with Services of each kind in namespace shop.
func newCluster() *cluster {
	four, six := exposed.Target{Addr: addr("192.0.2.1")}, exposed.Target{Addr: addr("2001:db8::1")}
	host := exposed.Target{Host: "lb.example.net."}
	db0, db1 := exposed.Target{Addr: addr("10.1.0.1"), Endpoint: "db-0"}, exposed.Target{Addr: addr("10.1.0.2"), Endpoint: "10-1-0-2"}
	in := func(service string) exposed.Name { return exposed.Name{Namespace: "shop", Service: service} }
	return &cluster{
		targets: map[exposed.Name][]exposed.Target{
			in("web"):                             {tcp(four, "http", 80), tcp(four, "https", 443), tcp(six, "http", 80), tcp(six, "https", 443)},
			in("host"):                            {tcp(host, "http", 80), tcp(host, "https", 443)},
			in("portly"):                          {{Addr: addr("192.0.2.9"), Port: exposed.NoPort}},
			{Namespace: "dns", Service: "hidden"}: {tcp(four, "http", 80)},
		},
		headless: map[exposed.Name][]exposed.Target{in("db"): {tcp(db0, "sql", 5432), tcp(db1, "sql", 5432)}},
		servers:  []netip.Addr{addr("192.0.2.53"), addr("2001:db8::53")},
	}
}

// outside answers for names of hosts.
type outside struct{ asked int }

// Lookup implements upstreamer.
func (o *outside) Lookup(_ context.Context, _ request.Request, name string, qtype uint16) (*dns.Msg, error) {
	o.asked++
	m := new(dns.Msg)
	if qtype == dns.TypeA {
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: qtype, Class: dns.ClassINET, Ttl: 60}, A: []byte{198, 51, 100, 1}}}
	}
	return m, nil
}

// next is the next plugin: its names do not exist, and it stores replies as told.
type next struct{ properties store.Properties }

func (n *next) Name() string { return "next" }

func (n *next) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if p := store.PropertiesOf(ctx, r); p != nil {
		*p = n.properties
	}
	return dns.RcodeSuccess, w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeRefused))
}

// serving returns the handler of a directive.
func serving(t testing.TB, directive string) (*External, *cluster) {
	t.Helper()
	e, err := parse(caddy.NewTestController("dns", directive))
	kit.Must(t, err)
	c := newCluster()
	e.services, e.upstream, e.Next = c, new(outside), new(next)
	return e, c
}

// ask returns the reply to a query in the form "owner TYPE".
func ask(t testing.TB, ctx context.Context, h plugin.Handler, text string) *dns.Msg {
	t.Helper()
	owner, qtype, _ := strings.Cut(text, " ")
	return exchange(t, ctx, h, test.Case{Qname: owner, Qtype: dns.StringToType[qtype]}.Msg())
}

func exchange(t testing.TB, ctx context.Context, h plugin.Handler, r *dns.Msg) *dns.Msg {
	t.Helper()
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	code, err := h.ServeDNS(ctx, w, r)
	if err != nil || w.Msg == nil {
		t.Fatalf("%v: ServeDNS returned %s, error %v, reply %v", r.Question, dns.RcodeToString[code], err, w.Msg)
	}
	return w.Msg
}

// texts returns records as text with single spaces, sorted.
func texts(records []dns.RR) (all []string) {
	for _, rr := range records {
		all = append(all, strings.Join(strings.Fields(rr.String()), " "))
	}
	slices.Sort(all)
	return all
}

// itself is an upstream that leads to the handler itself, as the server does.
type itself struct {
	t       *testing.T
	handler *External
	queries int
}

// Lookup implements upstreamer.
func (i *itself) Lookup(ctx context.Context, _ request.Request, name string, qtype uint16) (*dns.Msg, error) {
	i.queries++
	return exchange(i.t, ctx, i.handler, new(dns.Msg).SetQuestion(name, qtype)), nil
}

// recording is an upstream that leads to the handler itself through a cache, and notes which replies the cache may not store.
type recording struct {
	t       *testing.T
	handler *External
	ended   []bool
}

// Lookup implements upstreamer.
func (r *recording) Lookup(ctx context.Context, _ request.Request, name string, qtype uint16) (*dns.Msg, error) {
	q := new(dns.Msg).SetQuestion(name, qtype)
	ctx, recorded := store.Record(ctx, q)
	m := exchange(r.t, ctx, r.handler, q)
	r.ended = append(r.ended, recorded.Ended())
	return m, nil
}

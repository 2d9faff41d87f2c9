package expand

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// Directives of the tests' server: a plugin that expands names below the first suffix, and a backend.
const (
	expandDirective  = "expandtest"
	backendDirective = "backendtest"
)

// directives is the state of the plugins in the running test.
var directives struct {
	blocks  []*block.Block // server blocks with the expand directive, in order
	backend *backend
	wire    bool // queries are expanded in wire form
	// dispatches is set if the server answers queries for names of other blocks in wire form, too.
	dispatches bool
	passed     atomic.Int32 // number of queries that were passed to the plugin chain

	mu sync.Mutex
	by []string // queries at the backend: the zone of its server block, and the name
}

// takeQueries returns the queries at the backend since the last call.
func takeQueries() []string {
	directives.mu.Lock()
	defer directives.mu.Unlock()
	by := directives.by
	directives.by = nil
	return by
}

func init() {
	dnsserver.Directives = append(dnsserver.Directives, expandDirective, backendDirective)
	plugin.Register(expandDirective, func(c *caddy.Controller) error {
		x := &Expander{Plugin: expandDirective, Block: block.Of(c), Metrics: testMetrics}
		directives.blocks = append(directives.blocks, x.Block)
		dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
			x.Next = next
			return expandHandler{x}
		})
		return nil
	})
	plugin.Register(backendDirective, func(c *caddy.Controller) error {
		config := dnsserver.GetConfig(c)
		config.AddPlugin(func(plugin.Handler) plugin.Handler { return backendHandler{config.Zone} })
		return nil
	})
}

type expandHandler struct{ *Expander }

func (expandHandler) Name() string { return expandDirective }

func (e expandHandler) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	name := r.Question[0].Name
	if Nested(ctx) || !strings.HasSuffix(name, "."+podSuffixes[0]) {
		return plugin.NextOrFailure(e.Name(), e.Next, ctx, w, r)
	}
	q := &Question{Base: strings.TrimSuffix(name, podSuffixes[0]), Suffixes: podSuffixes, ListID: 1}
	if directives.wire {
		return e.serveWire(ctx, w, r, q)
	}
	return e.Expander.ServeDNS(ctx, w, r, q)
}

// serveWire expands a query in wire form.
func (e expandHandler) serveWire(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, question *Question) (code int, err error) {
	packed, err := r.Pack()
	if err != nil {
		return dns.RcodeServerFailure, err
	}
	c := &serverClient{ctx: ctx, x: e.Expander, w: w, r: r}
	q := &wirechain.Request{Packed: packed, Server: ctx.Value(dnsserver.Key{}).(*dnsserver.Server).Addr, Answerer: c}
	if !q.Parse(packed) {
		return dns.RcodeServerFailure, errors.New("not parsed")
	}
	q.Key = e.Block.Keyspace.Key(make([]byte, 0, store.MaxKey), packed, &q.Query)
	if directives.dispatches {
		q.Dispatcher = dispatcher{e.Block.ZonesOn(q.Server)}
	}
	e.ServeWire(new(batch.Batch), q, r.Question[0].Name, question)
	return c.code, c.err
}

// dispatcher implements wirechain.Dispatcher for the zones of a server.
type dispatcher struct{ zones *block.ServerZones }

func (d dispatcher) Dispatch(b *batch.Batch, q *wirechain.Request) bool {
	name, _, err := dns.UnpackDomainName(q.Packed, wire.HeaderLen)
	if err != nil {
		panic(err)
	}
	zone := d.zones.ZoneOf(name)
	if zone == "" {
		return false
	}
	backendHandler{zone}.ServeWire(b, q)
	return true
}

// serverClient is the Answerer of a query that a server has received.
type serverClient struct {
	ctx  context.Context
	x    *Expander
	w    dns.ResponseWriter
	r    *dns.Msg
	code int
	err  error
}

func (c *serverClient) Answer(_ *batch.Batch, q *wirechain.Request, e *store.Entry, p store.Patch) {
	m, err := e.Message(q.Packed, q.Query, &p)
	if err == nil {
		err = c.w.WriteMsg(m)
	}
	c.err = err
}

func (c *serverClient) Pass(_ *batch.Batch, _ *wirechain.Request, result any) {
	var ok bool
	directives.passed.Add(1)
	if ok, c.code, c.err = c.x.Resume(wirechain.WithResult(c.ctx, c.r, result), c.w, c.r); !ok {
		c.err = fmt.Errorf("not resumed: %v", result)
	}
}

// ServeWire implements wirechain.Handler.
func (z backendHandler) ServeWire(b *batch.Batch, q *wirechain.Request) {
	directives.mu.Lock()
	defer directives.mu.Unlock()
	name, _, err := dns.UnpackDomainName(q.Packed, wire.HeaderLen)
	if err != nil {
		panic(err)
	}
	directives.by = append(directives.by, z.zone+" "+name)
	(&wireBackend{directives.backend, always(atOnce)}).ServeWire(b, q)
}

type backendHandler struct{ zone string }

func (backendHandler) Name() string { return backendDirective }

func (z backendHandler) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	directives.mu.Lock()
	defer directives.mu.Unlock()
	directives.by = append(directives.by, z.zone+" "+r.Question[0].Name)
	if Nested(ctx) && store.PropertiesOf(ctx, r) == nil {
		return dns.RcodeServerFailure, fmt.Errorf("no properties to fill in for the query %v", r.Question)
	}
	return directives.backend.ServeDNS(ctx, w, r)
}

// serve starts servers, and returns the addresses by network of the one that does not listen on PORT, which is replaced by
// a free port.
func serve(t *testing.T, w *backend, corefile string) map[string]string {
	t.Helper()
	caddy.Quiet, dnsserver.Quiet = true, true
	var instance *caddy.Instance
	var other int
	for try := 0; instance == nil; try++ {
		other = freePort(t)
		directives.blocks, directives.backend = nil, w
		text := strings.Replace(corefile, "PORT", strconv.Itoa(other), 1)
		var err error
		instance, err = caddy.Start(caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(text), ServerTypeName: "dns"})
		if err != nil && (try == 10 || !strings.Contains(err.Error(), "address already in use")) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		instance.ShutdownCallbacks()
		if err := instance.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, server := range instance.Servers() {
		if udp, tcp := server.LocalAddr().(*net.UDPAddr).Port, server.Addr().(*net.TCPAddr).Port; udp != other {
			return map[string]string{"udp": fmt.Sprintf("127.0.0.1:%d", udp), "tcp": fmt.Sprintf("127.0.0.1:%d", tcp)}
		}
	}
	t.Fatal("no server")
	return nil
}

// TestBlocks asserts that a candidate is queried in the server block that its name belongs to, on the same port.
func TestBlocks(t *testing.T) {
	for name, want := range map[string]int32{"messages": 0, "wire": 8, "wire, dispatched": 4} {
		t.Run(name, func(t *testing.T) {
			directives.wire, directives.dispatches = name != "messages", name == "wire, dispatched"
			directives.passed.Store(0)
			defer func() { directives.wire, directives.dispatches = false, false }()
			testBlocks(t)
			if got := directives.passed.Load(); got != want {
				t.Errorf("%d queries were passed to the plugin chain, want %d", got, want)
			}
		})
	}
}

func testBlocks(t *testing.T) {
	const own = "cluster.test:0 corp.test:0 {\nexpandtest\nbackendtest\n}\n"
	clusterNames := []string{"cluster.test. " + first, "cluster.test. " + second, "cluster.test. " + third}
	tests := map[string]struct {
		corefile string
		found    string
		want     []string
		rcode    int
		stored   bool
	}{
		"in the own block":        {own, third, clusterNames, dns.RcodeSuccess, true},
		"in its other zone":       {own, fourth, slices.Concat(clusterNames, []string{"cluster.test. " + fourth}), dns.RcodeSuccess, true},
		"in no block":             {own, bareName, slices.Concat(clusterNames, []string{"cluster.test. " + fourth}), dns.RcodeNameError, false},
		"in another block":        {own + ".:0 {\nbackendtest\n}\n", bareName, slices.Concat(clusterNames, []string{"cluster.test. " + fourth, ". " + bareName}), dns.RcodeSuccess, true},
		"in a block above":        {"shop.svc.cluster.test:0 {\nexpandtest\nbackendtest\n}\n" + strings.Replace(own, "expandtest\n", "", 1), second, []string{"shop.svc.cluster.test. " + first, "cluster.test. " + second}, dns.RcodeSuccess, true},
		"in a block between":      {own + "shop.svc.cluster.test:0 {\nexpandtest\nbackendtest\n}\nsvc.cluster.test:0 {\nbackendtest\n}\n", third, []string{"shop.svc.cluster.test. " + first, "svc.cluster.test. " + second, "cluster.test. " + third}, dns.RcodeSuccess, true},
		"in a block that expands": {own + ".:0 {\nexpandtest\nbackendtest\n}\n", bareName, slices.Concat(clusterNames, []string{"cluster.test. " + fourth, ". " + bareName}), dns.RcodeSuccess, true},
		"on another port":         {own + ".:PORT {\nbackendtest\n}\n", bareName, slices.Concat(clusterNames, []string{"cluster.test. " + fourth}), dns.RcodeNameError, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			addresses := serve(t, newBackend(map[string]replyKind{tt.found: replyData}), tt.corefile)
			for _, network := range []string{"udp", "tcp"} {
				takeQueries()
				client := dns.Client{Net: network}
				m, _, err := client.Exchange(query(first, dns.TypeA), addresses[network])
				kit.Must(t, err)
				if m.Rcode != tt.rcode || tt.rcode == dns.RcodeSuccess && (len(m.Answer) != 3 || m.Answer[0].(*dns.CNAME).Target != tt.found) {
					t.Errorf("%s: got %v, want %s of %s", network, m, dns.RcodeToString[tt.rcode], tt.found)
				}
				want := tt.want
				if tt.stored && network == "tcp" {
					want = nil
				}
				if by := takeQueries(); !slices.Equal(by, want) {
					t.Errorf("%s: queries %q, want %q", network, by, want)
				}
			}
		})
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestNoServer asserts that without a server in the context, the block serves every name.
func TestNoServer(t *testing.T) {
	serve(t, newBackend(nil), "cluster.test:0 {\nexpandtest\nbackendtest\n}\n")
	x := newExpander(newBackend(map[string]replyKind{bareName: replyData}))
	x.Block = directives.blocks[0]
	if got := send(t, x, query(first, dns.TypeA), &podQuestion); got.rcode() != dns.RcodeSuccess {
		t.Errorf("without a server: got %v, %v", got.Msg, got.err)
	}
}

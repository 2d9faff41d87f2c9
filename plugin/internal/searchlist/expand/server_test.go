package expand

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/block"
)

// The directives of the server in these tests: one that expands what is below the first suffix, and one that says
// what is so.
const (
	expandDirective = "expandtest"
	worldDirective  = "worldtest"
)

// directives are what they do in the test that runs.
var directives struct {
	blocks []*block.Block // with expandtest, in order
	world  *world

	mu sync.Mutex
	by []string // who was asked for which name: the zone of the block, and the name
}

// takeAsked returns who was asked for which name since the last call.
func takeAsked() []string {
	directives.mu.Lock()
	defer directives.mu.Unlock()
	by := directives.by
	directives.by = nil
	return by
}

func init() {
	dnsserver.Directives = append(dnsserver.Directives, expandDirective, worldDirective)
	plugin.Register(expandDirective, func(c *caddy.Controller) error {
		x := &Expander{Plugin: expandDirective, Block: block.Of(c), Results: results}
		directives.blocks = append(directives.blocks, x.Block)
		dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
			x.Next = next
			return expands{x}
		})
		return nil
	})
	plugin.Register(worldDirective, func(c *caddy.Controller) error {
		config := dnsserver.GetConfig(c)
		config.AddPlugin(func(plugin.Handler) plugin.Handler { return tells{config.Zone} })
		return nil
	})
}

type expands struct{ *Expander }

func (expands) Name() string { return expandDirective }

func (e expands) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	name := r.Question[0].Name
	if Nested(ctx) || !strings.HasSuffix(name, "."+podSuffixes[0]) {
		return plugin.NextOrFailure(e.Name(), e.Next, ctx, w, r)
	}
	return e.Expander.ServeDNS(ctx, w, r, &Question{Base: strings.TrimSuffix(name, podSuffixes[0]), Suffixes: podSuffixes, Path: 1})
}

type tells struct{ zone string }

func (tells) Name() string { return worldDirective }

func (z tells) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	directives.mu.Lock()
	defer directives.mu.Unlock()
	directives.by = append(directives.by, z.zone+" "+r.Question[0].Name)
	if Nested(ctx) && answers.PropertiesOf(ctx, r) == nil {
		return dns.RcodeServerFailure, fmt.Errorf("nobody wants to know how long what is said of %v is so", r.Question)
	}
	return directives.world.ServeDNS(ctx, w, r)
}

// serve starts servers, and returns the addresses by network of the one that is on another port than this.
func serve(t *testing.T, w *world, corefile string, other int) map[string]string {
	t.Helper()
	caddy.Quiet, dnsserver.Quiet = true, true
	directives.blocks, directives.world = nil, w
	instance, err := caddy.Start(caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(corefile), ServerTypeName: "dns"})
	if err != nil {
		t.Fatal(err)
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
	t.Fatal("there is no server")
	return nil
}

// TestBlocks asserts that candidates are asked for where the server would look for them: in the own block those of
// its zones, but for zones in them that another block has.
func TestBlocks(t *testing.T) {
	const own = "cluster.test:0 corp.test:0 {\nexpandtest\nworldtest\n}\n"
	clusterNames := []string{"cluster.test. " + first, "cluster.test. " + second, "cluster.test. " + third}
	tests := map[string]struct {
		corefile string
		found    string
		want     []string
		rcode    int
		kept     bool
	}{
		"in the own block":     {own, third, clusterNames, dns.RcodeSuccess, true},
		"in its other zone":    {own, fourth, slices.Concat(clusterNames, []string{"cluster.test. " + fourth}), dns.RcodeSuccess, true},
		"in no block":          {own, bareName, slices.Concat(clusterNames, []string{"cluster.test. " + fourth}), dns.RcodeNameError, false},
		"in another block":     {own + ".:0 {\nworldtest\n}\n", bareName, slices.Concat(clusterNames, []string{"cluster.test. " + fourth, ". " + bareName}), dns.RcodeSuccess, true},
		"in a block above":     {"shop.svc.cluster.test:0 {\nexpandtest\nworldtest\n}\n" + strings.Replace(own, "expandtest\n", "", 1), second, []string{"shop.svc.cluster.test. " + first, "cluster.test. " + second}, dns.RcodeSuccess, true},
		"in a block between":   {own + "shop.svc.cluster.test:0 {\nexpandtest\nworldtest\n}\nsvc.cluster.test:0 {\nworldtest\n}\n", third, []string{"shop.svc.cluster.test. " + first, "svc.cluster.test. " + second, "cluster.test. " + third}, dns.RcodeSuccess, true},
		"in a block that also": {own + ".:0 {\nexpandtest\nworldtest\n}\n", bareName, slices.Concat(clusterNames, []string{"cluster.test. " + fourth, ". " + bareName}), dns.RcodeSuccess, true},
		"on another port":      {own + ".:PORT {\nworldtest\n}\n", bareName, slices.Concat(clusterNames, []string{"cluster.test. " + fourth}), dns.RcodeNameError, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			other := freePort(t)
			corefile := strings.Replace(tt.corefile, "PORT", strconv.Itoa(other), 1)
			addresses := serve(t, newWorld(map[string]said{tt.found: saysData}), corefile, other)
			for _, network := range []string{"udp", "tcp"} {
				takeAsked()
				client := dns.Client{Net: network}
				m, _, err := client.Exchange(query(first, dns.TypeA), addresses[network])
				if err != nil {
					t.Fatal(err)
				}
				if m.Rcode != tt.rcode || tt.rcode == dns.RcodeSuccess && (len(m.Answer) != 3 || m.Answer[0].(*dns.CNAME).Target != tt.found) {
					t.Errorf("%s: got %v, want %s of %s", network, m, dns.RcodeToString[tt.rcode], tt.found)
				}
				want := tt.want
				if tt.kept && network == "tcp" {
					want = nil
				}
				if by := takeAsked(); !slices.Equal(by, want) {
					t.Errorf("%s: asked %q, want %q", network, by, want)
				}
			}
		})
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// TestNoServer asserts that without a server there is an error for what only another block could answer.
func TestNoServer(t *testing.T) {
	serve(t, newWorld(nil), "cluster.test:0 {\nexpandtest\nworldtest\n}\n", 0)
	x := newExpander(newWorld(map[string]said{bareName: saysData}))
	x.Block = directives.blocks[0]
	if got := ask(t, x, query(first, dns.TypeA), &podQuestion); got.rcode() != dns.RcodeSuccess {
		t.Errorf("without a server all is the block's: got %v, %v", got.Msg, got.err)
	}
}

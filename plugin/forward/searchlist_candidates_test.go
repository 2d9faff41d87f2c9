package forward

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// TestMayTry: a search list is sent only to an upstream that gets all its candidates.
func TestMayTry(t *testing.T) {
	t.Parallel()
	const (
		shop  = "forward . 192.0.2.1 {\ncaller node-a\n}\n"
		third = "team.cluster.local" // the zone of the third candidate
		qname = "web.team.shop.svc.cluster.local."
	)
	own := []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local."}
	tests := map[string]struct {
		stanzas string
		stanza  int
		shared  bool
		name    string
		want    bool
	}{
		"alone":                         {shop, 0, false, qname, true},
		"in another case":               {shop, 0, false, "Web.Team.SHOP.svc.cluster.local.", true},
		"with a plugin that may answer": {shop, 0, true, qname, false},
		"of another name":               {shop, 0, false, "web.team.svc.cluster.local.", false},
		"for a part of the zone":        {"forward svc.cluster.local 192.0.2.1 {\ncaller node-a\n}\n", 0, false, qname, false},
		"for all of the zone":           {"forward cluster.local 192.0.2.1 {\ncaller node-a\n}\n" + shop, 0, false, qname, true},
		"behind one for a name":         {"forward " + third + " 192.0.2.2\n" + shop, 1, false, qname, false},
		"behind one for others":         {"forward mail.cluster.local 192.0.2.2\n" + shop, 1, false, qname, true},
		"before one for a name":         {shop + "forward " + third + " 192.0.2.2\n", 0, false, qname, true},
		"except a name":                 {"forward . 192.0.2.1 {\ncaller node-a\nexcept " + third + "\n}\n", 0, false, qname, false},
		"except others":                 {"forward . 192.0.2.1 {\ncaller node-a\nexcept mail.cluster.local\n}\n", 0, false, qname, true},
	}
	for name, tt := range tests {
		configs := configured(t, tt.stanzas)
		b := newBlock(configs)
		b.setShared(tt.shared)
		data, _ := searchlist.AppendSuffixes(nil, own)
		m := searchlist.WithOption(new(dns.Msg).SetQuestion(tt.name, dns.TypeA), data)
		list, _ := searchlist.OptionOf(m)
		if ok := b.stanzas[tt.stanza].mayTry(tt.name, list); ok != tt.want || !slices.Equal(list, data) {
			t.Errorf("%s: %t, want %t", name, ok, tt.want)
		}
	}
}

// neighbour is another plugin of a server block, before this one.
type neighbour struct {
	name string
	next plugin.Handler
}

func (n *neighbour) Name() string { return n.name }

func (n *neighbour) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	return plugin.NextOrFailure(n.name, n.next, ctx, w, r)
}

// neighbours are the plugins of the last started server.
var neighbours []*neighbour

var registerNeighbours = sync.OnceFunc(func() {
	for _, name := range []string{"errors", "hosts"} {
		plugin.Register(name, func(c *caddy.Controller) error {
			dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler {
				n := &neighbour{name, next}
				neighbours = append(neighbours, n)
				return n
			})
			return nil
		})
	}
})

// TestSetup_Shared: the start sets whether another plugin of the server block may answer names of the cluster.
func TestSetup_Shared(t *testing.T) {
	registerNeighbours()
	caddy.Quiet, dnsserver.Quiet = true, true
	for name, want := range map[string]bool{"errors": false, "hosts": true} {
		neighbours = nil
		text := "cluster.local:0 {\n" + name + "\nforward . 192.0.2.1\n}\n"
		inst, err := caddy.Start(caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(text), ServerTypeName: "dns"})
		kit.Must(t, err)
		if f, ok := neighbours[0].next.(*Forward); !ok || f.shared != want {
			t.Errorf("with %s shared is %t, want %t", name, !want, want)
		}
		for _, err := range append(inst.ShutdownCallbacks(), inst.Stop()) {
			if err != nil {
				t.Error(err)
			}
		}
	}
}

package autopath

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/kubernetes/clients"
	"github.com/nearside-dns/nearside/test/kit"
)

// controller returns a controller that reads the text of a server block with zones.
func controller(text string, zones ...string) *caddy.Controller {
	c := caddy.NewTestController("dns", text)
	c.ServerBlockKeys = zones
	return c
}

// The server of these tests has three other plugins: lister has search lists, ignorant has none, cache is a cache.
var (
	nextLister lister    // of the next start
	started    *Autopath // by the last start
)

func init() {
	NewNodeFinder = func(c *caddy.Controller, zone string) (NodeFinder, error) { return clients.ForNode(c, zone) } // as the programs do
	dnsserver.Directives = append(dnsserver.Directives, "lister", "ignorant")
	add := func(name string, handler func(next plugin.Handler) plugin.Handler) {
		plugin.Register(name, func(c *caddy.Controller) error {
			config := dnsserver.GetConfig(c)
			config.AddPlugin(handler)
			c.OnStartup(func() error { started, _ = config.Handler("autopath").(*Autopath); return nil })
			return nil
		})
	}
	add("lister", func(next plugin.Handler) plugin.Handler { l := nextLister; l.Handler = next; return l })
	add("ignorant", func(next plugin.Handler) plugin.Handler { return ignorant{next} })
	add("cache", func(next plugin.Handler) plugin.Handler { return caching{next} })
}

// lister is a plugin that has search lists.
type lister struct {
	plugin.Handler
	finder searchlist.Finder
	err    error
}

func (lister) Name() string { return "lister" }

func (l lister) SearchLists() (searchlist.Finder, error) { return l.finder, l.err }

// ignorant is a plugin without search lists.
type ignorant struct{ plugin.Handler }

func (ignorant) Name() string { return "ignorant" }

// caching is a plugin named cache.
type caching struct{ plugin.Handler }

func (caching) Name() string { return "cache" }

// start starts a server with a block and stops it, and returns the handler as it was configured.
func start(t *testing.T, zones, block string) (*Autopath, error) {
	t.Helper()
	caddy.Quiet, dnsserver.Quiet, started = true, true, nil
	text := fmt.Sprintf("%s {\n%s\n}\n", zones, block)
	instance, err := caddy.Start(caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(text), ServerTypeName: "dns"})
	if err != nil {
		return nil, err
	}
	instance.ShutdownCallbacks()
	if err := instance.Stop(); err != nil {
		t.Error(err)
	}
	return started, nil
}

func TestStart(t *testing.T) {
	file := kit.File(t, "resolv.conf", "search shop.svc.cluster.local cluster.local\n")
	none := kit.File(t, "none.conf", "nameserver 10.0.0.1\n")
	manifests := filepath.Dir(kit.File(t, "pods.yaml", podsOfNode))
	node := fmt.Sprintf("autopath @nodelocal {\nnode n1\nmanifests %s\nresolv_conf %s\n}\n", manifests, file)
	tests := map[string]struct {
		block    string
		noCache  bool
		complete []string       // zones of which one server has all names
		err      error          // of the plugin
		first    map[string]any // by client: the first suffix of its list, or the reason why the list is unknown
	}{
		"another plugin": {"autopath @lister\nlister", true, []string{"cluster.local."}, nil, map[string]any{"10.1.0.1": "shop.svc.cluster.local."}},
		"with a cache":   {"autopath @lister\nlister\ncache", false, []string{"cluster.local."}, nil, map[string]any{"10.1.0.2": searchlist.NoPod}},
		"a file":         {"autopath " + file + "\nignorant", true, nil, nil, map[string]any{"192.0.2.1": "shop.svc.cluster.local.", "2001:db8::1": "shop.svc.cluster.local."}},
		"an empty file":  {"autopath " + none + "\nignorant", true, nil, nil, map[string]any{"192.0.2.1": searchlist.NoList}},
		"no plugin":      {"autopath @lister\nignorant", true, nil, nil, map[string]any{"10.1.0.1": searchlist.NoList}},
		"no lists":       {"autopath @lister\nlister", true, nil, errors.New("no pods are watched"), map[string]any{"10.1.0.1": searchlist.NoList}},
		"the node":       {node + "cache", false, []string{"cluster.local."}, nil, map[string]any{"10.1.0.1": "shop.svc.cluster.local.", "10.1.0.2": searchlist.NoPod}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			nextLister = lister{err: tt.err, finder: lists{netip.MustParseAddr("10.1.0.1"): searchlist.New([]string{"shop.svc.cluster.local.", "cluster.local."})}}
			a, err := start(t, "cluster.local:0 b.test:0", tt.block)
			kit.Must(t, err)
			if a.Name() != "autopath" || a.Plugin != "autopath" || a.Block == nil || a.Next == nil || a.Metrics != expandMetrics || a.StoresCandidates != tt.noCache {
				t.Errorf("got %+v", a)
			}
			if !slices.Equal(a.zones, []string{"cluster.local.", "b.test."}) || !slices.Equal(a.Expander.Zones, tt.complete) {
				t.Errorf("zones %q and %q", a.zones, a.Expander.Zones)
			}
			for from, want := range tt.first {
				list, reason := a.lists.Find(netip.MustParseAddr(from))
				if list != nil && list.First() != want || list == nil && reason != want {
					t.Errorf("%s: got %+v, %v, want %v", from, list, reason, want)
				}
			}
		})
	}
}

func TestStartErrors(t *testing.T) {
	for _, tt := range []struct {
		block string
		want  string
	}{
		{"autopath @ignorant\nignorant", "invalid source @ignorant: want a plugin of this server block that has search lists"},
	} {
		_, err := start(t, "cluster.local:0", tt.block)
		if err == nil || !strings.Contains(err.Error(), "plugin/autopath: Corefile:2 - Error during parsing: "+tt.want) {
			t.Errorf("%q: error %v", tt.block, err)
		}
	}
}

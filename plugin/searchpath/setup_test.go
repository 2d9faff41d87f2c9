package searchpath

import (
	"strings"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
)

// setUp sets a server block up, as the server does, and returns its handler.
func setUp(t *testing.T, corefile string) (*SearchPath, *caddy.Controller) {
	t.Helper()
	c := controller(corefile)
	if err := setup(c); err != nil {
		t.Fatal(err)
	}
	plugins := dnsserver.GetConfig(c).Plugin
	if len(plugins) != 1 {
		t.Fatalf("%d plugins, want 1", len(plugins))
	}
	return plugins[0](new(nobody)).(*SearchPath), c
}

func TestSetup(t *testing.T) {
	s, _ := setUp(t, "searchpath {\nzone cluster.local example.org\nhost-searches off\n}")
	x := s.expander.(*expand.Expander)
	if s.Name() != "searchpath" || x.Plugin != "searchpath" || x.Block == nil || x.Results != results {
		t.Errorf("the handler is %+v with %+v", s, x)
	}
	if s.Next == nil || x.Next != s.Next {
		t.Errorf("the next plugins are %v and %v", s.Next, x.Next)
	}
	if got := strings.Join(x.Zones, " "); got != "cluster.local. example.org." {
		t.Errorf("zones %q", got)
	}
}

// cache is a plugin that keeps what the next one says.
type cache struct{ plugin.Handler }

func (cache) Name() string { return "cache" }

// TestKeepsPlain holds that the answers to candidates are kept by one of the plugins of a block.
func TestKeepsPlain(t *testing.T) {
	for _, withCache := range []bool{false, true} {
		_, c := setUp(t, "searchpath {\nzone cluster.local\nhost-searches off\n}")
		config := dnsserver.GetConfig(c)
		if withCache {
			config.Plugin = append(config.Plugin, func(plugin.Handler) plugin.Handler { return cache{} })
		}
		if _, err := dnsserver.NewServer("dns://:53", []*dnsserver.Config{config}); err != nil { // it makes the handlers
			t.Fatal(err)
		}
		if got := keepsPlain(config); got == withCache {
			t.Errorf("with a cache %t, it keeps plain answers: %t", withCache, got)
		}
	}
}

func TestSetupError(t *testing.T) {
	c := controller("searchpath {\nzone .\n}")
	if err := setup(c); err == nil || !strings.HasPrefix(err.Error(), "plugin/searchpath: Testfile:2") {
		t.Errorf("error %v", err)
	}
}

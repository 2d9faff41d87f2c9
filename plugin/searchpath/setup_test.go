package searchpath

import (
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
)

// setUp sets up a server block as the server does, and returns its handler.
func setUp(t *testing.T, corefile string) *SearchPath {
	t.Helper()
	c := controller(corefile)
	kit.Must(t, setup(c))
	plugins := dnsserver.GetConfig(c).Plugin
	if len(plugins) != 1 {
		t.Fatalf("%d plugins, want 1", len(plugins))
	}
	return plugins[0](new(next)).(*SearchPath)
}

func TestSetup(t *testing.T) {
	s := setUp(t, "searchpath {\nzone cluster.local example.org\nhost-searches off\n}")
	if s.Name() != "searchpath" || s.Plugin != "searchpath" || s.Block == nil || s.Metrics != expandMetrics || s.Next == nil {
		t.Errorf("got %+v", s)
	}
	if got := strings.Join(s.Zones, " "); got != "cluster.local. example.org." {
		t.Errorf("zones %q", got)
	}
}

// cache is a plugin named cache.
type cache struct{ plugin.Handler }

func (cache) Name() string { return "cache" }

var started *SearchPath // by the last start

func init() {
	dnsserver.Directives = append(dnsserver.Directives, "searchpath", "started")
	plugin.Register("cache", func(c *caddy.Controller) error {
		dnsserver.GetConfig(c).AddPlugin(func(next plugin.Handler) plugin.Handler { return cache{next} })
		return nil
	})
	plugin.Register("started", func(c *caddy.Controller) error { // its OnStartup is called after that of searchpath
		config := dnsserver.GetConfig(c)
		c.OnStartup(func() error { started, _ = config.Handler("searchpath").(*SearchPath); return nil })
		return nil
	})
}

// TestStoresCandidates asserts that one plugin of a server block stores the answers to candidates: cache if there is one.
func TestStoresCandidates(t *testing.T) {
	caddy.Quiet, dnsserver.Quiet = true, true
	for directive, want := range map[string]bool{"": true, "cache": false} {
		text := ".:0 {\nsearchpath {\nzone cluster.local\nhost-searches off\n}\nstarted\n" + directive + "\n}\n"
		instance, err := caddy.Start(caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(text), ServerTypeName: "dns"})
		kit.Must(t, err)
		instance.ShutdownCallbacks()
		if err := instance.Stop(); err != nil {
			t.Error(err)
		}
		if started.StoresCandidates != want {
			t.Errorf("with %q: StoresCandidates %t, want %t", directive, started.StoresCandidates, want)
		}
	}
}

func TestSetupError(t *testing.T) {
	c := controller("searchpath {\nzone .\n}")
	if err := setup(c); err == nil || !strings.HasPrefix(err.Error(), "plugin/searchpath: Testfile:2") {
		t.Errorf("error %v", err)
	}
}

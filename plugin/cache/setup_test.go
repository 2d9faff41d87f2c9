package cache

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// setUp parses the server blocks of one Corefile, as the server does, and returns their controllers.
func setUp(t *testing.T, blocks ...string) (all []*caddy.Controller, err error) {
	t.Helper()
	first := caddy.NewTestController("dns", "")
	for i, text := range blocks {
		c := caddy.NewTestController("dns", text)
		one := *first
		one.Dispenser, one.ServerBlockIndex, one.ServerBlockKeys, one.Key = c.Dispenser, i, []string{"."}, text
		if err := setup(&one); err != nil {
			return nil, err
		}
		all = append(all, &one)
	}
	return all, nil
}

func TestBudget(t *testing.T) {
	t.Cleanup(func() { current.Store(nil); store.Shared.SetBudget(store.DefaultBudget) })
	parsed := func(c *caddy.Controller) *budget { return budgetOf(c) }
	none, err := setUp(t, "cache")
	kit.Must(t, err)
	some, err := setUp(t, "cache", "cache {\nbudget 4MiB\n}", "cache {\nbudget 4194304\n}")
	kit.Must(t, err)
	want := func(step string, bytes int64) {
		t.Helper()
		if got := store.Shared.Budget(); got != bytes {
			t.Errorf("%s: budget of %d bytes, want %d", step, got, bytes)
		}
	}
	parsed(none[0]).apply()
	want("without a budget", store.DefaultBudget)
	for _, c := range some {
		parsed(c).apply()
	}
	parsed(none[0]).release()
	want("after a reload", 4<<20)
	parsed(none[0]).apply()
	parsed(some[0]).release()
	want("after a reload without it", store.DefaultBudget)
	parsed(some[0]).apply()
	parsed(some[0]).release()
	want("without any cache", store.DefaultBudget)
}

func TestBudgetTwice(t *testing.T) {
	_, err := setUp(t, "cache {\nbudget 4MiB\n}", "cache", "cache {\n\nbudget 8MiB\n}")
	const want = "plugin/cache: Testfile:3 - Error during parsing: budget: 8388608 bytes here, but 4194304 bytes at Testfile:2: the process has one budget"
	if err == nil || err.Error() != want {
		t.Errorf("error\n got %v\nwant %s", err, want)
	}
}

// bypasser is a plugin with a zone that must not be cached.
type bypasser struct{ plugin.Handler }

func (bypasser) CacheBypassZones() []string { return []string{"update.example."} }
func (bypasser) Name() string               { return "file" } // a directive that the server knows

func TestStart(t *testing.T) {
	c := caddy.NewTestController("dns", "cache {\nsuccess 1024\n}")
	c.ServerBlockKeys = []string{"."}
	kit.Must(t, setup(c))
	config := dnsserver.GetConfig(c)
	config.ViewName = "inside"
	if len(config.Plugin) != 1 {
		t.Fatalf("%d plugins, want 1", len(config.Plugin))
	}
	h := config.Plugin[0](nil).(*Cache)
	config.Plugin = append(config.Plugin, func(plugin.Handler) plugin.Handler { return bypasser{} })
	made, err := dnsserver.NewServer("dns://:53", []*dnsserver.Config{config}) // creates the handlers
	if err != nil || made == nil {
		t.Fatalf("server %v, %v", made, err)
	}
	h.start(config)
	if h.Name() != "cache" || h.space == nil || h.view != "inside" || !slices.Equal(h.bypass, plugin.Zones{"update.example."}) {
		t.Errorf("the handler is %+v", h)
	}
	h.Next = plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a(r.Question[0].Name, 300)))
	})
	for i := range 1030 {
		if _, err := h.ServeDNS(context.Background(), new(client), query(fmt.Sprintf("w%d. A", i))); err != nil {
			t.Fatal(err)
		}
	}
	if n := h.space.Len(store.Success); n != 1024 {
		t.Errorf("%d entries, want the capacity", n)
	}
}

func TestSetupError(t *testing.T) {
	if _, err := setUp(t, "cache 0"); err == nil || !strings.HasPrefix(err.Error(), "plugin/cache: Testfile:1") {
		t.Errorf("error %v", err)
	}
}

package source

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/bind"
)

// configured are the sources of the running test by key, and the handles in the order of their start.
var (
	configured map[string]*fixedSource
	handles    []*Handle
)

// init registers a directive that uses a source, or refuses to start: sourcetest KEY, sourcetest fail.
func init() {
	plugin.Register("sourcetest", func(c *caddy.Controller) error {
		for c.Next() {
			key := c.RemainingArgs()[0]
			if key == "fail" {
				c.OnStartup(func() error { return errors.New("refused") })
				continue
			}
			if configured[key] == nil {
				configured[key] = newFixedSource()
			}
			Follow(c, func() string { return key }, configured[key], Snapshot{}, func(h *Handle) { handles = append(handles, h) })
		}
		return nil
	})
}

func configuration(keys ...string) caddy.CaddyfileInput {
	var text strings.Builder
	for i, key := range keys {
		fmt.Fprintf(&text, "z%d.test:0 {\n    bind 127.0.0.1\n    sourcetest %s\n}\n", i, key)
	}
	return caddy.CaddyfileInput{Contents: []byte(text.String()), ServerTypeName: "dns"}
}

// TestFollow reloads a configuration: a refused one stops the sources that only it uses, and one that is served takes over
// the source with its index.
func TestFollow(t *testing.T) {
	kit.Must(t, dnsserver.SetDirectives([]string{"bind", "sourcetest"}))
	configured, handles = map[string]*fixedSource{}, nil
	stopped := func(when string, want map[string]bool) {
		t.Helper()
		for key, want := range want {
			if got := configured[key].hasStopped(); got != want {
				t.Errorf("%s: source %s has stopped: %t, want %t", when, key, got, want)
			}
		}
	}
	instance, err := caddy.Start(configuration("a", "b"))
	kit.Must(t, err)
	for range 2 {
		if _, err := instance.Restart(configuration("a", "c", "fail")); err == nil {
			t.Fatal("the configuration is served")
		}
		stopped("refused", map[string]bool{"a": false, "b": false, "c": true})
		configured["c"] = nil
	}
	next, err := instance.Restart(configuration("a", "d"))
	kit.Must(t, err)
	stopped("replaced", map[string]bool{"a": false, "b": true, "d": false})
	if first, last := handles[0], handles[len(handles)-2]; first.Index() != last.Index() {
		t.Error("the index of the source was not handed over")
	}
	if errs := next.ShutdownCallbacks(); len(errs) > 0 {
		t.Error(errs)
	}
	stopped("exit", map[string]bool{"a": true, "d": true})
	if err := next.Stop(); err != nil {
		t.Error(err)
	}
}

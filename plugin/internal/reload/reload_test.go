package reload

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	_ "github.com/coredns/coredns/plugin/bind"
)

const testDirective = "reloadtest"

// calls are what the owners of the running test were called for.
var calls []string

// refuseReload makes the next reload fail before any plugin is called for it.
var refuseReload bool

// init registers a directive that follows its configuration: reloadtest NAME [fail].
func init() {
	plugin.Register(testDirective, func(c *caddy.Controller) error {
		for c.Next() {
			args := c.RemainingArgs()
			name := args[0]
			c.OnRestart(func() error {
				if refuseReload {
					return errors.New("refused before it begins")
				}
				return nil
			})
			Follow(c, Owner{
				Start: func() error {
					if slices.Contains(args, "fail") {
						return errors.New("refused by " + name)
					}
					calls = append(calls, "start "+name)
					return nil
				},
				Stop:   func(end End) error { calls = append(calls, fmt.Sprintf("stop %s %d", name, end)); return nil },
				Retain: func() { calls = append(calls, "retain "+name) },
			})
			Follow(c, Owner{}) // which has nothing to do
		}
		return nil
	})
}

func corefile(names ...string) caddy.CaddyfileInput {
	var text strings.Builder
	for i, name := range names {
		fmt.Fprintf(&text, "z%d.test:0 {\n    bind 127.0.0.1\n    %s %s\n}\n", i, testDirective, name)
	}
	return caddy.CaddyfileInput{Contents: []byte(text.String()), ServerTypeName: "dns"}
}

// TestFollow starts a configuration with two blocks, fails to reload it, reloads it, and ends the process.
func TestFollow(t *testing.T) {
	kit.Must(t, dnsserver.SetDirectives([]string{"bind", testDirective}))
	expect := func(when string, want ...string) {
		t.Helper()
		if !slices.Equal(calls, want) {
			t.Errorf("%s: %q, want %q", when, calls, want)
		}
		calls = nil
	}
	calls = nil
	instance, err := caddy.Start(corefile("a", "b"))
	kit.Must(t, err)
	expect("start", "start a", "start b")

	refuseReload = true
	if _, err := instance.Restart(corefile("c")); err == nil {
		t.Fatal("no error")
	}
	refuseReload = false
	expect("refused by another plugin", "retain a", "retain b")

	if _, err := instance.Restart(corefile("c", "d", "e fail")); err == nil || !strings.Contains(err.Error(), "refused by e") {
		t.Fatalf("reload with %v", err)
	}
	expect("refused", "start c", "start d", "stop c 1", "stop d 1", "retain a", "retain b")

	if _, err := instance.Restart(corefile("f fail")); err == nil {
		t.Fatal("no error")
	}
	expect("refused at once", "retain a", "retain b")

	next, err := instance.Restart(corefile("g", "h"))
	kit.Must(t, err)
	expect("replaced", "start g", "start h", "stop a 0", "stop b 0")

	for range 2 {
		if errs := next.ShutdownCallbacks(); len(errs) > 0 {
			t.Error(errs)
		}
	}
	expect("exit", "stop g 2", "stop h 2")
	if err := next.Stop(); err != nil {
		t.Error(err)
	}
}

package block

import (
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
)

// stopRecorder is a fast path that records the calls of Stop.
type stopRecorder struct {
	none
	calls []*Configuration
}

// recorder is the fast path of all tests of the package: servers that stop may call it in goroutines of their own until the
// end of the process.
var recorder = &stopRecorder{}

func init() { Register(recorder) }

func (r *stopRecorder) Stop(next *Configuration) { r.calls = append(r.calls, next) }

// TestStop refuses a reload, reloads, and ends the process: the fast path stops for the next configuration and for none.
func TestStop(t *testing.T) {
	recorder.calls = nil
	expect := func(when string, want ...*Configuration) {
		t.Helper()
		if !slices.Equal(recorder.calls, want) {
			t.Errorf("%s: Stop was called for %v, want %v", when, recorder.calls, want)
		}
		recorder.calls = nil
	}
	corefile := func(argument string) caddy.CaddyfileInput {
		text := ".:0 {\n    bind 127.0.0.1\n    " + testDirective + argument + "\n}\n"
		return caddy.CaddyfileInput{Contents: []byte(text), ServerTypeName: "dns"}
	}
	kit.Must(t, dnsserver.SetDirectives([]string{"bind", testDirective}))
	instance, err := caddy.Start(corefile(""))
	kit.Must(t, err)
	Started()
	first := configurations.latest()
	expect("start", first)

	if _, err := instance.Restart(corefile(" fail")); err == nil {
		t.Fatal("no error")
	}
	expect("refused reload")
	if configurations.latest() != first {
		t.Error("the refused configuration is not removed")
	}

	if instance, err = instance.Restart(corefile("")); err != nil {
		t.Fatal(err)
	}
	second := configurations.latest()
	expect("reload", second)
	if second == first {
		t.Error("the next configuration is not the latest")
	}

	if errs := instance.ShutdownCallbacks(); len(errs) > 0 {
		t.Error(errs)
	}
	expect("exit", nil)
	if err := instance.Stop(); err != nil {
		t.Error(err)
	}
}

package forward

import (
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/test"

	"github.com/nearside-dns/nearside/test/kit"
)

func TestSetup_Chain(t *testing.T) {
	c := caddy.NewTestController("dns", "forward a.example 192.0.2.1\nforward b.example 192.0.2.2\nforward . 192.0.2.3")
	kit.Must(t, setup(c))
	plugins := dnsserver.GetConfig(c).Plugin
	if len(plugins) != 3 {
		t.Fatalf("%d plugins, want 3", len(plugins))
	}
	last := test.NextHandler(0, nil)
	next := plugin.Handler(last)
	for i := len(plugins) - 1; i >= 0; i-- { // in the order of the server
		next = plugins[i](next)
	}
	var zones []string
	f, ok := next.(*Forward)
	for ; ok; f, ok = next.(*Forward) {
		zones = append(zones, f.from)
		next = f.Next
	}
	if got := strings.Join(zones, " "); got != "a.example. b.example. ." {
		t.Errorf("stanzas of %s, want them in order", got)
	}
	if next == nil || next.Name() != last.Name() {
		t.Errorf("the last stanza is followed by %v, want the next plugin", next)
	}
}

func TestSetup_Error(t *testing.T) {
	err := setup(caddy.NewTestController("dns", "forward . 192.0.2.1 {\nblaatl\n}"))
	if err == nil || !strings.HasPrefix(err.Error(), `plugin/forward: Testfile:2 - Error during parsing: unknown option "blaatl"`) {
		t.Errorf("error %v", err)
	}
}

// blockOf returns the stanzas of a text.
func blockOf(t testing.TB, text string) *block {
	t.Helper()
	configs := configured(t, text)
	b := newBlock(configs)
	t.Cleanup(func() { _ = b.stop() }) // it never fails
	return b
}

// upstreamsOf returns the addresses of a stanza's upstreams.
func upstreamsOf(f *Forward) string {
	var all []string
	for _, u := range *f.upstreams.Load() {
		all = append(all, u.address)
	}
	return strings.Join(all, " ")
}

func TestBlock(t *testing.T) {
	b := blockOf(t, "forward a 192.0.2.1 {\npolicy sequential\n}\nforward . a.example 192.0.2.2")
	h := new(hosts)
	h.set("a.example.", nil, "192.0.2.3")
	b.targets[1].lookup = h.lookup
	b.targets[1].wait = timing{first: time.Second, host: time.Millisecond}
	kit.Must(t, b.start())
	if one, two := upstreamsOf(b.stanzas[0]), upstreamsOf(b.stanzas[1]); one != "192.0.2.1:53" || two != "192.0.2.3:53 192.0.2.2:53" {
		t.Errorf("upstreams %s and %s", one, two)
	}
	h.set("a.example.", nil, "192.0.2.4")
	const want = "192.0.2.4:53 192.0.2.2:53"
	kit.Eventually(t, "upstreams "+want, func() bool { return upstreamsOf(b.stanzas[1]) == want })
	for range 2 {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	}
}

// TestBlock_Error: the start fails if one stanza fails, and no stanza has upstreams.
func TestBlock_Error(t *testing.T) {
	b := blockOf(t, "forward a 192.0.2.1\nforward . a.example")
	b.targets[1].lookup = new(hosts).lookup
	err := b.start()
	if err == nil || !strings.HasPrefix(err.Error(), `plugin/forward: Testfile:2 - Error during parsing: forward: "a.example" is neither a file nor a host`) {
		t.Errorf("error %v", err)
	}
	if got := upstreamsOf(b.stanzas[0]); got != "" {
		t.Errorf("upstreams %s, want none", got)
	}
}

// TestBlock_StoppedBefore: a server may be stopped before or while it starts.
func TestBlock_StoppedBefore(t *testing.T) {
	b := blockOf(t, "forward . 192.0.2.1")
	kit.Must(t, b.stop())
	kit.Must(t, b.start())
	if got := upstreamsOf(b.stanzas[0]); got != "" {
		t.Errorf("upstreams %s, want none", got)
	}
}

package block

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"

	"github.com/nearside-dns/nearside/plugin/internal/reload"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/test/kit"
)

// started starts a Corefile and returns the blocks of its configuration.
func started(t *testing.T, text string) []*Block {
	t.Helper()
	kit.Must(t, dnsserver.SetDirectives([]string{"bind", testDirective}))
	corefile := filepath.Join(t.TempDir(), "Corefile")
	inst, err := caddy.Start(caddy.CaddyfileInput{Contents: []byte(text), Filepath: corefile, ServerTypeName: "dns"})
	kit.Must(t, err)
	t.Cleanup(func() {
		inst.ShutdownCallbacks()
		if err := inst.Stop(); err != nil {
			t.Error(err)
		}
	})
	return configurations.latest().blocks
}

// TestDigest has Corefiles with the same block for b.test, and with another one.
func TestDigest(t *testing.T) {
	imported := filepath.Join(t.TempDir(), "imported")
	write := func(text string) {
		kit.Write(t, imported, text)
	}
	write("bind 127.0.0.1\n")
	const other = "a.test:0 {\n    bind 127.0.0.1\n}\n"
	block := func(key, lines string) string { return key + ":0 {\n" + lines + "\n}\n" }
	digestOf := func(text string, at int) [32]byte {
		blocks := started(t, text)
		d, err := blocks[at].Digest()
		if err != nil || d == [32]byte{} {
			t.Fatalf("digest %x, %v", d, err)
		}
		return d
	}
	want := digestOf(block("b.test", "bind 127.0.0.1\nblocktest"), 0)
	for name, tt := range map[string]struct {
		text string
		same bool
	}{
		"equal":                        {block("b.test", "bind 127.0.0.1\nblocktest"), true},
		"spaces and comments":          {"# comment\n" + block("b.test", "  bind   127.0.0.1 # comment\n\n  blocktest"), true},
		"another order of directives":  {block("b.test", "blocktest\nbind 127.0.0.1"), true},
		"another block before":         {other + block("b.test", "bind 127.0.0.1\nblocktest"), true},
		"a snippet":                    {"(s) {\nbind 127.0.0.1\n}\n" + block("b.test", "import s\nblocktest"), true},
		"an imported file":             {block("b.test", "import "+imported+"\nblocktest"), true},
		"another zone":                 {block("c.test", "bind 127.0.0.1\nblocktest"), false},
		"another argument":             {block("b.test", "bind 127.0.0.2\nblocktest"), false},
		"an argument more":             {block("b.test", "bind 127.0.0.1 127.0.0.2\nblocktest"), false},
		"the arguments on other lines": {block("b.test", "bind 127.0.0.1\nbind 127.0.0.2\nblocktest"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := digestOf(tt.text, 0) == want; got != tt.same {
				t.Errorf("the same digest: %t, want %t", got, tt.same)
			}
		})
	}
	t.Run("lines matter", func(t *testing.T) {
		if digestOf(block("b.test", "bind 127.0.0.1 127.0.0.2\nblocktest"), 0) == digestOf(block("b.test", "bind 127.0.0.1\nbind 127.0.0.2\nblocktest"), 0) {
			t.Error("the same digest")
		}
	})
	t.Run("another imported file", func(t *testing.T) {
		write("bind 127.0.0.2\n")
		if digestOf(block("b.test", "import "+imported+"\nblocktest"), 0) == want {
			t.Error("the same digest")
		}
	})
}

// TestIsDispatched has two blocks on one address, and a third one on another.
func TestIsDispatched(t *testing.T) {
	blocks := started(t, `a.test:0 b.test:0 {
    bind 127.0.0.1
    blocktest
}
sub.a.test:0 {
    bind 127.0.0.1
    blocktest
}
.:0 {
    bind 127.0.0.2
    blocktest
}
`)
	for name, want := range map[string][]bool{
		"a.test.":       {true, false, true},
		"x.b.test.":     {true, false, true},
		"x.sub.a.test.": {false, true, true},
		"c.test.":       {false, false, true},
	} {
		var got []bool
		for _, b := range blocks {
			got = append(got, b.IsDispatched(name))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	c := caddy.NewTestController("dns", "")
	if !Of(c).IsDispatched("any.") {
		t.Error("without servers a name is not dispatched")
	}
}

// TestOnExit checks that the functions are called at the exit alone, after the fast path has stopped and while the store has the
// answers, which the end of each configuration drops.
func TestOnExit(t *testing.T) {
	for end, want := range map[reload.End][]string{
		reload.Exit: {"fast path stopped: true, 1 answers"}, reload.Replaced: nil, reload.Refused: nil,
	} {
		t.Run(fmt.Sprint(end), func(t *testing.T) {
			recorder.calls = nil
			k := store.Shared.NewKeyspace()
			b := &Block{Keyspace: k}
			conf := &Configuration{blocks: []*Block{b}}
			store.Shared.Put(k, []byte("key"), new(store.Entry))
			var called []string
			b.OnExit(func() {
				called = append(called, fmt.Sprintf("fast path stopped: %t, %d answers", len(recorder.calls) == 1, k.Len(store.Success)))
			})
			kit.Must(t, conf.stop(end))
			if !slices.Equal(called, want) {
				t.Errorf("called: %q, want %q", called, want)
			}
			if n := k.Len(store.Success); n != 0 {
				t.Errorf("%d answers are left", n)
			}
		})
	}
}

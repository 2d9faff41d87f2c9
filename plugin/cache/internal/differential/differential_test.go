//go:build !coredns

// Package differential compares nearside's cache with CoreDNS's: input is random queries, replies and
// waiting times, output is the differences between the replies of the two. It has tests only. A program has one plugin "cache", so that the
// tests are built twice: the build tag coredns selects CoreDNS's.
package differential

import (
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/nearside-dns/nearside/plugin/cache"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/property"
)

// TestDifferential compares the replies of both caches and their queries to the upstream in random stories. The
// README's intended differences do not occur in them.
func TestDifferential(t *testing.T) {
	path := filepath.Join(t.TempDir(), "transcripts")
	cmd := kit.Go("test", "-count=1", "-vet=off", "-tags=coredns", "-run=TestTranscripts", ".")
	cmd.Env = append(cmd.Env, "NEARSIDE_TRANSCRIPTS="+path)
	kit.Output(t, cmd)
	text := kit.Read(t, path)
	coredns := strings.Split(strings.TrimSuffix(text, "\x00"), "\x00")
	list := property.List(t, 0, stories)
	if len(coredns) != len(list) {
		t.Fatalf("%d transcripts of CoreDNS's cache, want %d", len(coredns), len(list))
	}
	property.Seeds(t, 0, stories, func(t *testing.T, story uint64) {
		got := transcript(t, story, "serve_stale off")
		if at := difference(got, coredns[story-list[0]]); at != "" {
			t.Error(at)
		}
	})
}

// difference returns the steps of two transcripts up to the first one that differs, or "".
func difference(got, want string) string {
	if got == want {
		return ""
	}
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range g {
		if i >= len(w) || g[i] != w[i] {
			return strings.Join(g[:i+1], "\n") + "\nCoreDNS:\n" + strings.Join(w[min(i, len(w)):min(i+1, len(w))], "\n")
		}
	}
	return "shorter than CoreDNS's"
}

// TestDifference checks that TestDifferential can fail.
func TestDifference(t *testing.T) {
	if got := difference("a\nb\nc", "a\nb\nc"); got != "" {
		t.Errorf("difference of equals: %q", got)
	}
	if got := difference("a\nb\nc", "a\nx\nc"); got != "a\nb\nCoreDNS:\nx" {
		t.Errorf("difference %q", got)
	}
	without := transcript(t, 0, "serve_stale off")
	if with := transcript(t, 0, "success 9984 4\nserve_stale off"); difference(with, without) == "" {
		t.Error("another configuration makes no difference")
	}
}

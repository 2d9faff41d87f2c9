package cache

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin"

	"github.com/nearside-dns/nearside/plugin/cache/internal/script"
	"github.com/nearside-dns/nearside/test/property"
)

// TestDifferential compares this cache with CoreDNS's, where both promise the same: the replies, and what
// the upstream is asked, in random stories. What differs on purpose is in the README, and is not in them.
func TestDifferential(t *testing.T) {
	path := filepath.Join(t.TempDir(), "transcripts")
	cmd := exec.Command("go", "test", "-count=1", "./internal/stock")
	cmd.Env = append(os.Environ(), "NEARSIDE_TRANSCRIPTS="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	stock := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
	stories := property.List(t, 0, script.Stories)
	if len(stock) != len(stories) {
		t.Fatalf("%d transcripts of CoreDNS's cache, want %d", len(stock), len(stories))
	}
	property.Seeds(t, 0, script.Stories, func(t *testing.T, story uint64) {
		got := script.Transcript(t, story, "serve_stale off", inBubble)
		if at := difference(got, stock[story-stories[0]]); at != "" {
			t.Error(at)
		}
	})
}

// inBubble gives a cache a clock that goes with the time of a test: that of the store has begun before.
func inBubble(h plugin.Handler) {
	start := time.Now()
	h.(*Cache).now = func() time.Duration { return time.Hour + time.Since(start) }
}

// difference returns the steps of two transcripts up to the first that is not the same, or "".
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
	return "it ends before CoreDNS's"
}

// The test above finds what is different.
func TestDifference(t *testing.T) {
	if got := difference("a\nb\nc", "a\nb\nc"); got != "" {
		t.Errorf("difference of equals: %q", got)
	}
	if got := difference("a\nb\nc", "a\nx\nc"); got != "a\nb\nCoreDNS:\nx" {
		t.Errorf("difference %q", got)
	}
	without := script.Transcript(t, 0, "serve_stale off", inBubble)
	if with := script.Transcript(t, 0, "success 9984 4\nserve_stale off", inBubble); difference(with, without) == "" {
		t.Error("another configuration makes no difference")
	}
}

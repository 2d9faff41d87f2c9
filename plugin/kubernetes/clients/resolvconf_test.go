package clients

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// recorder is a logger that records lines.
type recorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *recorder) add(level, format string, v ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, level+" "+fmt.Sprintf(format, v...))
}

func (r *recorder) Infof(format string, v ...any)    { r.add("info", format, v...) }
func (r *recorder) Warningf(format string, v ...any) { r.add("warning", format, v...) }

// replace replaces a file by renaming another one.
func replace(t *testing.T, file, text string) {
	t.Helper()
	kit.Write(t, file+".new", text)
	kit.Must(t, os.Rename(file+".new", file))
}

// TestHostSearchFollows asserts that changes of the file are read, with a clock of the test.
func TestHostSearchFollows(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	replace(t, file, "search a.example\n")
	h, err := newHostSearch(file)
	kit.Must(t, err)
	log, now := new(recorder), time.Now()
	h.log, h.now = log, func() time.Time { return now }
	h.schedule()
	want := func(after time.Duration, want ...string) []string {
		t.Helper()
		now = now.Add(after)
		got := h.get()
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		return got
	}
	first := want(0, "a.example")
	replace(t, file, "search b.example c.example\n")
	want(readInterval-time.Nanosecond, "a.example")
	second := want(time.Nanosecond, "b.example", "c.example")
	replace(t, file, "# the same list\nsearch b.example c.example.\n")
	if same := want(readInterval, "b.example", "c.example"); &same[0] != &second[0] {
		t.Error("the same list is another slice")
	}
	if first[0] != "a.example" {
		t.Error("a returned list has changed")
	}

	kit.Must(t, os.Remove(file))
	for range 3 {
		want(readInterval, "b.example", "c.example")
	}
	replace(t, file, "nameserver\n")
	want(readInterval, "b.example", "c.example")
	replace(t, file, "search d.example\n")
	want(readInterval, "d.example")
	replace(t, file, "search\n")
	want(-time.Hour) // the clock was set back
	replace(t, file, "search e.example\n")
	want(time.Nanosecond)
	want(readInterval, "e.example")

	lines := []string{
		"warning reading resolv.conf failed: open " + file + `: no such file or directory; the node's search list remains ["b.example" "c.example"]`,
		"warning reading resolv.conf failed: " + file + `:1: nameserver without an address, with which the kubelet starts no pod; the node's search list remains ["b.example" "c.example"]`,
		"info " + file + " is readable again",
	}
	if !slices.Equal(log.lines, lines) {
		t.Errorf("logged %q, want %q", log.lines, lines)
	}
}

// TestHostSearchConcurrently reads the list in several goroutines while the file changes: each gets one of the lists.
func TestHostSearchConcurrently(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	replace(t, file, "search a.example b.example\n")
	h, err := newHostSearch(file)
	kit.Must(t, err)
	start := time.Now()
	var mu sync.Mutex
	now := start
	h.now = func() time.Time { // each call is a second later
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(readInterval)
		return now
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				if got := h.get(); len(got) != 2 || got[0][1:] != ".example" || got[1][1:] != ".example" {
					t.Errorf("%q", got)
					return
				}
			}
		})
	}
	for i := range 50 {
		replace(t, file, fmt.Sprintf("search %c.example %c.example\n", 'a'+i%20, 'b'+i%20))
	}
	wg.Wait()
	if got := h.get(); got[0] != "j.example" {
		t.Errorf("in the end %q", got)
	}
}

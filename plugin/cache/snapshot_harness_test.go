package cache

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearside-dns/nearside/plugin/cache/internal/snapshot"
	"github.com/nearside-dns/nearside/plugin/internal/reload"
	"github.com/nearside-dns/nearside/test/kit"
)

// snapshotCache is a cache with a file of snapshots.
type snapshotCache struct {
	*testCache
	*snapshotter
	options string
}

var testConfig = [32]byte{1}

// newSnapshotCache starts a cache with a file that another one may have written.
func newSnapshotCache(t *testing.T, options, file string) *snapshotCache {
	t.Helper()
	b := newTestCache(t, "cache {\n"+options+"\nsnapshot "+file+"\n}")
	s := &snapshotCache{b, newSnapshotter(b.Cache), options}
	s.begin(testConfig)
	t.Cleanup(func() { s.end() })
	return s
}

// end ends the configuration without writing.
func (s *snapshotCache) end() {
	select {
	case <-s.ended:
	default:
		s.stop(reload.Exit)
	}
}

// restart ends the process cleanly, and starts the next one after a time, with an upstream that fails.
func (s *snapshotCache) restart(after time.Duration) *snapshotCache {
	s.exit()
	return s.kill(after)
}

// kill is restart for a process that is killed.
func (s *snapshotCache) kill(after time.Duration) *snapshotCache {
	s.t.Helper()
	s.end()
	time.Sleep(after)
	next := newSnapshotCache(s.t, s.options, s.testCache.snapshot.file)
	next.fails()
	return next
}

// wantHits checks the number of queries answered with restored answers.
func (s *snapshotCache) wantHits(want float64) {
	s.t.Helper()
	if got := testutil.ToFloat64(s.counters("").restored); got != want {
		s.t.Errorf("%v queries answered with restored answers, want %v", got, want)
	}
}

func snapshotFile(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "snapshot")
}

// recordsIn returns the replies in a file, as brief formats them.
func recordsIn(t *testing.T, file string) (all []string) {
	t.Helper()
	for r := range parsedFile(t, file).Records() {
		all = append(all, brief(kit.Unpack(t, r.Reply)))
	}
	slices.Sort(all)
	return all
}

func parsedFile(t *testing.T, file string) *snapshot.Snapshot {
	t.Helper()
	s, err := snapshot.Parse([]byte(kit.Read(t, file)))
	kit.Must(t, err)
	return &s
}

// logLines are the lines of the log during a test.
type logLines struct{ *kit.Log }

func logged(t *testing.T) logLines { return logLines{kit.Logged(t)} }

// want checks that the log has exactly these lines about a snapshot since the last call: each has the text.
func (l logLines) want(t *testing.T, texts ...string) {
	t.Helper()
	lines := l.Lines("plugin/cache: Snapshot ")
	ok := len(lines) == len(texts)
	for i := 0; ok && i < len(texts); i++ {
		ok = strings.Contains(lines[i], texts[i])
	}
	if !ok {
		t.Errorf("log lines %q, want lines with %q", lines, texts)
	}
	l.Reset()
}

// snapshotBubble runs a test in a bubble, through the plugin chain and in wire form, with the path of a file.
func snapshotBubble(t *testing.T, name string, test func(t *testing.T, file string)) {
	for _, name := range []string{name, name + " " + inWireForm} {
		t.Run(name, func(t *testing.T) {
			file := snapshotFile(t)
			synctest.Test(t, func(t *testing.T) { test(t, file) })
		})
	}
}

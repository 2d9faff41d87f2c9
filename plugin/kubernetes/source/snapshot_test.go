package source

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/snapshot"
	"github.com/nearside-dns/nearside/test/kit"
)

// identifiedSource is a source of a cluster, whose status a test sets.
type identifiedSource struct {
	mu      sync.Mutex
	status  []Status
	cluster string // "" while the API server does not answer
}

func (s *identifiedSource) Run(ctx context.Context, _ *index.Index) { <-ctx.Done() }
func (s *identifiedSource) Server() string                          { return "https://10.96.0.1:443" }

func (s *identifiedSource) Status() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.status)
}

func (s *identifiedSource) ClusterUID(context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == "" {
		return "", errors.New("connection refused")
	}
	return s.cluster, nil
}

func (s *identifiedSource) set(cluster string, status ...Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster, s.status = cluster, status
}

const (
	ownCluster   = "11111111-0000-4000-8000-000000000000"
	otherCluster = "22222222-0000-4000-8000-000000000000"
)

var noon = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// newSnapshotter returns that of a new source that has read nothing.
func newSnapshotter(t *testing.T, path string, now time.Time) (*snapshotter, *identifiedSource) {
	t.Helper()
	src := &identifiedSource{status: []Status{{Resource: Services}, {Resource: Namespaces}}}
	k := &snapshotter{
		Snapshot: Snapshot{Path: path, Interval: time.Minute, MaxAge: time.Hour, Options: "topology"},
		source:   src, index: index.New(), now: func() time.Time { return now }, ctx: t.Context(),
	}
	return k, src
}

func synced() []Status {
	return []Status{{Resource: Services, Synced: true}, {Resource: Namespaces, Synced: true}}
}

func webService(ip string) *index.Service {
	return &index.Service{Namespace: "shop", Name: "web", IPs: []netip.Addr{netip.MustParseAddr(ip)}}
}

// write writes the snapshot of a cluster with one Service.
func write(t *testing.T, path, cluster string, now time.Time) *snapshotter {
	t.Helper()
	k, src := newSnapshotter(t, path, now)
	k.index.ReplaceServices([]*index.Service{webService("10.0.0.1")})
	k.index.ReplaceNamespaces([]string{"shop"})
	src.set(cluster, synced()...)
	if !k.identify(t.Context()) || !k.write(t.Context()) {
		t.Fatal("no snapshot was written")
	}
	return k
}

func restored(k *snapshotter) bool { return k.index.Service("shop", "web") != nil }

// TestRestore restores files, or refuses them.
func TestRestore(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(t *testing.T, path string, k *snapshotter, src *identifiedSource)
		want   bool
		log    string
	}{
		{"valid", func(*testing.T, string, *snapshotter, *identifiedSource) {}, true, "10m0s old"},
		{"no file", func(t *testing.T, path string, _ *snapshotter, _ *identifiedSource) { remove(t, path) }, false, "no snapshot"},
		{"too old", func(_ *testing.T, _ string, k *snapshotter, _ *identifiedSource) { k.MaxAge = 9 * time.Minute }, false, "it is 10m0s old: want at most 9m0s"},
		{"from the future", func(_ *testing.T, _ string, k *snapshotter, _ *identifiedSource) {
			k.now = func() time.Time { return noon.Add(-2 * time.Minute) }
		}, false, "in the future"},
		{"the clock went back by some seconds", func(_ *testing.T, _ string, k *snapshotter, _ *identifiedSource) {
			k.now = func() time.Time { return noon.Add(-2 * time.Second) }
		}, true, "-2s old"},
		{"other options", func(_ *testing.T, _ string, k *snapshotter, _ *identifiedSource) { k.Options = "" }, false, "other options"},
		{"another cluster", func(t *testing.T, _ string, k *snapshotter, src *identifiedSource) {
			src.set(otherCluster, Status{Resource: Services})
			k.identify(t.Context())
		}, false, "another cluster"},
		{"a file that is no snapshot", func(t *testing.T, path string, _ *snapshotter, _ *identifiedSource) {
			kit.Write(t, path, strings.Repeat("x", 100))
		}, false, "not a snapshot"},
		{"a named pipe", func(t *testing.T, path string, _ *snapshotter, _ *identifiedSource) {
			remove(t, path)
			kit.Must(t, syscall.Mkfifo(path, 0o600))
		}, false, "not a regular file"},
		{"a large file", func(t *testing.T, path string, _ *snapshotter, _ *identifiedSource) {
			kit.Must(t, os.Truncate(path, maxSnapshot+1))
		}, false, "want at most"},
		{"half of a file", func(t *testing.T, path string, _ *snapshotter, _ *identifiedSource) {
			info, err := os.Stat(path)
			if err == nil {
				err = os.Truncate(path, info.Size()-20)
			}
			kit.Must(t, err)
		}, false, "checksum"},
		{"a folder", func(t *testing.T, path string, _ *snapshotter, _ *identifiedSource) {
			remove(t, path)
			kit.Must(t, os.Mkdir(path, 0o700))
		}, false, "not a regular file"},
		{"access is denied, as while an API server starts", func(_ *testing.T, _ string, _ *snapshotter, src *identifiedSource) {
			src.set("", Status{Resource: Services, Denied: true}, Status{Resource: Namespaces, Denied: true})
		}, true, "10m0s old"},
		{"the source has been read", func(_ *testing.T, _ string, _ *snapshotter, src *identifiedSource) { src.set(ownCluster, synced()...) }, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "records")
			write(t, path, ownCluster, noon)
			k, src := newSnapshotter(t, path, noon.Add(10*time.Minute))
			tc.change(t, path, k, src)
			logged := kit.Logged(t).String
			if got := k.restore(t.Context()); got != tc.want || restored(k) != tc.want {
				t.Errorf("restored: %t, and the Service exists: %t, want %t", got, restored(k), tc.want)
			}
			if got := k.restore(t.Context()); got != tc.want {
				t.Errorf("the second time: %t", got)
			}
			if !strings.Contains(logged(), tc.log) {
				t.Errorf("log %q, want %q", logged(), tc.log)
			}
			for _, s := range k.marked() {
				if s.Restored != tc.want {
					t.Errorf("%s: restored %t", s.Resource, s.Restored)
				}
			}
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	kit.Must(t, os.Remove(path))
}

// TestReplaced asserts that records of the source replace those of a snapshot, and end every stored answer.
func TestReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	write(t, path, ownCluster, noon)
	k, src := newSnapshotter(t, path, noon)
	if !k.restore(t.Context()) {
		t.Fatal("not restored")
	}
	generation := k.index.AccessGeneration().Load()
	k.index.ReplaceServices([]*index.Service{webService("10.0.0.2")})
	src.set(ownCluster, Status{Resource: Services, Synced: true}, Status{Resource: Namespaces})
	if got := k.marked(); got[0].Restored || !got[1].Restored {
		t.Errorf("after the first of two resources: %+v", got)
	}
	time.Sleep(3 * checkEvery) // that long it must not end
	if got := k.marked(); !got[1].Restored {
		t.Errorf("namespaces that have not been read: %+v", got[1])
	}
	k.index.ReplaceNamespaces([]string{"shop"})
	src.set(ownCluster, synced()...)
	kit.Eventually(t, "the end of the snapshot", func() bool { return !k.isInUse() })
	if ip := k.index.Service("shop", "web").Service.IPs[0].String(); ip != "10.0.0.2" {
		t.Errorf("address %s", ip)
	}
	if k.index.AccessGeneration().Load() == generation {
		t.Error("stored answers have not ended")
	}
}

// TestNewerRecordsStay asserts that a snapshot does not replace records that the source has read before.
func TestNewerRecordsStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	write(t, path, ownCluster, noon)
	k, _ := newSnapshotter(t, path, noon)
	k.index.ReplaceServices([]*index.Service{webService("10.0.0.2")}) // namespaces are not read
	if !k.restore(t.Context()) {
		t.Fatal("not restored")
	}
	if ip := k.index.Service("shop", "web").Service.IPs[0].String(); ip != "10.0.0.2" || !k.index.HasNamespace("shop") {
		t.Errorf("address %s, the namespace exists: %t", ip, k.index.HasNamespace("shop"))
	}
}

// TestOtherCluster asserts that a snapshot is no longer used when the API server proves to be that of another cluster.
func TestOtherCluster(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	write(t, path, ownCluster, noon)
	k, src := newSnapshotter(t, path, noon)
	if !k.restore(t.Context()) {
		t.Fatal("not restored")
	}
	logged := kit.Logged(t).String
	src.set(otherCluster, Status{Resource: Services})
	k.identify(t.Context())
	kit.Eventually(t, "the end of the snapshot", func() bool { return !k.isInUse() })
	kit.Eventually(t, "a log line", func() bool { return strings.Contains(logged(), "another cluster") })
}

// TestDenied asserts that a denied resource does not end the use of a snapshot, nor has restored records written as current ones.
func TestDenied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	write(t, path, ownCluster, noon)
	k, src := newSnapshotter(t, path, noon.Add(10*time.Minute))
	if !k.restore(t.Context()) {
		t.Fatal("not restored")
	}
	src.set(ownCluster, Status{Resource: Services, Denied: true}, Status{Resource: Namespaces, Synced: true})
	if !k.identify(t.Context()) || k.write(t.Context()) {
		t.Error("restored records are written")
	}
	time.Sleep(3 * checkEvery) // that long it must not end
	if !k.isInUse() {
		t.Error("a denied resource ended the use of the snapshot")
	}
}

// TestOptional asserts that the records of optional resources that the account may not read end with the snapshot.
func TestOptional(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	k := write(t, path, ownCluster, noon)
	k.index.PutNode(&index.Node{Name: index.NewSymbol("n1")})
	k.index.SetClusterID(index.NewSymbol("east"))
	if !k.write(t.Context()) {
		t.Fatal("not written")
	}
	k, src := newSnapshotter(t, path, noon)
	src.set("", Status{Resource: Services}, Status{Resource: Nodes})
	if !k.restore(t.Context()) || k.index.NodeNamed("n1") == nil {
		t.Fatal("not restored")
	}
	k.index.ReplaceServices([]*index.Service{webService("10.0.0.2")})
	src.set(ownCluster, Status{Resource: Services, Synced: true}, Status{Resource: Nodes, Denied: true})
	kit.Eventually(t, "the end of the snapshot", func() bool { return !k.isInUse() })
	kit.Eventually(t, "the end of its records", func() bool {
		return k.index.NodeNamed("n1") == nil && k.index.ClusterID() == index.Symbol{} && !k.index.HasNamespace("shop")
	})
	if !restored(k) {
		t.Error("a Service that was read is dropped")
	}
}

// TestReload has a second configuration with another interval take over the use of a snapshot.
func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	write(t, path, ownCluster, time.Now())
	settings := Snapshot{Path: path, Interval: time.Minute, MaxAge: time.Hour, Options: "topology"}
	src := &identifiedSource{status: []Status{{Resource: Services}}}
	before := Open("source", src, settings)
	if !before.Restore() {
		t.Fatal("not restored")
	}
	settings.Interval = time.Second
	after := Open("source", src, settings)
	if !after.Restore() {
		t.Fatal("not restored by the next configuration")
	}
	before.Close()
	if !after.Status()[0].Restored || after.Index().Service("shop", "web") == nil {
		t.Errorf("after the reload: %+v", after.Status())
	}
	none := Open("source", src, Snapshot{})
	defer none.Close()
	after.Close()
	if none.Status()[0].Restored || none.Index().Service("shop", "web") != nil {
		t.Errorf("without a snapshot: %+v", none.Status())
	}
}

// TestWrite writes files, or does not.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	header := func() snapshot.Header {
		t.Helper()
		f, err := os.Open(path)
		kit.Must(t, err)
		defer f.Close() //nolint:errcheck // it was read only
		info, err := f.Stat()
		kit.Must(t, err)
		h, _, err := snapshot.Read(f, info.Size())
		kit.Must(t, err)
		return h
	}
	k := write(t, path, ownCluster, noon)
	src := k.source.(*identifiedSource)
	if h := header(); h.Cluster != ownCluster || !h.Time.Equal(noon) || h.Options != "topology" || h.Server != src.Server() {
		t.Errorf("header %+v", h)
	}
	for _, step := range []struct {
		name   string
		after  time.Duration
		change func()
		at     time.Duration // time of the file
	}{
		{"unchanged", 2 * time.Minute, func() {}, 0},
		{"a Service changes", 3 * time.Minute, func() { k.index.PutService(webService("10.0.0.9")) }, 3 * time.Minute},
		{"unchanged again", 10 * time.Minute, func() {}, 3 * time.Minute},
		{"unchanged for a quarter of the maximum age", 18 * time.Minute, func() {}, 18 * time.Minute},
		{"a Node changes", 19 * time.Minute, func() { k.index.PutNode(&index.Node{Name: index.NewSymbol("n1")}) }, 19 * time.Minute},
		{"a resource is not read", 40 * time.Minute, func() { src.set(ownCluster, Status{Resource: Services}) }, 19 * time.Minute},
		{"a needed resource is denied", 40 * time.Minute, func() {
			src.set(ownCluster, Status{Resource: Services, Synced: true}, Status{Resource: Namespaces, Denied: true})
		}, 19 * time.Minute},
		{"an optional resource is denied", 41 * time.Minute, func() {
			src.set(ownCluster, Status{Resource: Nodes, Denied: true}, Status{Resource: Services, Synced: true})
		}, 41 * time.Minute},
		{"a watch is frozen", 55 * time.Minute, func() {
			k.index.PutService(webService("10.0.0.8"))
			src.set(ownCluster, Status{Resource: Services, Synced: true, Frozen: true, Heard: noon.Add(42 * time.Minute)})
		}, 42 * time.Minute},
		{"the API server is away", 60 * time.Minute, func() {
			k.index.PutService(webService("10.0.0.7"))
			src.set(ownCluster, Status{Resource: Services, Synced: true, Uncertain: true, Heard: noon.Add(45 * time.Minute)})
		}, 45 * time.Minute},
	} {
		k.now = func() time.Time { return noon.Add(step.after) }
		step.change()
		k.write(t.Context())
		if at := header().Time; !at.Equal(noon.Add(step.at)) {
			t.Errorf("%s: the file is from %s, want %s", step.name, at.Sub(noon), step.at)
		}
	}
}

// TestWriteFails has a folder that cannot be written: it is logged once, as is the next success, and the source is not affected.
func TestWriteFails(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "later", "records")
	k, src := newSnapshotter(t, path, noon)
	src.set(ownCluster, synced()...)
	k.identify(t.Context())
	logged := kit.Logged(t).String
	for range 3 {
		if k.write(t.Context()) {
			t.Fatal("written into a folder that does not exist")
		}
	}
	if n := strings.Count(logged(), "cannot be written"); n != 1 {
		t.Errorf("%d log lines, want 1: %s", n, logged())
	}
	kit.Must(t, os.Mkdir(filepath.Dir(path), 0o700))
	if !k.write(t.Context()) || !strings.Contains(logged(), "can be written again") {
		t.Errorf("log %q", logged())
	}
}

// TestKept runs a source with a snapshot as a process does, and a second one after it that reads nothing.
func TestKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records")
	keep := Snapshot{Path: path, Interval: time.Second, MaxAge: time.Hour, Options: "topology"}
	first := &identifiedSource{status: []Status{{Resource: Services}}, cluster: ownCluster}
	h := Open("first", first, keep)
	h.Index().ReplaceServices([]*index.Service{webService("10.0.0.1")})
	first.set(ownCluster, synced()...)
	kit.Eventually(t, "the file", func() bool { _, err := os.Stat(path); return err == nil })
	if h.Restore() {
		t.Error("restored although the source has been read")
	}
	h.Close()
	second := Open("second", &identifiedSource{status: []Status{{Resource: Services}}}, keep)
	defer second.Close()
	if !second.Restore() || second.Index().Service("shop", "web") == nil || !second.Status()[0].Restored {
		t.Errorf("not restored: %+v", second.Status())
	}
}

package source

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coredns/caddy"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/reload"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Handle is a counted reference of one configuration to a running source. Configurations with the same source share it
// and its index: the server blocks of a Corefile, and the old and the new configuration during a reload. So a reload
// neither lists the cluster again nor loses its records while the API server is away.
type Handle struct {
	shared   *shared
	snapshot *snapshotter // nil without a snapshot
	once     sync.Once
}

type shared struct {
	key    string
	source Source
	index  *index.Index
	// snapshots are the snapshotters of the handles, one for each Snapshot.
	snapshots []*snapshotter
	count     int             // of handles; guarded by running.mu
	ctx       context.Context // of the source
	stop      context.CancelFunc
	done      chan struct{}
}

// running are the sources of this process.
var running struct {
	mu     sync.Mutex
	shared []*shared
}

// stopWait bounds the wait for the end of a source, and for the last write of a snapshot.
const stopWait = time.Second

// Follow opens a handle when the configuration of a controller starts, and closes it at the end of the configuration; at
// the end of the process that is after health's lameduck period, during which answers must be right, too. started is
// called with the handle. Follow is called in setup.
func Follow(c *caddy.Controller, key func() string, src Source, snapshot Snapshot, started func(*Handle)) {
	var opened atomic.Pointer[Handle]
	reload.Follow(c, reload.Owner{
		Start: func() error {
			h := Open(key(), src, snapshot)
			opened.Store(h)
			started(h)
			return nil
		},
		Stop: func(reload.End) error {
			if h := opened.Load(); h != nil {
				h.Close()
			}
			return nil
		},
	})
}

// Open returns a handle of the source with a key. If none runs, it starts src. With a snapshot, src must be Identified.
func Open(key string, src Source, snapshot Snapshot) *Handle {
	running.mu.Lock()
	defer running.mu.Unlock()
	at := slices.IndexFunc(running.shared, func(s *shared) bool { return s.key == key })
	if at < 0 {
		running.shared = append(running.shared, start(key, src))
		at = len(running.shared) - 1
	}
	h := &Handle{shared: running.shared[at]}
	h.shared.count++
	if snapshot.Path != "" {
		h.snapshot = h.shared.withSnapshot(snapshot)
	}
	return h
}

// withSnapshot returns the snapshotter with these settings, and starts it if there is none. running.mu is locked.
func (s *shared) withSnapshot(settings Snapshot) *snapshotter {
	at := slices.IndexFunc(s.snapshots, func(n *snapshotter) bool { return n.Snapshot == settings })
	if at < 0 {
		ctx, stop := context.WithCancel(s.ctx)
		n := &snapshotter{Snapshot: settings, source: s.source.(Identified), index: s.index, now: time.Now, stop: stop, ctx: ctx, done: make(chan struct{})}
		s.snapshots = append(s.snapshots, n)
		at = len(s.snapshots) - 1
		go func() {
			defer close(n.done)
			n.run(ctx)
		}()
	}
	n := s.snapshots[at]
	n.users++
	return n
}

// release stops a snapshotter that no other handle uses, and reports whether it does. running.mu is locked.
func (s *shared) release(n *snapshotter) (stopped bool) {
	if n.users--; n.users > 0 {
		return false
	}
	n.stop()
	s.snapshots = slices.DeleteFunc(s.snapshots, func(o *snapshotter) bool { return o == n })
	if len(s.snapshots) == 0 && n.isInUse() { // otherwise another snapshotter has the records
		n.endUse()
	}
	return true
}

func start(key string, src Source) *shared {
	ctx, stop := context.WithCancel(context.Background())
	s := &shared{key: key, source: src, index: index.New(), ctx: ctx, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		src.Run(ctx, s.index)
	}()
	return s
}

// Index returns the index that the source fills.
func (h *Handle) Index() *index.Index { return h.shared.index }

// Status returns the state of the source's resources.
func (h *Handle) Status() []Status {
	if h.snapshot != nil {
		return h.snapshot.marked()
	}
	return h.shared.source.Status()
}

// ErrNotInspected is the error of NotReady of a source that is no Inspector.
var ErrNotInspected = errors.New("the source has only endpoints that are ready")

// NotReady returns the endpoints of a Service or ServiceImport that are not ready; see Inspector.
func (h *Handle) NotReady(ctx context.Context, namespace, name string, imported bool) (NotReady, error) {
	if i, is := h.shared.source.(Inspector); is {
		return i.NotReady(ctx, namespace, name, imported)
	}
	return NotReady{}, ErrNotInspected
}

// Restore puts the records of the snapshot into the index, unless the source has been read by then. It reports whether the
// records of a snapshot are in use, which are marked in Status.
func (h *Handle) Restore() bool { return h.snapshot != nil && h.snapshot.restore(h.snapshot.ctx) }

// Restored reports whether records of a snapshot are in use.
func (h *Handle) Restored() bool { return h.snapshot != nil && h.snapshot.isInUse() }

// Close closes the handle. The last one to be closed stops the source.
func (h *Handle) Close() { h.once.Do(func() { h.shared.close(h.snapshot) }) }

func (s *shared) close(n *snapshotter) {
	running.mu.Lock()
	var ended []<-chan struct{}
	if n != nil && s.release(n) {
		ended = append(ended, n.done)
	}
	s.count--
	last := s.count == 0
	if last {
		running.shared = slices.DeleteFunc(running.shared, func(r *shared) bool { return r == s })
	}
	running.mu.Unlock()
	if last {
		s.stop()
		ended = append(ended, s.done)
	}
	limit := time.After(stopWait)
	for _, done := range ended {
		select {
		case <-done:
		case <-limit:
			return
		}
	}
}

// ages is the metric of the time since each resource was known to be up to date.
type ages struct{ desc *prometheus.Desc }

func init() {
	prometheus.MustRegister(ages{prometheus.NewDesc(
		"nearside_kubernetes_last_sync_seconds",
		"Seconds since the last list, event or bookmark of the resource. No value before the first.",
		[]string{"resource"}, nil)})
}

// Describe implements prometheus.Collector.
func (a ages) Describe(ch chan<- *prometheus.Desc) { ch <- a.desc }

// Collect implements prometheus.Collector. Of several sources the oldest time counts.
func (a ages) Collect(ch chan<- prometheus.Metric) {
	running.mu.Lock()
	sources := slices.Clone(running.shared)
	running.mu.Unlock()
	oldest := map[string]time.Time{}
	for _, s := range sources {
		for _, st := range s.source.Status() {
			if t, ok := oldest[st.Resource]; !st.Heard.IsZero() && (!ok || st.Heard.Before(t)) {
				oldest[st.Resource] = st.Heard
			}
		}
	}
	for resource, t := range oldest {
		ch <- prometheus.MustNewConstMetric(a.desc, prometheus.GaugeValue, time.Since(t).Seconds(), resource)
	}
}

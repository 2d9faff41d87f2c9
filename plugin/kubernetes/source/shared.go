package source

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Lease is a reference of one configuration to a running source. Configurations with the same source share it and its
// index: the server blocks of a Corefile, and the old and the new configuration during a reload. So a reload neither
// lists the cluster again nor loses its records while the API server is away.
type Lease struct {
	shared *shared
	once   sync.Once
}

type shared struct {
	key    string
	source Source
	index  *index.Index
	users  int // guarded by running.mu
	stop   context.CancelFunc
	done   chan struct{}
}

// running are the sources of this process.
var running struct {
	mu     sync.Mutex
	shared []*shared
}

// stopWait bounds the wait for the end of a source: client-go's pause between two attempts to reach an API server cannot
// be interrupted.
const stopWait = time.Second

// Acquire returns a lease on the source with a key. If none runs, it starts src.
func Acquire(key string, src Source) *Lease {
	running.mu.Lock()
	defer running.mu.Unlock()
	at := slices.IndexFunc(running.shared, func(s *shared) bool { return s.key == key })
	if at < 0 {
		running.shared = append(running.shared, start(key, src))
		at = len(running.shared) - 1
	}
	l := &Lease{shared: running.shared[at]}
	l.shared.users++
	return l
}

func start(key string, src Source) *shared {
	ctx, stop := context.WithCancel(context.Background())
	s := &shared{key: key, source: src, index: index.New(), stop: stop, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		src.Run(ctx, s.index)
	}()
	return s
}

// Index returns the index that the source fills.
func (l *Lease) Index() *index.Index { return l.shared.index }

// Status returns the state of the source's resources.
func (l *Lease) Status() []Status { return l.shared.source.Status() }

// Release ends the lease. The last release stops the source.
func (l *Lease) Release() { l.once.Do(l.shared.release) }

func (s *shared) release() {
	running.mu.Lock()
	s.users--
	last := s.users == 0
	if last {
		running.shared = slices.DeleteFunc(running.shared, func(r *shared) bool { return r == s })
	}
	running.mu.Unlock()
	if last {
		s.stop()
		select {
		case <-s.done:
		case <-time.After(stopWait):
		}
	}
}

// ages is the metric of the time since each resource was known to be up to date.
type ages struct{ desc *prometheus.Desc }

func init() {
	prometheus.MustRegister(ages{prometheus.NewDesc(
		"nearside_kubernetes_last_sync_seconds",
		"Seconds since the source last had word that the resource is in step: a list, an event, or a bookmark of a quiet watch. No value before the first.",
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

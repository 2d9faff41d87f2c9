package source

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Lease is the use of a running source by one configuration. Configurations that ask for the same
// source share it and its index: the server blocks of a Corefile, and the old and the new
// configuration during a reload. So a reload neither lists the cluster again nor forgets what is
// known of it while the API server is away.
type Lease struct {
	shared *shared
	once   *sync.Once
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

// Acquire returns the use of the source with that key, which is started with the first use. Sources
// with equal keys are the same.
func Acquire(key string, open func() (Source, error)) (*Lease, error) {
	running.mu.Lock()
	defer running.mu.Unlock()
	at := slices.IndexFunc(running.shared, func(s *shared) bool { return s.key == key })
	if at < 0 {
		src, err := open()
		if err != nil {
			return nil, err
		}
		running.shared = append(running.shared, start(key, src))
		at = len(running.shared) - 1
	}
	s := running.shared[at]
	s.users++
	l := &Lease{shared: s, once: new(sync.Once)}
	// A configuration that fails to start is dropped without being told. Its lease goes with it.
	runtime.AddCleanup(l, func(once *sync.Once) { once.Do(s.release) }, l.once)
	return l, nil
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

// Release ends the use. The last one to end stops the source, and waits until it has stopped.
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
		<-s.done
	}
}

// ages is the metric of how long ago each resource was known to be in step.
type ages struct{ desc *prometheus.Desc }

func init() {
	prometheus.MustRegister(ages{prometheus.NewDesc(
		"nearside_kubernetes_last_sync_seconds",
		"Seconds since the source last had word that the resource is in step: a list, an event, or a bookmark of a quiet watch. No value before the first.",
		[]string{"resource"}, nil)})
}

// Describe implements prometheus.Collector.
func (a ages) Describe(ch chan<- *prometheus.Desc) { ch <- a.desc }

// Collect implements prometheus.Collector. Of several sources the oldest word counts.
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

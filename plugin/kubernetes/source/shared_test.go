package source

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// fixedSource runs until it is told to stop, and says of its resources what it was given.
type fixedSource struct {
	status  []Status
	stopped chan struct{}
}

func newFixedSource(status ...Status) *fixedSource {
	return &fixedSource{status: status, stopped: make(chan struct{})}
}

func (s *fixedSource) Run(ctx context.Context, _ *index.Index) {
	<-ctx.Done()
	close(s.stopped)
}

func (s *fixedSource) Status() []Status { return s.status }

func (s *fixedSource) hasStopped() bool {
	select {
	case <-s.stopped:
		return true
	default:
		return false
	}
}

func acquire(t *testing.T, key string, src Source) *Lease {
	t.Helper()
	l, err := Acquire(key, func() (Source, error) { return src, nil })
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLease(t *testing.T) {
	t.Run("equal keys share a source and its index", func(t *testing.T) {
		src, other := newFixedSource(), newFixedSource()
		first, second := acquire(t, "a", src), acquire(t, "a", other)
		apart := acquire(t, "b", other)
		if first.Index() != second.Index() || first.Index() == apart.Index() {
			t.Error("an index is shared where it should not be, or not where it should")
		}
		first.Release()
		first.Release() // twice counts once
		if src.hasStopped() {
			t.Fatal("the source stopped while it was in use")
		}
		second.Release()
		if !src.hasStopped() {
			t.Error("the source did not stop with the last use")
		}
		if other.hasStopped() {
			t.Error("the other source stopped")
		}
		apart.Release()
	})

	t.Run("after the last use it is opened anew", func(t *testing.T) {
		acquire(t, "a", newFixedSource()).Release()
		opened := false
		l, err := Acquire("a", func() (Source, error) {
			opened = true
			return newFixedSource(), nil
		})
		if err != nil || !opened {
			t.Fatalf("opened %t, %v", opened, err)
		}
		l.Release()
	})

	t.Run("an error to open leaves nothing behind", func(t *testing.T) {
		want := errors.New("no")
		if _, err := Acquire("a", func() (Source, error) { return nil, want }); !errors.Is(err, want) {
			t.Fatalf("error %v", err)
		}
		acquire(t, "a", newFixedSource()).Release()
	})

	t.Run("a lease that is dropped is released", func(t *testing.T) {
		src := newFixedSource()
		func() { acquire(t, "a", src) }()
		for end := time.Now().Add(10 * time.Second); !src.hasStopped(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the source still runs")
			}
			runtime.GC()
		}
	})
}

func TestLastSyncMetric(t *testing.T) {
	const name = "nearside_kubernetes_last_sync_seconds"
	count := func() int {
		n, err := testutil.GatherAndCount(prometheus.DefaultGatherer, name)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(); n != 0 {
		t.Fatalf("%d values without a source", n)
	}
	now := time.Now()
	first := acquire(t, "a", newFixedSource(Status{Resource: Services, Heard: now}, Status{Resource: Pods}))
	second := acquire(t, "b", newFixedSource(Status{Resource: Services, Heard: now.Add(-time.Hour)}))
	defer first.Release()
	defer second.Release()
	if n := count(); n != 1 {
		t.Errorf("%d values, want one: pods were never read, and Services count once", n)
	}
	metrics, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range metrics {
		if m.GetName() == name {
			if v := m.GetMetric()[0].GetGauge().GetValue(); v < 3600 || v > 3700 {
				t.Errorf("%v seconds, want the hour of the source that is behind", v)
			}
		}
	}
}

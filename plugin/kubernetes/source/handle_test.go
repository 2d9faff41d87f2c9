package source

import (
	"context"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// fixedSource runs until it is stopped, and returns a fixed status.
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

func TestHandle(t *testing.T) {
	t.Run("equal keys share a source and its index", func(t *testing.T) {
		src, other := newFixedSource(), newFixedSource()
		first, second := Open("a", src, Snapshot{}), Open("a", other, Snapshot{})
		apart := Open("b", other, Snapshot{})
		if first.Index() != second.Index() || first.Index() == apart.Index() {
			t.Error("an index is shared where it should not be, or not where it should")
		}
		first.Close()
		first.Close() // the second call does nothing
		if src.hasStopped() {
			t.Fatal("the source stopped while it was in use")
		}
		second.Close()
		if !src.hasStopped() {
			t.Error("the source did not stop with the last handle")
		}
		if other.hasStopped() {
			t.Error("the other source stopped")
		}
		apart.Close()
	})

	t.Run("after the last handle it is started anew", func(t *testing.T) {
		Open("a", newFixedSource(), Snapshot{}).Close()
		src := newFixedSource()
		Open("a", src, Snapshot{}).Close()
		if !src.hasStopped() {
			t.Error("the second source did not run")
		}
	})

	t.Run("a source that does not end is not waited for long", func(t *testing.T) {
		src := &stuckSource{end: make(chan struct{})}
		defer close(src.end)
		begin := time.Now()
		Open("a", src, Snapshot{}).Close()
		if took := time.Since(begin); took > stopWait+5*time.Second {
			t.Errorf("waited %s", took)
		}
	})
}

// stuckSource does not end when it is stopped.
type stuckSource struct{ end chan struct{} }

func (s *stuckSource) Run(context.Context, *index.Index) { <-s.end }
func (s *stuckSource) Status() []Status                  { return nil }

func TestLastSyncMetric(t *testing.T) {
	const name = "nearside_kubernetes_last_sync_seconds"
	count := func() int {
		n, err := testutil.GatherAndCount(prometheus.DefaultGatherer, name)
		kit.Must(t, err)
		return n
	}
	if n := count(); n != 0 {
		t.Fatalf("%d values without a source", n)
	}
	now := time.Now()
	first := Open("a", newFixedSource(Status{Resource: Services, Heard: now}, Status{Resource: Pods}), Snapshot{})
	second := Open("b", newFixedSource(Status{Resource: Services, Heard: now.Add(-time.Hour)}), Snapshot{})
	defer first.Close()
	defer second.Close()
	if n := count(); n != 1 {
		t.Errorf("%d values, want one: pods were never read, and Services count once", n)
	}
	metrics, err := prometheus.DefaultGatherer.Gather()
	kit.Must(t, err)
	for _, m := range metrics {
		if m.GetName() == name {
			if v := m.GetMetric()[0].GetGauge().GetValue(); v < 3600 || v > 3700 {
				t.Errorf("%v seconds, want the hour of the source that is behind", v)
			}
		}
	}
}

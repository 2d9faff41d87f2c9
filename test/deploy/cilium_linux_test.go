package deploy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// redirect is a local redirect policy of Cilium: queries of pods go to the nodecaches that are ready, and without one to cluster
// DNS. A terminating pod is a backend until it is not ready.
type redirect struct {
	mu    sync.Mutex
	ready []*node
	sent  []*redirectedQuery
}

// redirectedQuery is a query through a redirect.
type redirectedQuery struct {
	at      time.Time
	what    string
	failure error
}

// probeAsKubelet sets whether a nodecache is ready by its readiness probe, until the test ends.
func (r *redirect) probeAsKubelet(t *testing.T, n *node) {
	probe := n.container.ReadinessProbe
	ticker := time.NewTicker(time.Duration(probe.PeriodSeconds) * time.Second)
	var failures int32
	ctx := t.Context()
	for ctx.Err() == nil {
		if n.probeOnce(t, probe) == nil {
			failures = 0
			r.set(n, true)
		} else if failures++; failures >= probe.FailureThreshold {
			r.set(n, false)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	ticker.Stop()
}

// probeOnce sends one probe of the container.
func (n *node) probeOnce(t *testing.T, probe *corev1.Probe) error {
	if probe.Exec != nil {
		_, err := n.bed.Node.Try(daemon.Program(t, path.Base(probe.Exec.Command[0])), probe.Exec.Command[1:]...)
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(probe.TimeoutSeconds)*time.Second)
	defer cancel()
	url := fmt.Sprintf("http://%s%s", net.JoinHostPort(n.bed.Node.IPv4.String(), probe.HTTPGet.Port.String()), probe.HTTPGet.Path)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := n.bed.Node.Client()
	defer client.CloseIdleConnections()
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", response.Status)
	}
	_ = response.Body.Close() // the status is what counts
	return err
}

func (r *redirect) set(n *node, ready bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready = slices.DeleteFunc(r.ready, func(other *node) bool { return other == n })
	if ready {
		r.ready = append(r.ready, n)
	}
}

// isReady returns whether a nodecache receives queries.
func (r *redirect) isReady(n *node) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Contains(r.ready, n)
}

// send sends a query of a pod: for a cached name or a new one, over UDP or TCP.
func (r *redirect) send(t *testing.T, number int, without *node) {
	network := []string{"udp", "tcp"}[number%2]
	question, want := questionFor+"cluster.local. A", "A "+ofCluster
	r.mu.Lock()
	backend, to := without, netip.MustParseAddr(clusterDNS)
	if len(r.ready) > 0 {
		backend = r.ready[rand.IntN(len(r.ready))]
		to = backend.bed.Node.IPv4
		if number%4 < 2 {
			question, want = fmt.Sprintf("new%d.example.com. A", number), "A "+ofResolver
		}
	}
	q := &redirectedQuery{at: time.Now(), what: fmt.Sprintf("%s over %s to %s", question, network, to)}
	r.sent = append(r.sent, q)
	r.mu.Unlock()
	got, err := backend.ask(network, to, question)
	if err == nil && got != want {
		err = fmt.Errorf("got %s, want %s", got, want)
	}
	r.mu.Lock()
	q.failure = err
	r.mu.Unlock()
}

// lost returns the queries without an answer.
func (r *redirect) lost() (all []*redirectedQuery) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, q := range r.sent {
		if q.failure != nil {
			all = append(all, q)
		}
	}
	return all
}

// during sends queries of pods until f returns, and waits for their answers.
func (r *redirect) during(t *testing.T, without *node, f func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for number := 0; ; number++ {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
				running.Go(func() { r.send(t, number, without) })
			}
		}
	})
	f()
	close(done)
	running.Wait()
}

// maxHang is the bound for the time in which queries to a hanging nodecache are lost.
const maxHang = 3 * time.Second

// TestCiliumUpdateAndHangLoseNoQueries updates nodecache of Cilium's overlay as its DaemonSet does, with a redirect that keeps a
// terminating pod until it is not ready: no query is lost. Then the new pod hangs: queries are lost for less than three seconds.
func TestCiliumUpdateAndHangLoseNoQueries(t *testing.T) {
	all := decoded(t, kustomize(t, deployed+"/overlays/cilium"))
	r := new(redirect)
	first := newNode(t, all)
	second := newNodeOf(t, all, first.api)
	start := func(n *node) *netns.Process {
		p := n.start(t)
		if n.container.StartupProbe != nil {
			n.awaitProbe(t, n.container.StartupProbe)
		}
		go r.probeAsKubelet(t, n)
		kit.Succeeds(t, deadline, "ready", func() error {
			if !r.isReady(n) {
				return fmt.Errorf("not ready:\n%s", p.Output())
			}
			return nil
		})
		return p
	}
	old := start(first)
	var current *netns.Process
	r.during(t, first, func() {
		current = start(second)
		end(t, old)
		if r.isReady(first) {
			t.Error("the first pod has ended while Cilium redirects queries to it")
		}
	})
	for _, q := range r.lost() {
		t.Errorf("in the update: %s: %v", q.what, q.failure)
	}
	if len(r.sent) < 100 {
		t.Errorf("only %d queries were sent", len(r.sent))
	}
	if t.Failed() {
		return
	}
	hung := time.Now()
	r.during(t, second, func() {
		current.Freeze(t)
		time.Sleep(maxHang + time.Second)
	})
	current.Thaw(t)
	for _, q := range r.lost() {
		if after := q.at.Sub(hung); after > maxHang {
			t.Errorf("%s after the hang: %s: %v", after.Round(time.Millisecond), q.what, q.failure)
		}
	}
	if r.isReady(second) && len(r.lost()) == 0 {
		t.Error("the hang had no effect")
	}
}

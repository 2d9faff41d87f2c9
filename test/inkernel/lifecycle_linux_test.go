package inkernel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestPodsComeAndGo adds and removes pods while others query. New pods get the program; pods that disappear with queries in
// progress, or whose interface does, do no harm.
func TestPodsComeAndGo(t *testing.T) {
	w := newWorld(t, 2)
	i, l := w.startLoaded(t, w.configured(firstPort), 2)
	for round := range 2 {
		var added []*pod
		var clients [][]*loadClient
		for range 3 {
			p := w.addPod(t, shapes[rand.IntN(len(shapes))])
			added = append(added, p)
			clients = append(clients, l.add(p.Namespace, 1, locals...)) // before the program is attached
		}
		i.waitInterfaces(t, "attached", len(w.pods)+devices+len(added))
		for n, p := range added {
			i.answersAt(t, p.device, clients[n])
		}
		for n, p := range added {
			p.end(t, l, clients[n], round+n)
		}
		i.waitInterfaces(t, "attached", len(w.pods)+devices)
		i.waitAnswers(t, 200)
	}
	i.noRefusal(t, i.scrape(t))
	l.end(t)
}

// end removes a pod with clients of a load, in one of several ways.
func (p *pod) end(t testing.TB, l *load, clients []*loadClient, way int) {
	t.Helper()
	switch way % 3 {
	case 0: // as a container runtime removes a pod whose processes have ended
		l.remove(clients)
	case 1: // the network plugin removes the interface first, while the pod queries
		l.abandon(clients)
		batch(t, p.node.Namespace, "link del "+p.device)
	case 2: // the interface disappears in the pod
		l.abandon(clients)
		batch(t, p.Namespace, "link del eth0")
	}
	p.remove(t)
}

// answersAt waits until the kernel answers most of the queries that clients send on an interface.
func (i *instance) answersAt(t testing.TB, device string, clients []*loadClient) {
	t.Helper()
	w := i.node
	w.watch(t, device)
	i.eventually(t, "answers of the kernel at "+device, func() error {
		const enough = 100
		before, received := asked(clients), w.received(t, device)
		for end := time.Now().Add(bounded); asked(clients) < before+enough; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return errors.New("the clients send no queries")
			}
		}
		if n := w.received(t, device) - received; n > enough/2 {
			return fmt.Errorf("%d of %d queries reached the node", n, asked(clients)-before)
		}
		return nil
	})
}

// asked returns the number of queries that clients have sent.
func asked(clients []*loadClient) (all int) {
	for _, c := range clients {
		all += int(c.asked.Load())
	}
	return all
}

// TestReloadUnderLoad has nodecache read other configurations while pods query: another upstream, a shorter TTL, no answers in
// the kernel, and these again. After each, no answer is of the configuration before.
func TestReloadUnderLoad(t *testing.T) {
	w := newWorld(t, 2)
	c := w.configured(firstPort)
	i, l := w.startLoaded(t, c, 3)
	for _, p := range w.pods {
		w.watch(t, p.device)
	}
	ports := map[uint16]uint16{firstPort: secondPort, secondPort: firstPort}
	port := uint16(firstPort)
	for round := range 3 {
		// Another upstream.
		l.require(t, rule{ports: []int{firstPort, secondPort}})
		port = ports[port]
		c.forward = w.ledger.at(port)
		i.reload(t, c)
		l.require(t, rule{ports: []int{int(port)}})
		i.waitAnswers(t, 500)

		// A shorter TTL.
		l.require(t, rule{ports: []int{int(port)}, low: 6})
		c.cache = fmt.Sprintf("6 %s", exactCache)
		i.reload(t, c)
		l.require(t, rule{ports: []int{int(port)}, low: 6, high: 6})
		i.waitAnswers(t, 500)
		l.require(t, rule{ports: []int{int(port)}, low: 6})
		c.cache = exactCache
		i.reload(t, c)
		l.require(t, rule{ports: []int{int(port)}})
		i.waitAnswers(t, 500)

		// No answers in the kernel, and another upstream.
		l.require(t, rule{ports: []int{firstPort, secondPort}})
		port = ports[port]
		c.forward = w.ledger.at(port)
		i.reload(t, c.withKernel("off"))
		l.require(t, rule{ports: []int{int(port)}})
		w.allReceived(t, l, 500)
		if n, err := i.kernelAnswers(t); err == nil {
			t.Errorf("round %d: with the option off, the kernel has answered %d queries", round, n)
		}
		for _, p := range w.pods {
			if n := len(w.attachments(t, p.device)); n > 0 {
				t.Errorf("round %d: with the option off, %d programs at %s", round, n, p.device)
			}
		}
		i.reload(t, c)
		i.waitInterfaces(t, "attached", len(w.pods)+devices)
		i.waitAnswers(t, 500)
	}
	l.end(t)
}

// received returns the number of queries of pods that the kernel has not answered, since watch.
func (w *world) received(t testing.TB) (all int) {
	t.Helper()
	for _, p := range w.pods {
		all += w.node.received(t, p.device)
	}
	return all
}

// allReceived waits until the load has sent a number of queries, and fails if the kernel has answered one of them.
func (w *world) allReceived(t testing.TB, l *load, number int) {
	t.Helper()
	received, sent := w.received(t), int(l.queries.Load())
	kit.Within(t, bounded, "the load sends queries", func() bool { return int(l.queries.Load()) >= sent+number })
	// A query that was counted first may not have been received then, and the other way round: one of each client.
	sent = int(l.queries.Load()) - sent
	if n := w.received(t) - received; n < sent-l.size() {
		t.Errorf("the node has received %d of %d queries: the kernel has answered others", n, sent)
	}
}

// size returns the number of clients.
func (l *load) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.clients)
}

// TestSurgeUpdate starts a second instance while the first one runs, and then stops the first: both programs are at the same
// interfaces in between, and no query is lost.
func TestSurgeUpdate(t *testing.T) {
	w := newWorld(t, 2)
	c := w.configured(firstPort)
	i, l := w.startLoaded(t, c, 3)
	l.add(w.Namespace, 1, locals...) // programs of the node itself
	ports := map[uint16]uint16{firstPort: secondPort, secondPort: firstPort}
	port := uint16(firstPort)
	for round := range 3 {
		old := port
		port = ports[port]
		l.require(t, rule{ports: []int{firstPort, secondPort}})
		c.forward, c.metrics = w.ledger.at(port), 9154+round
		next := w.start(t, c)
		next.acquired(t)
		next.waitInterfaces(t, "attached", len(w.pods)+devices)
		for _, p := range w.pods {
			if ids := w.attachments(t, p.device); len(ids) != 2 || ids[0] == ids[1] {
				t.Errorf("round %d: programs at %s: %v, want that of each instance", round, p.device, ids)
			}
		}
		for name, one := range map[string]*instance{"first": i, "second": next} {
			all := one.scrape(t)
			one.noRefusal(t, all)
			if n := int(all.Sum(interfaces, "state", "attached")); n != len(w.pods)+devices {
				t.Errorf("round %d: the %s instance is attached to %d interfaces", round, name, n)
			}
		}
		i.waitAnswers(t, 200)
		w.pause(t, l, 500)
		if code := i.Stop(t); code != 0 {
			t.Errorf("round %d: exit code %d", round, code)
		}
		l.require(t, rule{ports: []int{int(port)}}) // each instance has a store of its own
		next.waitAnswers(t, 500)
		for _, p := range w.pods {
			if ids := w.attachments(t, p.device); len(ids) != 1 {
				t.Errorf("round %d: programs at %s after the update from port %d: %v", round, p.device, old, ids)
			}
		}
		next.noRefusal(t, next.scrape(t))
		i = next
	}
	l.end(t)
}

// pause waits until the load has sent a number of queries.
func (w *world) pause(t testing.TB, l *load, number int) {
	t.Helper()
	before := int(l.queries.Load())
	kit.Within(t, bounded, "the load sends queries", func() bool { return int(l.queries.Load()) >= before+number })
}

// TestStop ends the only instance by SIGTERM, while cluster DNS is the fallback. No query is lost, and the answers of the kernel
// end before those of nodecache.
func TestStop(t *testing.T) {
	w := newWorld(t, 2)
	for range 3 {
		i, l := w.startLoaded(t, w.configured(firstPort), 3)
		l.require(t, rule{ports: []int{firstPort}})
		i.Signal(t, syscall.SIGTERM)
		i.withoutLeases(t)
		l.require(t, rule{})
		if code := i.Wait(t); code != 0 {
			t.Errorf("exit code %d", code)
		}
		w.pause(t, l, 500)
		for _, p := range w.pods {
			if ids := w.attachments(t, p.device); len(ids) > 0 {
				t.Errorf("programs at %s: %v", p.device, ids)
			}
		}
		l.end(t)
	}
}

// withoutLeases waits until no address has a lease.
func (i *instance) withoutLeases(t testing.TB) {
	t.Helper()
	for _, a := range i.config.local() {
		kit.Within(t, bounded, a.String()+" has no lease", func() bool { return i.node.leased(a) != nil })
	}
}

// TestKill ends the only instance by SIGKILL. From its end on, cluster DNS answers every query, and a new instance answers again
// in the kernel.
func TestKill(t *testing.T) {
	w := newWorld(t, 2)
	for range 3 {
		i, l := w.startLoaded(t, w.configured(firstPort), 3)
		l.require(t, rule{ports: []int{firstPort}, lossy: true}) // its sockets have queries when it ends
		i.Kill(t)
		l.require(t, rule{})
		for _, p := range w.pods {
			if ids := w.attachments(t, p.device); len(ids) > 0 {
				t.Errorf("programs at %s: %v", p.device, ids)
			}
		}
		w.pause(t, l, 500)
		l.require(t, rule{ports: []int{firstPort}})
		i = w.start(t, w.configured(firstPort))
		i.acquired(t)
		i.waitAnswers(t, 200)
		l.end(t)
		i.Stop(t)
	}
}

// TestHang stops the process: the kernel answers nothing after the lease, which is a second, and answers again when the process
// continues.
func TestHang(t *testing.T) {
	w := newWorld(t, 2)
	i, l := w.startLoaded(t, w.configured(firstPort), 3)
	const lease = time.Second + 100*time.Millisecond // with the time until the process has stopped
	for range 3 {
		l.require(t, rule{ports: []int{firstPort}, lossy: true})
		i.Freeze(t)
		time.Sleep(lease)
		l.require(t, rule{})
		w.pause(t, l, 500)
		for _, p := range w.pods {
			if ids := w.attachments(t, p.device); len(ids) != 1 {
				t.Errorf("programs at %s: %v: the test shows nothing", p.device, ids)
			}
		}
		l.require(t, rule{ports: []int{firstPort}, lossy: true})
		i.Thaw(t)
		i.waitAnswers(t, 200)
		l.require(t, rule{ports: []int{firstPort}})
		i.waitAnswers(t, 500)
	}
	l.end(t)
}

// TestTTLsInTheKernel has the kernel answer until answers expire, several times. The load verifies every TTL.
func TestTTLsInTheKernel(t *testing.T) {
	w := newWorld(t, 2)
	const name = "t5-0.popular.test."
	i, l := w.startLoaded(t, w.configured(firstPort), 2)
	for _, qtype := range types {
		i.eventually(t, "the ledger to be queried again", func() error {
			if n := len(w.ledger.answers(name, qtype)); n < 4*variants {
				return fmt.Errorf("%d times", n)
			}
			return nil
		})
	}
	i.waitAnswers(t, 200)
	l.end(t)
}

// variants is the number of answers that are stored for a question of the load: with and without DNSSEC.
const variants = 2

// TestPrefetchOfKernelHits has a name that is popular by answers of the kernel alone: it is fetched before it expires.
func TestPrefetchOfKernelHits(t *testing.T) {
	w := newWorld(t, 1)
	const (
		hits    = 500 // that prefetch requires
		fetched = "coredns_cache_prefetch_total"
		by      = "nearside_fastpath_answered_total"
	)
	c := w.configured(firstPort)
	c.cache = fmt.Sprintf("{\n        serve_stale off\n        prefetch %d 1m 50%%\n    }", hits)
	i := w.start(t, c)
	i.waitInterfaces(t, "attached", len(w.pods)+devices)
	before := i.scrape(t)
	l := newLoad(t, w.ledger, rule{ports: []int{firstPort}})
	const name = "t20-0.popular.test."
	l.names, l.unique = []string{name}, 0
	l.add(w.pods[0].Namespace, 3, locals...)
	var grown daemon.Samples
	i.eventually(t, "a prefetch", func() error {
		if grown = i.scrape(t).Since(before); grown.Sum(fetched) < 1 {
			return errors.New("none")
		}
		return nil
	})
	i.eventually(t, "a query for an answer that has not expired", func() error { return w.ledger.early(name) })
	// There is an entry for each of two flags and of the types, and each has hits of readers while it is not copied yet.
	if n := grown.Sum(by); n >= hits {
		t.Errorf("readers of the store have answered %v queries: that is enough for a prefetch", n)
	}
	if n := grown.Sum(answeredTotal); n < hits {
		t.Errorf("the kernel has answered %v queries", n)
	}
	l.end(t)
}

// early returns nil if the ledger was queried again for an answer before its TTL had ended.
func (l *ledger) early(name string) error {
	type kind struct {
		qtype uint16
		do    bool
	}
	last := map[kind]*issue{}
	for _, qtype := range types {
		for _, i := range l.answers(name, qtype) {
			k := kind{i.qtype, i.do}
			if before := last[k]; before != nil && i.made.Sub(before.made) < time.Duration(i.ttl)*time.Second {
				return nil
			}
			last[k] = i
		}
	}
	return fmt.Errorf("none of %d", len(l.answers(name, types[0])))
}

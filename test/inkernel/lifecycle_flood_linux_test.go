package inkernel

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// floodNames is the number of random names of a flood: more than the caches have room for.
const floodNames = 12000

// flooded is the effect of a flood on the popular names that another pod queries.
type flooded struct {
	queries int // for popular names during the flood
	lost    int
	reached int // of these, queries that the kernel has passed on
	fetched int // queries for popular names that reached the upstream
}

// TestFlood has one pod query random names, once each or several times, while another pod queries popular names: the kernel
// answers these all the time, and they stay in the store. CoreDNS has the same load, and room for about as many names.
func TestFlood(t *testing.T) {
	path := controlplane.RequireBinary(t, "coredns")
	w := newWorld(t, 2)
	c := w.configured(firstPort)
	c.cache = "{\n        serve_stale off\n        budget 6MiB\n    }"
	i := w.start(t, c)
	i.waitInterfaces(t, "attached", len(w.pods)+devices)
	w.watch(t, w.pods[0].device)
	reference := w.startCoreDNS(t, path)
	for _, times := range []int{1, 6} {
		t.Run(fmt.Sprintf("each name %d times", times), func(t *testing.T) {
			const evicted = "coredns_cache_evictions_total"
			var here flooded
			for range 3 {
				before := i.scrape(t)
				here = w.flood(t, i, firstPort, times, locals...)
				grown := i.scrape(t).Since(before)
				if grown.Sum(evicted) == 0 {
					t.Error("the flood fits into the cache: the test shows nothing")
				}
				if grown.Sum("nearside_nodelocal_leases_lost_total") == 0 {
					break
				}
				t.Log("the machine was so busy that a lease expired: once more")
			}
			there := w.flood(t, nil, secondPort, times, reference)
			t.Logf("nodecache: %+v, CoreDNS: %+v", here, there)
			if here.reached*50 > here.queries {
				t.Errorf("the kernel has passed %d of %d queries for popular names", here.reached, here.queries)
			}
			if here.fetched > there.fetched || here.lost > there.lost {
				t.Errorf("nodecache is worse than CoreDNS: %+v, %+v", here, there)
			}
		})
	}
}

// flood has one pod query popular names of servers, and then the other one random names, which the servers query at a port of the
// ledger. i is nil for CoreDNS.
func (w *world) flood(t *testing.T, i *instance, port, times int, servers ...netip.Addr) (f flooded) {
	t.Helper()
	l := newLoad(t, w.ledger, rule{ports: []int{port}})
	l.unique, l.names = 0, nil
	for n := range 8 {
		l.names = append(l.names, fmt.Sprintf("t300-%d.popular%d.test.", n, port))
	}
	clients := l.add(w.pods[0].Namespace, 4/len(servers), servers...)
	w.pause(t, l, 1000)
	if i != nil {
		i.answersAt(t, w.pods[0].device, clients)
		w.settled(t, i, l)
	}
	random := newLoad(t, w.ledger, rule{ports: []int{port}})
	random.unique, random.repeat, random.pause = 1, times, 0
	queries, fetched, reached := asked(clients), w.ledger.popular(port, l.names), w.node.received(t, w.pods[0].device)
	sent := w.ledger.total()
	random.add(w.pods[1].Namespace, 8/len(servers), servers...)
	kit.Within(t, 2*bounded, "the names of the flood", func() bool { return w.ledger.total() >= sent+floodNames })
	f = flooded{queries: asked(clients) - queries, reached: w.node.received(t, w.pods[0].device) - reached}
	f.fetched = w.ledger.popular(port, l.names) - fetched
	random.halt()
	l.halt()
	f.lost = int(l.lost.Load())
	if i != nil {
		random.end(t)
		l.end(t)
	}
	return f
}

// settled waits until no query for popular names reaches the node any more: all of them have copies in the kernel.
func (w *world) settled(t *testing.T, i *instance, l *load) {
	t.Helper()
	device := w.pods[0].device
	i.eventually(t, "copies of all popular names", func() error {
		before := w.node.received(t, device)
		w.pause(t, l, 1000)
		if n := w.node.received(t, device) - before; n > 1 {
			return fmt.Errorf("%d queries reached the node", n)
		}
		return nil
	})
}

// popular returns the number of answers of a port to questions for some names.
func (l *ledger) popular(port int, names []string) (all int) {
	for _, n := range names {
		for _, qtype := range types {
			for _, i := range l.answers(n, qtype) {
				if i.port == port {
					all++
				}
			}
		}
	}
	return all
}

// startCoreDNS starts CoreDNS on the node, with an address of its own and a cache, in front of the ledger's second port.
func (w *world) startCoreDNS(t *testing.T, program string) netip.Addr {
	t.Helper()
	address := netip.MustParseAddr("169.254.20.11")
	batch(t, w.Namespace, fmt.Sprintf("addr add %v/32 dev lo", address))
	path := filepath.Join(t.TempDir(), "Corefile")
	text := fmt.Sprintf(".:53 {\n    bind %v\n    cache {\n        success 2048\n        denial 2048\n    }\n    forward . %v\n}\n",
		address, w.ledger.at(secondPort))
	kit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	p := w.Start(t, program, "-conf", path)
	c := dial(t, w.pods[0].Namespace, address)
	m := query(t, "t30-0.start.test.", dns.TypeA, nil)
	waitProcess(t, p, "CoreDNS to answer", func() error {
		_, err := c.exchange(m)
		return err
	})
	return address
}

// waitProcess waits until a check has no error, and fails if the program ends before.
func waitProcess(t *testing.T, p *netns.Process, what string, check func() error) {
	t.Helper()
	var errs []string
	for end := time.Now().Add(bounded); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-p.Ended():
			t.Fatalf("it has ended: %v\n%s", err, p.Output())
		default:
		}
		errs = append(errs, err.Error())
	}
	t.Fatalf("waited %v for %s: %v", bounded, what, errors.New(strings.Join(errs, "\n")))
}

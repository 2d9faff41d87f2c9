//go:build linux

package fastpath

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestOverload has one client query a thousand names whose server does not answer. Another client is served meanwhile:
// cached names, and new names that the server answers.
func TestOverload(t *testing.T) {
	const (
		share   = 10 // max_concurrent
		running = 8  // share of one client
		waiting = 5  // waiting queries of one client
		queries = 1000
		chunk   = 100 // sent at a time: the socket buffers have room for them
		spare   = 50  // goroutines that start and end for other reasons
	)
	// The first queries stay until the gate is open.
	s, g := slow(t, bothLoopbacks, "fastpath {\nmax_concurrent 10\n}", "timeout 60s", "read_timeout 60s")
	defer g.open() // its server ends after its answers
	cached := pack(t, newQuery("web.shop.svc.cluster.local.", dns.TypeA))
	other := fromAddress(t, s, clientSource)
	for range 2 {
		other.ask(t, cached)
	}
	before := s.settled(t)

	names := unique(queries)
	conn := burst(t, s.Addr, nil)
	newNames := 0
	handedOver := func() int { return int(s.scrape(t).Since(before).Sum(handedOverTotal)) }
	for sent := 0; sent < queries; {
		for i := range chunk {
			if i == chunk/2 {
				if sent == i { // with several readers, the other's query could be read before the first ones
					kit.Eventually(t, "the first queries have places", func() bool { return handedOver() == sent })
				}
				// Forwarded while more queries of the first client arrive.
				other.send(t, pack(t, newQuery(fmt.Sprintf("served%d.example.net.", newNames), dns.TypeA)))
				newNames++
			}
			if _, err := conn.Write(pack(t, newQuery(names[sent], dns.TypeA))); err != nil {
				t.Fatal(err)
			}
			sent++
		}
		if other.receive(t, resolverTimeout) == nil {
			t.Fatalf("a new name of the other client is not answered within %v", resolverTimeout)
		}
		kit.Eventually(t, "the queries are read", func() bool { return handedOver() == sent+newNames })
		now := s.scrape(t)
		// The other client may have its reply before its query counts as ended.
		if n := now.Sum(inFlight); n > running+waiting+1 {
			t.Fatalf("%v queries are in flight, want at most %d", n, running+waiting+1)
		}
		if n := now.Sum(goroutines) - before.Sum(goroutines); n > 2*share+spare {
			t.Fatalf("there are %v goroutines more than without load", n)
		}
		other.ask(t, cached) // cached names are answered meanwhile
	}
	now := s.scrape(t).Since(before)
	if n := now.Sum(answeredTotal); n != queries/chunk {
		t.Errorf("%v queries were answered by the fast path, want %d", n, queries/chunk)
	}

	g.open()
	kit.Eventually(t, "nothing is in flight", func() bool { return s.scrape(t).Sum(inFlight) == 0 })
	// The first queries had places. Of the waiting ones, the oldest were dropped, and all that waited for long.
	dropped := int(s.scrape(t).Since(before).Sum(droppedTotal, "reason", "overload"))
	if dropped < queries-running-waiting || dropped > queries-running {
		t.Errorf("%d queries are counted as dropped, want %d to %d", dropped, queries-running-waiting, queries-running)
	}
	if n := strings.Count(s.Output(), "dropped for overload since the last such line, their clients get no reply over UDP: client 127.0.0.1 has the most"); n != 1 {
		t.Errorf("%d log lines name the client whose queries are dropped, want 1", n)
	}
	got := answered(t, conn, queries-dropped)
	for _, name := range names[:running] {
		if !got[name] {
			t.Errorf("no answer for %s", name)
		}
	}
	for _, name := range names[running : queries-waiting] {
		if got[name] {
			t.Errorf("%s is answered, though newer queries of its client were dropped", name)
		}
	}
	kit.Eventually(t, "the goroutines are gone", func() bool {
		return s.scrape(t).Sum(goroutines) <= before.Sum(goroutines)+spare
	})
}

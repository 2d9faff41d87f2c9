//go:build linux

package fastpath

import (
	"maps"
	"slices"
	"testing"

	"github.com/miekg/dns"
)

// TestOverload asks a thousand names whose server does not answer.
func TestOverload(t *testing.T) {
	const (
		most    = 10 // max_concurrent
		queries = 1000
		chunk   = 100 // that are sent at a time: the sockets have room for them
		spare   = 50  // goroutines that come and go for other reasons
	)
	s, g := slow(t, "fastpath {\nmax_concurrent 10\n}")
	kept := pack(t, newQuery("web.shop.svc.cluster.local.", dns.TypeA))
	udp := dial(t, "udp", "127.0.0.1", s)
	for range 2 {
		udp.ask(t, kept)
	}
	before := s.scrape(t)

	names := unique(queries)
	conn := burst(t, s.Addr, nil)
	for sent := 0; sent < queries; {
		for range chunk {
			if _, err := conn.Write(pack(t, newQuery(names[sent], dns.TypeA))); err != nil {
				t.Fatal(err)
			}
			sent++
		}
		within(t, "the queries are read", func() bool {
			return int(s.scrape(t).Since(before).Sum(handedOverTotal)) == sent
		})
		now := s.scrape(t)
		if n := now.Sum(inFlight); n > 2*most {
			t.Fatalf("%v queries are in flight, want at most %d", n, 2*most)
		}
		if n := now.Sum(goroutines) - before.Sum(goroutines); n > 2*most+spare {
			t.Fatalf("there are %v goroutines more than without load", n)
		}
		udp.ask(t, kept) // what is kept is answered meanwhile
	}
	now := s.scrape(t).Since(before)
	if n := now.Sum(droppedTotal, "reason", "overload"); n != queries-2*most {
		t.Errorf("%v queries are counted as dropped, want %d", n, queries-2*most)
	}
	if n := now.Sum(answeredTotal); n != queries/chunk {
		t.Errorf("%v queries were answered by the fast path, want %d", n, queries/chunk)
	}

	g.open()
	// The first came while nobody waited; of those that waited, the oldest had to go.
	want := slices.Concat(names[:most], names[queries-most:])
	got := answered(t, conn, 2*most)
	for _, name := range want {
		if !got[name] {
			t.Errorf("no answer for %s, but for %q", name, slices.Sorted(maps.Keys(got)))
		}
	}
	within(t, "nothing is in flight", func() bool { return s.scrape(t).Sum(inFlight) == 0 })
	within(t, "the goroutines are gone", func() bool {
		return s.scrape(t).Sum(goroutines) <= before.Sum(goroutines)+spare
	})
}

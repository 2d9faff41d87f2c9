package dnssec

import (
	"context"
	"crypto"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearside-dns/nearside/test/dnssec/keyfile"
)

// counted counts the signatures of a key.
type counted struct {
	crypto.Signer
	n atomic.Int64
}

func (c *counted) Sign(rand io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	c.n.Add(1)
	return c.Signer.Sign(rand, digest, opts)
}

// newCounted returns a signer with a counted key.
func newCounted(t testing.TB) (*signer, *counted) {
	t.Helper()
	k := newKey(t, "example.org.", keyfile.ZoneSigning, dns.ECDSAP256SHA256)
	c := &counted{Signer: k.Signer}
	k.Signer = c
	return newSigner([]*key{k}, defaultCapacity), c
}

// TestStored signs RRsets, one after the other: only those with other data need a signature.
func TestStored(t *testing.T) {
	s, signed := newCounted(t)
	hits, misses := testutil.ToFloat64(cacheHits.WithLabelValues("stored")), testutil.ToFloat64(cacheMisses.WithLabelValues("stored"))
	steps := []struct {
		name, records, zone string
		created             bool
	}{
		{"first", "a.example.org. 60 IN A 192.0.2.1\na.example.org. 60 IN A 192.0.2.2", "example.org.", true},
		{"again", "a.example.org. 60 IN A 192.0.2.1\na.example.org. 60 IN A 192.0.2.2", "example.org.", false},
		{"another order", "a.example.org. 60 IN A 192.0.2.2\na.example.org. 60 IN A 192.0.2.1", "example.org.", false},
		{"another TTL and case", "A.Example.org. 7 IN A 192.0.2.2\nA.Example.org. 7 IN A 192.0.2.1", "example.org.", false},
		{"fewer records", "a.example.org. 60 IN A 192.0.2.1", "example.org.", true},
		{"another record", "a.example.org. 60 IN A 192.0.2.1\na.example.org. 60 IN A 192.0.2.3", "example.org.", true},
		{"another name", "b.example.org. 60 IN A 192.0.2.1", "example.org.", true},
		{"another type", "a.example.org. 60 IN TXT \"a\"", "example.org.", true},
		{"another zone", "a.example.org. 60 IN A 192.0.2.1", "org.", true},
		{"the first", "a.example.org. 60 IN A 192.0.2.1\na.example.org. 60 IN A 192.0.2.2", "example.org.", false},
	}
	var created float64
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			before := signed.n.Load()
			rrset := section(t, step.records)
			all, err := s.signatures(rrset, step.zone, "stored")
			if err != nil || len(all) != 1 {
				t.Fatal(all, err)
			}
			if got := signed.n.Load() > before; got != step.created {
				t.Errorf("created: %t", got)
			}
			if step.created {
				created++
			}
			if h, want := all[0].Header(), rrset[0].Header(); h.Name != want.Name || h.Ttl != want.Ttl {
				t.Errorf("%s of %s", all[0], rrset[0])
			}
			verify(t, s.keys, slices.Concat(rrset, all), time.Now())
			all[0].Header().Name = "other." // as plugin rewrite does
		})
	}
	if got := testutil.ToFloat64(cacheMisses.WithLabelValues("stored")) - misses; got != created {
		t.Errorf("%v misses, want %v", got, created)
	}
	if got, want := testutil.ToFloat64(cacheHits.WithLabelValues("stored"))-hits, float64(len(steps))-created; got != want {
		t.Errorf("%v hits, want %v", got, want)
	}
	if got := testutil.ToFloat64(cacheEntries.WithLabelValues("stored", "signature")); got != created {
		t.Errorf("%v entries, want %v", got, created)
	}
}

// TestRenewal has a signature replaced before it expires.
func TestRenewal(t *testing.T) {
	s, signed := newCounted(t)
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	rrset := section(t, "a.example.org. 60 IN A 192.0.2.1")
	for _, step := range []struct {
		age     time.Duration
		created int64
	}{
		{0, 1},
		{5 * 24 * time.Hour, 1},
		{6 * 24 * time.Hour, 1},
		{6*24*time.Hour + time.Second, 2},
		{12*24*time.Hour + time.Second, 2},
		{12*24*time.Hour + 2*time.Second, 3},
		{30 * 24 * time.Hour, 4},
	} {
		now := start.Add(step.age)
		s.now = func() time.Time { return now }
		all, err := s.signatures(rrset, "example.org.", "renewal")
		kit.Must(t, err)
		if got := signed.n.Load(); got != step.created {
			t.Errorf("after %s: %d signatures, want %d", step.age, got, step.created)
		}
		for _, at := range []time.Time{now.Add(-backdated + time.Second), now, now.Add(renewal)} {
			if step.created == 1 && at.Before(start) {
				at = start
			}
			verify(t, s.keys, slices.Concat(rrset, all), at)
		}
	}
	if n := s.stored.Len(); n != 1 {
		t.Errorf("%d entries", n)
	}
}

// TestConcurrent has many queries for RRsets without stored signatures: each RRset is signed once.
func TestConcurrent(t *testing.T) {
	s, signed := newCounted(t)
	const rrsets, queries = 5, 20
	var wg sync.WaitGroup
	for range queries {
		for i := range rrsets {
			wg.Go(func() {
				rrset := section(t, fmt.Sprintf("a%d.example.org. 60 IN A 192.0.2.1", i))
				all, err := s.signatures(rrset, "example.org.", "concurrent")
				if err != nil {
					t.Error(err)
					return
				}
				verify(t, s.keys, slices.Concat(rrset, all), time.Now())
			})
		}
	}
	wg.Wait()
	if got := signed.n.Load(); got != rrsets {
		t.Errorf("%d signatures of %d RRsets", got, rrsets)
	}
}

// TestFlood has one client query random names, while another is answered: the number of stored signatures is limited.
func TestFlood(t *testing.T) {
	const capacity = 1024
	k := newKey(t, "example.org.", keyfile.ZoneSigning, dns.ED25519)
	denial := section(t, soa)
	served := section(t, "a.example.org. 60 IN A 192.0.2.1")
	next := plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		m := new(dns.Msg).SetReply(r)
		if r.Question[0].Name == "a.example.org." {
			m.Answer = served
		} else {
			m.Rcode, m.Ns = dns.RcodeNameError, denial
		}
		return m.Rcode, w.WriteMsg(m)
	})
	h := &handler{Next: next, zones: []string{"example.org."}, signer: newSigner([]*key{k}, capacity)}
	var wg sync.WaitGroup
	clients := runtime.GOMAXPROCS(0) + 1
	for client := range clients {
		wg.Go(func() {
			for n := range 2 * capacity / clients {
				reply := exchange(t, h, newQuery(fmt.Sprintf("r%d-%d.example.org.", client, n), dns.TypeA, true))
				if len(reply.Ns) != 4 {
					t.Errorf("%s", reply)
				}
			}
		})
	}
	flooded := make(chan struct{})
	go func() { wg.Wait(); close(flooded) }()
	for ended := false; !ended; {
		select {
		case <-flooded:
			ended = true
		default:
		}
		reply := exchange(t, h, newQuery("a.example.org.", dns.TypeA, true))
		if n := verify(t, h.keys, reply.Answer, time.Now()); n != 1 {
			t.Fatalf("the other client's reply has %d signatures", n)
		}
		if n := h.stored.Len(); n > capacity {
			t.Fatalf("%d stored signatures, want %d at most", n, capacity)
		}
	}
	if n := h.stored.Len(); n < capacity/2 {
		t.Errorf("only %d stored signatures of %d: the flood was too small", n, capacity)
	}
}

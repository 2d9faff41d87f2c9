package store

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
)

// TestMemory asserts that the store counts at least the bytes that its entries need in the heap, and at most a quarter more.
func TestMemory(t *testing.T) {
	const n = 1000
	records := func(format string, count int) func(*testing.T, string) *dns.Msg {
		return func(t *testing.T, name string) *dns.Msg {
			m := message(t, name, dns.TypeA)
			for i := range count {
				m.Answer = append(m.Answer, newRecord(t, fmt.Sprintf(format, name, i)))
			}
			return m
		}
	}
	tests := map[string]struct {
		message func(*testing.T, string) *dns.Msg
		cached  bool
		handles int // negative for handles of one answer each
	}{
		"one address":         {records("%s 30 IN A 10.0.0.%d", 1), false, 0},
		"one address, cached": {records("%s 30 IN A 10.0.0.%d", 1), true, 0},
		"ten addresses":       {records("%s 30 IN A 10.0.0.%d", 10), false, 0},
		"ten SRV":             {records("%[1]s 30 IN SRV 0 1 80 pod-%[2]d.%[1]s", 10), true, 0},
		"hundred addresses":   {records("%s 30 IN A 10.0.0.%d", 100), false, 0},
		"denial": {func(t *testing.T, name string) *dns.Msg {
			m := message(t, name, dns.TypeA)
			soa := newRecord(t, "cluster.local. 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 30")
			m.Rcode, m.Ns = dns.RcodeNameError, []dns.RR{soa}
			return m
		}, false, 0},
		"one address, one handle":   {records("%s 30 IN A 10.0.0.%d", 1), true, 1},
		"one address, two handles":  {records("%s 30 IN A 10.0.0.%d", 1), true, 2},
		"one address, four handles": {records("%s 30 IN A 10.0.0.%d", 1), true, 4},
		"a search list":             {records("%s 30 IN A 10.0.0.%d", 1), true, 24},
		"a handle of its own":       {records("%s 30 IN A 10.0.0.%d", 1), true, -1},
		"four handles of its own":   {records("%s 30 IN A 10.0.0.%d", 1), true, -4},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := NewStore(256 << 20)
			ks := s.NewKeyspace()
			session := vouch.NewSession(validity.Now)
			entries := heapGrowth(func() {
				for i := range n {
					m := tt.message(t, fmt.Sprintf("svc-%d.default.svc.cluster.local.", i))
					e := &Entry{Kind: Success}
					if tt.cached {
						e.Expires, e.Popularity = time.Hour, new(Popularity)
					}
					e.Voucher = session.Voucher(handlesOf(i, tt.handles))
					if err := e.Fill(m); err != nil {
						t.Fatal(err)
					}
					put(ks, i, e)
				}
			})
			if ks.Len(Success) != n {
				t.Fatalf("%d entries", ks.Len(Success))
			}
			// Entries include their share of the buckets when the budget is used up.
			used := float64(entries) + 8*float64(s.Bytes())/bytesPerBucket
			counted := float64(s.Bytes())
			t.Logf("%.0f bytes per entry, counted %.0f", used/n, counted/n)
			if counted < used || counted > 1.25*used {
				t.Errorf("%.0f bytes per entry, counted %.0f", used/n, counted/n)
			}
			runtime.KeepAlive(s)
			runtime.KeepAlive(session)
		})
	}
}

// handlesOf returns the handles of an answer. The first is that of four answers about a Service, the others are those of all
// answers; a negative number is for handles of this answer alone.
func handlesOf(answer, number int) (handles []uint64) {
	for h := range uint64(max(number, -number)) { // #nosec G115 -- positive
		switch {
		case number < 0:
			handles = append(handles, uint64(answer)<<8|h) // #nosec G115
		case h == 0:
			handles = append(handles, 1000+uint64(answer)/4) // #nosec G115
		default:
			handles = append(handles, h)
		}
	}
	return handles
}

// heapGrowth returns the growth of the heap by a function, in bytes.
func heapGrowth(f func()) uint64 {
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	f()
	return heap() - before
}

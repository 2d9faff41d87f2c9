package answers

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestMemory asserts that the bytes that the store counts are those that the heap holds, rather a few
// too many than too few.
func TestMemory(t *testing.T) {
	const n = 1000
	records := func(format string, count int) func(*testing.T, string) *dns.Msg {
		return func(t *testing.T, name string) *dns.Msg {
			m := message(t, name, dns.TypeA)
			for i := range count {
				rr, err := dns.NewRR(fmt.Sprintf(format, name, i))
				if err != nil {
					t.Fatal(err)
				}
				m.Answer = append(m.Answer, rr)
			}
			return m
		}
	}
	tests := map[string]struct {
		message func(*testing.T, string) *dns.Msg
		cached  bool
	}{
		"one address":         {records("%s 30 IN A 10.0.0.%d", 1), false},
		"one address, cached": {records("%s 30 IN A 10.0.0.%d", 1), true},
		"ten addresses":       {records("%s 30 IN A 10.0.0.%d", 10), false},
		"ten SRV":             {records("%[1]s 30 IN SRV 0 1 80 pod-%[2]d.%[1]s", 10), true},
		"hundred addresses":   {records("%s 30 IN A 10.0.0.%d", 100), false},
		"denial": {func(t *testing.T, name string) *dns.Msg {
			m := message(t, name, dns.TypeA)
			rr, err := dns.NewRR("cluster.local. 30 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 30")
			if err != nil {
				t.Fatal(err)
			}
			m.Rcode, m.Ns = dns.RcodeNameError, []dns.RR{rr}
			return m
		}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := NewStore(256 << 20)
			sp := s.NewKeyspace()
			entries := heapOf(func() {
				for i := range n {
					m := tt.message(t, fmt.Sprintf("svc-%d.default.svc.cluster.local.", i))
					e := &Entry{Kind: Success}
					if tt.cached {
						e.Expires, e.Popularity = time.Hour, new(Popularity)
					}
					if err := e.Fill(m); err != nil {
						t.Fatal(err)
					}
					put(sp, i, e)
				}
			})
			if sp.Len(Success) != n {
				t.Fatalf("%d entries", sp.Len(Success))
			}
			// The buckets of a budget that is used up belong to its entries.
			taken := float64(entries) + 8*float64(s.Bytes())/bytesPerBucket
			counted := float64(s.Bytes())
			t.Logf("%.0f bytes for each, counted %.0f", taken/n, counted/n)
			if counted < taken || counted > 1.25*taken {
				t.Errorf("%.0f bytes for each, counted %.0f", taken/n, counted/n)
			}
			runtime.KeepAlive(s)
		})
	}
}

// heapOf returns by how many bytes the heap is larger after a function.
func heapOf(f func()) uint64 {
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

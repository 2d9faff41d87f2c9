package cache

import (
	"context"
	"testing"
)

// TestAllocations limits the allocations of a hit to those of the message for the plugins in front. Hits of the fast path
// do not create a message.
func TestAllocations(t *testing.T) {
	for _, c := range []struct {
		name, reply string
		limit       float64
	}{
		{"A", "NOERROR; " + a("www.example.", 300), 8},
		{"NXDOMAIN", denial("NXDOMAIN", 60, 60), 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newTestCache(t, "cache {\nprefetch 10\n}")
			b.replies(c.reply)
			b.query("www.example. A")
			r, w, ctx := query("www.example. A"), new(client), context.Background()
			if n := testing.AllocsPerRun(1000, func() {
				if _, err := b.ServeDNS(ctx, w, r); err != nil {
					t.Error(err)
				}
			}); n > c.limit {
				t.Errorf("%v allocations, the limit is %v", n, c.limit)
			}
			b.wantQueries(1)
		})
	}
}

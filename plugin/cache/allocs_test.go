package cache

import (
	"context"
	"testing"
)

// What a hit may allocate, as measured: it is the message that is made for the plugins in front, with its
// question, names and records. Hits over UDP are not given this way.
func TestAllocations(t *testing.T) {
	for _, c := range []struct {
		name, reply string
		limit       float64
	}{
		{"A", "NOERROR; " + a("www.example.", 300), 8},
		{"NXDOMAIN", denial("NXDOMAIN", 60, 60), 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBed(t, "cache {\nprefetch 10\n}")
			b.replies(c.reply)
			b.ask("www.example. A")
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

package cache

import (
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// TestDenials stores NXDOMAIN for a search list, and compares the entries of all candidates with the slow version's.
func TestDenials(t *testing.T) {
	const soaOfExample = "; authority; example. 900 IN SOA ns.example. host.example. 1 2 3 4 60"
	long := strings.Repeat("a.", 120)
	for _, tt := range []struct {
		name, zone, query, reply string
		want                     int // number of denials, with that of the list
	}{
		{"all candidates", ".", "www.a.example. A +search:a.example.,b.example.,example.", "tried NXDOMAIN" + soaOfExample, 4},
		{"question in mixed case", ".", "wWw.A.example. A +search:a.example.,b.example.", "tried NXDOMAIN" + soaOfExample, 3},
		{"SOA record in upper case", ".", "www.a.example. A +search:a.example.,b.example.", "tried NXDOMAIN; authority; EXAMPLE. 900 IN SOA ns.example. host.example. 1 2 3 4 60", 3},
		{"root zone", ".", "www.a.example. A +search:a.example.,b.test.", "tried NXDOMAIN; authority; . 900 IN SOA ns.example. host.example. 1 2 3 4 60", 3},
		{"candidates outside of the zone of the SOA record", ".", "www.a.example. A +search:a.example.,b.test.", "tried NXDOMAIN" + soaOfExample, 2},
		{"candidates outside of the zones of the cache", "a.example.", "www.a.example. A +search:a.example.,example.", "tried NXDOMAIN" + soaOfExample, 2},
		{"candidate equal to the zone", ".", "a.b.example. A +search:b.example.,example.", "tried NXDOMAIN; authority; a.example. 900 IN SOA ns.example. host.example. 1 2 3 4 60", 2},
		{"candidate too long", ".", long + "a. A +search:a.,bbbb.bbbb.bbbb.bbbb.", "tried NXDOMAIN; authority; . 900 IN SOA . . 1 2 3 4 60", 2},
		{"question not below the list", ".", "www.c.example. A +search:a.example.,b.example.", "tried NXDOMAIN" + soaOfExample, 1},
		{"question equal to the suffix", ".", "a.example. A +search:a.example.,b.example.", "tried NXDOMAIN" + soaOfExample, 1},
		{"list not tried", ".", "www.a.example. A +search:a.example.,b.example.", "NXDOMAIN" + soaOfExample, 1},
		{"with an alias", ".", "www.a.example. A +search:a.example.,b.example.", "tried NXDOMAIN; www.a.example. 60 IN CNAME gone.example." + soaOfExample, 1},
		{"with a further record", ".", "www.a.example. A +search:a.example.,b.example.", "tried NXDOMAIN" + soaOfExample + "; example. 60 IN NS ns.example.", 1},
		{"with an additional record", ".", "www.a.example. A +search:a.example.,b.example.", "tried NXDOMAIN" + soaOfExample + "; additional; www.a.example. 60 IN A 192.0.2.1", 3},
		{"SOA record of the question's name", ".", "www.a.example. A +search:a.example.,b.example.", "tried NXDOMAIN; authority; WWW.a.example. 900 IN SOA ns.example. host.example. 1 2 3 4 60", 2},
		{"list with escapes", ".", `www.a.example. A +search:a.example.,b\\.c.example.`, "tried NXDOMAIN" + soaOfExample, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newWireCache(t, tt.zone, "")
			packed, _ := wireQueryOf(t, query(tt.query))
			ok := checkRead(t, c, packed, packReply(t, wireReplyTo(t, query(tt.query), tt.reply), true))
			if n := c.space.Len(store.Denial); !ok || n != tt.want {
				t.Errorf("%d denials, want %d", n, tt.want)
			}
		})
	}
}

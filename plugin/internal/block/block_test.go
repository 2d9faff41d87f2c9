package block

import (
	"maps"
	"slices"
	"testing"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

// FuzzZoneOf compares ZoneOf with plugin.Zones.
func FuzzZoneOf(f *testing.F) {
	zones := ZoneSet([]string{".", "local.", "cluster.local.", `a\.local.`, "b.a.cluster.local."})
	for _, name := range []string{".", "local.", "x.Cluster.LOCAL.", `a\.local.`, `x.a\.local.`, `x\\.local.`, "xlocal.", "c.b.a.cluster.local.", "a.cluster.local."} {
		f.Add(name, true)
		f.Add(name, false)
	}
	f.Fuzz(func(t *testing.T, name string, root bool) {
		if _, ok := dns.IsDomainName(name); !ok || !dns.IsFqdn(name) {
			return
		}
		known := maps.Clone(zones)
		if !root {
			delete(known, ".")
		}
		if got, want := ZoneOf(known, name), plugin.Zones(slices.Collect(maps.Keys(known))).Matches(name); got != want {
			t.Errorf("%q: zone %q, want %q", name, got, want)
		}
	})
}

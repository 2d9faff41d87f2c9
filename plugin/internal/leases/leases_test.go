package leases

import (
	"maps"
	"net/netip"
	"testing"
	"time"
)

// TestSet follows leases while they are renewed and released.
func TestSet(t *testing.T) {
	one, two := netip.MustParseAddrPort("169.254.20.10:53"), netip.MustParseAddrPort("[fd00::a]:53")
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	s := &Set{until: map[netip.AddrPort]time.Time{}}
	s.Renew(one, at(1))
	seen := map[netip.AddrPort]time.Time{}
	stop := s.Follow(func(a netip.AddrPort, until time.Time) { seen[a] = until })
	other := 0
	defer s.Follow(func(netip.AddrPort, time.Time) { other++ })()
	expect := func(step string, want map[netip.AddrPort]time.Time) {
		t.Helper()
		if !maps.Equal(seen, want) {
			t.Errorf("%s: %v, want %v", step, seen, want)
		}
	}
	expect("known before", map[netip.AddrPort]time.Time{one: at(1)})
	s.Renew(two, at(2))
	s.Renew(one, at(3))
	expect("renewed", map[netip.AddrPort]time.Time{one: at(3), two: at(2)})
	s.Renew(one, at(2))
	expect("an earlier end", map[netip.AddrPort]time.Time{one: at(3), two: at(2)})
	s.Release(one)
	s.Release(one)
	expect("released", map[netip.AddrPort]time.Time{one: {}, two: at(2)})
	s.Renew(one, at(1))
	expect("renewed after the release", map[netip.AddrPort]time.Time{one: at(1), two: at(2)})
	stop()
	stop()
	s.Renew(one, at(9))
	expect("not followed any more", map[netip.AddrPort]time.Time{one: at(1), two: at(2)})
	if other != 1+2+1+1+1 {
		t.Errorf("the other follower was called %d times", other)
	}
}

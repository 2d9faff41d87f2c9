package nodelocal

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// TestProofs has the events by which queries to an address do not arrive, and arrive again. Packet filters are read after
// each change.
func TestProofs(t *testing.T) {
	four, six := netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")
	now, failed := time.Now(), errors.New("no answer")
	var n *node
	var since time.Time
	for _, c := range []struct {
		name    string
		event   func()
		blocked []netip.Addr
		due     bool
	}{
		{"a failure over lo as well", func() { n.proveBySelfQuery(four, &since, failed, false) }, nil, false},
		{"the first answer over lo alone", func() { n.proveBySelfQuery(four, &since, failed, true) }, nil, false},
		{"answers over lo alone, for a while", func() { since = now.Add(-silenceWait); n.proveBySelfQuery(four, &since, failed, true) }, []netip.Addr{four}, true},
		{"another one", func() { n.proveBySelfQuery(four, &since, failed, true) }, []netip.Addr{four}, false},
		{"packets of pods that are missing", func() { n.prove(four, proofOf("udp4"), true) }, []netip.Addr{four}, false},
		{"an answer to a self-query", func() { n.proveBySelfQuery(four, &since, nil, false) }, []netip.Addr{four}, false},
		{"arrivals of another protocol and family", func() { n.proveArrival("tcp4"); n.proveArrival("udp6") }, []netip.Addr{four}, false},
		{"packets of both families", func() { n.prove(six, proofOf("tcp6"), true) }, []netip.Addr{four, six}, true},
		{"an arrival", func() { n.proveArrival("udp4") }, []netip.Addr{six}, true},
		{"an arrival of the other family", func() { n.proveArrival("tcp6") }, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if n == nil {
				n = newNode(config{Config: rules.Config{Addresses: []netip.Addr{four, six}}})
			}
			c.event()
			due := len(n.filtersDue) > 0
			if due {
				<-n.filtersDue
			}
			if got := n.blocked(); !slices.Equal(got, c.blocked) || due != c.due {
				t.Errorf("got %v, filters due %t; want %v, %t", got, due, c.blocked, c.due)
			}
		})
	}
}

package link

import (
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/test/netns"
)

func TestPairOf(t *testing.T) {
	for _, tc := range []struct{ name, out, in string }{
		{"nodelocaldns", "nodelocaldns-q0", "nodelocaldns-q1"},
		{"dns0", "dns0-q0", "dns0-q1"},
		{"nodelocaldns-01", "nodelod8a401-q0", "nodelod8a401-q1"},
		{"nodelocaldns-02", "nodelod5a3fc-q0", "nodelod5a3fc-q1"},
	} {
		if got := PairOf(tc.name); got != (Pair{tc.out, tc.in}) {
			t.Errorf("%s: %v, want %s and %s", tc.name, got, tc.out, tc.in)
		}
	}
}

var (
	targets = addresses("169.254.253.53", "100:0:0:1::53")
	sources = addresses("192.0.0.8", "100:0:0:1::8")
)

func ensurePair(t *testing.T, sources ...string) (repaired bool) {
	t.Helper()
	repaired, err := PairOf("nodelocaldns").Ensure(targets, addresses(sources...), true)
	kit.Must(t, err)
	return repaired
}

// pairState returns the devices and routes of a pair as text.
func pairState(t *testing.T) string {
	t.Helper()
	state := netns.Run(t, "ip", "-brief", "-4", "route") + netns.Run(t, "ip", "-brief", "-6", "route") +
		netns.Run(t, "ip", "-brief", "addr", "show", "type", "veth")
	return strings.ReplaceAll(state, " linkdown", "") // which changes with time
}

func TestKernelPair(t *testing.T) {
	netns.Enter(t)
	if !ensurePair(t, "192.0.0.8", "100:0:0:1::8") {
		t.Error("the first time nothing was repaired")
	}
	whole := pairState(t)
	if ensurePair(t, "192.0.0.8", "100:0:0:1::8") || pairState(t) != whole {
		t.Errorf("the second time something was repaired:\n%s\nbefore\n%s", pairState(t), whole)
	}
	if strings.Count(whole, "\n") != len(targets)+len(sources)+2 || strings.Contains(whole, "fe80::") {
		t.Errorf("created\n%s", whole)
	}
	for _, damage := range []string{
		"link del nodelocaldns-q0", "link set nodelocaldns-q1 down", "link set nodelocaldns-q0 down", "link set nodelocaldns-q0 arp on",
		"route del 192.0.0.8 dev nodelocaldns-q1", "-6 route del 100:0:0:1::53 dev nodelocaldns-q0",
	} {
		netns.Run(t, "ip", strings.Fields(damage)...)
		if !ensurePair(t, "192.0.0.8", "100:0:0:1::8") || ensurePair(t, "192.0.0.8", "100:0:0:1::8") {
			t.Errorf("%s: not repaired at once:\n%s", damage, pairState(t))
		}
		if got := pairState(t); sortedRoutes(got) != sortedRoutes(whole) {
			t.Errorf("%s: repaired to\n%s\nwant\n%s", damage, got, whole)
		}
	}
	if !ensurePair(t, "10.1.0.9", "100:0:0:1::8") || strings.Contains(pairState(t), "192.0.0.8") || !strings.Contains(pairState(t), "10.1.0.9") {
		t.Errorf("with another source:\n%s", pairState(t))
	}
	for range 2 {
		if err := PairOf("nodelocaldns").Remove(); err != nil {
			t.Error(err)
		}
		if left := pairState(t); left != "" {
			t.Errorf("left\n%s", left)
		}
	}
}

// sortedRoutes returns the routes of a state; the order and flags of its devices vary.
func sortedRoutes(state string) string {
	lines := slices.DeleteFunc(strings.Split(state, "\n"), func(line string) bool { return strings.Contains(line, "@") })
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestKernelPairNetworkRoute has a route to a network that begins with the address of a missing route.
func TestKernelPairNetworkRoute(t *testing.T) {
	netns.Enter(t)
	ensurePair(t, "192.0.0.8")
	netns.Run(t, "ip", "route", "add", "192.0.0.8/30", "dev", "nodelocaldns-q1")
	netns.Run(t, "ip", "route", "del", "192.0.0.8/32", "dev", "nodelocaldns-q1")
	if !ensurePair(t, "192.0.0.8") || ensurePair(t, "192.0.0.8") || !strings.Contains(pairState(t), "192.0.0.8 dev") {
		t.Errorf("the missing route was not repaired at once:\n%s", pairState(t))
	}
}

func TestKernelPairConflict(t *testing.T) {
	for _, tc := range []struct{ name, setup, want string }{
		{"address of another interface", "addr add 192.0.0.8/32 dev lo", "address 192.0.0.8 is held by interface lo"},
		{"another kind", "link add nodelocaldns-q1 type bridge", "interface nodelocaldns-q1 exists and is a bridge, not a veth: choose another name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			netns.Enter(t)
			netns.Run(t, "ip", strings.Fields(tc.setup)...)
			before := netns.Run(t, "ip", "addr")
			_, err := PairOf("nodelocaldns").Ensure(targets, sources, true)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %s", err, tc.want)
			}
			if err := PairOf("nodelocaldns").Remove(); err != nil {
				t.Error(err)
			}
			if after := netns.Run(t, "ip", "addr"); after != before {
				t.Errorf("changed to\n%s\nfrom\n%s", after, before)
			}
		})
	}
}

package rules

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// TestForgetFlows deletes the flows to addresses with a fallback, and no others. TestFallbackOfEarlierFlows of test/nodelocal has
// the reason.
func TestForgetFlows(t *testing.T) {
	netns.Enter(t)
	netns.Run(t, "nft", "add table inet t; add chain inet t raw { type filter hook output priority raw; }; "+
		"add chain inet t out { type filter hook output priority 0; }; add chain inet t nat { type nat hook output priority -100; }; "+
		"add rule inet t raw udp sport 1007 ct zone set 7; add rule inet t out ct state new counter; "+
		"add rule inet t nat udp sport 1008 dnat ip to 10.9.9.9; add rule inet t nat udp sport 1008 dnat ip6 to fd00:9::9")
	c := Config{Interface: "nodelocaldns", Port: 53, Addresses: addresses("169.254.20.10", "fd00:53::10", "10.96.0.10"), Fallback: addresses("10.96.0.11", "fd00:96::b"), Services: addresses("10.96.0.10")}
	const ordinary, toOther, zoned, translated, otherPort = 1001, 1002, 1007, 1008, 1004
	for _, family := range [][]string{{"169.254.20.10", "10.9.9.9", "10.96.0.10"}, {"fd00:53::10", "fd00:9::9", "fd00:96::a"}} {
		for _, a := range family {
			prefix := netip.PrefixFrom(netip.MustParseAddr(a), netip.MustParseAddr(a).BitLen())
			netns.Run(t, "ip", strings.Fields("address add "+prefix.String()+" dev lo nodad")...)
			kit.Eventually(t, a+" is local", func() bool { // Linux adds the route of an IPv6 address after the address
				return strings.HasPrefix(netns.Run(t, "ip", "route", "get", a), "local")
			})
		}
		for _, f := range []struct {
			from int
			to   string
			port int
		}{
			{ordinary, family[0], 53}, {toOther, family[1], 53}, {toOther, family[2], 53}, {zoned, family[0], 53}, {translated, family[0], 53}, {otherPort, family[0], 54},
		} {
			conn, err := net.DialUDP("udp", &net.UDPAddr{Port: f.from}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(f.to), uint16(f.port)))) // #nosec G115 -- a port
			kit.Must(t, err)
			_, err = conn.Write([]byte("x"))
			kit.Must(t, err, conn.Close())
		}
	}
	count := func(from int) int {
		all := netns.Run(t, "conntrack", "-L", "-f", "ipv4") + netns.Run(t, "conntrack", "-L", "-f", "ipv6")
		return strings.Count(all, fmt.Sprintf("sport=%d dport=5", from))
	}
	for _, deleted := range []int{2, 0} {
		for from, want := range map[int]int{ordinary: deleted, toOther: 4, zoned: 2, translated: 2, otherPort: 2} {
			if got := count(from); got != want {
				t.Errorf("%d flows from port %d, want %d", got, from, want)
			}
		}
		kit.Must(t, c.ForgetFlows(context.Background()))
	}
}

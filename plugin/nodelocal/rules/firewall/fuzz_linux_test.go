package firewall

import (
	"net/netip"
	"testing"
)

// FuzzLegacyTable evaluates any output of "iptables -S": each chain that a hook calls gives a verdict on each packet.
func FuzzLegacyTable(f *testing.F) {
	f.Add("-P INPUT DROP\n-N CHAIN\n-A INPUT -j CHAIN\n-A CHAIN -p udp -m udp --dport 53 -j ACCEPT\n-A CHAIN -j RETURN\n")
	f.Add("-P INPUT ACCEPT\n-A INPUT ! -d 169.254.20.10/32 -p tcp -m multiport --dports 1:52,54 -g INPUT\n-A INPUT -m state --state NEW -j REJECT\n")
	f.Add("-P OUTPUT ACCEPT\n-A OUTPUT -s 169.254.0.0/16 -m comment --comment \"- ! -j DROP\" -m tcp --tcp-flags FIN,SYN SYN -j LOG\n")
	packets := Packets([]netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")}, 53, true)
	f.Fuzz(func(t *testing.T, text string) {
		for _, b := range legacyTable("ip", "filter", 0, text) {
			for _, p := range packets {
				r := b.walk(p)
				if r.err == nil && (r.byDefault == returns || !r.may.accept && !r.may.reject) {
					t.Errorf("%v: %s: no verdict: %+v", b.chain, p, r)
				}
			}
		}
	})
}

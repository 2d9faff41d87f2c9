package firewall

import (
	"net/netip"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// FuzzLegacyTable reads any output of "iptables -S". A chain whose policy drops is named unless a rule accepts or drops.
func FuzzLegacyTable(f *testing.F) {
	f.Add("-P INPUT DROP\n-N CHAIN\n-A INPUT -j CHAIN\n-A CHAIN -p udp -m udp --dport 53 -j ACCEPT\n-A CHAIN -j RETURN\n")
	f.Add("-P INPUT ACCEPT\n-A INPUT ! -d 169.254.20.10/32 -p tcp -m multiport --dports 1:52,54 -g INPUT\n-A INPUT -m state --state NEW -j REJECT\n")
	f.Add("-P PREROUTING DROP\n-A PREROUTING -s 169.254.0.0/16 -m comment --comment \"- ! -j DROP\" -m tcp --tcp-flags FIN,SYN SYN -j LOG\n")
	packets := Packets([]netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")}, 53)
	f.Fuzz(func(t *testing.T, text string) {
		bases := legacyTable("ip", "filter", text)
		all, err := suspects(bases, packets)
		kit.Must(t, err)
		for _, s := range all {
			if s.Rule == "" || len(s.Packets) == 0 || s.Traffic() == "" || len(s.Remedy()) == 0 {
				t.Errorf("suspect without a rule, packets or a remedy: %+v", s)
			}
		}
		for _, b := range bases {
			if rules, _ := b.rules(b.Name); b.drops && len(rules) == 0 && (b.Hook == "input" || b.Hook == "prerouting") && len(all) == 0 {
				t.Errorf("%s: no suspect, although its policy drops and it has no rules", b.Chain)
			}
		}
	})
}

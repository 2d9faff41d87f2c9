package rules

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/namespace"
)

// TestProxied has the rules of kube-proxy in each of its modes.
func TestProxied(t *testing.T) {
	if !namespace.Inside(t) {
		return
	}
	four, six, other := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a"), netip.MustParseAddr("169.254.20.10")
	for _, c := range []struct {
		name  string
		setup [][]string
	}{
		{"nftables", [][]string{
			{"nft", "add table ip kube-proxy; add map ip kube-proxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }; add chain ip kube-proxy s; add element ip kube-proxy service-ips { 10.96.0.10 . udp . 53 : goto s }"},
			{"nft", "add table ip6 kube-proxy; add map ip6 kube-proxy no-endpoint-services { type ipv6_addr . inet_proto . inet_service : verdict; }; add chain ip6 kube-proxy s; add element ip6 kube-proxy no-endpoint-services { fd00:96::a . udp . 53 : goto s }"},
		}},
		{"iptables in nftables", [][]string{
			{"iptables-nft", "-t", "nat", "-N", "KUBE-SERVICES"},
			{"iptables-nft", "-t", "nat", "-A", "KUBE-SERVICES", "-d", "10.96.0.10/32", "-p", "udp", "-m", "comment", "--comment", "kube-system/kube-dns:dns cluster IP", "-m", "udp", "--dport", "53", "-j", "ACCEPT"},
			{"ip6tables-nft", "-t", "nat", "-N", "KUBE-SERVICES"},
			{"ip6tables-nft", "-t", "nat", "-A", "KUBE-SERVICES", "-d", "fd00:96::a/128", "-p", "udp", "--dport", "53", "-j", "ACCEPT"},
		}},
		{"iptables-legacy", [][]string{
			{"iptables-legacy", "-t", "nat", "-N", "KUBE-SERVICES"},
			{"iptables-legacy", "-t", "nat", "-A", "KUBE-SERVICES", "-d", "10.96.0.10/32", "-p", "udp", "--dport", "53", "-j", "ACCEPT"},
			{"ip6tables-legacy", "-t", "nat", "-N", "KUBE-SERVICES"},
			{"ip6tables-legacy", "-t", "nat", "-A", "KUBE-SERVICES", "-d", "fd00:96::a/128", "-p", "udp", "--dport", "53", "-j", "ACCEPT"},
		}},
		{"IPVS", [][]string{
			{"ip", "link", "add", "kube-ipvs0", "type", "bridge"},
			{"ip", "addr", "add", "10.96.0.10/32", "dev", "kube-ipvs0"},
			{"ip", "addr", "add", "fd00:96::a/128", "dev", "kube-ipvs0", "nodad"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			find := func() []netip.Addr {
				t.Helper()
				found, err := Proxied(context.Background(), []netip.Addr{four, six, other}, true, ProcNet)
				if err != nil {
					t.Fatal(err)
				}
				slices.SortFunc(found, netip.Addr.Compare)
				return found
			}
			if found := find(); len(found) > 0 {
				t.Errorf("without kube-proxy: %v", found)
			}
			for _, command := range c.setup {
				namespace.Run(t, command[0], command[1:]...)
			}
			if found := find(); !slices.Equal(found, []netip.Addr{four, six}) {
				t.Errorf("got %v, want %v and %v", found, four, six)
			}
			namespace.Run(t, "nft", "flush", "ruleset")
			for _, program := range []string{"iptables-legacy", "ip6tables-legacy"} {
				namespace.Run(t, program, "-t", "nat", "-F")
				namespace.Run(t, program, "-t", "nat", "-X")
			}
		})
	}
}

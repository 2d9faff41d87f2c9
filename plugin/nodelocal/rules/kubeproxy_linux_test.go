package rules

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/test/netns"
)

// TestServicesOfKubeProxy has the rules of kube-proxy in each of its modes.
func TestServicesOfKubeProxy(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	four, six := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")
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
				found, err := ReadKubeProxy(t.Context(), true)
				kit.Must(t, err)
				slices.SortFunc(found.Services, netip.Addr.Compare)
				return found.Services
			}
			if found := find(); len(found) > 0 {
				t.Errorf("without kube-proxy: %v", found)
			}
			for _, command := range c.setup {
				netns.Run(t, command[0], command[1:]...)
			}
			if found := find(); !slices.Equal(found, []netip.Addr{four, six}) {
				t.Errorf("got %v, want %v and %v", found, four, six)
			}
			netns.Run(t, "nft", "flush", "ruleset")
			for _, program := range []string{"iptables-legacy", "ip6tables-legacy"} {
				netns.Run(t, program, "-t", "nat", "-F")
				netns.Run(t, program, "-t", "nat", "-X")
			}
		})
	}
}

// TestModesOfKubeProxy has rules as kube-proxy makes them in each of its modes.
func TestModesOfKubeProxy(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	for _, c := range []struct {
		name  string
		setup []string
		tear  []string
		want  []string
	}{
		{"none", nil, nil, nil},
		{"other chains", []string{"nft", "add table ip nat; add chain ip nat POSTROUTING"}, []string{"nft", "flush ruleset"}, nil},
		{"nftables", []string{"nft", "add table ip6 kube-proxy; add chain ip6 kube-proxy services"}, []string{"nft", "flush ruleset"}, []string{"nftables"}},
		{"iptables in nftables", []string{"iptables-nft", "-t", "nat", "-N", "KUBE-SERVICES"}, []string{"nft", "flush ruleset"}, []string{"iptables"}},
		{"a comment of iptables-legacy", []string{"iptables-legacy", "-t", "nat", "-A", "OUTPUT", "-m", "comment", "--comment", "-N KUBE-SERVICES", "-j", "ACCEPT"}, []string{"iptables-legacy", "-t", "nat", "-F"}, nil},
		{"iptables-legacy", []string{"iptables-legacy", "-t", "nat", "-N", "KUBE-SERVICES"}, nil, []string{"iptables"}},
		{"two modes", []string{"nft", "add table ip kube-proxy; add chain ip kube-proxy services"}, nil, []string{"nftables", "iptables"}},
		{"IPVS, whose mode has the chain too", []string{"ip", "link", "add", "kube-ipvs0", "type", "bridge"}, nil, []string{"nftables", "ipvs"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.setup != nil {
				netns.Run(t, c.setup[0], c.setup[1:]...)
			}
			got, err := ReadKubeProxy(t.Context(), true)
			if err != nil || !slices.Equal(got.Modes, c.want) {
				t.Errorf("got %v, %v; want %v", got.Modes, err, c.want)
			}
			if c.tear != nil {
				netns.Run(t, c.tear[0], c.tear[1:]...)
			}
		})
	}
}

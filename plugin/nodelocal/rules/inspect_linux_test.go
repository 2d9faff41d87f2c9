package rules

import (
	"context"
	"net/netip"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/namespace"
)

func TestMatched(t *testing.T) {
	if !namespace.Inside(t) {
		return
	}
	four, six := netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00::a")
	if got, err := Matched(t.Context(), "nodelocaldns"); got != nil || err != nil {
		t.Errorf("without a table: %v, %v", got, err)
	}
	table := NewNFTables(Config{Interface: "nodelocaldns", Addresses: []netip.Addr{four, six}, Port: 53, Fallback: []netip.Addr{netip.MustParseAddr("10.96.0.11")}})
	if err := table.Apply(); err != nil {
		t.Fatal(err)
	}
	got, err := Matched(t.Context(), "nodelocaldns")
	if err != nil {
		t.Fatal(err)
	}
	if own := got[ChainNode]; !slices.Contains(own, four) || !slices.Contains(own, six) {
		t.Errorf("chain %s: %v", ChainNode, own)
	}
	if with := got[ChainFallback]; !slices.Contains(with, four) || slices.Contains(with, six) {
		t.Errorf("chain %s: %v", ChainFallback, with)
	}
	if _, ok := got[ChainPods]; !ok {
		t.Errorf("no chain %s", ChainPods)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Matched(ended, "nodelocaldns"); err == nil {
		t.Error("no error after the end of the context")
	}
	if err := table.Remove(); err != nil {
		t.Fatal(err)
	}
	if got, err := Matched(t.Context(), "nodelocaldns"); got != nil || err != nil {
		t.Errorf("after the removal: %v, %v", got, err)
	}
}

// TestProxyModes has rules as kube-proxy makes them in each of its modes.
func TestProxyModes(t *testing.T) {
	if !namespace.Inside(t) {
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
				namespace.Run(t, c.setup[0], c.setup[1:]...)
			}
			got, err := ProxyModes(t.Context(), true, ProcNet)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("got %v, %v; want %v", got, err, c.want)
			}
			if c.tear != nil {
				namespace.Run(t, c.tear[0], c.tear[1:]...)
			}
		})
	}
}

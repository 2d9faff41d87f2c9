//go:build linux

package kernel

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules/firewall"
	"github.com/nearside-dns/nearside/test/namespace"
)

var (
	four = netip.MustParseAddr("169.254.20.10")
	six  = netip.MustParseAddr("fd00::a")
)

func TestNamespaceLinks(t *testing.T) {
	if !namespace.Inside(t) {
		return
	}
	ctx := context.Background()
	if _, err := link.New("nodelocaldns").Ensure([]netip.Addr{four, six}, true); err != nil {
		t.Fatal(err)
	}
	links, err := Links(ctx)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(links, func(l Link) bool { return l.Name == "nodelocaldns" })
	if i < 0 {
		t.Fatalf("no interface among %v", links)
	}
	l := links[i]
	if l.Kind != "dummy" && l.Kind != "bridge" || !l.Up {
		t.Errorf("got %+v, want a dummy or bridge that is up", l)
	}
	for _, a := range []netip.Addr{four, six} {
		if held, ok := l.Holds(a); !ok || !held.Prefix.IsSingleIP() || held.Tentative {
			t.Errorf("%s: got %+v, %t", a, held, ok)
		}
	}
	for range 2 { // the second time there is nothing
		if err := RemoveInterface(ctx, "nodelocaldns", nil); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNamespaceTables(t *testing.T) {
	if !namespace.Inside(t) {
		return
	}
	ctx := context.Background()
	table := rules.NewNFTables(rules.Config{Interface: "nodelocaldns", Addresses: []netip.Addr{four, six}, Port: 53})
	if err := table.Apply(); err != nil {
		t.Fatal(err)
	}
	namespace.Run(t, "nft", "add element inet nearside-nodelocaldns lease4 { 169.254.20.10 timeout 60s }")
	namespace.Run(t, "nft", "add table ip6 fw; add chain ip6 fw in { type filter hook input priority 0; policy drop; }; add rule ip6 fw in ip6 daddr fd00::a udp dport 53 accept")
	namespace.Run(t, "nft", "add chain ip6 fw out { type filter hook output priority 0; policy drop; }; add rule ip6 fw out counter accept")
	r, err := Rules(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Has("inet", "nearside-nodelocaldns") || !r.HasChain("inet", "nearside-nodelocaldns", "prerouting") || r.Has("ip", "fw") {
		t.Errorf("got %v", r)
	}
	in := Chain{Table: Table{"ip6", "fw"}, Name: "in"}
	if !slices.Contains(r.Chains, in) {
		t.Errorf("got %v, want %v among them", r.Chains, in)
	}
	findings, err := Firewall(ctx, firewall.Queries([]netip.Addr{four, six}, 53, false), true, "/proc/self/net")
	if err != nil || len(findings) != 1 || findings[0].Chain.Name != "in" || findings[0].Traffic() != "TCP to fd00::a" {
		t.Errorf("firewall: got %+v, %v", findings, err)
	}
	if got, err := Addresses(ctx, r, OwnTable("nodelocaldns")); err != nil || !slices.Contains(got, four) || !slices.Contains(got, six) {
		t.Errorf("addresses: got %v, %v", got, err)
	}
	if got, err := Leases(ctx, "nodelocaldns"); err != nil || got[four] <= 0 || len(got) != 1 {
		t.Errorf("leases: got %v, %v; want one of %s", got, err, four)
	}
	for range 2 {
		if err := RemoveTable(ctx, OwnTable("nodelocaldns")); err != nil {
			t.Fatal(err)
		}
	}
	if r, err = Rules(ctx); err != nil || r.Has("inet", "nearside-nodelocaldns") {
		t.Errorf("after the removal: got %v, %v", r, err)
	}
}

func TestNamespaceIPTables(t *testing.T) {
	if !namespace.Inside(t) {
		return
	}
	ctx := context.Background()
	programs := []string{"iptables-nft", "iptables-legacy"}
	for _, program := range programs {
		namespace.Run(t, program, "-t", "raw", "-A", "PREROUTING", "-d", four.String(), "-p", "udp", "--dport", "53", "-j", "NOTRACK", "-m", "comment", "--comment", "NodeLocal DNS Cache: skip conntrack")
	}
	namespace.Run(t, "iptables-legacy", "-P", "OUTPUT", "DROP")
	namespace.Run(t, "iptables-legacy", "-t", "nat", "-N", "KUBE-SERVICES")
	found, err := Predecessors(ctx)
	if err != nil || len(found) != len(programs) {
		t.Fatalf("got %v, %v; want %d rules", found, err, len(programs))
	}
	legacy, err := LegacyRules(ctx, "/proc/self/net")
	if err != nil || !legacy.Services {
		t.Errorf("got %+v, %v", legacy, err)
	}
	answers, err := Firewall(ctx, firewall.Replies([]netip.Addr{four}, 53, false), true, "/proc/self/net")
	if err != nil || len(answers) != 1 || answers[0].Chain.String() != "iptables-legacy, chain ip filter OUTPUT" || !answers[0].Certain() {
		t.Errorf("firewall: got %+v, %v", answers, err)
	}
	for range 2 { // the second time they are gone
		for _, r := range found {
			if err := RemovePredecessor(ctx, r); err != nil {
				t.Error(err)
			}
		}
	}
	if found, err = Predecessors(ctx); err != nil || len(found) > 0 {
		t.Errorf("after the removal: got %v, %v", found, err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := Predecessors(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: got %v", err)
	}
}

//go:build linux

package nodelocal

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// link is an interface in the output of "ip -json addr".
type link struct {
	Name  string   `json:"ifname"`
	Flags []string `json:"flags"`
	Info  struct {
		Kind string `json:"info_kind"`
	} `json:"linkinfo"`
	Addresses []struct {
		Local     netip.Addr `json:"local"`
		Bits      int        `json:"prefixlen"`
		Tentative bool       `json:"tentative"`
	} `json:"addr_info"`
}

// links returns the interfaces of the node with nodecache's name.
func (n *node) links(t *testing.T) (found []link) {
	t.Helper()
	var all []link
	kit.Must(t, json.Unmarshal([]byte(n.Node.Run(t, "ip", "-json", "-details", "addr", "show")), &all))
	for _, l := range all {
		if l.Name == device {
			found = append(found, l)
		}
	}
	return found
}

// prefixes returns the addresses of the interface as prefixes, sorted.
func (l link) prefixes() (all []string) {
	for _, a := range l.Addresses {
		all = append(all, netip.PrefixFrom(a.Local, a.Bits).String())
	}
	slices.Sort(all)
	return all
}

// rules returns the table of nodecache without leases and counters, empty if there is none.
func (n *node) rules() string {
	text, err := n.Node.Try("nft", "--stateless", "--terse", "list", "table", "inet", table)
	if err != nil {
		return ""
	}
	return text
}

// leased reports whether nodecache's table directs the traffic of an address to it.
func (n *node) leased(address netip.Addr) error {
	set := "lease4"
	if address.Is6() {
		set = "lease6"
	}
	text, err := n.Node.Try("nft", "list", "set", "inet", table, set)
	if err == nil && !strings.Contains(text, " "+address.String()+" ") {
		return fmt.Errorf("%v has no lease:\n%s", address, text)
	}
	return err
}

// kernelState returns everything that nodecache may change on the node, as text.
func (n *node) kernelState(t *testing.T) string {
	t.Helper()
	return strings.Join([]string{
		n.Node.Run(t, "ip", "-oneline", "addr", "show"),
		n.Node.Run(t, "ip", "route", "show", "table", "all"),
		n.Node.Run(t, "ip", "-6", "route", "show", "table", "all"),
		n.Node.Run(t, "ip", "rule"),
		n.Node.Run(t, "nft", "--stateless", "--terse", "list", "ruleset"),
		strings.Join(n.iptables(t), "\n"),
	}, "\n")
}

// iptables returns the rules of both families, without the chains: chains without rules stay after their use.
func (n *node) iptables(t *testing.T) (all []string) {
	t.Helper()
	for _, program := range []string{"iptables-save", "ip6tables-save"} {
		for line := range strings.Lines(n.Node.Run(t, program)) {
			if strings.HasPrefix(line, "-A") {
				all = append(all, strings.TrimSpace(line))
			}
		}
	}
	return all
}

// tracked returns the connections, one per line, that the kernel tracks to or from an address.
func (n *node) tracked(t *testing.T, address netip.Addr) (lines []string) {
	t.Helper()
	family := "ipv4"
	if address.Is6() {
		family = "ipv6"
	}
	for line := range strings.Lines(n.Node.Run(t, "conntrack", "-L", "-f", family)) {
		if slices.ContainsFunc(strings.Fields(line), func(field string) bool {
			_, value, found := strings.Cut(field, "=")
			a, err := netip.ParseAddr(value)
			return found && err == nil && a == address
		}) {
			lines = append(lines, line)
		}
	}
	return lines
}

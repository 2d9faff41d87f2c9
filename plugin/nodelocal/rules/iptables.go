package rules

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// The comments that node-local-dns gives its rules. Ours are the same, so that either program adopts
// what the other left.
const (
	commentSkip  = "NodeLocal DNS Cache: skip conntrack"
	commentAllow = "NodeLocal DNS Cache: allow DNS traffic"
)

// filterTable is the table of iptables that accepts and drops.
const filterTable = "filter"

// ipRule is one rule of iptables.
type ipRule struct {
	address      netip.Addr // it is for; its family says which iptables
	table, chain string
	spec         []string
}

// String returns the rule as the arguments of iptables that insert it.
func (r ipRule) String() string {
	program := "iptables"
	if r.address.Is6() {
		program = "ip6tables"
	}
	parts := []string{program, "-t", r.table, "-I", r.chain}
	for _, s := range r.spec {
		if strings.Contains(s, " ") {
			s = strconv.Quote(s)
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

// IPTablesText returns the rules of the iptables backend, one per line. Golden files hold it.
func (c Config) IPTablesText() string {
	var b strings.Builder
	for _, r := range c.ipRules() {
		fmt.Fprintln(&b, r)
	}
	return b.String()
}

// ipRules are the rules of node-local-dns, for each address twelve with a health port: iptables has no
// sets whose elements expire, so they take the traffic whether or not the server answers.
func (c Config) ipRules() (all []ipRule) {
	port, health := strconv.Itoa(int(c.Port)), strconv.Itoa(int(c.Health))
	for _, a := range c.Addresses {
		add := func(table, chain, direction, protocol, side, number string) {
			target, comment := "NOTRACK", commentSkip
			if table == filterTable {
				target, comment = "ACCEPT", commentAllow
			}
			all = append(all, ipRule{a, table, chain, []string{
				"-p", protocol, direction, a.String(), side, number, "-j", target, "-m", "comment", "--comment", comment,
			}})
		}
		for _, p := range []string{"tcp", "udp"} {
			add("raw", "PREROUTING", "-d", p, "--dport", port)
			add(filterTable, "INPUT", "-d", p, "--dport", port)
			add("raw", "OUTPUT", "-s", p, "--sport", port)
			add(filterTable, "OUTPUT", "-s", p, "--sport", port)
			add("raw", "OUTPUT", "-d", p, "--dport", port)
		}
		if c.Health != 0 {
			add("raw", "OUTPUT", "-d", "tcp", "--dport", health)
			add("raw", "OUTPUT", "-s", "tcp", "--sport", health)
		}
	}
	return all
}

//go:build linux

package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// tablePrefix is what the names of nodecache's tables begin with; the interface's name follows.
var tablePrefix = rules.TableName("")

// Table is an nftables table.
type Table struct {
	// Family is ip, ip6, inet, arp, bridge or netdev.
	Family string
	// Name is its name in the family.
	Name string
}

// String returns the table as nft names it.
func (t Table) String() string { return t.Family + " " + t.Name }

// Chain is a chain of an nftables table; iptables-nft has its chains there too.
type Chain struct {
	// Table is where it belongs.
	Table Table
	// Name is its name in the table.
	Name string
}

// Ruleset is what nftables holds, without the rules.
type Ruleset struct {
	// Tables are all tables.
	Tables []Table
	// Chains are all chains of those tables.
	Chains []Chain
}

// Own returns the name of the interface that a table of nodecache belongs to.
func (t Table) Own() (iface string, ok bool) {
	iface, ok = strings.CutPrefix(t.Name, tablePrefix)
	return iface, ok && t.Family == "inet"
}

// OwnTable is the table that nodecache makes for an interface.
func OwnTable(iface string) Table { return Table{Family: "inet", Name: rules.TableName(iface)} }

// Has says whether there is such a table.
func (r Ruleset) Has(family, name string) bool {
	return slices.Contains(r.Tables, Table{Family: family, Name: name})
}

// HasChain says whether there is such a chain.
func (r Ruleset) HasChain(family, table, name string) bool {
	return slices.ContainsFunc(r.Chains, func(c Chain) bool {
		return c.Table == Table{Family: family, Name: table} && c.Name == name
	})
}

var families = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4:   "ip",
	nftables.TableFamilyIPv6:   "ip6",
	nftables.TableFamilyINet:   "inet",
	nftables.TableFamilyARP:    "arp",
	nftables.TableFamilyBridge: "bridge",
	nftables.TableFamilyNetdev: "netdev",
}

func familyOf(name string) nftables.TableFamily {
	for family, n := range families {
		if n == name {
			return family
		}
	}
	return nftables.TableFamilyUnspecified
}

// Rules returns the tables and chains of nftables. The kernel loads nf_tables when it is asked while
// the module is not there: who must not change anything finds out first.
func Rules(ctx context.Context) (Ruleset, error) {
	return within(ctx, "list nftables", func() (Ruleset, error) { return rules.Steady(ruleset) })
}

func ruleset() (Ruleset, error) {
	var r Ruleset
	c, err := nftables.New()
	if err != nil {
		return r, err
	}
	tables, err := c.ListTables()
	if err != nil {
		return r, err
	}
	for _, t := range tables {
		r.Tables = append(r.Tables, Table{families[t.Family], t.Name})
	}
	chains, err := c.ListChains()
	if err != nil {
		return r, err
	}
	for _, found := range chains {
		r.Chains = append(r.Chains, Chain{Table: Table{families[found.Table.Family], found.Table.Name}, Name: found.Name})
	}
	return r, nil
}

// Leases returns what is left of the lease of each address that the table of an interface takes
// traffic for.
func Leases(ctx context.Context, iface string) (map[netip.Addr]time.Duration, error) {
	return within(ctx, "read leases", func() (map[netip.Addr]time.Duration, error) {
		return rules.Steady(func() (map[netip.Addr]time.Duration, error) { return rules.Leased(iface) })
	})
}

// Addresses returns the addresses that the rules of a table compare packets with, sorted.
func Addresses(ctx context.Context, r Ruleset, t Table) ([]netip.Addr, error) {
	var all []netip.Addr
	for _, chain := range r.Chains {
		if chain.Table != t {
			continue
		}
		found, err := Compared(ctx, chain)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all), nil
}

// Compared returns the addresses that the rules of a chain compare packets with.
func Compared(ctx context.Context, chain Chain) ([]netip.Addr, error) {
	return within(ctx, fmt.Sprintf("read chain %s %s", chain.Table, chain.Name), func() ([]netip.Addr, error) {
		list, err := rules.Steady(func() ([]*nftables.Rule, error) { return rulesOf(chain) })
		var all []netip.Addr
		for _, rule := range list {
			all = append(all, rules.MatchedAddresses(rule.Exprs)...)
		}
		return all, err
	})
}

func rulesOf(chain Chain) ([]*nftables.Rule, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	table := &nftables.Table{Family: familyOf(chain.Table.Family), Name: chain.Table.Name}
	return c.GetRules(table, &nftables.Chain{Table: table, Name: chain.Name})
}

// RemoveTable removes a table of nodecache with everything in it. It is no error if it is gone.
func RemoveTable(ctx context.Context, t Table) error {
	_, err := within(ctx, "remove table "+t.String(), func() (struct{}, error) {
		return struct{}{}, rules.RemoveTable(t.Name)
	})
	return err
}

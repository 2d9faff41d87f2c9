package rules

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// Matched returns the single addresses that the rules of each chain of an interface's table match. The
// map is nil if there is no such table.
func Matched(ctx context.Context, iface string) (map[string][]netip.Addr, error) {
	return Steady(func() (map[string][]netip.Addr, error) {
		gone, err := Missing(iface)
		if err != nil || gone {
			return nil, err
		}
		chains, err := chainsOf(TableName(iface))
		if err != nil {
			return nil, err
		}
		matched := make(map[string][]netip.Addr, len(chains))
		for _, ch := range chains {
			rules, err := ReadChain(ctx, nftables.TableFamilyINet, ch.Table.Name, ch.Name, predecessorExpression)
			if err != nil {
				return nil, &KernelError{"read chain " + ch.Name, err}
			}
			matched[ch.Name] = nil
			for _, r := range rules {
				matched[ch.Name] = append(matched[ch.Name], matchedAddresses(r.Exprs)...)
			}
		}
		return matched, nil
	})
}

// ProxyModes returns the modes of kube-proxy whose rules or interfaces the kernel has: nftables, ipvs,
// iptables. With an error it returns those that it has found all the same. Listing nftables makes the
// kernel load nf_tables: without withTables it is not listed. procNet is a folder such as /proc/net.
func ProxyModes(ctx context.Context, withTables bool, procNet string) (modes []string, err error) {
	var tables, chain bool
	if withTables {
		tables, chain, err = proxyChains()
	}
	legacy, e := OpenLegacy(ctx, procNet)
	err = errors.Join(err, e)
	for _, l := range legacy {
		if !slices.Contains(l.Tables, proxyNAT) {
			continue
		}
		text, e := l.List(ctx, proxyNAT)
		err = errors.Join(err, e)
		chain = chain || slices.Contains(strings.Split(text, "\n"), "-N "+proxyChain)
	}
	if tables {
		modes = append(modes, "nftables")
	}
	if _, e := net.InterfaceByName(proxyInterface); e == nil {
		return append(modes, "ipvs"), err // this mode has the chain as well
	}
	if chain {
		modes = append(modes, "iptables")
	}
	return modes, err
}

// proxyChains returns whether nftables has kube-proxy's own table, and its chain among those of iptables.
func proxyChains() (tables, chain bool, err error) {
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		chains, err := Steady(func() ([]*nftables.Chain, error) {
			c, err := open(context.Background())
			if err != nil {
				return nil, err
			}
			return c.ListChainsOfTableFamily(family)
		})
		if err != nil {
			return tables, chain, &KernelError{"list chains", err}
		}
		for _, ch := range chains {
			tables = tables || ch.Table.Name == proxyTable
			chain = chain || ch.Table.Name == proxyNAT && ch.Name == proxyChain
		}
	}
	return tables, chain, nil
}

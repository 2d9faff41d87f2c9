package rules

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// Names of kube-proxy: its chain of Services in the mode iptables, its interface in the mode IPVS, and its table and
// maps of Services in the mode nftables.
const (
	proxyChain     = "KUBE-SERVICES"
	proxyNAT       = "nat"
	proxyInterface = "kube-ipvs0"
	proxyTable     = "kube-proxy"
)

var proxyMaps = []string{"service-ips", "no-endpoint-services"}

// Proxied returns those of the addresses for which kube-proxy, in any of its modes, has rules. With an error it returns
// those that it could read. Listing nftables makes the kernel load nf_tables: without withTables it is not listed.
// procNet is a folder such as /proc/net.
func Proxied(ctx context.Context, addrs []netip.Addr, withTables bool, procNet string) (found []netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(ctx, predecessorWait)
	defer cancel()
	add := func(a netip.Addr) {
		if slices.Contains(addrs, a) && !slices.Contains(found, a) {
			found = append(found, a)
		}
	}
	for _, a := range interfaceAddresses(proxyInterface) {
		add(a)
	}
	if withTables {
		err = proxiedByTables(ctx, addrs, add)
	}
	legacy, e := OpenLegacy(ctx, procNet)
	err = errors.Join(err, e)
	for _, l := range legacy {
		if !slices.Contains(l.Tables, proxyNAT) {
			continue
		}
		text, e := l.List(ctx, proxyNAT)
		err = errors.Join(err, e)
		for line := range strings.Lines(text) {
			if words := SplitWords(strings.TrimSpace(line)); len(words) > 1 && words[0] == "-A" && words[1] == proxyChain {
				for _, a := range addressesAfter(words) {
					add(a)
				}
			}
		}
	}
	return found, err
}

// proxiedByTables calls add for the addresses in kube-proxy's own tables and in those of iptables-nft.
func proxiedByTables(ctx context.Context, addrs []netip.Addr, add func(netip.Addr)) error {
	for name, tables := range tableFamilies {
		rules, err := Steady(func() ([]nftables.Rule, error) {
			return ReadChain(ctx, tables, proxyNAT, proxyChain, predecessorExpression)
		})
		if err != nil {
			return &KernelError{"read chain " + proxyChain, err}
		}
		for _, r := range rules {
			for _, a := range matchedAddresses(r.Exprs) {
				add(a)
			}
		}
		elements, err := exchange(ctx, "read maps of table "+proxyTable, func(c *nftables.Conn) ([]nftables.SetElement, error) {
			return elementsOf(c, tables, proxyTable, proxyMaps...)
		})
		if err != nil {
			return err
		}
		for _, a := range addrs { // the keys begin with the address
			if name == family(a) && slices.ContainsFunc(elements, func(e nftables.SetElement) bool { return bytes.HasPrefix(e.Key, a.AsSlice()) }) {
				add(a)
			}
		}
	}
	return nil
}

// interfaceAddresses returns the addresses of an interface; none if it is missing.
func interfaceAddresses(name string) (all []netip.Addr) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return nil
	}
	addresses, err := i.Addrs()
	if err != nil {
		return nil
	}
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, p.Addr().Unmap())
		}
	}
	return all
}

package rules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// What kube-proxy calls its chain of Services in the mode iptables, its interface in the mode IPVS, and
// its table and maps of Services in the mode nftables.
const (
	proxyChain     = "KUBE-SERVICES"
	proxyNAT       = "nat"
	proxyInterface = "kube-ipvs0"
	proxyTable     = "kube-proxy"
)

var proxyMaps = []string{"service-ips", "no-endpoint-services"}

// WithoutFallback returns the addresses that have no fallback and are not known to be of Services: without
// a lease they are answered only if kube-proxy has rules for them.
func (c Config) WithoutFallback() (all []netip.Addr) {
	for _, a := range c.Addresses {
		if _, ok := c.fallbackOf(a); !ok && !slices.Contains(c.Services, a) {
			all = append(all, a)
		}
	}
	return all
}

// FallbackAdvice returns how an address can get a fallback.
func FallbackAdvice(a netip.Addr) string {
	if isLinkLocal6(a) {
		return "packets to a link-local IPv6 address are never forwarded: use another address, such as fd00:53::10"
	}
	family := "IPv4"
	if a.Is6() {
		family = "IPv6"
	}
	return fmt.Sprintf("set fallback of nodelocal, or -fallback, to the %s address of cluster DNS, or its Service to both families", family)
}

// Proxied returns which of the addresses are of Services that kube-proxy has rules for, in any of its
// modes. With an error it returns what it has found all the same. Listing nftables makes the kernel
// load nf_tables: without withTables it is not listed. procNet is a folder such as /proc/net.
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

// proxiedByTables reads kube-proxy's own tables, and those of iptables in nftables.
func proxiedByTables(ctx context.Context, addrs []netip.Addr, add func(netip.Addr)) error {
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		rules, err := Steady(func() ([]nftables.Rule, error) {
			return ReadChain(ctx, family, proxyNAT, proxyChain, predecessorExpression)
		})
		if err != nil {
			return &KernelError{"read chain " + proxyChain, err}
		}
		for _, r := range rules {
			for _, a := range MatchedAddresses(r.Exprs) {
				add(a)
			}
		}
		keys, err := proxyKeys(ctx, family)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if (family == nftables.TableFamilyIPv4) == a.Is4() && slices.ContainsFunc(keys, func(key []byte) bool { return bytes.HasPrefix(key, a.AsSlice()) }) {
				add(a)
			}
		}
	}
	return nil
}

// proxyKeys returns the keys of the maps of Services in kube-proxy's table of a family, which begin with
// their addresses; none if there is no such table.
func proxyKeys(ctx context.Context, family nftables.TableFamily) (keys [][]byte, err error) {
	c, err := openFor(ctx)
	if err != nil {
		return nil, &KernelError{"list tables", err}
	}
	tables, err := c.ListTablesOfFamily(family)
	if err != nil {
		return nil, &KernelError{"list tables", err}
	}
	i := slices.IndexFunc(tables, func(t *nftables.Table) bool { return t.Name == proxyTable })
	if i < 0 {
		return nil, nil
	}
	sets, err := c.GetSets(tables[i])
	if err != nil {
		return nil, &KernelError{"list sets of table " + proxyTable, err}
	}
	for _, s := range sets {
		if !slices.Contains(proxyMaps, s.Name) {
			continue
		}
		elements, err := c.GetSetElements(s)
		if err != nil {
			return nil, &KernelError{"read map " + s.Name, err}
		}
		for _, e := range elements {
			keys = append(keys, e.Key)
		}
	}
	return keys, nil
}

// interfaceAddresses returns the addresses of an interface; none if it is not there.
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

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

// Names of kube-proxy: its chain of Services in the mode iptables, its interface in the mode IPVS, and its table and
// maps of Services in the mode nftables.
const (
	proxyChain     = "KUBE-SERVICES"
	proxyNAT       = "nat"
	proxyInterface = "kube-ipvs0"
	proxyTable     = "kube-proxy"
)

var proxyMaps = []string{"service-ips", "no-endpoint-services"}

// KubeProxy is the state of kube-proxy in the kernel.
type KubeProxy struct {
	// Modes are the modes whose tables, chains or interface exist: nftables, and ipvs or iptables.
	Modes []string
	// Services are the addresses for which kube-proxy has rules.
	Services []netip.Addr

	tables, chain bool // the table of the mode nftables exists; the chain of the mode iptables
}

// ReadKubeProxy reads the state of kube-proxy. With an error it returns the part that it could read. Listing nftables
// makes the kernel load nf_tables: without withTables it is not listed.
func ReadKubeProxy(ctx context.Context, withTables bool) (p KubeProxy, err error) {
	ctx, cancel := context.WithTimeout(ctx, predecessorWait)
	defer cancel()
	if withTables {
		for _, name := range ipFamilies {
			err = errors.Join(err, p.readTables(ctx, name))
		}
	}
	legacy, e := OpenLegacy(ctx)
	err = errors.Join(err, e)
	for _, l := range legacy {
		if slices.Contains(l.Tables, proxyNAT) {
			text, e := l.List(ctx, proxyNAT)
			err = errors.Join(err, e)
			p.readLegacy(text)
		}
	}
	if p.tables {
		p.Modes = append(p.Modes, "nftables")
	}
	if i, e := net.InterfaceByName(proxyInterface); e == nil { // the mode IPVS has the chain as well
		p.Modes = append(p.Modes, "ipvs")
		p.Services = append(p.Services, addressesOf(i)...)
	} else if p.chain {
		p.Modes = append(p.Modes, "iptables")
	}
	return p, err
}

// readTables reads kube-proxy's own table of a family, and its chain in the table of iptables-nft.
func (p *KubeProxy) readTables(ctx context.Context, name string) error {
	tables := tableFamilies[name]
	chains, err := Steady(func() ([]*nftables.Chain, error) {
		return Exchange(ctx, "list chains", func(c *nftables.Conn) ([]*nftables.Chain, error) { return c.ListChainsOfTableFamily(tables) })
	})
	if err != nil {
		return err
	}
	if slices.ContainsFunc(chains, func(ch *nftables.Chain) bool { return ch.Table.Name == proxyNAT && ch.Name == proxyChain }) {
		p.chain = true
		rules, err := Steady(func() ([]nftables.Rule, error) {
			return ReadChain(ctx, tables, proxyNAT, proxyChain, predecessorExpression)
		})
		if err != nil {
			return err
		}
		for _, r := range rules {
			p.Services = append(p.Services, matchedAddresses(r.Exprs)...)
		}
	}
	if !slices.ContainsFunc(chains, func(ch *nftables.Chain) bool { return ch.Table.Name == proxyTable }) {
		return nil
	}
	p.tables = true
	elements, err := Exchange(ctx, "read maps of table "+proxyTable, func(c *nftables.Conn) ([]nftables.SetElement, error) {
		return elementsOf(c, tables, proxyTable, proxyMaps...)
	})
	length := map[string]int{"ip": 4, "ip6": 16}[name] // the keys begin with the address
	for _, e := range elements {
		if a, ok := netip.AddrFromSlice(e.Key[:min(length, len(e.Key))]); ok {
			p.Services = append(p.Services, a)
		}
	}
	return err
}

// readLegacy reads kube-proxy's chain in the output of "iptables -S".
func (p *KubeProxy) readLegacy(text string) {
	for line := range strings.Lines(text) {
		words := SplitWords(strings.TrimSpace(line))
		if len(words) < 2 || words[1] != proxyChain {
			continue
		}
		switch words[0] {
		case "-N":
			p.chain = true
		case "-A":
			p.Services = append(p.Services, addressesAfter(words)...)
		}
	}
}

// addressesOf returns the addresses of an interface.
func addressesOf(i *net.Interface) (all []netip.Addr) {
	addresses, _ := i.Addrs() // with an error there are none: the interface has just been removed
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, p.Addr().Unmap())
		}
	}
	return all
}

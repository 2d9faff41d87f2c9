//go:build linux

package cleanup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/kernel"
	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
	"github.com/nearside-dns/nearside/plugin/nodelocal"
	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// node is the machine.
type node struct {
	root proc.Root
	// instances returns the number of running nodecaches that use an interface.
	instances func(iface string) (int, error)
}

func newNode(root proc.Root) *node { return &node{root: root, instances: nodelocal.Instances} }

// leftovers are the items that an earlier run left.
type leftovers struct {
	interfaces []string // names of interfaces of nodecache, existing or not
	tables     []kernel.Table
	rules      []rules.PredecessorRule
	links      []kernel.Link
	pairs      []link.Pair             // of which at least one device exists
	loopback   map[string][]netip.Addr // addresses on lo, by the interface that they replace
	served     []netip.Addr            // the addresses of all these
}

// find finds the leftovers. With an error, those of other kinds are returned.
func (n *node) find(o options) (leftovers, error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	l := leftovers{interfaces: []string{o.iface}, served: slices.Clone(o.addresses), loopback: map[string][]netip.Addr{}}
	err := n.findRules(ctx, o, &l)
	if o.only == "" {
		err = errors.Join(err, n.findLinks(ctx, &l))
	}
	return l, err
}

func (n *node) findRules(ctx context.Context, o options, l *leftovers) error {
	var problem error
	var ruleset kernel.Ruleset
	if n.hasTables() {
		ruleset, problem = kernel.Rules(ctx)
	}
	for _, t := range ruleset.Tables {
		iface, ours := t.Own()
		if !ours || o.named && iface != o.iface {
			continue
		}
		l.tables = append(l.tables, t)
		if !slices.Contains(l.interfaces, iface) {
			l.interfaces = append(l.interfaces, iface)
		}
		addresses, err := kernel.Addresses(ctx, ruleset, t)
		problem = errors.Join(problem, err)
		l.served = append(l.served, addresses...)
	}
	var err error
	l.rules, err = kernel.Predecessors(ctx)
	for _, r := range l.rules {
		l.served = append(l.served, r.Addresses...)
	}
	return errors.Join(problem, err)
}

// hasTables reports whether there can be tables of nftables. Without its module there are none, and a query would load it.
func (n *node) hasTables() bool {
	p := n.root.Features([]proc.Feature{{Option: "NF_TABLES", Module: "nf_tables", Symbol: "nft_do_chain"}})
	return p[0] == proc.Present || p[0] == proc.Unknown
}

func (n *node) findLinks(ctx context.Context, l *leftovers) error {
	links, err := kernel.Links(ctx)
	if err != nil {
		return err
	}
	for _, name := range l.interfaces {
		if pair := link.PairOf(name); slices.ContainsFunc(links, func(k kernel.Link) bool { return k.Kind == "veth" && (k.Name == pair.Out || k.Name == pair.In) }) {
			l.pairs = append(l.pairs, pair)
		}
	}
	for _, link := range links {
		switch {
		case link.Loopback():
			l.findLoopback(link)
		case !slices.Contains(l.interfaces, link.Name):
		default:
			err = errors.Join(err, l.findLink(link, links))
		}
	}
	return err
}

// findLink adds an interface with the name of nodecache's. It returns an error if nodecache cannot have made it.
func (l *leftovers) findLink(link kernel.Link, links []kernel.Link) error {
	if link.Kind != "dummy" && link.Kind != "bridge" {
		return fmt.Errorf("interface %s is a %s, which nodecache does not make: left as it is", link.Name, link.Kind)
	}
	for _, port := range links {
		if link.Kind == "bridge" && port.Master == link.Index {
			return fmt.Errorf("interface %s is a bridge with the port %s, which nodecache does not make: left as it is", link.Name, port.Name)
		}
	}
	l.links = append(l.links, link)
	for _, a := range link.Addresses {
		l.served = append(l.served, a.Prefix.Addr())
	}
	return nil
}

// findLoopback adds the addresses on lo with a label of nodecache, and those of its rules and of the flags. IPv6 addresses
// have no label.
func (l *leftovers) findLoopback(lo kernel.Link) {
	for _, a := range lo.Addresses {
		address := a.Prefix.Addr()
		if address.IsLoopback() || !a.Prefix.IsSingleIP() {
			continue
		}
		iface := l.interfaces[0]
		label, labelled := strings.CutPrefix(a.Label, "lo:")
		if labelled && slices.Contains(l.interfaces, label) {
			iface = label
		} else if !slices.Contains(l.served, address) {
			continue
		}
		l.loopback[iface] = append(l.loopback[iface], address)
		l.served = append(l.served, address)
	}
}

// items returns the leftovers in the order in which their removal is safe.
func (l leftovers) items(o options) []item {
	var all []item
	if o.only == "" {
		for _, t := range l.tables {
			all = append(all, item{"table " + t.String(), func(ctx context.Context) error { return kernel.RemoveTable(ctx, t) }})
		}
	}
	for _, r := range l.rules {
		all = append(all, item{"rule " + r.String(), func(ctx context.Context) error { return kernel.RemovePredecessor(ctx, r) }})
	}
	for _, pair := range l.pairs {
		all = append(all, item{fmt.Sprintf("interfaces %s and %s (veth)", pair.Out, pair.In), func(ctx context.Context) error { return kernel.RemovePair(ctx, pair) }})
	}
	for _, link := range l.links {
		name := link.Name
		text := fmt.Sprintf("interface %s (%s)%s", name, link.Kind, addressesOf(link))
		if len(l.loopback[name]) > 0 {
			text += ", addresses on lo: " + list(l.loopback[name])
		}
		all = append(all, item{text, func(ctx context.Context) error { return kernel.RemoveInterface(ctx, name, l.loopback[name]) }})
	}
	for _, name := range l.interfaces {
		gone := slices.ContainsFunc(l.links, func(link kernel.Link) bool { return link.Name == name })
		if addresses := l.loopback[name]; len(addresses) > 0 && !gone {
			all = append(all, item{"addresses on lo: " + list(addresses), func(ctx context.Context) error {
				return kernel.RemoveInterface(ctx, name, addresses)
			}})
		}
	}
	return all
}

// addressesOf returns " with " and the addresses of an interface, "" without any.
func addressesOf(link kernel.Link) string {
	var addresses []netip.Addr
	for _, a := range link.Addresses {
		addresses = append(addresses, a.Prefix.Addr())
	}
	if len(addresses) == 0 {
		return ""
	}
	return " with " + list(addresses)
}

func list(addresses []netip.Addr) string {
	texts := make([]string, len(addresses))
	for i, a := range addresses {
		texts[i] = a.String()
	}
	return strings.Join(texts, ", ")
}

//go:build linux

package cleanup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
	"github.com/nearside-dns/nearside/internal/nft"
	"github.com/nearside-dns/nearside/plugin/nodelocal"
	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// node is the machine.
type node struct {
	proc proc.FS
	// instances returns the number of running nodecaches that use an interface.
	instances func(iface string) (int, error)
}

func newNode(fs proc.FS) *node { return &node{proc: fs, instances: nodelocal.Instances} }

// leftovers are the items that an earlier run left.
type leftovers struct {
	interfaces []string // names of interfaces of nodecache, existing or not
	tables     []string // names of tables of family inet
	rules      []rules.PredecessorRule
	links      []link.Link
	pairs      []link.Pair             // of which at least one device exists
	loopback   map[string][]netip.Addr // addresses on lo, by the interface that they replace
	served     []netip.Addr            // the addresses of all items above, and of -localip
}

// find returns the leftovers. If tables, iptables rules or interfaces cannot be read, it returns the others and an error.
func (n *node) find(o options) (leftovers, error) {
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	l := leftovers{interfaces: []string{o.iface}, served: slices.Clone(o.addresses), loopback: map[string][]netip.Addr{}}
	err := n.findRules(ctx, o, &l)
	if o.only == "" {
		err = errors.Join(err, n.findLinks(&l))
	}
	return l, err
}

func (n *node) findRules(ctx context.Context, o options, l *leftovers) error {
	problem := n.findTables(ctx, o, l)
	var err error
	l.rules, err = rules.Predecessors(ctx, nil)
	for _, r := range l.rules {
		l.served = append(l.served, r.Addresses...)
	}
	return errors.Join(problem, err)
}

// findTables finds the tables of nodecache. Without nf_tables in the kernel there are none, and a listing would load it.
func (n *node) findTables(ctx context.Context, o options, l *leftovers) error {
	if !nft.Loaded() {
		return nil
	}
	names, problem := rules.Steady(rules.Tables)
	for _, name := range names {
		iface := strings.TrimPrefix(name, rules.TableName(""))
		if o.named && iface != o.iface {
			continue
		}
		l.tables = append(l.tables, name)
		if !slices.Contains(l.interfaces, iface) {
			l.interfaces = append(l.interfaces, iface)
		}
		matched, err := rules.Matched(ctx, iface)
		problem = errors.Join(problem, err)
		for _, addresses := range matched {
			l.served = append(l.served, addresses...)
		}
	}
	return problem
}

func (n *node) findLinks(l *leftovers) error {
	links, err := link.List()
	if err != nil {
		return err
	}
	for _, name := range l.interfaces {
		if pair := link.PairOf(name); slices.ContainsFunc(links, func(k link.Link) bool { return k.Kind == "veth" && (k.Name == pair.Out || k.Name == pair.In) }) {
			l.pairs = append(l.pairs, pair)
		}
	}
	for _, found := range links {
		switch {
		case found.Name == "lo":
			l.findLoopback(found)
		case slices.Contains(l.interfaces, found.Name):
			err = errors.Join(err, l.findLink(found, links))
		}
	}
	return err
}

// findLink adds an interface whose name nodecache uses for its own. It returns an error for an interface that nodecache cannot
// have made.
func (l *leftovers) findLink(found link.Link, links []link.Link) error {
	if foreign := found.Foreign(links); foreign != "" {
		return fmt.Errorf("interface %s is %s, which nodecache does not make: left as it is", found.Name, foreign)
	}
	l.links = append(l.links, found)
	for _, a := range found.Addresses {
		l.served = append(l.served, a.Prefix.Addr())
	}
	return nil
}

// findLoopback adds the addresses on lo that have a label of nodecache, or that its rules or -localip have. IPv6 addresses
// have no label.
func (l *leftovers) findLoopback(lo link.Link) {
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
		for _, name := range l.tables {
			all = append(all, item{"table inet " + name, func(context.Context) error { return rules.RemoveTable(name) }})
		}
	}
	for _, r := range l.rules {
		all = append(all, item{"rule " + r.String(), func(ctx context.Context) error {
			_, err := rules.RemovePredecessors(ctx, []rules.PredecessorRule{r})
			return err
		}})
	}
	for _, pair := range l.pairs {
		all = append(all, item{fmt.Sprintf("interfaces %s and %s (veth)", pair.Out, pair.In), func(context.Context) error { return pair.Remove() }})
	}
	for _, name := range l.interfaces {
		var parts []string
		if i := slices.IndexFunc(l.links, func(found link.Link) bool { return found.Name == name }); i >= 0 {
			parts = append(parts, fmt.Sprintf("interface %s (%s)%s", name, l.links[i].Kind, addressesOf(l.links[i])))
		}
		if addresses := l.loopback[name]; len(addresses) > 0 {
			parts = append(parts, "addresses on lo: "+list(addresses))
		}
		if len(parts) > 0 {
			all = append(all, item{strings.Join(parts, ", "), func(context.Context) error { return link.Remove(name, l.loopback[name]) }})
		}
	}
	return all
}

// addressesOf returns " with " and the addresses of an interface, "" without any.
func addressesOf(l link.Link) string {
	var addresses []netip.Addr
	for _, a := range l.Addresses {
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

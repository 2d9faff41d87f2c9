//go:build linux

package doctor

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/kernel"
	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
	"github.com/nearside-dns/nearside/plugin/nodelocal"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules/firewall"
)

// node is the machine as the checks see it. What several checks need is read once, by the first.
type node struct {
	options options
	root    proc.Root

	setup  func() setup
	links  func() ([]kernel.Link, error)
	rules  func() (kernel.Ruleset, error)
	legacy func() (kernel.Legacy, error)
	// predecessors are the rules of node-local-dns and of nodecache's iptables backend.
	predecessors func() ([]rules.PredecessorRule, error)
	features     func() map[string]proc.Presence

	// instances returns how many instances of nodecache keep an interface.
	instances func(iface string) (int, error)

	// These read the kernel; tests put their own in.
	leases   func(ctx context.Context, iface string) (map[netip.Addr]time.Duration, error)
	firewall func(ctx context.Context, packets []firewall.Packet, withTables bool) ([]firewall.Finding, error)
	compared func(context.Context, kernel.Chain) ([]netip.Addr, error)
	proxied  func(context.Context, []netip.Addr) ([]netip.Addr, error)
}

// These say that nftables was not asked, since the question alone would load its module: it is not
// loaded, so there are no tables, or that cannot be known here.
var (
	errNoTables      = errors.New("nf_tables is not loaded")
	errUnknownTables = errors.New("not asked: nf_tables may not be loaded, and the question would load it")
)

func newNode(o options, root proc.Root, environment []string) *node {
	n := &node{
		options: o, root: root,
		instances: nodelocal.Instances, leases: kernel.Leases, compared: kernel.Compared,
	}
	n.firewall = func(ctx context.Context, packets []firewall.Packet, withTables bool) ([]firewall.Finding, error) {
		return kernel.Firewall(ctx, packets, withTables, filepath.Join(root.Proc, "net"))
	}
	n.proxied = func(ctx context.Context, addrs []netip.Addr) ([]netip.Addr, error) {
		_, err := n.rules()
		return kernel.Proxied(ctx, addrs, err == nil, filepath.Join(root.Proc, "net"))
	}
	n.features = sync.OnceValue(n.readFeatures)
	n.links = once(n, kernel.Links)
	n.rules = once(n, func(ctx context.Context) (kernel.Ruleset, error) {
		if err := n.mayAskTables(); err != nil {
			return kernel.Ruleset{}, err
		}
		return kernel.Rules(ctx)
	})
	n.legacy = once(n, func(ctx context.Context) (kernel.Legacy, error) {
		return kernel.LegacyRules(ctx, filepath.Join(root.Proc, "net"))
	})
	n.predecessors = once(n, kernel.Predecessors)
	n.setup = sync.OnceValue(func() setup {
		s := discover(o, root, environment)
		if len(s.addresses) > 0 {
			return s.withHealthPort(o)
		}
		s.fromIface = true
		if l, ok := n.link(s.iface); ok {
			for _, a := range l.Addresses {
				if own := a.Prefix.Addr(); !own.IsLinkLocalUnicast() || own.Is4() || a.Prefix.IsSingleIP() {
					s.addresses = append(s.addresses, own)
				}
			}
		}
		return s.withHealthPort(o)
	})
	return n
}

// withHealthPort is the setup with the endpoints that the flags name.
func (s setup) withHealthPort(o options) setup {
	if o.health != 0 {
		s.health = nil
		s.takeHealth([]netip.AddrPort{netip.AddrPortFrom(netip.IPv4Unspecified(), o.health)})
	}
	return s
}

// mayAskTables returns an error where a question to nftables would load its module. An instance of
// nodecache has asked before, so that nothing is loaded any more.
func (n *node) mayAskTables() error {
	switch n.features()[featureTables] {
	case proc.Absent, proc.Loadable:
		return errNoTables
	case proc.Unknown:
		if count, err := n.instances(n.setup().iface); err != nil || count == 0 {
			return errUnknownTables
		}
	}
	return nil
}

// once returns a function that reads once, bounded in time, and then repeats what it has read.
func once[T any](n *node, read func(context.Context) (T, error)) func() (T, error) {
	return sync.OnceValues(func() (T, error) {
		ctx, cancel := context.WithTimeout(context.Background(), n.options.timeout)
		defer cancel()
		return read(ctx)
	})
}

// link returns the network interface with a name.
func (n *node) link(name string) (kernel.Link, bool) {
	links, err := n.links()
	if err != nil {
		return kernel.Link{}, false
	}
	i := slices.IndexFunc(links, func(l kernel.Link) bool { return l.Name == name })
	if i < 0 {
		return kernel.Link{}, false
	}
	return links[i], true
}

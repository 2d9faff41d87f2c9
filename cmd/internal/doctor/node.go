//go:build linux

package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
	"github.com/nearside-dns/nearside/internal/nft"
	"github.com/nearside-dns/nearside/plugin/fastpath/kernel"
	"github.com/nearside-dns/nearside/plugin/nodelocal"
	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules/firewall"
)

// node is the machine that the checks read. State that several checks need is read once. Tests replace the
// functions.
type node struct {
	options options
	proc    proc.FS
	modules string // the folder of the kernel's modules, /lib/modules except in tests

	setup func() setup
	links func() ([]link.Link, error)
	// matched returns the addresses that the rules of nodecache's table match, by chain; nil without the table.
	matched func() (map[string][]netip.Addr, error)
	// predecessors returns the rules of node-local-dns and of nodecache's iptables backend.
	predecessors func() ([]rules.PredecessorRule, error)
	// proxy returns the state of kube-proxy in the kernel.
	proxy func() (rules.KubeProxy, error)

	// instances returns how many instances of nodecache manage an interface.
	instances func(iface string) (int, error)
	// tablesLoaded returns whether nf_tables is known to be in the running kernel.
	tablesLoaded func() bool

	leases func(iface string) (map[netip.Addr]time.Duration, error)
	// traffic returns, by flow, the numbers of pods' packets that the rules let in and that arrived.
	traffic func(iface string) (map[string]rules.Traffic, error)
	// suspects returns the chains that may drop or reject packets.
	suspects func(context.Context, []firewall.Packet) ([]firewall.Suspect, error)
	// ingresses returns the chains at the hook ingress that may drop or reject packets.
	ingresses func(context.Context, []firewall.Packet) ([]rules.Ingress, error)

	// fallback returns the addresses to which the rules of an interface send queries without a lease.
	fallback func(iface string) []netip.Addr
	// routed returns the indices of the interfaces through which IPv4 routes lead.
	routed func() (map[int]bool, error)

	// targets returns the servers to which the kernel connects sockets for an address.
	targets func(netip.AddrPort) ([]netip.AddrPort, error)

	// obstacles returns why the kernel may not answer at interfaces of pods.
	obstacles func() ([]kernel.Obstacle, error)
}

func newNode(o options, fs proc.FS, environment []string) *node {
	n := &node{options: o, proc: fs, modules: "/lib/modules", instances: nodelocal.Instances, tablesLoaded: nft.Loaded, obstacles: kernel.Obstacles}
	n.fallback = func(iface string) []netip.Addr {
		if !n.mayListTable(iface) {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), o.timeout)
		defer cancel()
		return fallbackIn(ctx, iface)
	}
	n.routed, n.targets = routedInterfaces, rules.SocketTargets
	n.leases = func(iface string) (map[netip.Addr]time.Duration, error) {
		return rules.Steady(func() (map[netip.Addr]time.Duration, error) { return rules.Leased(iface) })
	}
	n.traffic = rules.ReadTraffic
	n.suspects = func(ctx context.Context, packets []firewall.Packet) ([]firewall.Suspect, error) {
		return firewall.Suspects(ctx, packets, n.mayList())
	}
	n.ingresses = func(ctx context.Context, packets []firewall.Packet) ([]rules.Ingress, error) {
		if !n.mayList() {
			return nil, nil
		}
		return firewall.Ingresses(ctx, packets)
	}
	n.links = once(n, func(context.Context) ([]link.Link, error) { return link.List() })
	n.matched = once(n, func(ctx context.Context) (map[string][]netip.Addr, error) {
		if !n.mayList() {
			return nil, nil
		}
		return rules.Matched(ctx, n.setup().iface)
	})
	n.predecessors = once(n, func(ctx context.Context) ([]rules.PredecessorRule, error) { return rules.Predecessors(ctx, nil) })
	n.proxy = once(n, func(ctx context.Context) (rules.KubeProxy, error) {
		return rules.ReadKubeProxy(ctx, n.mayList())
	})
	n.setup = sync.OnceValue(func() setup {
		s := discover(o, fs, environment)
		s.fallback = n.fallback(s.iface)
		if len(s.clusterDNS) == 0 { // nodecache and its environment are gone, its rules are not
			for _, a := range s.fallback {
				s.clusterDNS = append(s.clusterDNS, netip.AddrPortFrom(a, dnsPort))
			}
		}
		if len(s.addresses) == 0 {
			s.fromIface = true
			s.addresses = n.addressesOn(s.iface)
		}
		if o.health != 0 {
			s.health = nil
			s.addHealth(netip.AddrPortFrom(netip.IPv4Unspecified(), o.health))
		}
		return s
	})
	return n
}

// addressesOn returns the addresses of an interface without the link-local IPv6 address that the kernel adds.
func (n *node) addressesOn(iface string) (all []netip.Addr) {
	l, _ := n.link(iface)
	for _, a := range l.Addresses {
		if own := a.Prefix.Addr(); !own.IsLinkLocalUnicast() || own.Is4() || a.Prefix.IsSingleIP() {
			all = append(all, own)
		}
	}
	return all
}

// mayList returns whether listing nftables can't make the kernel load nf_tables: it is loaded, or an instance
// of nodecache runs, which has listed nftables before.
func (n *node) mayList() bool { return n.tablesLoaded() || n.mayListTable(n.setup().iface) }

// mayListTable is mayList before the setup is known.
func (n *node) mayListTable(iface string) bool {
	if n.tablesLoaded() {
		return true
	}
	count, err := n.instances(iface)
	return err == nil && count > 0
}

// once returns a function that reads once, bounded in time, and then repeats the result.
func once[T any](n *node, read func(context.Context) (T, error)) func() (T, error) {
	return sync.OnceValues(func() (T, error) {
		ctx, cancel := context.WithTimeout(context.Background(), n.options.timeout)
		defer cancel()
		return read(ctx)
	})
}

// translated returns whether the kernel connects sockets for an address to another one: that of a replica of the Service.
func (n *node) translated(a netip.Addr) bool {
	targets, err := n.targets(netip.AddrPortFrom(a, n.options.port))
	return err == nil && targets[0].Addr() != a
}

// link returns the network interface with a name.
func (n *node) link(name string) (link.Link, bool) {
	links, _ := n.links() // checkInterface reports the error
	i := slices.IndexFunc(links, func(l link.Link) bool { return l.Name == name })
	if i < 0 {
		return link.Link{}, false
	}
	return links[i], true
}

func (n *node) hasLink(name string) bool {
	_, ok := n.link(name)
	return ok
}

// adviceFor returns advice about an error of the kernel or a file; "" for an error without advice.
func adviceFor(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "run it as root, or in the nodecache container"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "run it again with a longer -timeout"
	}
	return ""
}

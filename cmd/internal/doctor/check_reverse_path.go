//go:build linux

package doctor

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
)

// checkPodReversePath reports the interfaces of pods on which rp_filter drops each query over IPv4: it is strict, and no route
// leads through the interface. Ports of a bridge are skipped: the kernel checks their packets at the bridge.
func (n *node) checkPodReversePath() []Line {
	const name = "rp_filter of pods' interfaces"
	s := n.setup()
	if !slices.ContainsFunc(s.addresses, netip.Addr.Is4) {
		return nil
	}
	links, err := n.links()
	if err != nil {
		return nil // checkInterface reports the error
	}
	pair := link.PairOf(s.iface)
	var strictly []link.Link
	for _, l := range links {
		if (l.Kind == "veth" || l.Kind == "netkit") && l.Up && l.Master == 0 && l.Name != pair.Out && l.Name != pair.In &&
			max(n.sysctl("net.ipv4.conf.all.rp_filter"), n.reversePathOf(l.Name)) == strict {
			strictly = append(strictly, l)
		}
	}
	if len(strictly) == 0 {
		return one(name, "strict on none", OK, "")
	}
	routed, err := n.routed()
	if err != nil {
		return skipped(name, err)
	}
	var names []string
	for _, l := range strictly {
		if !routed[l.Index] {
			names = append(names, l.Name)
		}
	}
	if len(names) == 0 {
		return one(name, fmt.Sprintf("strict on %d, each with a route", len(strictly)), OK, "")
	}
	slices.Sort(names)
	return one(name, "strict without an IPv4 route: "+strings.Join(names, ", "), Warn,
		fmt.Sprintf("the kernel drops all IPv4 packets of pods there: sysctl -w net/ipv4/conf/%s/rp_filter=2 (or all), or a route to the pod", names[0]))
}

// reversePathOf returns rp_filter of an interface, -1 if it cannot be read. It does not use procfs, which would split a name with
// dots, such as eth0.5, into parts of the path.
func (n *node) reversePathOf(iface string) int {
	text, err := os.ReadFile(n.proc.Path("sys/net/ipv4/conf/" + iface + "/rp_filter"))
	if err != nil {
		return -1
	}
	v, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return -1
	}
	return v
}

// routedInterfaces returns the indices of the interfaces through which IPv4 routes of any table lead to other hosts.
func routedInterfaces() (map[int]bool, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	routed := map[int]bool{}
	for _, r := range routes {
		if r.Table != unix.RT_TABLE_LOCAL {
			routed[r.LinkIndex] = true
			for _, hop := range r.MultiPath {
				routed[hop.LinkIndex] = true
			}
		}
	}
	return routed, nil
}

//go:build linux

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// resolvers returns the nameservers of the node's resolv.conf, and those of them that nodecache can
// use: not a loopback address, which is another one in a pod, and not its own.
func (n *node) resolvers() (all []string, usable []netip.AddrPort, err error) {
	s := n.setup()
	conf, err := dns.ClientConfigFromFile(s.file(s.resolvConf))
	if err != nil {
		return nil, nil, err
	}
	for _, text := range conf.Servers {
		all = append(all, text)
		a, err := netip.ParseAddr(text)
		if err != nil || a.IsLoopback() || slices.Contains(s.addresses, a) {
			continue
		}
		usable = append(usable, netip.AddrPortFrom(a, dnsPort))
	}
	return all, usable, nil
}

// checkResolvers says which resolvers the node has.
func (n *node) checkResolvers(context.Context) []Line {
	s := n.setup()
	name := "resolvers"
	all, usable, err := n.resolvers()
	if err != nil {
		return one(name, strings.Join(strings.Fields(err.Error()), " "), Fail, "name the node's file with -resolvconf, as forward in the Corefile has it")
	}
	value := s.resolvConf + ": " + strings.Join(all, ", ")
	switch {
	case len(all) == 0:
		return one(name, s.resolvConf+" names none", Fail, "give the node a nameserver, or name another file")
	case len(usable) == 0:
		return one(name, value, Fail, "nodecache can use none of them: forward to the file with the real ones, such as /run/systemd/resolve/resolv.conf")
	case len(usable) < len(all):
		return one(name, value, Warn, fmt.Sprintf("nodecache uses %d of %d: loopback addresses and its own are passed over", len(usable), len(all)))
	}
	return one(name, value, OK, "")
}

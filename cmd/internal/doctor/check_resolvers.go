//go:build linux

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/cmd/internal/resolvconf"
)

// resolvers returns the nameservers of the node's resolv.conf, and those of them that nodecache can
// use: not a loopback address, which is another one in a pod, and not its own. Where only loopback
// addresses are named, they are those of the file that systemd-resolved writes, as in nodecache.
func (n *node) resolvers() (file string, all []string, usable []netip.AddrPort, err error) {
	s := n.setup()
	path, behind := s.file(s.resolvConf), []string(nil)
	if s.resolvConf == defaultResolvConf {
		path, behind = resolvconf.Paths(s.file("/"))
	}
	for _, path := range append([]string{path}, behind...) {
		more, found, readErr := n.nameservers(path)
		if readErr != nil && all == nil {
			return s.resolvConf, nil, nil, readErr
		}
		if readErr == nil && (len(found) > 0 || all == nil) {
			file, all, usable = path, more, found
		}
		if len(usable) > 0 || len(all) == 0 {
			break
		}
	}
	return strings.TrimPrefix(file, strings.TrimSuffix(s.file("/"), "/")), all, usable, nil
}

// nameservers returns those of a file, and those of them that nodecache can use.
func (n *node) nameservers(path string) (all []string, usable []netip.AddrPort, err error) {
	conf, err := dns.ClientConfigFromFile(path)
	if err != nil {
		return nil, nil, err
	}
	for _, text := range conf.Servers {
		all = append(all, text)
		a, err := netip.ParseAddr(text)
		if err != nil || a.IsLoopback() || slices.Contains(n.setup().addresses, a) {
			continue
		}
		usable = append(usable, netip.AddrPortFrom(a, dnsPort))
	}
	return all, usable, nil
}

// checkResolvers reports which resolvers the node has.
func (n *node) checkResolvers(context.Context) []Line {
	name := "resolvers"
	file, all, usable, err := n.resolvers()
	if err != nil {
		return one(name, strings.Join(strings.Fields(err.Error()), " "), Fail, "name the node's file with -resolvconf, as forward in the Corefile has it")
	}
	value := file + ": " + strings.Join(all, ", ")
	switch {
	case len(all) == 0:
		return one(name, file+" names none", Fail, "give the node a nameserver, or name another file")
	case len(usable) == 0:
		return one(name, value, Fail, "nodecache can use none of them: forward to the file with the real ones, such as /run/systemd/resolve/resolv.conf")
	case len(usable) < len(all):
		return one(name, value, Warn, fmt.Sprintf("nodecache uses %d of %d: loopback addresses and its own are passed over", len(usable), len(all)))
	}
	return one(name, value, OK, "")
}

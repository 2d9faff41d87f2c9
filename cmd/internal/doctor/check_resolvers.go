//go:build linux

package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/cmd/internal/resolvconf"
)

// resolvers returns the nameservers that nodecache uses for names outside of the cluster, the file that
// has them, and those that it skips there.
func (n *node) resolvers() (servers, skipped []string, file string, err error) {
	s := n.setup()
	servers, skipped, file, err = resolvconf.Nameservers(s.root, s.resolvConf, s.addresses)
	return servers, skipped, strings.TrimPrefix(file, s.root), err
}

// checkResolvers reports the nameservers of the node's resolv.conf.
func (n *node) checkResolvers(context.Context) []Line {
	const name = "resolvers"
	servers, ignored, file, err := n.resolvers()
	if err != nil {
		return one(name, oneLine(err), Fail, "name the node's file with -resolvconf, as forward in the Corefile has it")
	}
	all := slices.Concat(ignored, servers)
	value := file + ": " + strings.Join(all, ", ")
	switch {
	case len(all) == 0:
		return one(name, file+" names none", Fail, "configure a nameserver for the node, or name another file")
	case len(servers) == 0:
		return one(name, value, Fail, "nodecache can use none of them: forward to the file with the real ones, such as /run/systemd/resolve/resolv.conf")
	case len(ignored) > 0:
		return one(name, value, Warn, fmt.Sprintf("nodecache uses %d of %d: loopback addresses and its own are skipped", len(servers), len(all)))
	}
	return one(name, value, OK, "")
}

//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/cmd/internal/resolvconf"
)

// resolvers returns the nameservers that nodecache uses for names outside of the cluster. If it can use none of the file's,
// resolvers returns none, and no error.
func (n *node) resolvers() (resolvconf.Result, error) {
	s := n.setup()
	below := func(path string) string { return filepath.Join(s.root, path) }
	found, err := resolvconf.Reader{
		Own: s.addresses, Path: below(resolvconf.Path), Uplinks: below(resolvconf.Uplinks), Host: below(resolvconf.HostRoot),
		AllowCopy: true, // as at the start of nodecache
	}.Nameservers(below(s.resolvConf))
	if errors.As(err, new(resolvconf.UselessError)) {
		err = nil
	}
	return found, err
}

// checkResolvers reports the nameservers of the node's resolv.conf.
func (n *node) checkResolvers(context.Context) []Line {
	const name = "resolvers"
	found, err := n.resolvers()
	if err != nil {
		return one(name, oneLine(err), Fail, "name the node's file with -resolvconf, as forward in the Corefile has it")
	}
	all, file := slices.Concat(found.Skipped, found.Servers), strings.TrimPrefix(found.From, n.setup().root)
	value := file + ": " + strings.Join(all, ", ")
	switch {
	case len(all) == 0:
		return one(name, file+" names none", Fail, "configure a nameserver for the node, or name another file")
	case len(found.Servers) == 0:
		return one(name, value, Fail, "nodecache can use none of them: forward to the file with the real ones, such as /run/systemd/resolve/resolv.conf")
	case len(found.Skipped) > 0:
		return one(name, value, Warn, fmt.Sprintf("nodecache uses %d of %d: loopback addresses and its own are skipped", len(found.Servers), len(all)))
	}
	return one(name, value, OK, "")
}

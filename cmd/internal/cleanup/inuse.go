//go:build linux

package cleanup

import (
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/nearside-dns/nearside/plugin/nodelocal"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// refuse returns an error if the leftovers are in use: by a running nodecache, or by a server that listens on one of the
// addresses, such as node-local-dns.
func (n *node) refuse(o options, l leftovers) error {
	instances := 0
	interfaces := l.interfaces
	if len(l.rules) > 0 && !slices.Contains(interfaces, defaultInterface) {
		// The rules of iptables do not name an interface.
		interfaces = append(slices.Clone(interfaces), defaultInterface)
	}
	for _, iface := range interfaces {
		count, err := n.instances(iface)
		if err != nil {
			return err
		}
		if count == 0 {
			continue
		}
		// An instance that has its table does not use iptables.
		if o.only == "iptables" && slices.Contains(l.tables, rules.TableName(iface)) {
			instances += count
			continue
		}
		return fmt.Errorf("nodecache is running and uses interface %s: stop it first, or set -force", iface)
	}
	if instances > 0 {
		return nil // the listeners belong to these instances
	}
	return n.refuseServed(l)
}

const dnsPort = 53

func (n *node) refuseServed(l leftovers) error {
	sockets, err := n.proc.Listeners(dnsPort)
	if err != nil {
		return err
	}
	for _, s := range sockets {
		if slices.Contains(l.served, s.Local) && !s.Local.IsLoopback() {
			return fmt.Errorf("%s listens on %s: stop it first, or set -force", s.Owner, netip.AddrPortFrom(s.Local, dnsPort))
		}
	}
	return nil
}

// claim prevents nodecaches from starting while their leftovers are removed.
func (n *node) claim(interfaces []string) (release func(), err error) {
	var claims []io.Closer
	release = func() {
		for _, c := range claims {
			_ = c.Close() // the claim ends with the process
		}
	}
	for _, iface := range interfaces {
		c, err := nodelocal.Claim(iface)
		if err != nil {
			release()
			return nil, err
		}
		claims = append(claims, c)
	}
	return release, nil
}

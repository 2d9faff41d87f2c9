//go:build linux

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
)

// holder is a process with an address that it has sockets of the DNS port on.
type holder struct {
	local    netip.Addr
	owner    proc.Process // of number 0 if it is not seen from here
	networks []string
}

// String names the process and its protocols.
func (h holder) String() string {
	name := "a process not seen from here"
	if h.owner.PID != 0 {
		name = fmt.Sprintf("%s (pid %d)", h.owner.Name, h.owner.PID)
	}
	return name + ", " + strings.Join(h.networks, " and ")
}

// ours says whether it is nodecache or node-local-dns.
func (h holder) ours(s setup) bool {
	if h.owner.PID == 0 {
		// In a container, a process of the node is not seen; one on our address is nodecache's.
		return slices.Contains(s.addresses, h.local)
	}
	return slices.ContainsFunc(s.running, func(c proc.Command) bool { return c.PID == h.owner.PID })
}

// checkPort says who waits for DNS queries on this node.
func (n *node) checkPort(ctx context.Context) []Line {
	s := n.setup()
	name := fmt.Sprintf("port %d", n.options.port)
	sockets, err := n.root.Listeners(n.options.port)
	if err != nil {
		return skipped(name, err, adviceFor(err))
	}
	holders := group(sockets, n.root.Owners(ctx, sockets))
	var lines []Line
	served := make(map[netip.Addr]bool)
	for _, h := range holders {
		served[h.local] = true
		lines = append(lines, n.checkHolder(s, h))
	}
	for _, a := range s.addresses {
		if !served[a] && !served[netip.IPv6Unspecified()] && !(a.Is4() && served[netip.IPv4Unspecified()]) {
			lines = append(lines, Line{name + " on " + a.String(), "nobody", Fail, "start nodecache; if it runs, its log says why it could not bind"})
		}
	}
	return append(lines, n.checkDrops(s, sockets)...)
}

// group puts sockets of one process and address together: a server has several of each.
func group(sockets []proc.Socket, owners map[uint64]proc.Process) []holder {
	var holders []holder
	for _, socket := range sockets {
		local, owner := socket.Local.Addr().Unmap(), owners[socket.Inode]
		i := slices.IndexFunc(holders, func(h holder) bool { return h.local == local && h.owner == owner })
		if i < 0 {
			holders = append(holders, holder{local: local, owner: owner})
			i = len(holders) - 1
		}
		if !slices.Contains(holders[i].networks, socket.Network) {
			holders[i].networks = append(holders[i].networks, socket.Network)
		}
	}
	slices.SortStableFunc(holders, func(a, b holder) int { return a.local.Compare(b.local) })
	return holders
}

func (n *node) checkHolder(s setup, h holder) Line {
	line := Line{fmt.Sprintf("port %d on %s", n.options.port, h.local), h.String(), OK, ""}
	own := slices.Contains(s.addresses, h.local)
	switch {
	case h.ours(s) && h.local.IsUnspecified():
		line.Verdict = Warn
		line.Advice = "nodecache serves every address of the node: bind it to its own addresses in the Corefile"
	case h.ours(s) && own && len(h.networks) < 2:
		line.Verdict, line.Advice = Fail, "only "+h.networks[0]+" is served: read the log of nodecache"
	case h.ours(s):
	case own:
		line.Verdict, line.Advice = Fail, "it answers instead of nodecache: stop it, or give it another address"
	case h.local.IsUnspecified():
		line.Verdict = Warn
		line.Advice = "it takes every address: nodecache cannot bind, or gets no queries while it is down; " + narrower(h.owner.Name)
	}
	return line
}

// narrower says how a DNS server is made to listen on some addresses only.
func narrower(program string) string {
	switch program {
	case "dnsmasq":
		return "set listen-address and bind-interfaces in its configuration"
	case "named":
		return "set listen-on and listen-on-v6 in named.conf"
	case "unbound":
		return "set interface: in unbound.conf"
	case "coredns":
		return "add the plugin bind to its Corefile"
	case "systemd-resolve":
		return "set DNSStubListenerExtra= to single addresses in resolved.conf"
	}
	return "bind it to single addresses"
}

// checkDrops says whether queries were lost because nodecache did not read them in time.
func (n *node) checkDrops(s setup, sockets []proc.Socket) []Line {
	var drops uint64
	known := false
	for _, socket := range sockets {
		local := socket.Local.Addr().Unmap()
		if socket.Network == "udp" && (slices.Contains(s.addresses, local) || local.IsUnspecified()) {
			drops, known = drops+socket.Drops, true
		}
	}
	switch name := fmt.Sprintf("port %d lost datagrams", n.options.port); {
	case !known:
		return nil
	case drops > 0:
		return one(name, fmt.Sprint(drops), Warn,
			"queries came faster than nodecache read them: raise its CPU limit and net.core.rmem_default (sysctl -w net.core.rmem_default=1048576), then restart it")
	default:
		return one(name, "0", OK, "")
	}
}

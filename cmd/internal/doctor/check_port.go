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

// listener is an address on which a process serves the DNS port.
type listener struct {
	local    netip.Addr
	owner    proc.Process
	networks []string
}

// own returns whether nodecache or node-local-dns has the listener.
func (l listener) own(s setup) bool {
	if l.owner.PID == 0 {
		// In a container, a process of the node can't be seen; a listener on one of the addresses counts as nodecache's.
		return slices.Contains(s.addresses, l.local)
	}
	return slices.ContainsFunc(s.running, func(c proc.Command) bool { return c.PID == l.owner.PID })
}

// checkPort reports the processes that serve DNS on this node, and the datagrams that they lost.
func (n *node) checkPort(context.Context) []Line {
	s := n.setup()
	name := fmt.Sprintf("port %d", n.options.port)
	sockets, err := n.proc.Listeners(n.options.port)
	if err != nil {
		return skipped(name, err)
	}
	var lines []Line
	served := make(map[netip.Addr]bool)
	for _, l := range group(sockets) {
		served[l.local] = true
		line := Line{Check: name + " on " + l.local.String(), Value: l.owner.String() + ", " + strings.Join(l.networks, " and ")}
		line.Verdict, line.Advice = l.judge(s)
		lines = append(lines, line)
	}
	for _, a := range s.addresses {
		if !served[a] && !served[netip.IPv6Unspecified()] && !(a.Is4() && served[netip.IPv4Unspecified()]) {
			lines = append(lines, Line{name + " on " + a.String(), "no process", Fail, "start nodecache; if it runs, its log has the reason why it could not bind"})
		}
	}
	return append(lines, checkDrops(s, name, sockets)...)
}

// group returns the listeners of sockets: a server has several sockets on each address.
func group(sockets []proc.Socket) (all []listener) {
	for _, socket := range sockets {
		i := slices.IndexFunc(all, func(l listener) bool { return l.local == socket.Local && l.owner == socket.Owner })
		if i < 0 {
			all = append(all, listener{local: socket.Local, owner: socket.Owner})
			i = len(all) - 1
		}
		if !slices.Contains(all[i].networks, socket.Network) {
			all[i].networks = append(all[i].networks, socket.Network)
		}
	}
	slices.SortStableFunc(all, func(a, b listener) int { return a.local.Compare(b.local) })
	return all
}

func (l listener) judge(s setup) (Verdict, string) {
	own, nodeLocal := l.own(s), slices.Contains(s.addresses, l.local)
	switch {
	case own && l.local.IsUnspecified() && s.noIface && s.noRules: // the pod's own addresses
		return OK, ""
	case own && l.local.IsUnspecified():
		return Warn, "nodecache serves every address of the node: bind it to its own addresses in the Corefile"
	case own && nodeLocal && len(l.networks) < 2:
		return Fail, "only " + l.networks[0] + " is served: read the log of nodecache"
	case own:
		return OK, ""
	case nodeLocal:
		return Fail, "it answers instead of nodecache: stop it, or configure another address for it"
	case !l.local.IsUnspecified():
		return OK, ""
	}
	advice, ok := narrower[l.owner.Name]
	if !ok {
		advice = "bind it to single addresses"
	}
	return Warn, "it listens on every address: nodecache cannot bind, or gets no queries while it is down; " + advice
}

// narrower is the advice, by the name of a DNS server, to make it listen on single addresses.
var narrower = map[string]string{
	"dnsmasq":         "set listen-address and bind-interfaces in its configuration",
	"named":           "set listen-on and listen-on-v6 in named.conf",
	"unbound":         "set interface: in unbound.conf",
	"coredns":         "add the plugin bind to its Corefile",
	"systemd-resolve": "set DNSStubListenerExtra= to single addresses in resolved.conf",
}

// checkDrops reports queries that were lost because nodecache did not read them in time.
func checkDrops(s setup, port string, sockets []proc.Socket) []Line {
	var drops uint64
	known := false
	for _, socket := range sockets {
		if socket.Network == "udp" && (slices.Contains(s.addresses, socket.Local) || socket.Local.IsUnspecified()) {
			drops, known = drops+socket.Drops, true
		}
	}
	switch name := port + " lost datagrams"; {
	case !known:
		return nil
	case drops > 0:
		return one(name, fmt.Sprint(drops), Warn,
			"queries came faster than nodecache read them: raise its CPU limit and net.core.rmem_default (sysctl -w net.core.rmem_default=1048576), then restart it")
	default:
		return one(name, "0", OK, "")
	}
}

//go:build linux

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/kernel"
	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
)

// checkInstances says which nodecache runs here.
func (n *node) checkInstances(context.Context) []Line {
	const name = "nodecache"
	s := n.setup()
	count, err := n.instances(s.iface)
	if err != nil {
		return skipped(name, err, adviceFor(err))
	}
	lines := one(name, "", OK, "")
	l := &lines[0]
	switch {
	case count == 0 && len(s.running) == 0:
		l.Value, l.Verdict = "not running here", Fail
		l.Advice = "look at its pod on this node: kubectl -n kube-system get pods -o wide; its log says why"
	case count == 0 && s.running[0].Name == "node-cache":
		l.Value, l.Verdict = "node-local-dns: "+processes(s), Warn
		l.Advice = "stop node-local-dns, run nodecache cleanup, and start nodecache"
	case count == 0:
		l.Value, l.Verdict = processes(s)+", without the plugin nodelocal", Warn
		l.Advice = "the interface and the rules are nobody's: add nodelocal to the Corefile, or -localip"
	case count == 1:
		l.Value = "one instance" + seen(s)
	default:
		l.Value, l.Verdict = fmt.Sprintf("%d instances%s", count, seen(s)), Warn
		l.Advice = "fine while an upgrade is under way; otherwise stop the older one"
	}
	if s.problem != nil {
		lines = append(lines, skipped("configuration", s.problem, "name the Corefile with -conf, or the addresses with -localip")...)
	}
	return lines
}

// seen names the processes in brackets, if there are any: those of another process namespace are not
// seen.
func seen(s setup) string {
	if len(s.running) == 0 {
		return ""
	}
	return ": " + processes(s)
}

func processes(s setup) string {
	var names []string
	for _, c := range s.running {
		names = append(names, fmt.Sprintf("%s (pid %d)", c.Name, c.PID))
	}
	return strings.Join(names, ", ")
}

// checkInterface says what the node-local interface is.
func (n *node) checkInterface(context.Context) []Line {
	s := n.setup()
	name := "interface " + s.iface
	links, err := n.links()
	if err != nil {
		return skipped(name, err, adviceFor(err))
	}
	l, ok := n.link(s.iface)
	switch {
	case !ok && s.noIface:
		return one(name, "none, as the configuration says", OK, "")
	case !ok && n.onLoopback(links, s.addresses):
		return one(name, "none; the addresses are on lo", OK, "")
	case !ok:
		return one(name, "missing", Fail, "start nodecache; if it runs, its log says why it has not made the interface")
	case l.Kind != "dummy" && l.Kind != "bridge":
		return one(name, "a "+l.Kind+", not a dummy or bridge", Fail,
			"the name belongs to someone else: give nodecache another one with -interfacename")
	case !l.Up:
		return one(name, l.Kind+", down", Fail, "ip link set "+s.iface+" up, or restart nodecache")
	}
	for _, port := range links {
		if l.Kind == "bridge" && port.Master == l.Index {
			return one(name, "a bridge with the port "+port.Name, Fail,
				"the name belongs to someone else: give nodecache another one with -interfacename")
		}
	}
	value := l.Kind + ", up"
	if in := link.PairOf(s.iface).In; n.hasLink(in) {
		value += "; queries to itself arrive on " + in
	}
	return one(name, value, OK, "")
}

// onLoopback says whether lo holds all the addresses: what nodecache does without dummy and bridge.
func (n *node) onLoopback(links []kernel.Link, addresses []netip.Addr) bool {
	for _, l := range links {
		if !l.Loopback() {
			continue
		}
		for _, a := range addresses {
			if _, ok := l.Holds(a); !ok {
				return false
			}
		}
		return len(addresses) > 0
	}
	return false
}

// checkAddresses says of each address where it is.
func (n *node) checkAddresses(context.Context) []Line {
	s := n.setup()
	links, err := n.links()
	if err != nil {
		return skipped("addresses", err, adviceFor(err))
	}
	if len(s.addresses) == 0 {
		return one("addresses", "none known", Skip, "name them with -localip, as nodecache has them")
	}
	var lines []Line
	for _, a := range s.addresses {
		lines = append(lines, n.checkAddress(s, links, a))
	}
	if s.fromIface {
		return lines
	}
	if l, ok := n.link(s.iface); ok {
		for _, held := range l.Addresses {
			if !slices.Contains(s.addresses, held.Prefix.Addr()) && !held.Prefix.Addr().IsLinkLocalUnicast() {
				lines = append(lines, Line{"address " + held.Prefix.Addr().String(), "on " + s.iface + ", not configured", Warn,
					"pods that ask it get no answer: ip address del " + held.Prefix.String() + " dev " + s.iface + ", or add it to -localip"})
			}
		}
	}
	return lines
}

func (n *node) checkAddress(s setup, links []kernel.Link, a netip.Addr) Line {
	line := Line{Check: "address " + a.String(), Verdict: OK}
	var on []string
	var ours kernel.Address
	for _, l := range links {
		held, ok := l.Holds(a)
		if !ok {
			continue
		}
		on = append(on, l.Name)
		if l.Name == s.iface || l.Loopback() {
			ours = held
		}
	}
	line.Value = "on " + strings.Join(on, " and ")
	switch {
	case a.Is6() && n.sysctl("net.ipv6.conf.all.disable_ipv6") == 1:
		line.Value, line.Verdict = "IPv6 is switched off", Fail
		line.Advice = "sysctl net.ipv6.conf.all.disable_ipv6=0, or take the address out of -localip"
	case len(on) == 0:
		line.Value, line.Verdict = "on no interface", Fail
		line.Advice = "start nodecache; if it runs, its log says why the address is missing"
	case slices.Contains(on, "kube-ipvs0"):
		line.Verdict = Fail
		line.Advice = "kube-proxy in IPVS mode holds this Service's address: give nodecache the link-local address only, and kubelet --cluster-dns with it"
	case !ours.Prefix.IsValid():
		line.Verdict = Fail
		line.Advice = "another interface holds it: choose another address for nodecache, or take it away there"
		if s.noIface {
			line.Verdict, line.Advice = OK, ""
		}
	case len(on) > 1:
		line.Verdict, line.Advice = Warn, "take it from the other interface"
	case ours.Tentative:
		line.Value += ", tentative"
		line.Verdict, line.Advice = Fail, "duplicate address detection has not let it pass: restart nodecache, which sets it without"
	case !ours.Prefix.IsSingleIP():
		line.Value += fmt.Sprintf(", with a prefix of %d", ours.Prefix.Bits())
		line.Verdict, line.Advice = Warn, "the whole prefix is routed to this node: set the address alone (/32, /128)"
	}
	return line
}

// sysctl returns a sysctl that has one number, or -1 if it cannot be read.
func (n *node) sysctl(name string) int64 {
	v, err := n.root.Sysctl(name)
	if err != nil {
		return -1
	}
	return v[0]
}

//go:build linux

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
)

// checkInstances reports how many instances of nodecache run here, and their processes.
func (n *node) checkInstances(context.Context) []Line {
	const name = "nodecache"
	s := n.setup()
	count, err := n.instances(s.iface)
	if err != nil {
		return skipped(name, err)
	}
	line := Line{Check: name, Verdict: OK}
	switch {
	case count == 0 && len(s.running) == 0:
		line.Value, line.Verdict = "not running here", Fail
		line.Advice = "look at its pod on this node: kubectl -n kube-system get pods -o wide; its log has the reason"
	case count == 0 && s.running[0].Name == "node-cache":
		line.Value, line.Verdict = "node-local-dns: "+processes(s.running), Warn
		line.Advice = "stop node-local-dns, run nodecache cleanup, and start nodecache"
	case count == 0 && s.noIface && s.noRules:
		line.Value = processes(s.running) + ", which sets up neither interface nor rules"
	case count == 0:
		line.Value, line.Verdict = processes(s.running)+", without the plugin nodelocal", Warn
		line.Advice = "no process manages the interface and the rules: add nodelocal to the Corefile, or -localip"
	case count == 1:
		line.Value = "one instance"
	default:
		line.Value, line.Verdict = fmt.Sprintf("%d instances", count), Warn
		line.Advice = "right during an upgrade; otherwise stop the older one"
	}
	if count > 0 && len(s.running) > 0 { // processes of another PID namespace can't be seen
		line.Value += ": " + processes(s.running)
	}
	lines := []Line{line}
	if s.problem != nil {
		lines = append(lines, Line{"configuration", oneLine(s.problem), Skip, "name the Corefile with -conf, or the addresses with -localip"})
	}
	return lines
}

func processes(commands []proc.Command) string {
	var names []string
	for _, c := range commands {
		names = append(names, c.String())
	}
	return strings.Join(names, ", ")
}

// checkInterface reports the kind and the state of the node-local interface.
func (n *node) checkInterface(context.Context) []Line {
	s := n.setup()
	name := "interface " + s.iface
	links, err := n.links()
	if err != nil {
		return skipped(name, err)
	}
	l, ok := n.link(s.iface)
	switch {
	case !ok && s.noIface:
		return one(name, "none, as configured", OK, "")
	case !ok && n.onLoopback(s.addresses):
		return one(name, "none; the addresses are on lo", OK, "")
	case !ok:
		return one(name, "missing", Fail, "start nodecache; if it runs, its log has the reason why there is no interface")
	}
	if foreign := l.Foreign(links); foreign != "" {
		return one(name, foreign, Fail, "another program uses this name: set another one for nodecache with -interfacename")
	}
	if !l.Up {
		return one(name, l.Kind+", down", Fail, "ip link set "+s.iface+" up, or restart nodecache")
	}
	value := l.Kind + ", up"
	if in := link.PairOf(s.iface).In; n.hasLink(in) {
		value += "; queries to itself arrive on " + in
	}
	return one(name, value, OK, "")
}

// onLoopback returns whether lo has all the addresses, as with a kernel without dummy and bridge.
func (n *node) onLoopback(addresses []netip.Addr) bool {
	lo, _ := n.link("lo")
	return len(addresses) > 0 && !slices.ContainsFunc(addresses, func(a netip.Addr) bool {
		_, ok := lo.Address(a)
		return !ok
	})
}

// checkAddresses reports the interface of each address.
func (n *node) checkAddresses(context.Context) []Line {
	s := n.setup()
	links, err := n.links()
	if err != nil {
		return skipped("addresses", err)
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
	l, _ := n.link(s.iface)
	for _, assigned := range l.Addresses {
		if a := assigned.Prefix.Addr(); !slices.Contains(s.addresses, a) && !a.IsLinkLocalUnicast() {
			lines = append(lines, Line{"address " + a.String(), "on " + s.iface + ", not configured", Warn,
				"queries of pods to it get no answer: ip address del " + assigned.Prefix.String() + " dev " + s.iface + ", or add it to -localip"})
		}
	}
	return lines
}

func (n *node) checkAddress(s setup, links []link.Link, a netip.Addr) Line {
	line := Line{Check: "address " + a.String(), Verdict: OK}
	var interfaces []string
	var own link.Address
	for _, l := range links {
		if found, ok := l.Address(a); ok {
			interfaces = append(interfaces, l.Name)
			if l.Name == s.iface || l.Name == "lo" {
				own = found
			}
		}
	}
	line.Value = "on " + strings.Join(interfaces, " and ")
	switch {
	case a.Is6() && n.sysctl("net.ipv6.conf.all.disable_ipv6") == 1:
		line.Value, line.Verdict = "IPv6 is switched off", Fail
		line.Advice = "sysctl net.ipv6.conf.all.disable_ipv6=0, or remove the address from -localip"
	case len(interfaces) == 0:
		line.Value, line.Verdict = "on no interface", Fail
		line.Advice = "start nodecache; if it runs, its log has the reason why the address is missing"
	case slices.Contains(interfaces, "kube-ipvs0"):
		line.Verdict = Fail
		line.Advice = "kube-proxy in IPVS mode has this Service's address: configure nodecache with the link-local address only, and kubelet --cluster-dns with it"
	case !own.Prefix.IsValid() && s.noIface:
	case !own.Prefix.IsValid():
		line.Verdict = Fail
		line.Advice = "another interface has it: choose another address for nodecache, or remove it there"
	case len(interfaces) > 1:
		line.Verdict, line.Advice = Warn, "remove it from the other interface"
	case own.Tentative:
		line.Value += ", tentative"
		line.Verdict, line.Advice = Fail, "duplicate address detection has not finished or failed: restart nodecache, which adds it without"
	case !own.Prefix.IsSingleIP() && !s.noIface:
		line.Value += fmt.Sprintf(", with a prefix of %d", own.Prefix.Bits())
		line.Verdict, line.Advice = Warn, "the whole prefix is routed to this node: set the address alone (/32, /128)"
	}
	return line
}

//go:build linux

package doctor

import (
	"context"
	"net/netip"
	"slices"
	"strings"
)

// checkProxy reports the mode of kube-proxy, by its rules in the kernel.
func (n *node) checkProxy(context.Context) []Line {
	const name = "kube-proxy"
	proxy, err := n.proxy()
	modes := proxy.Modes
	// IPVS servers without kube-proxy's interface kube-ipvs0 belong to another proxy, which has an interface of its own.
	if servers, err := n.proc.IPVSBackendStatus(); err == nil && len(servers) > 0 && !slices.Contains(modes, "ipvs") {
		modes = append(slices.DeleteFunc(slices.Clone(modes), func(mode string) bool { return mode == "iptables" }), "ipvs")
	}
	s := n.setup()
	switch {
	case len(modes) == 0 && s.noIface && s.noRules:
		return one(name, "not needed: nodecache sets up neither interface nor rules", OK, "")
	case len(modes) == 0 && slices.ContainsFunc(s.clusterDNS, func(a netip.AddrPort) bool { return n.translated(a.Addr()) }):
		return one(name, "none; sockets for Services are connected with replicas, as by Cilium", OK, "")
	case len(modes) == 0 && n.hasLink("cilium_host"):
		return one(name, "none; Cilium is here (eBPF)", Warn,
			"Cilium may translate a Service's address before any rule sees it: use the link-local address, or Cilium's local redirect policy")
	case len(modes) == 0 && err != nil:
		return skipped(name, err)
	case len(modes) == 0:
		return one(name, "no rules of it: none here, or another proxy (eBPF)", Warn,
			"without it nothing answers for nodecache while it is down; if another proxy is here, see that it does not handle the addresses")
	case len(modes) > 1 && !slices.Contains(modes, "ipvs"):
		return one(name, "rules of several modes: "+strings.Join(modes, ", "), Warn,
			"the old mode's rules may still match packets: kube-proxy --cleanup, then restart kube-proxy")
	case slices.Contains(modes, "ipvs"):
		return n.checkIPVS(strings.Join(modes, " and "))
	}
	return one(name, modes[0], OK, "")
}

// checkIPVS fails for an address that is not link-local: in IPVS mode kube-proxy has every Service's
// address on an interface of its own.
func (n *node) checkIPVS(modes string) []Line {
	for _, a := range n.setup().addresses {
		if !a.IsLinkLocalUnicast() {
			return one("kube-proxy", modes, Fail,
				"in IPVS mode nodecache can have link-local addresses only, not "+a.String()+": change -localip, and kubelet --cluster-dns with it")
		}
	}
	return one("kube-proxy", modes, OK, "")
}

//go:build linux

package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// checkProxy says in which mode kube-proxy works, by what it has left in the kernel.
func (n *node) checkProxy(context.Context) []Line {
	const name = "kube-proxy"
	modes, err := n.proxyModes()
	switch {
	case len(modes) == 0 && n.hasLink("cilium_host"):
		return one(name, "none; Cilium is here (eBPF)", Warn,
			"Cilium may turn a Service's address before any rule sees it: use the link-local address, or Cilium's local redirect policy")
	case len(modes) == 0 && err != nil:
		return skipped(name, err, adviceFor(err))
	case len(modes) == 0:
		return one(name, "no rules of it: none here, or another proxy (eBPF)", Warn,
			"without it nothing answers for nodecache while it is down; if another proxy is here, see that it leaves the addresses alone")
	case slices.Contains(modes, "ipvs"):
		return n.checkIPVS(modes)
	case len(modes) > 1:
		return one(name, "rules of several modes: "+strings.Join(modes, ", "), Warn,
			"the old mode's rules may still take packets: kube-proxy --cleanup, then restart kube-proxy")
	}
	return one(name, modes[0], OK, "")
}

// checkIPVS warns of a Service's address: in IPVS mode kube-proxy holds all of them itself.
func (n *node) checkIPVS(modes []string) []Line {
	const name = "kube-proxy"
	value := strings.Join(modes, " and ")
	for _, a := range n.setup().addresses {
		if !a.IsLinkLocalUnicast() {
			return one(name, value, Fail,
				"in IPVS mode nodecache can have link-local addresses only, not "+a.String()+": change -localip, and kubelet --cluster-dns with it")
		}
	}
	return one(name, value, OK, "")
}

// proxyModes returns the modes of kube-proxy whose state is in the kernel. The error says what could
// not be looked at.
func (n *node) proxyModes() ([]string, error) {
	var modes []string
	rules, err := n.rules()
	if errors.Is(err, errNoTables) {
		err = nil
	}
	if rules.Has("ip", "kube-proxy") || rules.Has("ip6", "kube-proxy") {
		modes = append(modes, "nftables")
	}
	legacy, err2 := n.legacy()
	// kube-proxy in IPVS mode has this chain as well.
	chain := rules.HasChain("ip", "nat", "KUBE-SERVICES") || rules.HasChain("ip6", "nat", "KUBE-SERVICES") || legacy.Services
	switch {
	case n.hasLink("kube-ipvs0") || n.virtualServers():
		modes = append(modes, "ipvs")
	case chain:
		modes = append(modes, "iptables")
	}
	return modes, errors.Join(err, err2)
}

func (n *node) hasLink(name string) bool {
	_, ok := n.link(name)
	return ok
}

// virtualServers says whether IPVS has any: three lines of /proc/net/ip_vs are a heading.
func (n *node) virtualServers() bool {
	text, err := os.ReadFile(filepath.Join(n.root.Proc, "net/ip_vs"))
	const heading = 3
	return err == nil && strings.Count(string(text), "\n") > heading
}

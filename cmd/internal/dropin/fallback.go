package dropin

import (
	"net/netip"
	"slices"

	"github.com/nearside-dns/nearside/cmd/internal/dualstack"
)

// defaultFallback returns the known addresses of the Service of -upstreamsvc, none if they are not the fallback.
func (n *Node) defaultFallback() (all []string) {
	first, ok := n.firstFallback()
	if !ok {
		return nil
	}
	all = []string{first.String()}
	if n.second != nil {
		if second, known := n.second.Second(); known {
			all = append(all, second.String())
		}
	}
	return all
}

// firstFallback returns the Service's address from the environment, unless -fallback is set or the address is node-local.
func (n *Node) firstFallback() (first netip.Addr, ok bool) {
	first, err := netip.ParseAddr(n.getenv(serviceVariable(n.options.upstreamSvc)))
	first = first.Unmap()
	return first, err == nil && len(n.options.fallback.addresses) == 0 && !n.isLocal(first)
}

// newLookup returns the lookup of the second fallback; nil if no node-local address is of another family than the first.
func (n *Node) newLookup() *dualstack.Lookup {
	first, ok := n.firstFallback()
	needed := slices.ContainsFunc(n.options.localIPs, func(l netip.Addr) bool {
		routed := l.Is4() || !l.IsLinkLocalUnicast()
		return routed && l.Is4() != first.Is4()
	})
	if !ok || !needed {
		return nil
	}
	return &dualstack.Lookup{Service: n.options.upstreamSvc, First: first, Excluded: n.options.localIPs, Dial: n.dial}
}

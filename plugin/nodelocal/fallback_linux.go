package nodelocal

import (
	"context"
	"net/netip"
	"slices"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// verifyFallback logs the addresses that nothing answers on without a lease, when they have changed: those
// that have no fallback of their family, and that kube-proxy has no rules for.
func (n *node) verifyFallback(ctx context.Context) {
	lacking := n.config.WithoutFallback()
	if n.backend != backendNFTables || len(lacking) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, filtersWait)
	defer cancel()
	proxied, err := rules.Proxied(ctx, lacking, true, rules.ProcNet)
	lacking = slices.DeleteFunc(lacking, func(a netip.Addr) bool { return slices.Contains(proxied, a) })
	if err != nil && len(lacking) > 0 {
		return // not known: nodecache doctor reports what cannot be read
	}
	before := n.unanswerable
	if n.unanswerable = join(lacking); n.unanswerable == before {
		return
	}
	if len(lacking) == 0 {
		log.Info("Every address is answered without a lease as well: kube-proxy has rules for those without a fallback")
	}
	for _, a := range lacking {
		log.Warningf("Address %s has no fallback: while nodecache does not answer there, pods get no answer; %s", a, rules.FallbackAdvice(a))
	}
}

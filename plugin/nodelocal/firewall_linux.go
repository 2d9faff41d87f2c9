package nodelocal

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/internal/nft"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules/firewall"
)

// filtersWait is the max. time of a reading of the packet filters.
const filtersWait = 2 * time.Second

// watchFilters reads the packet filters of other programs after each verification, and when queries cease to arrive, in
// its own goroutine: large rulesets would delay repairs.
func (n *node) watchFilters(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.filtersDue:
		}
		n.verifyFilters(ctx)
		n.verifyFallback(ctx)
	}
}

// verifyFilters logs the chains of other programs that may drop queries of pods, when they have changed: as a warning while
// queries do not arrive, for information without nftables rules, which would prove that they do, and not while they arrive.
// Chains at the hook ingress are always logged: they come before the rules that count packets. It skips chains that it
// can't read; nodecache doctor reports them.
func (n *node) verifyFilters(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, filtersWait)
	defer cancel()
	var suspects []firewall.Suspect
	var ingresses []rules.Ingress
	var err error
	blocked := n.blocked()
	withTables := n.backend == backendNFTables || nft.Loaded()
	if n.backend != backendNFTables || len(blocked) > 0 {
		addresses := blocked
		if len(addresses) == 0 {
			addresses = n.config.Addresses
		}
		suspects, err = firewall.Suspects(ctx, firewall.Packets(addresses, n.config.Port), withTables)
	}
	if withTables && err == nil {
		ingresses, err = firewall.Ingresses(ctx, firewall.Packets(n.config.Addresses, n.config.Port))
	}
	if ctx.Err() != nil {
		return
	}
	before := n.filters
	n.filters = map[string]bool{}
	for _, s := range suspects {
		key := fmt.Sprint(s.Chain, s.Traffic()) // without handles, which change when a program loads its rules again
		if n.filters[key] = true; before[key] {
			continue
		}
		warn, effect := log.Infof, "pods may get no answer"
		if len(blocked) > 0 {
			warn, effect = log.Warningf, "queries do not arrive, and this may be the reason"
		}
		warn("Packet filter: %s, %s: %s: %s; to let DNS through: %s", s.Chain, s.Rule, s.Traffic(), effect, strings.Join(s.Remedy(), "; "))
	}
	for _, i := range ingresses {
		if n.filters[i.String()] = true; !before[i.String()] {
			log.Warningf("Packet filter: %s: pods whose queries it drops get no answer, and the lease stays: nodecache's rules come later", i)
		}
	}
	switch {
	case err != nil: // chains that could not be read may be unchanged
		maps.Copy(n.filters, before)
	case len(n.filters) == 0 && len(before) > 0:
		log.Info("No other packet filter is suspected any more of dropping DNS to the node-local addresses")
	}
}

// verifyFallback logs the addresses that are not answered without a lease, when they have changed: those without a
// fallback of their family and without rules of kube-proxy.
func (n *node) verifyFallback(ctx context.Context) {
	lacking := n.config.WithoutFallback()
	if n.backend != backendNFTables || len(lacking) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, filtersWait)
	defer cancel()
	proxy, err := rules.ReadKubeProxy(ctx, true)
	lacking = slices.DeleteFunc(lacking, func(a netip.Addr) bool { return slices.Contains(proxy.Services, a) })
	if err != nil && len(lacking) > 0 {
		return // unknown: nodecache doctor reports rules that it can't read
	}
	before := n.withoutFallback
	if n.withoutFallback = join(lacking); n.withoutFallback == before {
		return
	}
	if len(lacking) == 0 {
		log.Info("Every address is answered without a lease as well: kube-proxy has rules for those without a fallback")
	}
	for _, a := range lacking {
		if n.socketsTranslated(a) {
			log.Warningf("Address %s gets no queries: %v", a, errTranslated)
			continue
		}
		log.Warningf("Address %s has no fallback: while nodecache does not answer there, pods get no answer; %s", a, rules.FallbackAdvice(a))
	}
}

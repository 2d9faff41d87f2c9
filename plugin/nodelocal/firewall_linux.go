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

// filtersWait is the max. time of an evaluation of the packet filters.
const filtersWait = 2 * time.Second

// watchFilters evaluates the packet filters of other programs after each verification, in its own goroutine: the
// evaluation of large rulesets would delay repairs.
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

// verifyFilters logs the chains of other programs that drop or reject queries of pods or their answers, when they have
// changed. It skips chains that it can't read; nodecache doctor reports them.
func (n *node) verifyFilters(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, filtersWait)
	defer cancel()
	tracked := n.rules == nil
	packets := firewall.Packets(n.config.Addresses, n.config.Port, tracked)
	withTables := n.backend == backendNFTables || nft.Loaded()
	found, err := firewall.Check(ctx, packets, withTables)
	var ingresses []rules.Ingress
	if withTables && err == nil {
		ingresses, err = rules.Ingresses(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	before := n.filters
	n.filters = map[string]bool{}
	for _, f := range found {
		key := fmt.Sprint(f.Chain, f.Traffic(), f.Certain())
		if n.filters[key] = true; !before[key] {
			logFilter(f)
		}
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
		log.Info("No other packet filter drops or rejects DNS on the node-local addresses any more")
	}
}

func logFilter(f firewall.Finding) {
	remedy := strings.Join(f.Remedy(), "; ")
	if f.Certain() {
		log.Warningf("Packet filter: %s, %s: %s: pods get no answer from this node; to let DNS through: %s", f.Chain, f.Rule, f.Traffic(), remedy)
		return
	}
	log.Infof("Packet filter: %s, %s: %s: pods get an answer only by %s; to let DNS of all pods through: %s", f.Chain, f.Rule, f.Traffic(), strings.Join(f.Unless, "; "), remedy)
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

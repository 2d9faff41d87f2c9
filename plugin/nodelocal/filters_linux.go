package nodelocal

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules/firewall"
)

// filtersWait bounds an evaluation of the packet filters.
const filtersWait = 2 * time.Second

// followFilters evaluates the packet filters of others after each verification, apart from it: large rulesets take time,
// in which interface and rules would not be repaired.
func (n *node) followFilters(ctx context.Context) {
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

// verifyFilters logs the chains of others that drop or reject queries of pods or their answers, when
// they have changed. What cannot be read is left out: nodecache doctor reports it.
func (n *node) verifyFilters(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, filtersWait)
	defer cancel()
	tracked := n.keeper == nil
	packets := firewall.Packets(n.config.Addresses, n.config.Port, tracked)
	found, err := firewall.Check(ctx, packets, n.backend == backendNFTables || rules.TablesLoaded(), rules.ProcNet)
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
	switch {
	case err != nil: // what could not be read now may be there still
		maps.Copy(n.filters, before)
	case len(found) == 0 && len(before) > 0:
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

//go:build linux

package doctor

import (
	"context"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// fallbackIn returns the addresses to which nodecache's rules for an interface send queries without a lease: those of cluster
// DNS. It returns none for an error, which checkRules reports.
func fallbackIn(ctx context.Context, iface string) (all []netip.Addr) {
	found, _ := rules.ReadChain(ctx, nftables.TableFamilyINet, rules.TableName(iface), rules.ChainFallback, func(name string) expr.Any {
		if name == "immediate" {
			return &expr.Immediate{}
		}
		return nil
	})
	for _, r := range found {
		for _, e := range r.Exprs {
			target, ok := e.(*expr.Immediate) // the only values that these rules load
			if !ok {
				continue
			}
			if a, ok := netip.AddrFromSlice(target.Data); ok && !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return all
}

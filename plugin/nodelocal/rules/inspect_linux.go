package rules

import (
	"context"
	"net/netip"

	"github.com/google/nftables"
)

// Matched returns the single addresses that the rules of each chain of an interface's table match. The
// map is nil if there is no such table.
func Matched(ctx context.Context, iface string) (map[string][]netip.Addr, error) {
	return Steady(func() (map[string][]netip.Addr, error) {
		chains, err := chainsOf(TableName(iface))
		if err != nil || len(chains) == 0 {
			return nil, err
		}
		matched := make(map[string][]netip.Addr, len(chains))
		for _, ch := range chains {
			rules, err := ReadChain(ctx, nftables.TableFamilyINet, ch.Table.Name, ch.Name, predecessorExpression)
			if err != nil {
				return nil, err
			}
			matched[ch.Name] = nil
			for _, r := range rules {
				matched[ch.Name] = append(matched[ch.Name], matchedAddresses(r.Exprs)...)
			}
		}
		return matched, nil
	})
}

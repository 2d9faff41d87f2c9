//go:build linux

package kernel

import (
	"context"
	"net/netip"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules/firewall"
)

// Firewall returns the chains of others that drop or reject packets. With an error it returns what it
// has found all the same. Without withTables nftables is not listed, which loads
// its module.
func Firewall(ctx context.Context, packets []firewall.Packet, withTables bool, procNet string) ([]firewall.Finding, error) {
	return foundWithin(ctx, "evaluate packet filters", func() ([]firewall.Finding, error) {
		return firewall.Check(ctx, packets, withTables, procNet)
	})
}

// Proxied returns which of the addresses kube-proxy has rules for, with an error as far as they are
// known.
func Proxied(ctx context.Context, addrs []netip.Addr, withTables bool, procNet string) ([]netip.Addr, error) {
	return foundWithin(ctx, "read rules of kube-proxy", func() ([]netip.Addr, error) {
		return rules.Proxied(ctx, addrs, withTables, procNet)
	})
}

//go:build linux

package kernel

import (
	"context"
	"errors"
	"net/netip"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules/firewall"
)

// Firewall returns the chains of others that drop or reject packets. With an error it returns what it
// has found all the same. Without withTables nftables is not listed, which loads
// its module.
func Firewall(ctx context.Context, packets []firewall.Packet, withTables bool, procNet string) ([]firewall.Finding, error) {
	type result struct {
		found []firewall.Finding
		err   error
	}
	r, err := withPatience(ctx, "evaluate packet filters", func() (result, error) {
		found, err := firewall.Check(ctx, packets, withTables, procNet)
		return result{found, err}, nil
	})
	return r.found, errors.Join(err, r.err)
}

// Proxied returns which of the addresses kube-proxy has rules for, with an error as far as they are
// known.
func Proxied(ctx context.Context, addrs []netip.Addr, withTables bool, procNet string) ([]netip.Addr, error) {
	type result struct {
		found []netip.Addr
		err   error
	}
	r, err := withPatience(ctx, "read rules of kube-proxy", func() (result, error) {
		found, err := rules.Proxied(ctx, addrs, withTables, procNet)
		return result{found, err}, nil
	})
	return r.found, errors.Join(err, r.err)
}

package rules

import (
	"context"
	"errors"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/internal/nft"
)

// Generation returns the number of nftables' current ruleset, of all tables. Each transaction of any program
// increases it, so that an equal number means unchanged rules.
func Generation() (uint32, error) {
	id, err := nft.Generation()
	if err != nil {
		return 0, &KernelError{"read the generation", err}
	}
	return id, nil
}

// ReadChain returns the rules of a chain, with handle, expressions and user data; none if the chain is missing.
// The function expression returns an empty expression for its name, or nil for one that is not to be read. The chain
// may be of another program: an expression that can't be read is nil, and the rest of the rule is read nevertheless.
func ReadChain(ctx context.Context, family nftables.TableFamily, table, chain string, expression func(name string) expr.Any) (found []nftables.Rule, err error) {
	attributes, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_RULE_TABLE, Data: append([]byte(table), 0)},
		{Type: unix.NFTA_RULE_CHAIN, Data: append([]byte(chain), 0)},
	})
	if err != nil {
		return nil, err
	}
	err = nft.Request(ctx, unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETRULE, netlink.Dump, byte(family), attributes, func(_ byte, reply *netlink.AttributeDecoder) error {
		var rule nftables.Rule
		for reply.Next() {
			switch reply.Type() {
			case unix.NFTA_RULE_HANDLE:
				rule.Handle = reply.Uint64()
			case unix.NFTA_RULE_USERDATA:
				rule.UserData = reply.Bytes()
			case unix.NFTA_RULE_EXPRESSIONS:
				reply.Nested(func(list *netlink.AttributeDecoder) error {
					for list.Next() {
						rule.Exprs = append(rule.Exprs, readExpression(family, list.Bytes(), expression))
					}
					return nil
				})
			}
		}
		found = append(found, rule)
		return nil
	})
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, &KernelError{"read chain " + table + " " + chain, err}
	}
	return found, nil
}

// readExpression returns the expression of an attribute, nil if it can't be read.
func readExpression(family nftables.TableFamily, data []byte, expression func(name string) expr.Any) (e expr.Any) {
	attributes, err := netlink.NewAttributeDecoder(data)
	if err != nil {
		return nil
	}
	for attributes.Next() { // the name comes first
		switch attributes.Type() {
		case unix.NFTA_EXPR_NAME:
			e = expression(attributes.String())
		case unix.NFTA_EXPR_DATA:
			data := attributes.Bytes()
			if e != nil && expr.Unmarshal(byte(family), data, e) != nil {
				return nil
			}
			// A verdict is an immediate value for the verdict register.
			if i, ok := e.(*expr.Immediate); ok && i.Register == unix.NFT_REG_VERDICT {
				if e = (&expr.Verdict{}); expr.Unmarshal(byte(family), data, e) != nil {
					return nil
				}
			}
		}
	}
	if attributes.Err() != nil {
		return nil
	}
	return e
}

// matchedAddresses returns the single addresses that the expressions of a rule require as source or destination.
func matchedAddresses(expressions []expr.Any) (found []netip.Addr) {
	header := false
	for _, e := range expressions {
		switch e := e.(type) {
		case *expr.Payload:
			header = e.Base == expr.PayloadBaseNetworkHeader && e.DestRegister != 0 && (e.Len == 4 || e.Len == 16)
		case *expr.Cmp:
			if a, ok := netip.AddrFromSlice(e.Data); ok && header && e.Op == expr.CmpOpEq {
				found = append(found, a)
			}
		default:
			header = false // the field is compared as something else, such as a network
		}
	}
	return found
}

// maxListings is the max. number of attempts to list nftables without a concurrent change.
const maxListings = 5

// Steady lists nftables, and repeats the listing if the rules have changed meanwhile: the kernel sends a listing in
// parts, which are inconsistent then.
func Steady[T any](list func() (T, error)) (T, error) { return steady(Generation, list) }

func steady[T any](generation func() (uint32, error), list func() (T, error)) (value T, err error) {
	for range maxListings {
		before, unknown := generation()
		if value, err = list(); unknown != nil {
			return value, err
		}
		if after, unknown := generation(); unknown != nil || after == before {
			return value, err
		}
	}
	return value, err
}

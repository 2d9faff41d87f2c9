package rules

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// procModules and procSymbols are what the kernel shows of its modules and functions.
const (
	procModules = "/proc/modules"
	procSymbols = "/proc/kallsyms"
)

// TablesLoaded returns whether nf_tables is in the running kernel, so that a question to it loads nothing.
func TablesLoaded() bool { return tablesLoaded(procModules, procSymbols) }

// tablesLoaded says whether nf_tables is in the running kernel: asked without it, the kernel would load
// its module. A kernel that shows neither its modules nor its symbols is not asked.
func tablesLoaded(modules, symbols string) bool {
	loaded, err := hasLine(modules, func(line string) bool { return strings.HasPrefix(line, "nf_tables ") })
	if loaded || errors.Is(err, fs.ErrNotExist) {
		return true // a kernel without modules loads none
	}
	builtin, err := hasLine(symbols, func(line string) bool {
		fields := strings.Fields(line)
		return len(fields) > 2 && fields[2] == "nft_do_chain"
	})
	return builtin && err == nil
}

// hasLine says whether a file has a line that fits.
func hasLine(path string, fits func(string) bool) (bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = file.Close() }() // only read
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if fits(lines.Text()) {
			return true, nil
		}
	}
	return false, lines.Err()
}

// ReadChain returns the rules of a chain, with handle, expressions and data; none if there is no such
// chain. expression returns an empty expression for its name, and nil for one that is not to be read.
// The chain may be of another program: an expression that cannot be read is nil, and the rest of the
// rule is read all the same.
func ReadChain(ctx context.Context, family nftables.TableFamily, table, chain string, expression func(name string) expr.Any) (found []nftables.Rule, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.SetDeadline(deadline(ctx)); err != nil {
		return nil, err
	}
	which, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: unix.NFTA_RULE_TABLE, Data: append([]byte(table), 0)},
		{Type: unix.NFTA_RULE_CHAIN, Data: append([]byte(chain), 0)},
	})
	if err != nil {
		return nil, err
	}
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{byte(family), unix.NFNETLINK_V0, 0, 0}, which...),
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	for _, m := range answers {
		rule, e := ruleOf(family, m.Data, expression)
		if e != nil {
			return found, errors.Join(err, e)
		}
		found = append(found, rule)
	}
	return found, err
}

// deadline is until when an exchange with the kernel may last.
func deadline(ctx context.Context) time.Time {
	until := time.Now().Add(kernelWait)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		return d
	}
	return until
}

// ruleOf reads a message of the kernel: handle, expressions and data of a rule.
func ruleOf(family nftables.TableFamily, message []byte, expression func(string) expr.Any) (rule nftables.Rule, err error) {
	const header, handleSize = 4, 8 // struct nfgenmsg; a 64 bit number in network order
	if len(message) < header {
		return rule, fmt.Errorf("a rule of %d bytes", len(message))
	}
	attributes, err := netlink.UnmarshalAttributes(message[header:])
	if err != nil {
		return rule, err
	}
	for _, a := range attributes {
		switch {
		case a.Type == unix.NFTA_RULE_HANDLE && len(a.Data) == handleSize:
			rule.Handle = binary.BigEndian.Uint64(a.Data)
		case a.Type == unix.NFTA_RULE_USERDATA:
			rule.UserData = a.Data
		case attribute(a.Type) == unix.NFTA_RULE_EXPRESSIONS:
			list, err := netlink.UnmarshalAttributes(a.Data)
			if err != nil {
				return rule, err
			}
			for _, e := range list {
				rule.Exprs = append(rule.Exprs, expressionOf(family, e.Data, expression))
			}
		}
	}
	return rule, nil
}

// attribute is a type without the flag of attributes that have others in them.
func attribute(t uint16) uint16 { return t &^ unix.NLA_F_NESTED }

// expressionOf reads an expression; nil is one that cannot be read.
func expressionOf(family nftables.TableFamily, data []byte, expression func(name string) expr.Any) expr.Any {
	attributes, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		return nil
	}
	var e expr.Any
	for _, a := range attributes { // the name comes first
		switch attribute(a.Type) {
		case unix.NFTA_EXPR_NAME:
			e = expression(strings.TrimRight(string(a.Data), "\x00"))
		case unix.NFTA_EXPR_DATA:
			if e != nil && expr.Unmarshal(byte(family), a.Data, e) != nil {
				return nil
			}
			// A verdict is an immediate value for the verdict register.
			if i, ok := e.(*expr.Immediate); ok && i.Register == unix.NFT_REG_VERDICT {
				if e = (&expr.Verdict{}); expr.Unmarshal(byte(family), a.Data, e) != nil {
					return nil
				}
			}
		}
	}
	return e
}

// predecessorExpression returns an expression of the kinds that identify a rule of node-local-dns.
func predecessorExpression(name string) expr.Any {
	switch name {
	case "payload":
		return &expr.Payload{}
	case "cmp":
		return &expr.Cmp{}
	case "match":
		return &expr.Match{}
	}
	return nil
}

// MatchedAddresses returns the single addresses that the expressions of a rule want as source or
// destination.
func MatchedAddresses(expressions []expr.Any) (found []netip.Addr) {
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
			header = false // it is compared as something else, such as a network
		}
	}
	return found
}

// listings is how often a listing is repeated that somebody else's change has cut through.
const listings = 5

// Steady lists what nftables holds, and repeats it if the rules were changed meanwhile: the kernel sends
// a listing in parts, and they do not fit together then.
func Steady[T any](list func() (T, error)) (T, error) { return steady(Generation, list) }

// steady is Steady, with what tells of changes.
func steady[T any](generation func() (uint32, error), list func() (T, error)) (value T, err error) {
	for range listings {
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

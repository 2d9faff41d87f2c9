package rules

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// predecessorComment is what the comment of every iptables rule of node-local-dns begins with; those of
// our own iptables backend are the same.
const predecessorComment = "NodeLocal DNS Cache:"

// predecessorWait bounds a look for such rules, and their removal. It is longer than the wait for the
// lock of iptables.
const predecessorWait = 8 * time.Second

// PredecessorRule is an iptables rule of node-local-dns, or of our own iptables backend.
type PredecessorRule struct {
	// Family is ip or ip6; Table and Chain are as iptables names them.
	Family, Table, Chain string
	// Comment is the whole comment.
	Comment string
	// Addresses are the single addresses that the rule matches.
	Addresses []netip.Addr

	handle  uint64   // of a rule of iptables-nft
	program string   // the program that removes it otherwise
	spec    []string // what the program calls the rule
}

// Legacy says whether the rule is in the old iptables, not in nftables.
func (r PredecessorRule) Legacy() bool { return r.program != "" }

// Untracks says whether the rule keeps packets out of connection tracking, and so from cluster DNS once
// the server is gone. The others accept packets, which a firewall of the node may need and which keeps
// them from nobody.
func (r PredecessorRule) Untracks() bool { return r.Table == "raw" }

// String names the rule in one line.
func (r PredecessorRule) String() string {
	tool := iptablesName(r.Family)
	if r.Legacy() {
		tool += "-legacy"
	}
	text := fmt.Sprintf("%s -t %s %s %q", tool, r.Table, r.Chain, r.Comment)
	for _, a := range r.Addresses {
		text += " " + a.String()
	}
	return text
}

func iptablesName(family string) string {
	if family == "ip6" {
		return "ip6tables"
	}
	return "iptables"
}

// predecessorPlaces are the tables and chains that hold such rules.
var predecessorPlaces = []struct{ table, chain string }{
	{"raw", "PREROUTING"}, {"raw", "OUTPUT"}, {"filter", "INPUT"}, {"filter", "OUTPUT"},
}

// Predecessors returns the rules that node-local-dns or our iptables backend left behind, in nftables
// and in the old iptables, that match one of the addresses; without addresses all of them. Looking
// changes nothing and has the kernel load no module. With an error it returns the rules that it has
// found all the same; the error is exec.ErrNotFound if there are tables of the old iptables and no
// program that reads them.
//
// It takes a few seconds at most, unless the kernel itself hangs: who cannot wait for that calls it in
// a goroutine.
func Predecessors(ctx context.Context, addrs []netip.Addr) ([]PredecessorRule, error) {
	ctx, cancel := context.WithTimeout(ctx, predecessorWait)
	defer cancel()
	found, err := nftPredecessors(ctx)
	legacy, err2 := legacyPredecessors(ctx, ProcNet)
	found = slices.DeleteFunc(append(found, legacy...), func(r PredecessorRule) bool {
		return len(addrs) > 0 && !slices.ContainsFunc(r.Addresses, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
	})
	return found, errors.Join(err, err2)
}

// RemovePredecessors removes such rules and returns how many of them were still there. It goes on after
// an error. What is said of time at [Predecessors] is true here as well.
func RemovePredecessors(ctx context.Context, all []PredecessorRule) (removed int, err error) {
	ctx, cancel := context.WithTimeout(ctx, predecessorWait)
	defer cancel()
	for _, r := range all {
		remove := r.removeNFT
		if r.Legacy() {
			remove = r.removeLegacy
		}
		gone, e := remove(ctx)
		if gone {
			removed++
		}
		err = errors.Join(err, e)
	}
	return removed, err
}

// nftPredecessors reads the tables of iptables-nft.
func nftPredecessors(ctx context.Context) (found []PredecessorRule, err error) {
	if !TablesLoaded() {
		return nil, nil
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
		for _, place := range predecessorPlaces {
			name := "ip"
			if family == nftables.TableFamilyIPv6 {
				name = "ip6"
			}
			rules, err := Steady(func() ([]nftables.Rule, error) {
				return ReadChain(ctx, family, place.table, place.chain, predecessorExpression)
			})
			if err != nil {
				return found, &KernelError{fmt.Sprintf("read chain %s %s %s", name, place.table, place.chain), err}
			}
			for _, rule := range rules {
				if comment := commentOf(rule); strings.HasPrefix(comment, predecessorComment) {
					found = append(found, PredecessorRule{
						Family: name, Table: place.table, Chain: place.chain, Comment: comment,
						Addresses: MatchedAddresses(rule.Exprs), handle: rule.Handle,
					})
				}
			}
		}
	}
	return found, nil
}

// openFor returns a connection for one exchange, which ends with the context.
func openFor(ctx context.Context) (*nftables.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error { return c.SetDeadline(deadline(ctx)) }))
}

// commentOf returns a rule's comment: iptables-nft keeps it as a match, nft in the data that nftables
// keeps for programs.
func commentOf(rule nftables.Rule) string {
	for _, e := range rule.Exprs {
		m, ok := e.(*expr.Match)
		if !ok || m.Name != "comment" {
			continue
		}
		if c, ok := m.Info.(*xt.Comment); ok {
			return string(*c)
		}
	}
	return commentIn(rule.UserData)
}

// commentIn returns the comment in a rule's data: a list of types, lengths and values, which any
// program may have written.
func commentIn(data []byte) string {
	const comment, header = 0, 2 // NFTNL_UDATA_RULE_COMMENT; type and length
	for len(data) >= header {
		kind, end := data[0], header+int(data[1])
		if end > len(data) {
			break
		}
		if kind == comment {
			return strings.TrimRight(string(data[header:end]), "\x00")
		}
		data = data[end:]
	}
	return ""
}

// removeNFT removes a rule of iptables-nft, and returns whether it was there.
func (r PredecessorRule) removeNFT(ctx context.Context) (bool, error) {
	c, err := openFor(ctx)
	if err == nil {
		family := nftables.TableFamilyIPv4
		if r.Family == "ip6" {
			family = nftables.TableFamilyIPv6
		}
		table := &nftables.Table{Family: family, Name: r.Table}
		err = c.DelRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Table: table, Name: r.Chain}, Handle: r.handle})
	}
	if err == nil {
		err = c.Flush()
	}
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, &KernelError{"remove " + r.String(), err}
	}
	return true, nil
}

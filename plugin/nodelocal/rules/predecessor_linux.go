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
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/internal/nft"
)

// predecessorComment is the prefix of the comment of every iptables rule of node-local-dns and of our iptables backend.
const predecessorComment = "NodeLocal DNS Cache:"

// predecessorWait is the max. time to find the rules of predecessors, or to remove them. It is longer than the wait for
// the lock of iptables.
const predecessorWait = 8 * time.Second

// PredecessorRule is an iptables rule that a predecessor has left: node-local-dns, or a nodecache with the iptables
// backend.
type PredecessorRule struct {
	Family       string       // ip or ip6
	Table, Chain string       // as iptables names them
	Comment      string       // the whole comment
	Addresses    []netip.Addr // the single addresses that the rule matches

	handle  uint64   // of a rule of iptables-nft
	program string   // that removes a rule of iptables-legacy
	spec    []string // arguments of the program for the rule
}

// Legacy returns whether the rule is in iptables-legacy, not in nftables.
func (r PredecessorRule) Legacy() bool { return r.program != "" }

// Untracks returns whether the rule excludes packets from connection tracking, and so from NAT to cluster DNS, even
// when the server has ended. The other rules accept packets; they divert none, and a firewall of the node may depend
// on them.
func (r PredecessorRule) Untracks() bool { return r.Table == "raw" }

// String returns the rule in one line.
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

// iptablesName returns the program for an address family.
func iptablesName(family string) string {
	if family == "ip6" {
		return "ip6tables"
	}
	return "iptables"
}

// predecessorPlaces are the tables and chains with rules of predecessors.
var predecessorPlaces = []struct{ table, chain string }{
	{"raw", "PREROUTING"}, {"raw", "OUTPUT"}, {"filter", "INPUT"}, {"filter", "OUTPUT"},
}

// Predecessors returns the rules that predecessors have left, in nftables and iptables-legacy, and that match one of
// the addresses; without addresses all such rules. It changes nothing and loads no module of the kernel. With an error
// it returns the rules that it could read; the error is exec.ErrNotFound if no program can read the tables of
// iptables-legacy.
//
// It returns after predecessorWait, unless the kernel itself hangs: a caller that can't wait for that needs a
// goroutine.
func Predecessors(ctx context.Context, addrs []netip.Addr) ([]PredecessorRule, error) {
	ctx, cancel := context.WithTimeout(ctx, predecessorWait)
	defer cancel()
	found, err := nftPredecessors(ctx)
	legacy, err2 := legacyPredecessors(ctx, procNet)
	found = slices.DeleteFunc(append(found, legacy...), func(r PredecessorRule) bool {
		return len(addrs) > 0 && !slices.ContainsFunc(r.Addresses, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
	})
	return found, errors.Join(err, err2)
}

// RemovePredecessors removes rules that [Predecessors] returned, and returns the number of removed ones; others may have
// been removed before. It continues after an error. It has the same time limit.
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

// tableFamilies are the families of nftables by name.
var tableFamilies = map[string]nftables.TableFamily{"ip": nftables.TableFamilyIPv4, "ip6": nftables.TableFamilyIPv6}

// nftPredecessors returns the predecessors' rules in the tables of iptables-nft.
func nftPredecessors(ctx context.Context) (found []PredecessorRule, err error) {
	if !nft.Loaded() {
		return nil, nil
	}
	for _, family := range ipFamilies {
		for _, place := range predecessorPlaces {
			rules, err := Steady(func() ([]nftables.Rule, error) {
				return ReadChain(ctx, tableFamilies[family], place.table, place.chain, predecessorExpression)
			})
			if err != nil {
				return found, err
			}
			for _, rule := range rules {
				if comment := commentOf(rule); strings.HasPrefix(comment, predecessorComment) {
					found = append(found, PredecessorRule{
						Family: family, Table: place.table, Chain: place.chain, Comment: comment,
						Addresses: matchedAddresses(rule.Exprs), handle: rule.Handle,
					})
				}
			}
		}
	}
	return found, nil
}

// predecessorExpression returns an empty expression if its kind identifies a predecessor's rule, else nil.
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

// commentOf returns a rule's comment, which is a match in a rule of iptables-nft, and user data in one of nft.
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

// commentIn returns the comment in a rule's user data: a list of types, lengths and values, which any program may have
// written. The package userdata of google/nftables panics on a wrong length.
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

// removeNFT removes a rule of iptables-nft, and returns whether it was present.
func (r PredecessorRule) removeNFT(ctx context.Context) (bool, error) {
	err := transact(ctx, "remove "+r.String(), func(c *nftables.Conn) error {
		table := &nftables.Table{Family: tableFamilies[r.Family], Name: r.Table}
		return c.DelRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Table: table, Name: r.Chain}, Handle: r.handle})
	})
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil, err
}

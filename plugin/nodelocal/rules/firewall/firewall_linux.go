package firewall

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// checkWait bounds a check, in which programs of iptables may wait for their lock.
const checkWait = 8 * time.Second

// Check returns the chains that drop or reject packets. Tables of nodecache are left out. With an error
// it returns what it has found all the same. Listing nftables makes the kernel load nf_tables:
// without withTables it is not listed. procNet is a folder such as /proc/net.
func Check(ctx context.Context, packets []Packet, withTables bool, procNet string) ([]Finding, error) {
	findings, _, err := check(ctx, packets, withTables, procNet)
	return findings, err
}

func check(ctx context.Context, packets []Packet, withTables bool, procNet string) ([]Finding, []Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	legacy, problem := legacyBases(ctx, procNet)
	type result struct {
		findings []Finding
		verdicts []Verdict
	}
	evaluation := func() (r result, err error) {
		bases := legacy
		if withTables {
			tables, err := tableBases(ctx)
			if err != nil {
				return r, err
			}
			bases = append(tables, legacy...)
		}
		r.findings, r.verdicts, err = evaluate(bases, packets)
		return r, err
	}
	var r result
	var err error
	if withTables {
		r, err = rules.Steady(evaluation)
	} else { // Steady reads the generation of the rules from nf_tables, which would load its module
		r, err = evaluation()
	}
	return r.findings, r.verdicts, errors.Join(err, problem)
}

// families are the families of tables that see packets of IP.
var families = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip",
	nftables.TableFamilyIPv6: "ip6",
	nftables.TableFamilyINet: "inet",
}

var hooks = map[nftables.ChainHook]string{
	*nftables.ChainHookPrerouting:  "prerouting",
	*nftables.ChainHookInput:       "input",
	*nftables.ChainHookOutput:      "output",
	*nftables.ChainHookPostrouting: "postrouting",
}

// table is a table of nftables, of which only what is evaluated is read.
type table struct {
	ctx    context.Context
	kernel *nftables.Table
	chains map[string][]rule
	sets   map[string]set
}

// tableBases returns the chains of nftables that hooks call. Chains of NAT are left out: they see
// tracked packets alone.
func tableBases(ctx context.Context) (all []base, err error) {
	c, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, &rules.KernelError{Operation: "list chains", Err: err}
	}
	tables := map[string]*table{}
	for _, ch := range chains {
		family, ok := families[ch.Table.Family]
		if own := family == "inet" && strings.HasPrefix(ch.Table.Name, rules.TableName("")); !ok || own || ch.Hooknum == nil || ch.Type == nftables.ChainTypeNAT {
			continue
		}
		name := family + " " + ch.Table.Name
		if tables[name] == nil {
			tables[name] = &table{ctx: ctx, kernel: ch.Table, chains: map[string][]rule{}, sets: map[string]set{}}
		}
		b := base{
			chain: Chain{Family: family, Table: ch.Table.Name, Name: ch.Name, Hook: hooks[*ch.Hooknum]},
			drops: ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop,
			rules: tables[name].rules,
		}
		if ch.Priority != nil {
			b.priority = int(*ch.Priority)
		}
		all = append(all, b)
	}
	return all, nil
}

// connect returns a connection to nftables that ends with the context.
func connect(ctx context.Context) (*nftables.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	until, _ := ctx.Deadline()
	return nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error { return c.SetDeadline(until) }))
}

// rules reads the rules of a chain, once.
func (t *table) rules(chain string) ([]rule, error) {
	if all, ok := t.chains[chain]; ok {
		return all, nil
	}
	listed, err := rules.ReadChain(t.ctx, t.kernel.Family, t.kernel.Name, chain, newExpression)
	if err != nil {
		return nil, fmt.Errorf("read chain %s: %w", chain, err)
	}
	all := make([]rule, 0, len(listed))
	for _, r := range listed {
		all = append(all, rule{
			text:     fmt.Sprintf("rule with handle %d", r.Handle),
			outcomes: func(v view) []outcome { return t.outcomesOf(r.Exprs, v) },
		})
	}
	t.chains[chain] = all
	return all, nil
}

// set reads a set, once. One that cannot be read is broken.
func (t *table) set(name string) set {
	if s, ok := t.sets[name]; ok {
		return s
	}
	s := set{broken: true}
	c, err := connect(t.ctx)
	if err == nil {
		var found *nftables.Set
		if found, err = c.GetSetByName(t.kernel, name); err == nil {
			var listed []nftables.SetElement
			if listed, err = c.GetSetElements(found); err == nil {
				s = newSet(found, listed)
			}
		}
	}
	t.sets[name] = s
	return s
}

// newExpression returns an expression by its name; nil is one that is not evaluated.
func newExpression(name string) expr.Any {
	empty, ok := expressions[name]
	if !ok {
		return nil
	}
	return empty()
}

var expressions = map[string]func() expr.Any{
	"bitwise":   func() expr.Any { return &expr.Bitwise{} },
	"cmp":       func() expr.Any { return &expr.Cmp{} },
	"counter":   func() expr.Any { return &expr.Counter{} },
	"ct":        func() expr.Any { return &expr.Ct{} },
	"dup":       func() expr.Any { return &expr.Dup{} },
	"fib":       func() expr.Any { return &expr.Fib{} },
	"immediate": func() expr.Any { return &expr.Immediate{} },
	"limit":     func() expr.Any { return &expr.Limit{} },
	"log":       func() expr.Any { return &expr.Log{} },
	"lookup":    func() expr.Any { return &expr.Lookup{} },
	"masq":      func() expr.Any { return &expr.Masq{} },
	"match":     func() expr.Any { return &expr.Match{} },
	"meta":      func() expr.Any { return &expr.Meta{} },
	"nat":       func() expr.Any { return &expr.NAT{} },
	"notrack":   func() expr.Any { return &expr.Notrack{} },
	"objref":    func() expr.Any { return &expr.Objref{} },
	"payload":   func() expr.Any { return &expr.Payload{} },
	"queue":     func() expr.Any { return &expr.Queue{} },
	"range":     func() expr.Any { return &expr.Range{} },
	"redir":     func() expr.Any { return &expr.Redir{} },
	"reject":    func() expr.Any { return &expr.Reject{} },
	"synproxy":  func() expr.Any { return &expr.SynProxy{} },
	"target":    func() expr.Any { return &expr.Target{} },
	"tproxy":    func() expr.Any { return &expr.TProxy{} },
}

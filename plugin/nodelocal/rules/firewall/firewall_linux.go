package firewall

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// checkWait limits a check, in which programs of iptables may wait for their lock.
const checkWait = 8 * time.Second

// Check returns the chains that drop or reject packets, without those of nodecache. With an error it
// returns those that it has found all the same. Listing nftables makes the kernel load nf_tables: without
// withTables it is not listed.
func Check(ctx context.Context, packets []Packet, withTables bool) ([]Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, checkWait)
	defer cancel()
	legacy, problem := legacyBases(ctx)
	if !withTables { // rules.Steady reads the generation of the rules from nf_tables, which would load its module
		findings, err := evaluate(legacy, packets)
		return findings, errors.Join(err, problem)
	}
	findings, err := rules.Steady(func() ([]Finding, error) {
		tables, err := tableBases(ctx)
		if err != nil {
			return nil, err
		}
		return evaluate(append(tables, legacy...), packets)
	})
	return findings, errors.Join(err, problem)
}

// families are the families of tables that filter packets of IP.
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

// table is a table of nftables. Its chains and sets are read when a packet reaches them.
type table struct {
	ctx    context.Context
	kernel *nftables.Table
	chains map[string][]rule
	sets   map[string]set
}

// tableBases returns the chains of nftables that hooks call, without those of NAT, which process only
// tracked packets.
func tableBases(ctx context.Context) (all []base, err error) {
	chains, err := rules.Exchange(ctx, "list chains", (*nftables.Conn).ListChains)
	if err != nil {
		return nil, err
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

// rules reads the rules of a chain, once.
func (t *table) rules(chain string) ([]rule, error) {
	if all, ok := t.chains[chain]; ok {
		return all, nil
	}
	listed, err := rules.ReadChain(t.ctx, t.kernel.Family, t.kernel.Name, chain, newExpression)
	if err != nil {
		return nil, err
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
	s, err := t.readSet(name)
	if err != nil {
		s = set{broken: true}
	}
	t.sets[name] = s
	return s
}

func (t *table) readSet(name string) (set, error) {
	return rules.Exchange(t.ctx, "read set "+name, func(c *nftables.Conn) (s set, err error) {
		found, err := c.GetSetByName(t.kernel, name)
		if err != nil {
			return s, err
		}
		listed, err := c.GetSetElements(found)
		return newSet(found, listed), err
	})
}

// expressions are those that are evaluated, by their names.
var expressions = map[string]expr.Any{
	"bitwise": &expr.Bitwise{}, "cmp": &expr.Cmp{}, "counter": &expr.Counter{}, "ct": &expr.Ct{}, "dup": &expr.Dup{},
	"fib": &expr.Fib{}, "immediate": &expr.Immediate{}, "limit": &expr.Limit{}, "log": &expr.Log{}, "lookup": &expr.Lookup{},
	"masq": &expr.Masq{}, "match": &expr.Match{}, "meta": &expr.Meta{}, "nat": &expr.NAT{}, "notrack": &expr.Notrack{},
	"objref": &expr.Objref{}, "payload": &expr.Payload{}, "queue": &expr.Queue{}, "range": &expr.Range{}, "redir": &expr.Redir{},
	"reject": &expr.Reject{}, "synproxy": &expr.SynProxy{}, "target": &expr.Target{}, "tproxy": &expr.TProxy{},
}

// newExpression returns an empty expression by its name; nil is one that is not evaluated.
func newExpression(name string) expr.Any {
	kind, ok := expressions[name]
	if !ok {
		return nil
	}
	return reflect.New(reflect.TypeOf(kind).Elem()).Interface().(expr.Any)
}

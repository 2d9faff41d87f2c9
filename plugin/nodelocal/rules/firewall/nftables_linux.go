package firewall

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
)

// readWait is the max. time of a reading, in which programs of iptables may wait for their lock.
const readWait = 8 * time.Second

// Suspects returns the chains that may drop or reject packets, without those of nodecache. With an error it returns the chains
// that it has found. Listing nftables makes the kernel load nf_tables: without withTables it is not listed.
func Suspects(ctx context.Context, packets []Packet, withTables bool) ([]Suspect, error) {
	ctx, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	legacy, unread := legacyBases(ctx)
	if !withTables { // rules.Steady reads the generation of the rules from nf_tables, which would load its module
		found, err := suspects(legacy, packets)
		return found, errors.Join(err, unread)
	}
	found, err := rules.Steady(func() ([]Suspect, error) {
		tables, unread := tableBases(ctx)
		found, err := suspects(append(tables, legacy...), packets)
		return found, errors.Join(err, unread)
	})
	return found, errors.Join(err, unread)
}

// families are the families of tables that filter packets of IP.
var families = map[nftables.TableFamily]string{
	nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
}

// hooks are the hooks that process queries of pods, without ingress: see Ingresses.
var hooks = map[nftables.ChainHook]string{*nftables.ChainHookPrerouting: "prerouting", *nftables.ChainHookInput: "input"}

// proxyTable is the table of kube-proxy, which drops and rejects only tracked packets to Services.
const proxyTable = "kube-proxy"

// tableBases returns the chains of nftables that hooks call, without those of NAT, which process only tracked packets.
func tableBases(ctx context.Context) (all []base, err error) {
	chains, err := rules.Exchange(ctx, "list chains", (*nftables.Conn).ListChains)
	for _, ch := range chains {
		family, ok := families[ch.Table.Family]
		own := family == "inet" && strings.HasPrefix(ch.Table.Name, rules.TableName(""))
		if !ok || own || ch.Table.Name == proxyTable || ch.Hooknum == nil || ch.Type == nftables.ChainTypeNAT {
			continue
		}
		all = append(all, base{
			Chain: Chain{Family: family, Table: ch.Table.Name, Name: ch.Name, Hook: hooks[*ch.Hooknum]},
			drops: ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop,
			rules: table{ctx, ch.Table, map[string][]rule{}}.rules,
		})
	}
	return all, err
}

// Ingresses returns the chains at the hook ingress that may drop or reject packets.
func Ingresses(ctx context.Context, packets []Packet) ([]rules.Ingress, error) {
	return rules.Steady(func() (found []rules.Ingress, err error) {
		all, err := rules.Ingresses(ctx)
		for _, i := range all {
			kernel := nftables.Table{Name: i.Table, Family: nftables.TableFamilyINet}
			if i.Family == "netdev" {
				kernel.Family = nftables.TableFamilyNetdev
			}
			b := base{Chain{Family: i.Family, Table: i.Table, Name: i.Chain, Hook: "ingress"}, i.Drops, table{ctx, &kernel, map[string][]rule{}}.rules}
			for _, p := range packets {
				reason, unread := b.dropping(p)
				i.Reason, err = cmp.Or(i.Reason, reason), cmp.Or(err, unread)
			}
			if i.Reason != "" {
				found = append(found, i)
			}
		}
		return found, err
	})
}

// table is a table of nftables, with the chains that have been read.
type table struct {
	ctx    context.Context
	kernel *nftables.Table
	chains map[string][]rule
}

// rules reads the rules of a chain, once.
func (t table) rules(chain string) (all []rule, err error) {
	if all, ok := t.chains[chain]; ok {
		return all, nil
	}
	listed, err := rules.ReadChain(t.ctx, t.kernel.Family, t.kernel.Name, chain, newExpression)
	for _, r := range listed {
		var mapped []verdict
		for _, e := range r.Exprs {
			if l, ok := e.(*expr.Lookup); ok && l.IsDestRegSet && l.DestRegister == unix.NFT_REG_VERDICT {
				var unread error
				mapped, unread = t.verdicts(l.SetName)
				err = errors.Join(err, unread)
			}
		}
		all = append(all, rule{fmt.Sprintf("rule with handle %d", r.Handle), func(p Packet) (match, []verdict) {
			m, verdicts := p.read(r.Exprs)
			return m, append(verdicts, mapped...)
		}})
	}
	t.chains[chain] = all
	return all, err
}

// verdicts reads the verdicts of a map.
func (t table) verdicts(name string) (all []verdict, err error) {
	elements, err := rules.Exchange(t.ctx, "read map "+name, func(c *nftables.Conn) ([]nftables.SetElement, error) {
		set, err := c.GetSetByName(t.kernel, name)
		if err != nil {
			return nil, err
		}
		return c.GetSetElements(set)
	})
	for _, e := range elements {
		attributes, unread := netlink.UnmarshalAttributes(e.Val) // the end of a range has none
		err = errors.Join(err, unread)
		var v verdict
		for _, a := range attributes {
			switch {
			case a.Type == unix.NFTA_VERDICT_CODE && len(a.Data) == 4:
				v.action = actions[expr.VerdictKind(int32(binary.BigEndian.Uint32(a.Data)))]
			case a.Type == unix.NFTA_VERDICT_CHAIN:
				v.chain = string(bytes.TrimRight(a.Data, "\x00"))
			}
		}
		all = append(all, v)
	}
	return all, err
}

var actions = map[expr.VerdictKind]action{
	expr.VerdictAccept: accepts, expr.VerdictDrop: drops, expr.VerdictJump: jumps, expr.VerdictGoto: goes, expr.VerdictReturn: returns,
}

// expressions are the kinds of expressions that are read, by their names.
var expressions = map[string]expr.Any{
	"bitwise": &expr.Bitwise{}, "cmp": &expr.Cmp{}, "counter": &expr.Counter{}, "ct": &expr.Ct{}, "immediate": &expr.Immediate{}, "log": &expr.Log{}, "lookup": &expr.Lookup{},
	"match": &expr.Match{}, "meta": &expr.Meta{}, "notrack": &expr.Notrack{}, "payload": &expr.Payload{}, "reject": &expr.Reject{}, "target": &expr.Target{},
}

// newExpression returns an empty expression by its name, nil for an expression that is not read.
func newExpression(name string) expr.Any {
	kind, ok := expressions[name]
	if !ok {
		return nil
	}
	return reflect.New(reflect.TypeOf(kind).Elem()).Interface().(expr.Any)
}

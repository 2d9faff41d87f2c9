package kubernetes

import (
	"context"
	"net/netip"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// basis is what an answer is made from, so that it can be kept for as long as nothing of it changes. It is
// filled in while the index is read, since the order matters: see index.Generation. A nil basis takes in
// nothing: nobody keeps the answer.
type basis struct {
	index      records
	conditions answers.Conditions
	held       int  // Generations in conditions
	changing   bool // something came or went during the look, so that the answer can't be kept
	untracked  bool // the answer depends on data whose changes advance none of the Generations held
}

// dependsOnUntracked marks the reply as not cacheable by Generations. Each function that reads data whose changes
// advance none of the Generations held calls it, so that the mark does not depend on the type of the query that led
// there: a query with a search list reads other types than its own.
func (b *basis) dependsOnUntracked() {
	if b != nil {
		b.untracked = true
	}
}

// newBasis returns a basis to look up one name with. The namespaces are held from the start. So a
// namespace need not be found twice: if it goes and another one of its name comes, they have changed.
func newBasis(ix records) *basis {
	b := &basis{index: ix}
	b.hold(ix.NamespacesGeneration())
	return b
}

// hold makes the answer hang on a Generation, as of now or, if it does already, as of before. What it counts must
// be read after this.
func (b *basis) hold(g *index.Generation) {
	for _, bound := range b.conditions.Bounds[:b.held] {
		if bound.Generation == g {
			return
		}
	}
	if g == nil || b.held == len(b.conditions.Bounds) {
		b.changing = true
		return
	}
	b.conditions.Bounds[b.held] = answers.Bound{Generation: g, Number: g.Load()}
	b.held++
}

// address makes the answer hang on what an address leads to.
func (b *basis) address(a netip.Addr) {
	if b != nil {
		b.hold(b.index.AddressGeneration(a))
	}
}

// nodes makes the answer hang on the Nodes and on the cluster's ID, if it depends on where the endpoints and the caller
// are. They are read after this.
func (b *basis) nodes(f *found) {
	if b != nil && f.policy.Filters() {
		b.hold(b.index.NodesGeneration())
	}
}

// object looks up a Service or ServiceImport in a namespace that exists, and makes the answer hang on it. What the
// first look finds may be older than the number that is loaded then; the answer is made from the second.
func (b *basis) object(ix records, n *objectName) *index.Entry {
	first := n.in(ix)
	if b == nil {
		return first
	}
	if first == nil {
		b.hold(ix.NamespaceGeneration(n.namespace))
	} else {
		b.hold(first.Generation())
	}
	second := n.in(ix)
	if (first == nil) != (second == nil) || first != nil && first.Generation() != second.Generation() {
		b.changing = true
	}
	return second
}

// keeps reports whether somebody may keep the answer to a query, given its name in lower case. inFront is
// what a cache in front wants to know, or nil.
func (k *Kubernetes) keeps(r *dns.Msg, lower string, inFront *answers.Conditions) bool {
	if !ordinary(r) {
		return false
	}
	// What the fast path is given in upper case it would give to all.
	return inFront != nil || k.space != nil && k.space.ByGeneration.Load() && r.Question[0].Name == lower
}

// passed is the key of a context under which a query has been passed on.
type passed struct{}

// passOn returns the context of a query of which this plugin knows nothing, for the next one. That may be another of
// this package, whose answer does not follow from what this one knows.
func passOn(ctx context.Context) context.Context { return context.WithValue(ctx, passed{}, true) }

func isPassed(ctx context.Context) bool { return ctx.Value(passed{}) != nil }

// ordinary reports whether a query is one whose answer is known here. For DS the server may ask the block of a
// parent zone.
func ordinary(r *dns.Msg) bool {
	q := &r.Question[0]
	return r.Opcode == dns.OpcodeQuery && q.Qclass == dns.ClassINET && q.Qtype != dns.TypeDS
}

// stillSynced reports whether what an answer is made from has been read, now that the basis holds Generations: they
// advance when ServiceImports are no longer read, after this says so.
func (k *Kubernetes) stillSynced(q *query, a *made) bool {
	if a.search != nil && len(k.clustersets) > 0 { // candidates may be in any zone
		return k.hasImports()
	}
	return k.syncedIn(q.zone)
}

// keep has a reply kept until its basis changes: by the cache in front, or else for the fast path.
func (k *Kubernetes) keep(q *query, a *made, inFront *answers.Conditions) {
	forOne := q.asker.asked()
	if forOne {
		answers.ForOne(q.ctx)
	}
	b := q.basis
	if b != nil && !k.stillSynced(q, a) {
		b.changing = true
	}
	if b != nil && b.changing && inFront != nil {
		*inFront = answers.Outdated() // a cache would keep it for its TTL
	}
	if b == nil || b.changing || b.untracked || a.m.Truncated || q.asker.early() {
		return
	}
	if len(a.m.Answer) == 0 {
		b.conditions.Serial = k.index
	}
	// The SOA record and the targets of SRV have the zone in the case in which it was asked.
	b.conditions.AnyCase = len(a.m.Answer) > 0 && q.qtype != dns.TypeSRV
	if a.search != nil {
		b.conditions.Options = searchlist.AppendOption(nil, a.search)
	}
	if forOne {
		if q.state.Proto() != "udp" {
			return // the fast path, which is over UDP, is the only one to give it
		}
		b.conditions.Views, b.conditions.View = k.callers, q.asker.view()
	}
	if inFront != nil {
		*inFront = b.conditions
		return
	}
	k.space.Keep(q.state.Req, a.m, &b.conditions)
}

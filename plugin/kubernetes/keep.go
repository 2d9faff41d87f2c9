package kubernetes

import (
	"context"
	"net/netip"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// dependencies is the data that an answer is made from, so that the answer can be stored until the data changes. It is
// filled in while the index is read, since the order matters: see index.Generation. A nil *dependencies records nothing:
// the answer is not stored.
type dependencies struct {
	index      records
	properties answers.Properties
	untracked  bool // the answer depends on data whose changes advance none of the Generations
}

// onUntracked marks the answer as one whose validity Generations do not bound. Every function that reads such data calls
// it, so that the mark does not depend on the query's type: a query with a search list reads other types, too.
func (d *dependencies) onUntracked() {
	if d != nil {
		d.untracked = true
	}
}

// newDependencies returns the dependencies of a lookup of one name. They include the list of namespaces, so that a
// namespace need not be looked up twice: replacing it by one of the same name advances that Generation.
func newDependencies(ix records) *dependencies {
	d := &dependencies{index: ix}
	d.on(ix.NamespacesGeneration())
	return d
}

// on adds the data that a Generation counts, nil if the index no longer has the data. The data must be read after the call.
func (d *dependencies) on(g *index.Generation) {
	if g == nil {
		d.properties.End()
		return
	}
	d.properties.DependOn(g)
}

// onAddress adds the records of an address.
func (d *dependencies) onAddress(a netip.Addr) {
	if d != nil {
		d.on(d.index.AddressGeneration(a))
	}
}

// onNodes adds the Nodes and the cluster's ID, if the locations of endpoints and caller decide the answer. They must be
// read after the call.
func (d *dependencies) onNodes(f *found) {
	if d != nil && f.policy.Filters() {
		d.on(d.index.NodesGeneration())
	}
}

// onObject looks up a Service or ServiceImport in an existing namespace and adds it. The first lookup finds the
// Generation; the answer is made from the second one, after the Generation's number was read.
func (d *dependencies) onObject(ix records, n *objectName) *index.Entry {
	first := n.in(ix)
	if d == nil {
		return first
	}
	if first == nil {
		d.on(ix.NamespaceGeneration(n.namespace))
	} else {
		d.on(first.Generation())
	}
	second := n.in(ix)
	if (first == nil) != (second == nil) || first != nil && first.Generation() != second.Generation() {
		d.properties.End()
	}
	return second
}

// keeps reports whether somebody may keep the answer to a query, given its name in lower case. inFront is
// what a cache in front wants to know, or nil.
func (k *Kubernetes) keeps(r *dns.Msg, lower string, inFront *answers.Properties) bool {
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

// keep stores a reply until its dependencies change: in the cache in front, or else for the fast path.
func (k *Kubernetes) keep(q *query, a *made, inFront *answers.Properties) {
	private := q.asker.asked()
	if private {
		answers.MarkPrivate(q.ctx)
	}
	d := q.dependencies
	if d == nil {
		return
	}
	p := &d.properties
	if !k.stillSynced(q, a) {
		p.End()
	}
	if p.Ended() && inFront != nil {
		inFront.Validity = p.Validity // otherwise the cache would store the reply for its TTL
	}
	if p.Ended() || d.untracked || a.m.Truncated || q.asker.early() {
		return
	}
	if len(a.m.Answer) == 0 {
		p.Serial = k.index
	}
	// The SOA record and the targets of SRV have the zone in the case of the query.
	p.AnyCase = len(a.m.Answer) > 0 && q.qtype != dns.TypeSRV
	if a.search != nil {
		p.Options = searchlist.AppendOption(nil, a.search)
	}
	if private {
		if q.state.Proto() != "udp" {
			return // only the fast path serves views, and it is UDP only
		}
		p.Views, p.View = k.callers, q.asker.view()
	}
	if inFront != nil {
		*inFront = *p
		return
	}
	k.space.PutReply(q.state.Req, a.m, p)
}

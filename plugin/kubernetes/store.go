package kubernetes

import (
	"context"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// isStorable reports whether the answer to a query may be stored, given its name in lower case: by a cache in front of this
// plugin, or for the fast path.
func (k *Kubernetes) isStorable(r *dns.Msg, lower string, cache bool) bool {
	if !isLookup(r) {
		return false
	}
	// The fast path would return the upper case of this query's name to every client.
	return cache || !k.late && k.space != nil && k.space.ByGeneration.Load() && r.Question[0].Name == lower
}

// isLookup reports whether a query is for records of a name in the cluster. For DS the server may query the block of a
// parent zone instead.
func isLookup(r *dns.Msg) bool {
	q := &r.Question[0]
	return r.Opcode == dns.OpcodeQuery && q.Qclass == dns.ClassINET && q.Qtype != dns.TypeDS
}

type fallthroughKey struct{}

// withFallthrough marks a query that this plugin passes to the next one, which may be another handler of this package. The
// answer of that handler must not be stored: it depends on the data of both.
func withFallthrough(ctx context.Context) context.Context {
	return context.WithValue(ctx, fallthroughKey{}, true)
}

func isFallthrough(ctx context.Context) bool { return ctx.Value(fallthroughKey{}) != nil }

// isStillSynced is isSynced after the dependencies were recorded: when a missing definition of ServiceImports returns, the
// source reports them as not synced before it advances the Generations.
func (k *Kubernetes) isStillSynced(q *query, a *reply) bool {
	if a.suffix != nil && len(k.clustersets) > 0 { // candidates may be in any zone
		return k.hasImports()
	}
	return k.isSynced(q.zone)
}

// properties returns the Properties of a reply. A reply without a Generation is not stored for the fast path; a cache stores
// it for its TTL, or not at all if its validity has ended.
func (k *Kubernetes) properties(q *query, a *reply) (p store.Properties) {
	p.Waits = q.waits && len(a.m.Answer) == 0
	d := q.dependencies
	if d == nil || q.stale {
		return p
	}
	if !k.isStillSynced(q, a) {
		d.validity.End()
	}
	switch {
	case d.validity.Ended():
		p.Validity = d.validity
		return p
	case d.untracked || a.m.Truncated || q.caller.needsNodes():
		return p
	}
	p.Validity = d.validity
	if len(a.m.Answer) == 0 && !k.signed {
		p.Serial = k.index
	}
	// The SOA record and the targets of SRV have the zone in the letter case of the query.
	p.AnyCase = len(a.m.Answer) > 0 && q.qtype != dns.TypeSRV
	if a.suffix != nil {
		p.Options = searchlist.AppendOption(nil, a.suffix)
	}
	if q.caller.isUsed() {
		p.Views, p.View = k.callers, q.caller.view()
	}
	return p
}

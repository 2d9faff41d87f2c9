package kubernetes

import (
	"context"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// isStorable reports whether the answer to a query may be stored, given its name in lower case: by a cache in front of this
// plugin, which passes inFront, or for the fast path.
func (k *Kubernetes) isStorable(r *dns.Msg, lower string, inFront *answers.Properties) bool {
	if !isLookup(r) {
		return false
	}
	// The fast path would return the upper case of this query's name to every client.
	return inFront != nil || !k.late && k.space != nil && k.space.ByGeneration.Load() && r.Question[0].Name == lower
}

// isLookup reports whether a query is for records of a name in the cluster. For DS the server may query the block of a
// parent zone instead.
func isLookup(r *dns.Msg) bool {
	q := &r.Question[0]
	return r.Opcode == dns.OpcodeQuery && q.Qclass == dns.ClassINET && q.Qtype != dns.TypeDS
}

type fallthroughKey struct{}

// withFallthrough marks a query that this plugin passes to the next one. That may be another plugin of this package, whose
// answer must not be stored: it depends on data of both.
func withFallthrough(ctx context.Context) context.Context {
	return context.WithValue(ctx, fallthroughKey{}, true)
}

func isFallthrough(ctx context.Context) bool { return ctx.Value(fallthroughKey{}) != nil }

// isStillSynced is isSynced after the dependencies were recorded: a source that loses ServiceImports reports that before it
// advances the Generations.
func (k *Kubernetes) isStillSynced(q *query, a *reply) bool {
	if a.suffix != nil && len(k.clustersets) > 0 { // candidates may be in any zone
		return k.hasImports()
	}
	return k.isSynced(q.zone)
}

// store stores a reply until its dependencies change: in the cache in front, or else for the fast path.
func (k *Kubernetes) store(q *query, a *reply, inFront *answers.Properties) {
	private := q.caller.isUsed()
	if private {
		answers.MarkPrivate(q.ctx)
	}
	waits := q.waits && len(a.m.Answer) == 0
	if inFront != nil {
		inFront.Waits = waits
	}
	d := q.dependencies
	if d == nil || q.stale {
		return
	}
	p := &d.properties
	if !k.isStillSynced(q, a) {
		p.End()
	}
	if p.Ended() && inFront != nil {
		inFront.Validity = p.Validity // otherwise the cache would store the reply for its TTL
	}
	if p.Ended() || d.untracked || a.m.Truncated || q.caller.needsNodes() {
		return
	}
	if len(a.m.Answer) == 0 {
		p.Waits = waits
		if !k.signed {
			p.Serial = k.index
		}
	}
	// The SOA record and the targets of SRV have the zone in the case of the query.
	p.AnyCase = len(a.m.Answer) > 0 && q.qtype != dns.TypeSRV
	if a.suffix != nil {
		p.Options = searchlist.AppendOption(nil, a.suffix)
	}
	if private {
		p.Views, p.View = k.callers, q.caller.view()
	}
	if inFront != nil {
		*inFront = *p
		return
	}
	k.space.PutReply(q.state.Req, a.m, p)
}

package kubernetes

import (
	"net/netip"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/fastpath/store"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// basis is what an answer is made from, so that it can be kept for as long as nothing of it changes. It is
// filled in while the index is read, since the order matters: see index.Generation. A nil basis takes in
// nothing: nobody keeps the answer.
type basis struct {
	index      records
	conditions store.Conditions
	held       int  // Generations in conditions
	changing   bool // something came or went during the look, so that the answer can't be kept
}

// newBasis returns a basis to look up one name with. The namespaces are held from the start. So a
// namespace need not be found twice: if it goes and another one of its name comes, they have changed.
func newBasis(ix records) *basis {
	b := &basis{index: ix}
	b.hold(ix.NamespacesGeneration())
	return b
}

// hold makes the answer hang on a Generation, as of now. What it counts must be read after this.
func (b *basis) hold(g *index.Generation) {
	if g == nil || b.held == len(b.conditions.Bounds) {
		b.changing = true
		return
	}
	b.conditions.Bounds[b.held] = store.Bound{Generation: g, Number: g.Load()}
	b.held++
}

// address makes the answer hang on what an address leads to.
func (b *basis) address(a netip.Addr) {
	if b != nil {
		b.hold(b.index.AddressGeneration(a))
	}
}

// service looks up a Service in a namespace that exists, and makes the answer hang on it. What the first
// look finds may be older than the number that is loaded then; the answer is made from the second.
func (b *basis) service(ix records, namespace, name string) *index.Entry {
	first := ix.Service(namespace, name)
	if b == nil {
		return first
	}
	if first == nil {
		b.hold(ix.NamespaceGeneration(namespace))
	} else {
		b.hold(first.Generation())
	}
	second := ix.Service(namespace, name)
	if (first == nil) != (second == nil) || first != nil && first.Generation() != second.Generation() {
		b.changing = true
	}
	return second
}

// keeps reports whether somebody may keep the answer to a query, given its name in lower case. inFront is
// what a cache in front wants to know, or nil.
func (k *Kubernetes) keeps(r *dns.Msg, lower string, inFront *store.Conditions) bool {
	q := &r.Question[0]
	if r.Opcode != dns.OpcodeQuery || q.Qclass != dns.ClassINET {
		return false
	}
	if q.Qtype == dns.TypeDS {
		return false // the server may ask the block of a parent zone, so this one does not know what is answered
	}
	// What the fast path is given in upper case it would give to all.
	return inFront != nil || k.space != nil && k.space.ByGeneration.Load() && q.Name == lower
}

// lasts reports whether the answer for a type follows from what the basis holds alone. Else there is
// something of the machine's addresses in it, of another server, or the serial as data.
func (f *found) lasts(qtype uint16) bool {
	switch f.kind {
	case nameServer:
		return false
	case fixed:
		return qtype != dns.TypeNS && qtype != dns.TypeSOA
	case alias:
		return qtype != dns.TypeA && qtype != dns.TypeAAAA
	default:
		return true
	}
}

// keep has an answer kept until its basis changes: by the cache in front, or else for the fast path.
func (k *Kubernetes) keep(r, m *dns.Msg, f *found, b *basis, inFront *store.Conditions) {
	qtype := m.Question[0].Qtype
	if b != nil && b.changing && inFront != nil {
		*inFront = store.Outdated() // a cache would keep it for its TTL
	}
	if b == nil || b.changing || m.Truncated || !f.lasts(qtype) {
		return
	}
	if len(m.Answer) == 0 {
		b.conditions.Serial = k.index
	}
	// The SOA record and the targets of SRV have the zone in the case in which it was asked.
	b.conditions.AnyCase = len(m.Answer) > 0 && qtype != dns.TypeSRV
	if inFront != nil {
		*inFront = b.conditions
		return
	}
	k.space.Keep(r, m, &b.conditions)
}

package kubernetes

import (
	"net/netip"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// dependencies is the data that an answer is made from, so that the answer can be stored until the data changes. It is
// filled in while the index is read, since the order matters: see index.Generation. A nil *dependencies records nothing:
// the answer is not stored.
type dependencies struct {
	index     records
	validity  validity.Validity
	untracked bool // the answer depends on data whose changes advance none of the Generations
}

// onUntracked marks the answer as one that depends on data without a Generation. Every function that reads such data calls
// it, so that the mark does not depend on the query's type: a query with a search list reads other types, too.
func (d *dependencies) onUntracked() {
	if d != nil {
		d.untracked = true
	}
}

// newDependencies returns the dependencies of a lookup of one name.
func newDependencies(ix records) *dependencies {
	d := &dependencies{index: ix}
	d.add(ix.AccessGeneration())
	return d
}

// add adds the data that a Generation counts. The data must be read after the call.
func (d *dependencies) add(g *index.Generation) { d.validity.DependOn(g) }

// onNamespace adds the existence of a namespace.
func (d *dependencies) onNamespace(name string) {
	if d != nil {
		d.add(d.index.NamespaceGeneration(name))
	}
}

// onAddress adds the records of an address.
func (d *dependencies) onAddress(a netip.Addr) {
	if d != nil {
		d.add(d.index.AddressGeneration(a))
	}
}

// onNodes adds the Nodes and the cluster's ID, if the locations of endpoints and caller decide the answer. They must be
// read after the call.
func (d *dependencies) onNodes(f *result) {
	if d != nil && f.policy.Filters() {
		d.add(d.index.NodesGeneration())
	}
}

// maxLookups is the maximum number of lookups of an object that is created or deleted meanwhile.
const maxLookups = 4

// onObject looks up a Service or ServiceImport, nil if it or its namespace does not exist, and adds it. The first lookup
// finds the Generation; the answer is made from the second lookup, after the Generation's number was read. If the second
// lookup finds another Generation, because the object was created or deleted, the lookup is repeated: an answer without a
// validity would have no handles. The Generation of the former object only adds events that end the answer.
func (d *dependencies) onObject(ix records, n *objectName) *index.Entry {
	e := n.in(ix)
	if d == nil {
		return e
	}
	for range maxLookups - 1 {
		before := e
		if before == nil {
			d.add(ix.NameGeneration(n.namespace, n.object))
		} else {
			d.add(n.generation(before))
		}
		if e = n.in(ix); before == nil && e == nil || before != nil && e != nil && before.Generation() == e.Generation() {
			return e
		}
	}
	d.validity.End()
	return e
}

// generation returns the Generation of the data of an object that an answer for the name depends on.
func (n *objectName) generation(e *index.Entry) *index.Generation {
	if n.endpoint != "" {
		return e.LabelGeneration(n.endpoint)
	}
	return e.Generation()
}

package index

import (
	"slices"
	"strings"
)

// objects are the Services, or the ServiceImports, with their endpoints, by name.
type objects struct {
	*table[Name, *Entry]
	// ownerName returns the field of an EndpointSlice with the name of its Service or ServiceImport, "" for none.
	ownerName func(*Slice) *string
}

func newObjects(ownerName func(*Slice) *string) objects {
	return objects{table: newTable[Name, *Entry](), ownerName: ownerName}
}

// find returns the entry of an existing object, or nil.
func (o objects) find(namespace, name string) *Entry {
	e, _ := o.get(Name{namespace, name})
	if e == nil || e.Service == nil {
		return nil
	}
	return e
}

// every returns the entries of all existing objects, ordered by namespace and name.
func (o objects) every() []*Entry {
	var all []*Entry
	for _, e := range o.each() {
		if e.Service != nil {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *Entry) int { return a.Service.key().compare(b.Service.key()) })
	return all
}

// owner returns the key of the object that an EndpointSlice belongs to.
func (o objects) owner(s *Slice) Name { return Name{s.Namespace, *o.ownerName(s)} }

// name returns the name of an entry of the table. New records use its strings, to save memory.
func (o objects) name(e *Entry) Name {
	if e.Service != nil {
		return e.Service.key()
	}
	return o.owner(e.Slices[0])
}

// put sets the record of an entry and returns the previous entry, nil if the record is equal to the current one.
func (o objects) put(s *Service) *Entry {
	k := s.key()
	e, _ := o.get(k)
	switch {
	case e == nil:
		e = &Entry{generation: new(Generation)}
	case e.Service != nil && e.Service.Equal(s):
		return nil
	default:
		k = o.name(e)
	}
	s.Namespace, s.Name = k.Namespace, k.Name
	o.set(k, e.with(s, e.Slices))
	return e
}

// delete removes the record of an entry and returns the previous entry, nil if there was no record.
func (o objects) delete(k Name) *Entry {
	e, _ := o.get(k)
	if e == nil || e.Service == nil {
		return nil
	}
	if len(e.Slices) == 0 {
		o.remove(k, e)
	} else {
		o.set(k, e.with(nil, e.Slices))
	}
	return e
}

// record returns the Service of an entry, or nil.
func (e *Entry) record() *Service {
	if e == nil {
		return nil
	}
	return e.Service
}

// shareStrings lets a new EndpointSlice use the strings of the object that it belongs to.
func (o objects) shareStrings(s *Slice) {
	if e, _ := o.get(o.owner(s)); e != nil {
		k := o.name(e)
		s.Namespace, *o.ownerName(s) = k.Namespace, k.Name
	}
}

// link adds an EndpointSlice to the entry of its object and returns the previous entry, nil for a slice of no object.
func (o objects) link(s *Slice) *Entry {
	k := o.owner(s)
	if k.Name == "" {
		return nil
	}
	e, _ := o.get(k)
	if e == nil {
		e = &Entry{generation: new(Generation)}
	}
	next := e.with(e.Service, withSlice(e.Slices, s))
	if next.labels == nil && next.Ready() >= manyEndpoints {
		next.labels = new(labelGenerations)
	}
	o.set(k, next)
	return e
}

// unlink removes an EndpointSlice from the entry of its object and returns the previous entry, nil for a slice of no
// object.
func (o objects) unlink(s *Slice) *Entry {
	k := o.owner(s)
	if k.Name == "" {
		return nil
	}
	e, _ := o.get(k)
	rest := slices.DeleteFunc(slices.Clone(e.Slices), func(v *Slice) bool { return v == s })
	if e.Service == nil && len(rest) == 0 {
		o.remove(k, e)
	} else {
		o.set(k, e.with(e.Service, rest))
	}
	return e
}

// withSlice returns the slices with s, which replaces the one of its name. They stay ordered by name.
func withSlice(all []*Slice, s *Slice) []*Slice {
	at, found := slices.BinarySearchFunc(all, s, func(a, b *Slice) int { return strings.Compare(a.Name, b.Name) })
	if found {
		all = slices.Clone(all)
		all[at] = s
		return all
	}
	with := make([]*Slice, 0, len(all)+1)
	return append(append(append(with, all[:at]...), s), all[at:]...)
}

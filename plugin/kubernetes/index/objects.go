package index

import (
	"slices"
	"strings"
)

// objects are the Services of the index, or its ServiceImports, by name, each with its endpoints.
type objects struct {
	*table[Name, *Entry]
	// of returns the field of an EndpointSlice that names the one which it belongs to. An empty name is none.
	of func(*Slice) *string
}

func newObjects(of func(*Slice) *string) objects {
	return objects{table: newTable[Name, *Entry](), of: of}
}

// find returns what is known of one, or nil where there is none.
func (o objects) find(namespace, name string) *Entry {
	e, _ := o.get(Name{namespace, name})
	if e == nil || e.Service == nil {
		return nil
	}
	return e
}

// every returns all of them, ordered by namespace and name.
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

// owner is the key of the one that an EndpointSlice belongs to.
func (o objects) owner(s *Slice) Name { return Name{s.Namespace, *o.of(s)} }

// name returns the name of an entry that is in the table. New records take their key from it, so that
// its strings are kept once.
func (o objects) name(e *Entry) Name {
	if e.Service != nil {
		return e.Service.key()
	}
	return o.owner(e.Slices[0])
}

// put puts a record into its entry, and returns the entry as it was; nil if it says the same already.
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
	o.set(k, &Entry{Service: s, Slices: e.Slices, generation: e.generation})
	return e
}

// delete takes a record out of its entry, and returns the entry as it was; nil if there was none.
func (o objects) delete(k Name) *Entry {
	e, _ := o.get(k)
	if e == nil || e.Service == nil {
		return nil
	}
	if len(e.Slices) == 0 {
		o.remove(k, func(*Entry) bool { return true })
	} else {
		o.set(k, &Entry{Slices: e.Slices, generation: e.generation})
	}
	return e
}

// replace puts all, and deletes the others.
func (o objects) replace(all []*Service, put func(*Service), del func(Name)) {
	keep := make(map[Name]struct{}, len(all))
	for _, s := range all {
		keep[s.key()] = struct{}{}
		put(s)
	}
	for k, e := range o.each() {
		if _, ok := keep[k]; !ok && e.Service != nil {
			del(k)
		}
	}
}

// record returns the Service of an entry, or nil.
func (e *Entry) record() *Service {
	if e == nil {
		return nil
	}
	return e.Service
}

// adopt gives an EndpointSlice that is not in the table yet the strings of the one that it belongs to.
func (o objects) adopt(s *Slice) {
	if e, _ := o.get(o.owner(s)); e != nil {
		k := o.name(e)
		s.Namespace, *o.of(s) = k.Namespace, k.Name
	}
}

// link puts an EndpointSlice into the entry that it belongs to, and returns the entry as it was; nil if it belongs
// to none.
func (o objects) link(s *Slice) *Entry {
	k := o.owner(s)
	if k.Name == "" {
		return nil
	}
	e, _ := o.get(k)
	if e == nil {
		e = &Entry{generation: new(Generation)}
	}
	o.set(k, &Entry{Service: e.Service, Slices: withSlice(e.Slices, s), generation: e.generation})
	return e
}

// unlink takes an EndpointSlice out of the entry that it belongs to, and returns the entry as it was; nil if it
// belongs to none.
func (o objects) unlink(s *Slice) *Entry {
	k := o.owner(s)
	if k.Name == "" {
		return nil
	}
	e, _ := o.get(k)
	rest := slices.DeleteFunc(slices.Clone(e.Slices), func(v *Slice) bool { return v == s })
	if e.Service == nil && len(rest) == 0 {
		o.remove(k, func(*Entry) bool { return true })
	} else {
		o.set(k, &Entry{Service: e.Service, Slices: rest, generation: e.generation})
	}
	return e
}

// withSlice returns all with s in the place of the slice of its name, or added in order.
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

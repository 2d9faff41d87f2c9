package index

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"strings"
)

// packedEndpoints are the endpoints of an EndpointSlice by field: a large cluster has a million, most of them with an address and
// nothing else.
type packedEndpoints struct {
	// addrs has the address of each endpoint: 4 bytes each, or 16 if one of them is an IPv6 address.
	addrs  string
	fields *endpointFields // nil if no endpoint has another field
	count  int32
	wide   bool // addresses have 16 bytes
}

// endpointFields are the fields of endpoints beside the address. A slice is nil if none of the endpoints has the field.
type endpointFields struct {
	names  string   // one after the other
	ends   []uint32 // of each name, in names
	hashes string   // one byte for each name, to find it fast: a Service may have thousands of endpoints
	zones  []Symbol
	nodes  []Symbol
	hints  []*Hints
}

// Pack replaces Endpoints by a form that takes a fraction of the memory. It is called before other goroutines read the record.
func (s *Slice) Pack() {
	if s.Endpoints == nil {
		return // they are packed, or there are none
	}
	p := packedEndpoints{count: int32(len(s.Endpoints))}
	has := func(field func(*Endpoint) bool) bool {
		for i := range s.Endpoints {
			if field(&s.Endpoints[i]) {
				return true
			}
		}
		return false
	}
	p.wide = has(func(e *Endpoint) bool { return !e.Addr.Is4() })
	var addrs strings.Builder
	addrs.Grow(len(s.Endpoints) * p.size())
	for i := range s.Endpoints {
		if a := s.Endpoints[i].Addr; p.wide {
			b := a.As16()
			addrs.Write(b[:])
		} else {
			b := a.As4()
			addrs.Write(b[:])
		}
	}
	p.addrs = addrs.String()
	var f endpointFields
	if has(func(e *Endpoint) bool { return e.Name != "" }) {
		var names strings.Builder
		hashes := make([]byte, len(s.Endpoints))
		for i := range s.Endpoints {
			names.WriteString(s.Endpoints[i].Name)
			f.ends = append(f.ends, uint32(names.Len()))
			hashes[i] = nameHash(s.Endpoints[i].Name)
		}
		f.hashes = string(hashes)
		f.names, f.ends = strings.Clone(names.String()), slices.Clip(f.ends)
	}
	f.zones = column(s.Endpoints, func(e *Endpoint) Symbol { return e.Zone })
	f.nodes = column(s.Endpoints, func(e *Endpoint) Symbol { return e.Node })
	f.hints = column(s.Endpoints, func(e *Endpoint) *Hints { return e.Hints })
	if f.ends != nil || f.zones != nil || f.nodes != nil || f.hints != nil {
		p.fields = &f
	}
	s.Endpoints, s.packed = nil, p
}

// column returns a field of all endpoints, nil if it is zero in each of them.
func column[T comparable](all []Endpoint, field func(*Endpoint) T) (values []T) {
	var zero T
	for i := range all {
		v := field(&all[i])
		if v != zero && values == nil {
			values = make([]T, len(all))
		}
		if values != nil {
			values[i] = v
		}
	}
	return values
}

// size returns the number of bytes of an address.
func (p *packedEndpoints) size() int {
	if p.wide {
		return 16
	}
	return 4
}

// Len returns the number of endpoints, 0 of nil.
func (s *Slice) Len() int {
	if s == nil {
		return 0
	}
	if s.Endpoints != nil {
		return len(s.Endpoints)
	}
	return int(s.packed.count)
}

// All yields the endpoints in the order of the object.
func (s *Slice) All() iter.Seq[Endpoint] {
	return func(yield func(Endpoint) bool) {
		for i := range s.Len() {
			if !yield(s.Endpoint(i)) {
				return
			}
		}
	}
}

// Endpoint returns the i-th endpoint.
func (s *Slice) Endpoint(i int) Endpoint {
	if s.Endpoints != nil {
		return s.Endpoints[i]
	}
	e := Endpoint{Addr: s.addr(i)}
	f := s.packed.fields
	if f == nil {
		return e
	}
	e.Name = f.name(i)
	if f.zones != nil {
		e.Zone = f.zones[i]
	}
	if f.hints != nil {
		e.Hints = f.hints[i]
	}
	e.Node = s.node(i)
	return e
}

// addr returns the address of the i-th endpoint.
func (s *Slice) addr(i int) netip.Addr {
	if s.Endpoints != nil {
		return s.Endpoints[i].Addr
	}
	if p := &s.packed; p.wide {
		return netip.AddrFrom16([16]byte([]byte(p.addrs[16*i : 16*i+16]))).Unmap()
	}
	return netip.AddrFrom4([4]byte([]byte(s.packed.addrs[4*i : 4*i+4])))
}

// node returns the name of the node of the i-th endpoint of a packed slice.
func (s *Slice) node(i int) Symbol {
	if f := s.packed.fields; f != nil && f.nodes != nil {
		return f.nodes[i]
	}
	return Symbol{}
}

// withAddr yields the numbers of the endpoints of a packed slice that have the address.
func (s *Slice) withAddr(a netip.Addr) iter.Seq[int] {
	return func(yield func(int) bool) {
		p := &s.packed
		if p.wide {
			b := a.As16()
			for i := range int(p.count) {
				if p.addrs[16*i:16*i+16] == string(b[:]) && !yield(i) {
					return
				}
			}
			return
		}
		if !a.Is4() {
			return
		}
		b := a.As4()
		wanted, addrs := binary.NativeEndian.Uint32(b[:]), []byte(p.addrs)
		for i := range int(p.count) {
			if binary.NativeEndian.Uint32(addrs[4*i:]) == wanted && !yield(i) {
				return
			}
		}
	}
}

// NextNamed returns the index of the first endpoint that matches, at from or later, or Len. An endpoint matches by its name, or by
// the address a if it has no name; with the zero Addr, only by its name. The name must not be empty, and from must be at most Len.
func (s *Slice) NextNamed(from int, name string, a netip.Addr) int {
	if s.Endpoints != nil {
		for ; from < len(s.Endpoints); from++ {
			if e := &s.Endpoints[from]; e.Name == name || e.Name == "" && e.Addr == a {
				break
			}
		}
		return from
	}
	next, f := s.Len(), s.packed.fields
	if f != nil && f.ends != nil {
		next = f.nextNamed(from, name)
	}
	if a.IsValid() {
		for i := range s.withAddr(a) {
			if i >= from && (f == nil || f.name(i) == "") {
				return min(i, next)
			}
		}
	}
	return next
}

// nextNamed is NextNamed for endpoints with a name.
func (f *endpointFields) nextNamed(from int, name string) int {
	for h := nameHash(name); from < len(f.hashes); from++ {
		i := strings.IndexByte(f.hashes[from:], h)
		if i < 0 {
			break
		}
		if from += i; f.name(from) == name {
			return from
		}
	}
	return len(f.hashes)
}

// nameHash returns a hash of a name (FNV-1a, folded to a byte).
func nameHash(name string) byte {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return byte(h ^ h>>8 ^ h>>16 ^ h>>24)
}

// start returns the offset of the name of the i-th endpoint in names.
func (f *endpointFields) start(i int) int {
	if i == 0 || f.ends == nil {
		return 0
	}
	return int(f.ends[i-1])
}

// name returns the name of the i-th endpoint, which may be empty.
func (f *endpointFields) name(i int) string {
	if f.ends == nil {
		return ""
	}
	return f.names[f.start(i):f.ends[i]]
}

// hasAddr reports whether an endpoint of a packed slice has the address.
func (s *Slice) hasAddr(a netip.Addr) bool {
	for range s.withAddr(a) {
		return true
	}
	return false
}

func (s *Slice) sameEndpoints(t *Slice) bool {
	if s.Len() != t.Len() {
		return false
	}
	for i := range s.Len() {
		if !s.Endpoint(i).equal(t.Endpoint(i)) {
			return false
		}
	}
	return true
}

package firewall

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// set is a set or a map of nftables.
type set struct {
	elements []element
	fields   []int // sizes in bytes of the parts of a key, if elements are ranges of concatenations
	broken   bool  // it cannot be read or evaluated
}

// element is a key, or a range of keys with both ends.
type element struct {
	from, to []byte // to is nil for a single key; both are nil for every key that no other element has
	open     bool   // to is not a part of the range
	value    []byte
}

// newSet returns a set with the elements that the kernel has listed.
func newSet(s *nftables.Set, listed []nftables.SetElement) set {
	var out set
	switch {
	case s.Interval && !s.Concatenation && !slices.ContainsFunc(listed, func(e nftables.SetElement) bool { return e.KeyEnd != nil }):
		out.elements = ranges(listed)
	default:
		for _, e := range listed {
			out.elements = append(out.elements, element{from: e.Key, to: e.KeyEnd, value: e.Val})
		}
		for _, t := range nftables.ConcatSetTypeElements(s.KeyType) {
			out.fields = append(out.fields, int(t.Bytes))
		}
	}
	// An element for all other keys is compared last.
	last := func(e element) int {
		if e.from == nil {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(out.elements, func(a, b element) int { return last(a) - last(b) })
	return out
}

// ranges pairs the elements of a set of ranges: one element begins a range, and the next one, which is not
// in the range, ends it.
func ranges(listed []nftables.SetElement) (all []element) {
	listed = slices.Clone(listed)
	slices.SortStableFunc(listed, func(a, b nftables.SetElement) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 || a.IntervalEnd == b.IntervalEnd {
			return c
		}
		if a.IntervalEnd {
			return -1
		}
		return 1
	})
	for i, e := range listed {
		switch {
		case e.IntervalEnd:
			continue
		case e.Key == nil:
			all = append(all, element{value: e.Val})
			continue
		}
		r := element{from: e.Key, to: bytes.Repeat([]byte{0xff}, len(e.Key)), value: e.Val}
		if i+1 < len(listed) {
			r.to, r.open = listed[i+1].Key, true
		}
		all = append(all, r)
	}
	return all
}

// has returns whether an element matches a key.
func (s set) has(e element, key field) truth {
	switch {
	case e.from == nil:
		return yes
	case len(e.from) > len(key.value):
		return unknown
	case e.to == nil:
		return key.equal(e.from)
	case e.open:
		return min(key.below(e.from, false).not(), key.below(e.to, false))
	case len(s.fields) < 2:
		return key.within(e.from, e.to)
	}
	at, all := 0, yes
	for _, size := range s.fields {
		if size == 0 || at+size > len(e.from) || at+size > len(e.to) {
			return unknown
		}
		all = min(all, key.sub(at, size).within(e.from[at:at+size], e.to[at:at+size]))
		at += words(size)
	}
	if at != len(e.from) {
		return unknown
	}
	return all
}

// contains returns whether one of the elements matches.
func (s set) contains(key field) truth {
	if s.broken {
		return unknown
	}
	found := no
	for _, e := range s.elements {
		found = max(found, s.has(e, key))
	}
	return found
}

// keySize is the length of the set's keys in bytes.
func (s set) keySize() int {
	for _, e := range s.elements {
		if e.from != nil {
			return len(e.from)
		}
	}
	return 0
}

// lookup evaluates a lookup in a set, or in a map of verdicts, whose elements are the outcomes.
func (m *machine) lookup(e *expr.Lookup) (found []outcome, more bool) {
	s := m.table.set(e.SetName)
	n := s.keySize()
	key, ok := m.read(e.SourceRegister, n)
	depends := key.depends()
	if n > 0 && !ok || s.broken {
		s.broken, depends = true, []string{bySetContents}
	}
	if !e.IsDestRegSet || e.Invert {
		in := s.contains(key)
		if e.Invert {
			in = in.not()
		}
		m.require(in, depends...)
		return nil, true
	}
	if e.DestRegister != unix.NFT_REG_VERDICT {
		m.require(s.contains(key), depends...)
		m.unknownLoad(e.DestRegister, byOther)
		return nil, true
	}
	if s.broken {
		return uncertain(depends...), true
	}
	for _, element := range s.elements {
		match := s.has(element, key)
		if match == no {
			continue
		}
		kind, chain := verdictIn(element.value)
		if o, ends := verdictOf(kind, chain); ends {
			o.condition = condition{match, depends}
			found = append(found, o)
		}
		if match == yes {
			break
		}
	}
	return found, false
}

// verdictIn reads a verdict that is the value of an element.
func verdictIn(data []byte) (kind expr.VerdictKind, chain string) {
	kind = expr.VerdictStolen // not understood
	attributes, err := netlink.UnmarshalAttributes(data)
	if err != nil {
		return kind, ""
	}
	for _, a := range attributes {
		switch {
		case a.Type == unix.NFTA_VERDICT_CODE && len(a.Data) == 4:
			kind = expr.VerdictKind(int32(binary.BigEndian.Uint32(a.Data)))
		case a.Type == unix.NFTA_VERDICT_CHAIN:
			chain = string(bytes.TrimRight(a.Data, "\x00"))
		}
	}
	return kind, chain
}

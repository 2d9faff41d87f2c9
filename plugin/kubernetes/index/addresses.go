package index

import (
	"hash/maphash"
	"iter"
	"net/netip"
	"slices"
)

// addressSlices are the EndpointSlices of Services by the addresses of their endpoints. The key is a hash, since the addresses are
// in the slices.
type addressSlices struct {
	*table[addressHash, *Slice]
	seed maphash.Seed
}

type addressHash uint32

func newAddressSlices() addressSlices {
	return addressSlices{newTable[addressHash, *Slice](), maphash.MakeSeed()}
}

func (t addressSlices) hash(a netip.Addr) addressHash {
	return addressHash(maphash.Comparable(t.seed, a))
}

// with yields the slices with an endpoint of an address as of one point in time.
func (t addressSlices) with(a netip.Addr) iter.Seq[*Slice] {
	return func(yield func(*Slice) bool) {
		for s := range t.all(t.hash(a)) {
			if s.hasAddr(a) && !yield(s) {
				return
			}
		}
	}
}

// move replaces a slice under the addresses of its endpoints. Both may be nil, or of no Service.
func (t addressSlices) move(old, s *Slice) {
	for _, h := range t.hashes(s) {
		t.add(h, s)
	}
	for _, h := range t.hashes(old) {
		t.remove(h, old)
	}
}

// hashes returns the hashes of a slice's addresses, each once: many endpoints may have the same address.
func (t addressSlices) hashes(s *Slice) []addressHash {
	if !s.ofService() {
		return nil
	}
	all := make([]addressHash, 0, s.Len())
	for i := range s.Len() {
		all = append(all, t.hash(s.addr(i)))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

package firewall

import (
	"bytes"
	"slices"
)

// bits are bytes of which some bits are known.
type bits struct {
	value []byte // with the unknown bits 0
	known []byte // a mask
	// parts names, for each byte, the part of the packet that its unknown bits belong to.
	parts []string
	// not are values that parts of the bytes do not have.
	not []exclusion
}

// exclusion is a value that the bytes from an offset on do not have.
type exclusion struct {
	offset int
	value  []byte
}

func knownBits(value ...byte) bits {
	return bits{value: value, known: bytes.Repeat([]byte{0xff}, len(value)), parts: make([]string, len(value))}
}

func unknownBits(n int, part string) bits {
	return bits{value: make([]byte, n), known: make([]byte, n), parts: slices.Repeat([]string{part}, n)}
}

// depends names the parts of the packet that the unknown bits belong to.
func (b bits) depends() (all []string) {
	for i, known := range b.known {
		if known != 0xff && !slices.Contains(all, b.parts[i]) {
			all = append(all, b.parts[i])
		}
	}
	return all
}

// set replaces the bytes from an offset on.
func (b *bits) set(offset int, by bits) {
	copy(b.value[offset:], by.value)
	copy(b.known[offset:], by.known)
	copy(b.parts[offset:], by.parts)
	b.not = slices.DeleteFunc(b.not, func(x exclusion) bool { return x.offset >= offset && x.offset < offset+len(by.value) })
	for _, x := range by.not {
		b.not = append(b.not, exclusion{offset + x.offset, x.value})
	}
}

// sub returns n of the bytes.
func (b bits) sub(offset, n int) bits {
	s := bits{value: b.value[offset : offset+n], known: b.known[offset : offset+n], parts: b.parts[offset : offset+n]}
	for _, x := range b.not {
		if x.offset >= offset && x.offset < offset+n {
			s.not = append(s.not, exclusion{x.offset - offset, x.value})
		}
	}
	return s
}

// excluded returns whether the bytes cannot be these. A name that ends here has a NUL at its end.
func (b bits) excluded(data []byte) bool {
	return slices.ContainsFunc(b.not, func(x exclusion) bool {
		if x.offset > len(data) {
			return false
		}
		part := data[x.offset:]
		part = part[:min(len(part), len(x.value))]
		return bytes.HasPrefix(x.value, part) && (len(part) == len(x.value) || bytes.IndexByte(part, 0) >= 0)
	})
}

// equal returns whether the bytes are these.
func (b bits) equal(data []byte) truth {
	if len(data) > len(b.value) {
		return unknown
	}
	all := yes
	for i, d := range data {
		if (b.value[i]^d)&b.known[i] != 0 {
			return no
		}
		if b.known[i] != 0xff {
			all = unknown
		}
	}
	if all == unknown && b.excluded(data) {
		return no
	}
	return all
}

// below returns whether the bytes are less than these, or equal to them if orEqual is set. The kernel
// compares byte by byte.
func (b bits) below(data []byte, orEqual bool) truth {
	low, high := b.value, slices.Clone(b.value)
	for i := range high {
		high[i] |= ^b.known[i]
	}
	n := min(len(data), len(low))
	limit := 0
	if orEqual {
		limit = 1
	}
	if bytes.Compare(high[:n], data[:n]) < limit {
		return yes
	}
	if bytes.Compare(low[:n], data[:n]) < limit {
		return unknown
	}
	return no
}

// within returns whether the bytes are in a range, both ends included.
func (b bits) within(from, to []byte) truth {
	return min(b.below(from, false).not(), b.below(to, true))
}

// masked returns the bytes with some cleared and some flipped.
func (b bits) masked(mask, xor []byte) bits {
	out := bits{parts: slices.Clone(b.parts)} // b may be a part of what out replaces
	for i := range b.value {
		known := b.known[i] | ^mask[i]
		out.known = append(out.known, known)
		out.value = append(out.value, (b.value[i]&mask[i]^xor[i])&known)
	}
	return out
}

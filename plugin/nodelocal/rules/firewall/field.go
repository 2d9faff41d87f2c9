package firewall

import (
	"bytes"
	"slices"
)

// field is a field of a packet, or a part of the registers, of which some bytes are known.
type field struct {
	value []byte      // 0 where unknown
	parts []string    // the part of the packet that an unknown byte belongs to; "" for a known byte
	not   []exclusion // values that the bytes do not have
}

// exclusion is a value that the bytes from an offset on do not have.
type exclusion struct {
	offset int
	value  []byte
}

func knownBytes(value ...byte) field { return field{value: value, parts: make([]string, len(value))} }

func unknownBytes(n int, part string) field {
	return field{value: make([]byte, n), parts: slices.Repeat([]string{part}, n)}
}

// depends names the parts of the packet that the unknown bytes belong to.
func (b field) depends() (all []string) {
	for _, part := range b.parts {
		if part != "" && !slices.Contains(all, part) {
			all = append(all, part)
		}
	}
	return all
}

// set replaces the bytes from an offset on.
func (b *field) set(offset int, by field) {
	copy(b.value[offset:], by.value)
	copy(b.parts[offset:], by.parts)
	b.not = slices.DeleteFunc(b.not, func(x exclusion) bool { return x.offset >= offset && x.offset < offset+len(by.value) })
	for _, x := range by.not {
		b.not = append(b.not, exclusion{offset + x.offset, x.value})
	}
}

// sub returns n of the bytes.
func (b field) sub(offset, n int) field {
	s := field{value: b.value[offset : offset+n], parts: b.parts[offset : offset+n]}
	for _, x := range b.not {
		if x.offset >= offset && x.offset < offset+n {
			s.not = append(s.not, exclusion{x.offset - offset, x.value})
		}
	}
	return s
}

// excluded returns whether the bytes cannot be these. A name that ends here has a NUL at its end.
func (b field) excluded(data []byte) bool {
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
func (b field) equal(data []byte) truth {
	if len(data) > len(b.value) {
		return unknown
	}
	all := yes
	for i, d := range data {
		switch {
		case b.parts[i] != "":
			all = unknown
		case b.value[i] != d:
			return no
		}
	}
	if all == unknown && b.excluded(data) {
		return no
	}
	return all
}

// below returns whether the bytes are less than these, or equal to them if orEqual is set. The kernel
// compares byte by byte.
func (b field) below(data []byte, orEqual bool) truth {
	low, high := b.value, slices.Clone(b.value)
	for i, part := range b.parts {
		if part != "" {
			high[i] = 0xff
		}
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
func (b field) within(from, to []byte) truth {
	return min(b.below(from, false).not(), b.below(to, true))
}

// masked returns the bytes with some bits cleared and some flipped. A byte with all bits cleared is known.
func (b field) masked(mask, xor []byte) field {
	out := field{value: make([]byte, len(b.value)), parts: slices.Clone(b.parts)} // b may be a part of what out replaces
	for i := range b.value {
		if mask[i] == 0 {
			out.parts[i] = ""
		}
		if out.parts[i] == "" {
			out.value[i] = b.value[i]&mask[i] ^ xor[i]
		}
	}
	return out
}

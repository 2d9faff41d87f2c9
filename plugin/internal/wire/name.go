package wire

import "encoding/binary"

// maxPointers is the maximum number of compression pointers in one name, as in package dns.
const maxPointers = 126

// pointer are the bits of the first byte of a compression pointer, RFC 1035 section 4.1.4.
const pointer = 0xc0

// Results of labelsEnd.
const (
	badLabel = -1 // a label of a reserved type, or a name of more than limit bytes
	cutOff   = -2 // the message ends within the labels
)

// labelsEnd returns the offset behind the labels of a name of up to limit bytes: that of its root label, or of a compression
// pointer. It is the only function that walks over the labels of names that may be malformed.
func labelsEnd(b []byte, at, limit int) int {
	for limit += at; at < limit && at < len(b); {
		n := int(b[at])
		switch {
		case n == 0 || n >= pointer:
			return at
		case n > MaxLabel:
			return badLabel
		}
		at += 1 + n
	}
	if at < limit {
		return cutOff
	}
	return badLabel
}

// NameEnd returns the offset behind the name at an offset, 0 if it is malformed or has a compression pointer.
func NameEnd(b []byte, at int) int {
	end := labelsEnd(b, at, MaxName)
	if end < 0 || b[end] != 0 {
		return 0
	}
	return end + 1
}

// SkipName returns the offset behind the name at an offset of a message, 0 if it is malformed, and one beyond the message if
// that ends within the name. A compression pointer, which is not followed, ends a name.
func SkipName(b []byte, at int) int {
	switch end := labelsEnd(b, at, MaxName); {
	case end == badLabel:
		return 0
	case end == cutOff:
		return len(b) + 1
	case b[end] == 0:
		return end + 1
	default:
		return end + 2
	}
}

// appendName appends the name at an offset of a message to dst, without compression, and returns the offset behind the name in
// the message, 0 if it is malformed. The name ends before the offset limit. Each pointer refers to a prior name behind the header
// (RFC 1035 section 4.1.4); package dns accepts others.
func appendName(dst, b []byte, at, limit int) (name []byte, end int) {
	room := MaxName
	for start, pointers := at, 0; ; {
		last := labelsEnd(b[:limit], at, room)
		if last < 0 {
			return dst, 0
		}
		dst = append(dst, b[at:last]...)
		room -= last - at
		if b[last] == 0 {
			if pointers == 0 {
				end = last + 1
			}
			return append(dst, 0), end
		}
		if pointers++; pointers > maxPointers || last+2 > limit {
			return dst, 0
		}
		if pointers == 1 {
			end = last + 2
		}
		at = int(binary.BigEndian.Uint16(b[last:]) &^ (pointer << 8))
		if at < HeaderLen || at >= start {
			return dst, 0
		}
		start = at
	}
}

// QuestionEnd returns the offset behind the only question of a message, whose name has no compression pointer, or 0.
func QuestionEnd(b []byte) int {
	if len(b) < HeaderLen || Count(b, QDCountAt) != 1 {
		return 0
	}
	end := NameEnd(b, HeaderLen)
	if end == 0 || end+TypeClassLen > len(b) {
		return 0
	}
	return end + TypeClassLen
}

// EqualNames reports whether two names are equal, regardless of case (RFC 1035 section 2.3.3).
func EqualNames(a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i, c := range a {
		if lower(c) != lower(b[i]) {
			return false
		}
	}
	return true
}

// lower returns a letter in lower case, and other bytes unchanged, such as the length of a label, which is below 'A'.
func lower(c byte) byte {
	if c-'A' < 26 {
		return c + ('a' - 'A')
	}
	return c
}

// LowerName changes a name to lower case.
func LowerName(name []byte) {
	for i, c := range name {
		name[i] = lower(c)
	}
}

// AppendLower appends a name in lower case.
func AppendLower(dst, name []byte) []byte {
	start := len(dst)
	dst = append(dst, name...)
	LowerName(dst[start:])
	return dst
}

// HasUpper reports whether a name has letters in upper case. It tests eight bytes at a time: each query of the fast path is tested.
func HasUpper(name []byte) bool {
	const each = 1<<56 | 1<<48 | 1<<40 | 1<<32 | 1<<24 | 1<<16 | 1<<8 | 1
	const high = 0x80 * each
	for ; len(name) >= 8; name = name[8:] {
		w := binary.LittleEndian.Uint64(name)
		low := w &^ high
		// The high bit of each byte of the sums is set if the lower seven bits are 'A' or more, and if they are above 'Z'.
		if (low+(0x80-'A')*each)&^(low+(0x80-'Z'-1)*each)&^w&high != 0 {
			return true
		}
	}
	for _, c := range name {
		if c-'A' < 26 {
			return true
		}
	}
	return false
}

// isPlain reports whether the presentation form of a valid name has no escapes.
func isPlain(name []byte) bool {
	for name[0] != 0 {
		next := 1 + int(name[0])
		for _, c := range name[1:next] {
			if !plain[c] {
				return false
			}
		}
		name = name[next:]
	}
	return true
}

// plain has the printable ASCII characters that package dns does not escape in names.
var plain = func() (plain [256]bool) {
	for c := '!'; c <= '~'; c++ {
		plain[c] = true
	}
	for _, c := range []byte(`.'@;()"\`) {
		plain[c] = false
	}
	return plain
}()

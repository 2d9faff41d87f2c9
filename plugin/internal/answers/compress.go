package answers

import (
	"encoding/binary"
	"hash/maphash"
)

// suffixes has the names of a message that later names may refer to: an open hash table of names and their suffixes.
type suffixes struct {
	table [suffixSlots]suffix
	count int
}

const (
	suffixSlots = 1 << 9
	maxSuffixes = suffixSlots * 3 / 4
)

// suffix has the offsets of a name in the message without compression, 0 in a free slot, and in the compressed message.
type suffix struct{ plain, compressed uint16 }

// find returns the slot of the name at an offset of a message without compression, which is free if the name is new. Names
// that differ in case are different.
func (s *suffixes) find(packed []byte, at int) *suffix {
	name := packed[at:nameEnd(packed, at)]
	for i := maphash.Bytes(suffixSeed, name); ; i++ {
		slot := &s.table[i%suffixSlots]
		if slot.plain == 0 {
			return slot
		}
		if other := packed[slot.plain:]; len(other) >= len(name) && string(other[:len(name)]) == string(name) {
			return slot
		}
	}
}

// suffixSeed makes hashes unpredictable: an upstream could send names with equal hashes otherwise.
var suffixSeed = maphash.MakeSeed()

// nameEnd returns the end of the valid name at an offset of a message without compression.
func nameEnd(packed []byte, at int) int {
	for packed[at] != 0 {
		at += 1 + int(packed[at])
	}
	return at + 1
}

// compress sets compressed to the reply in the form of package dns with compression. It returns false for a reply with too
// many names.
func (r *Reply) compress() bool {
	clear(r.suffixes.table[:])
	r.suffixes.count = 0
	r.compressed = append(r.compressed[:0], r.packed[:HeaderLen]...)
	question := HeaderLen + r.nameLen
	if !r.compressName(HeaderLen, true) {
		return false
	}
	r.compressed = append(r.compressed, r.packed[question:question+4]...)
	for _, x := range r.records {
		if !r.compressName(int(x.owner), true) {
			return false
		}
		r.compressed = append(r.compressed, r.packed[x.data-10:x.data]...)
		data, at, l := len(r.compressed), int(x.data)+layoutOf(x.Type).head, layoutOf(x.Type)
		r.compressed = append(r.compressed, r.packed[x.data:at]...)
		for range l.names {
			if !r.compressName(at, l.compress) {
				return false
			}
			at = nameEnd(r.packed, at)
		}
		r.compressed = append(r.compressed, r.packed[at:x.end]...)
		binary.BigEndian.PutUint16(r.compressed[data-2:], uint16(len(r.compressed)-data)) // #nosec G115 -- up to maxReply
	}
	return true
}

// compressName appends the name at an offset of packed to compressed. Names that are not to be compressed are appended
// whole; other names may refer to them.
func (r *Reply) compressName(at int, compress bool) bool {
	for r.packed[at] != 0 {
		slot := r.suffixes.find(r.packed, at)
		switch {
		case slot.plain != 0 && compress:
			r.compressed = binary.BigEndian.AppendUint16(r.compressed, 0xc000|slot.compressed)
			return true
		case slot.plain == 0:
			if r.suffixes.count++; r.suffixes.count > maxSuffixes {
				return false
			}
			*slot = suffix{uint16(at), uint16(len(r.compressed))} // #nosec G115 -- up to maxReply
		}
		next := at + 1 + int(r.packed[at])
		r.compressed = append(r.compressed, r.packed[at:next]...)
		at = next
	}
	r.compressed = append(r.compressed, 0)
	return true
}

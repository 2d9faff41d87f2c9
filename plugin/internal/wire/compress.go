package wire

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
func (s *suffixes) find(plain []byte, at int) *suffix {
	name := plain[at:NameEnd(plain, at)]
	for i := maphash.Bytes(suffixSeed, name); ; i++ {
		slot := &s.table[i%suffixSlots]
		if slot.plain == 0 {
			return slot
		}
		if other := plain[slot.plain:]; len(other) >= len(name) && string(other[:len(name)]) == string(name) {
			return slot
		}
	}
}

// suffixSeed makes hashes unpredictable: an upstream could send names with equal hashes otherwise.
var suffixSeed = maphash.MakeSeed()

// Compressed returns the reply in the form of package dns with compression of names, valid until the next call of Parse. It
// returns false for a reply with too many names.
func (r *Reply) Compressed() (body Body, ok bool) {
	clear(r.suffixes.table[:])
	r.suffixes.count = 0
	r.compressed, r.compressedRecords = append(r.compressed[:0], r.plain[:HeaderLen]...), r.compressedRecords[:0]
	question := HeaderLen + r.nameLen
	if !r.compressName(HeaderLen, true) {
		return body, false
	}
	r.compressed = append(r.compressed, r.plain[question:question+TypeClassLen]...)
	for _, x := range r.records {
		if !r.compressRecord(x) {
			return body, false
		}
	}
	return Body{r.compressed, r.compressedRecords, r.first}, true
}

// compressRecord appends a record of plain to compressed.
func (r *Reply) compressRecord(x Record) bool {
	owner := len(r.compressed)
	if !r.compressName(int(x.Owner), true) {
		return false
	}
	r.compressed = append(r.compressed, r.plain[x.Data-RecordLen:x.Data]...)
	data, l := len(r.compressed), layoutOf(x.Type)
	at := int(x.Data) + l.head
	r.compressed = append(r.compressed, r.plain[x.Data:at]...)
	for range l.names {
		if !r.compressName(at, l.compress) {
			return false
		}
		at = NameEnd(r.plain, at)
	}
	r.compressed = append(r.compressed, r.plain[at:x.End]...)
	end := len(r.compressed)
	binary.BigEndian.PutUint16(r.compressed[data-2:], uint16(end-data))                                         // #nosec G115 -- up to maxPlain
	r.compressedRecords = append(r.compressedRecords, Record{x.Type, uint32(owner), uint32(data), uint32(end)}) // #nosec G115
	return true
}

// compressName appends the name at an offset of plain to compressed. Names that are not to be compressed are appended whole;
// other names may refer to them.
func (r *Reply) compressName(at int, compress bool) bool {
	for r.plain[at] != 0 {
		slot := r.suffixes.find(r.plain, at)
		switch {
		case slot.plain != 0 && compress:
			r.compressed = binary.BigEndian.AppendUint16(r.compressed, pointer<<8|slot.compressed)
			return true
		case slot.plain == 0:
			if r.suffixes.count++; r.suffixes.count > maxSuffixes {
				return false
			}
			*slot = suffix{uint16(at), uint16(len(r.compressed))} // #nosec G115 -- up to maxPlain
		}
		next := at + 1 + int(r.plain[at])
		r.compressed = append(r.compressed, r.plain[at:next]...)
		at = next
	}
	r.compressed = append(r.compressed, 0)
	return true
}

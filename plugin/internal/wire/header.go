package wire

import "encoding/binary"

// Lengths in bytes, RFC 1035 sections 2.3.4 and 4.1, RFC 6891 section 6.1.2.
const (
	HeaderLen    = 12
	TypeClassLen = 4  // type and class, which end a question
	RecordLen    = 10 // of a record without its owner name and its data
	OPTLen       = 11 // an OPT record without options
	OptionLen    = 4  // of an EDNS option without its data
	MaxName      = 255
	MaxLabel     = 63
	MaxMessage   = 1<<16 - 1
)

// Offsets in the header, RFC 1035 section 4.1.1.
const (
	FlagsAt   = 2
	RcodeAt   = 3
	QDCountAt = 4
	ANCountAt = 6
	ARCountAt = 10
)

// Bits of the byte at FlagsAt, RFC 1035 section 4.1.1.
const (
	QR         = 0x80
	OpcodeMask = 0x78
	AA         = 0x04
	TC         = 0x02
	RD         = 0x01
)

// Bits of the byte at RcodeAt, RFC 1035 section 4.1.1 and RFC 4035 section 3.
const (
	RA        = 0x80
	AD        = 0x20
	CD        = 0x10
	RcodeMask = 0x0f
)

// DO is the DNSSEC OK flag in the TTL of an OPT record, RFC 3225 section 3.
const DO = 0x8000

// MaxRcode is the maximum response code of a message without an OPT record.
const MaxRcode = 0xf

// Section is a section of records.
type Section int

// The sections of records.
const (
	Answer Section = iota
	Authority
	Additional
	Sections // the number of sections
)

// CountAt returns the offset in the header of the number of records in a section.
func (s Section) CountAt() int { return ANCountAt + 2*int(s) }

// Count returns the number of questions or records at an offset of a header.
func Count(b []byte, at int) int { return int(binary.BigEndian.Uint16(b[at:])) }

// addCount changes the number of records in a section.
func addCount(b []byte, s Section, n int) {
	count := b[s.CountAt():]
	binary.BigEndian.PutUint16(count, uint16(int(binary.BigEndian.Uint16(count))+n)) // #nosec G115 -- the caller has counted
}

// Flag returns a bit of a byte of flags if it is set, and 0 otherwise.
func Flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}

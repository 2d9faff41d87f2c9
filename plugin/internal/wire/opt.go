package wire

import "encoding/binary"

// TypeOPT is the type of the OPT record, RFC 6891 section 6.1.1.
const TypeOPT = 41

// optionsAt is the offset in an OPT record of the length of its options.
const optionsAt = OPTLen - 2

// OPT is the last OPT record of the additional section; its offsets are 0 without one.
type OPT struct {
	Record
	// Last reports that this is the only one, belongs to the root, and ends the message.
	Last bool
}

// FindOPT returns the OPT record of a message. It returns false for a message that does not end with its last record.
func FindOPT(b []byte) (opt OPT, ok bool) {
	r, found := Records(b), 0
	for r.Next() {
		if r.Type == TypeOPT && r.Section == Additional {
			found++
			opt = OPT{r.Record, found == 1 && b[r.Owner] == 0 && int(r.Record.End) == len(b)}
		}
	}
	return opt, r.isWhole()
}

// IsPresent reports whether the message has an OPT record.
func (o OPT) IsPresent() bool { return o.End > 0 }

// IsOPT reports whether b begins with the fixed part of an OPT record.
func IsOPT(b []byte) bool {
	return len(b) >= OPTLen && b[0] == 0 && binary.BigEndian.Uint16(b[1:]) == TypeOPT
}

// UDPSize returns the sender's maximum length of a UDP message in bytes, from an OPT record.
func UDPSize(opt []byte) uint16 { return binary.BigEndian.Uint16(opt[3:]) }

// AppendOPT appends an OPT record with the sender's maximum length of a UDP message in bytes, with flags and with options.
func AppendOPT(dst []byte, size uint16, flags uint32, options []byte) []byte {
	dst = append(dst, 0, 0, TypeOPT, byte(size>>8), byte(size))
	dst = binary.BigEndian.AppendUint32(dst, flags)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(options))) // #nosec G115 -- they fit into a message
	return append(dst, options...)
}

// AddOPT appends an OPT record without flags and options to a message, and counts it.
func AddOPT(message []byte, size uint16) []byte {
	addCount(message, Additional, 1)
	return AppendOPT(message, size, 0, nil)
}

// EndOPT sets the length of the options of the OPT record at an offset. They end the message.
func EndOPT(message []byte, at int) {
	binary.BigEndian.PutUint16(message[at+optionsAt:], uint16(len(message)-at-OPTLen)) // #nosec G115 -- they fit into a message
}

// MessageOption returns the data of the first EDNS option with a code in the OPT records of a message.
func MessageOption(b []byte, code uint16) (data []byte, ok bool) {
	if len(b) < HeaderLen || Count(b, ARCountAt) == 0 {
		return nil, false
	}
	for r := Records(b); !ok && r.Next(); {
		if r.Type == TypeOPT && r.Section == Additional {
			data, ok = FindOption(b[r.Data:r.End], code)
		}
	}
	return data, ok
}

// Package dso reads and writes messages of DNS Stateful Operations (RFC 8490), and the TLVs with which clusterdns tells the
// caches of nodes that answers have ended; README.md specifies every byte. Input and output are messages in wire form,
// without the length that precedes them on a connection. It is a leaf: it imports no other package of the project, and has
// no connections.
package dso

import (
	"encoding/binary"
	"errors"
	"iter"
)

// Opcode is the opcode of DSO messages, RFC 8490 section 10.1.
const Opcode = 6

// Response codes of DSO messages, RFC 8490 section 10.2 and RFC 1035 section 4.1.1.
const (
	NoError        = 0
	FormatError    = 1
	ServerFailure  = 2
	NotImplemented = 4
	Refused        = 5
	TypeNI         = 11 // DSOTYPENI: the primary TLV is not implemented
)

// Type is the type of a TLV, RFC 8490 section 10.3.
type Type uint16

// The types of TLVs. Session, Heartbeat and Invalidate are private ones (F800 to FBFF).
const (
	Keepalive  Type = 1
	RetryDelay Type = 2
	Padding    Type = 3

	// Session requests notifications. Its response has the clock of the server.
	Session Type = 0xF8A0
	// Heartbeat reports that the server's view of the cluster is current.
	Heartbeat Type = 0xF8A1
	// Invalidate lists handles whose data have changed; without any it means all handles of the session.
	Invalidate Type = 0xF8A2
)

// OptionCode is the code of the EDNS option that requests notification in a query, without data, and that has the handles
// of the data which an answer depends on in a response.
const OptionCode = 65315

// Version is the version of the private TLVs.
const Version = 1

// Lengths in bytes.
const (
	headerLen  = 12
	tlvHead    = 4
	numberLen  = 8
	MaxHandles = 6 // of an answer

	// MaxInvalidated is the maximum number of handles in a message.
	MaxInvalidated = 4096
)

// TLV is an element of a DSO message.
type TLV struct {
	Type Type
	Data []byte
}

// Message is a DSO message.
type Message struct {
	// ID is 0 in a unidirectional message.
	ID       uint16
	Response bool
	// Rcode is the response code; in a unidirectional message it may be the reason of a RetryDelay.
	Rcode int

	tlvs []byte
}

// IsDSO reports whether a message has the opcode of DSO.
func IsDSO(message []byte) bool { return len(message) > 2 && message[2]>>3&0xF == Opcode }

// errMalformed is the error of Parse.
var errMalformed = errors.New("malformed DSO message")

// Parse parses a message for which IsDSO is true. The message is malformed if a count is not zero, or if a TLV does not end
// within the message (RFC 8490 sections 5.4.1 and 5.4.4). TLVs are slices of it.
func Parse(message []byte) (m Message, err error) {
	if len(message) < headerLen {
		return m, errMalformed
	}
	m = Message{
		ID: binary.BigEndian.Uint16(message), Response: message[2]&0x80 != 0, Rcode: int(message[3] & 0xF), tlvs: message[headerLen:],
	}
	for _, b := range message[4:headerLen] {
		if b != 0 {
			return m, errMalformed
		}
	}
	for rest := m.tlvs; len(rest) > 0; {
		if len(rest) < tlvHead || len(rest) < tlvHead+int(binary.BigEndian.Uint16(rest[2:])) {
			return m, errMalformed
		}
		rest = rest[tlvHead+int(binary.BigEndian.Uint16(rest[2:])):]
	}
	return m, nil
}

// TLVs yields the TLVs. The first is the primary TLV.
func (m *Message) TLVs() iter.Seq[TLV] {
	return func(yield func(TLV) bool) {
		for rest := m.tlvs; len(rest) > 0; {
			end := tlvHead + int(binary.BigEndian.Uint16(rest[2:]))
			if !yield(TLV{Type(binary.BigEndian.Uint16(rest)), rest[tlvHead:end:end]}) {
				return
			}
			rest = rest[end:]
		}
	}
}

// Primary returns the first TLV, false without any.
func (m *Message) Primary() (TLV, bool) {
	for t := range m.TLVs() {
		return t, true
	}
	return TLV{}, false
}

// AppendHeader appends the header of a message: a request if its id is not 0, and otherwise a unidirectional message.
func AppendHeader(b []byte, id uint16, response bool, rcode int) []byte {
	b = binary.BigEndian.AppendUint16(b, id)
	flags := byte(Opcode << 3)
	if response {
		flags |= 0x80
	}
	return append(b, flags, byte(rcode), 0, 0, 0, 0, 0, 0, 0, 0) // #nosec G115 -- a response code of 4 bits
}

// AppendTLV appends a TLV of up to 65535 bytes.
func AppendTLV(b []byte, t Type, data ...byte) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(t))
	b = binary.BigEndian.AppendUint16(b, uint16(len(data))) // #nosec G115 -- the caller limits it
	return append(b, data...)
}

// Opening is the data of a Session TLV in a response.
type Opening struct {
	// Instance identifies the process of the server: handles of another one mean other data.
	Instance uint64
	// Clock is the time of the server's monotonic clock at which it made the response, in microseconds.
	Clock uint64
}

// AppendSessionRequest appends a request for notifications. The same request later reads the server's clock again.
func AppendSessionRequest(b []byte, id uint16) []byte {
	return AppendTLV(AppendHeader(b, id, false, NoError), Session, Version)
}

// AppendSessionResponse appends the response to a request for notifications.
func AppendSessionResponse(b []byte, id uint16, o Opening) []byte {
	var data [1 + 2*numberLen]byte
	data[0] = Version
	binary.BigEndian.PutUint64(data[1:], o.Instance)
	binary.BigEndian.PutUint64(data[1+numberLen:], o.Clock)
	return AppendTLV(AppendHeader(b, id, true, NoError), Session, data[:]...)
}

// ReadOpening reads the data of a Session TLV in a response. Bytes behind the known ones are ignored.
func ReadOpening(data []byte) (o Opening, ok bool) {
	if len(data) < 1+2*numberLen || data[0] != Version {
		return o, false
	}
	return Opening{binary.BigEndian.Uint64(data[1:]), binary.BigEndian.Uint64(data[1+numberLen:])}, true
}

// AppendHeartbeat appends a heartbeat with the time of the server's clock in microseconds.
func AppendHeartbeat(b []byte, clock uint64) []byte {
	b = AppendTLV(AppendHeader(b, 0, false, NoError), Heartbeat, make([]byte, numberLen)...)
	binary.BigEndian.PutUint64(b[len(b)-numberLen:], clock)
	return b
}

// ReadHeartbeat reads the data of a Heartbeat TLV.
func ReadHeartbeat(data []byte) (clock uint64, ok bool) {
	if len(data) < numberLen {
		return 0, false
	}
	return binary.BigEndian.Uint64(data), true
}

// AppendInvalidate appends the invalidation of up to MaxInvalidated handles, of all handles if there are none.
func AppendInvalidate(b []byte, handles []uint64) []byte {
	b = AppendHeader(b, 0, false, NoError)
	b = binary.BigEndian.AppendUint16(b, uint16(Invalidate))
	b = binary.BigEndian.AppendUint16(b, uint16(len(handles)*numberLen)) // #nosec G115 -- at most MaxInvalidated
	return AppendHandles(b, handles)
}

// AppendHandles appends handles, as option OptionCode of an answer has them.
func AppendHandles(b []byte, handles []uint64) []byte {
	for _, h := range handles {
		b = binary.BigEndian.AppendUint64(b, h)
	}
	return b
}

// ReadHandles appends the handles in the data of an Invalidate TLV or of the option to dst. It returns false if the length is
// not a multiple of that of a handle.
func ReadHandles(dst []uint64, data []byte) ([]uint64, bool) {
	if len(data)%numberLen != 0 {
		return dst, false
	}
	for ; len(data) > 0; data = data[numberLen:] {
		dst = append(dst, binary.BigEndian.Uint64(data))
	}
	return dst, true
}

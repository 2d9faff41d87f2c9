// Package dso reads and writes messages of DNS Stateful Operations (RFC 8490), and the TLVs with which clusterdns notifies the
// caches of nodes of answers that have ended; README.md specifies every byte. Input and output are messages in wire form, without
// the length that precedes them on a connection. It is a leaf: it imports no other package of the project, and has no connections.
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

	// Session requests notifications. Its response has the instance and the clock of the server.
	Session Type = 0xF8A0
	// Heartbeat reports that the server's view of the cluster is current.
	Heartbeat Type = 0xF8A1
	// Invalidate lists handles whose data have changed; without any it means all handles of the session.
	Invalidate Type = 0xF8A2
)

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

// Errors of Parse. ErrCounts requires a response with FormatError if the message is a request (RFC 8490 section 5.4). After
// ErrMalformed the connection is aborted (sections 5.4.1, 5.5.3).
var (
	ErrCounts    = errors.New("DSO message with records")
	ErrMalformed = errors.New("malformed DSO message")
)

// Parse parses a message for which IsDSO is true. TLVs are slices of it. It is malformed if a TLV does not end within it, if
// it is a response without an ID, or if it is not a response and has no TLV (RFC 8490 sections 5.4.1, 5.4.2, 5.4.4). With
// ErrCounts the Message has no TLVs; an ID of 0 then forbids a response.
func Parse(message []byte) (m Message, err error) {
	if len(message) < headerLen {
		return m, ErrMalformed
	}
	m = Message{ID: binary.BigEndian.Uint16(message), Response: message[2]&0x80 != 0, Rcode: int(message[3] & 0xF)}
	for _, b := range message[4:headerLen] {
		if b != 0 {
			return m, ErrCounts
		}
	}
	if m.Response && m.ID == 0 || !m.Response && len(message) == headerLen {
		return m, ErrMalformed
	}
	for rest := message[headerLen:]; len(rest) > 0; {
		if len(rest) < tlvHead || len(rest) < tlvHead+int(binary.BigEndian.Uint16(rest[2:])) {
			return m, ErrMalformed
		}
		rest = rest[tlvHead+int(binary.BigEndian.Uint16(rest[2:])):]
	}
	m.tlvs = message[headerLen:]
	return m, nil
}

// Request reports whether a message requires a response.
func (m *Message) Request() bool { return !m.Response && m.ID != 0 }

// Unidirectional reports whether a message must not be answered, not even with an error.
func (m *Message) Unidirectional() bool { return !m.Response && m.ID == 0 }

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

// AppendHeader appends the header of a response, of a request, or with an id of 0 of a unidirectional message.
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

// AppendErrorResponse appends a response without TLVs: the request with the ID failed with a response code.
func AppendErrorResponse(b []byte, id uint16, rcode int) []byte {
	return AppendHeader(b, id, true, rcode)
}

// MinKeepalive is the minimum of a keepalive interval in milliseconds. A client aborts the connection if the server's value
// is less (RFC 8490 section 6.5.2).
const MinKeepalive = 10_000

// Timeouts is the data of a Keepalive TLV (RFC 8490 section 7.1), in milliseconds. 2^32-1 is infinite.
type Timeouts struct {
	// Inactivity is the time after which a client closes a connection without an operation in progress.
	Inactivity uint32
	// Keepalive is the maximum time between two messages.
	Keepalive uint32
}

// AppendKeepalive appends a Keepalive message: a client's request, its response, or with ID 0 the server's own message.
func AppendKeepalive(b []byte, id uint16, response bool, t Timeouts) []byte {
	var data [8]byte
	binary.BigEndian.PutUint32(data[:], t.Inactivity)
	binary.BigEndian.PutUint32(data[4:], t.Keepalive)
	return AppendTLV(AppendHeader(b, id, response, NoError), Keepalive, data[:]...)
}

// ReadKeepalive reads the data of a Keepalive TLV.
func ReadKeepalive(data []byte) (t Timeouts, ok bool) {
	if len(data) != 8 {
		return t, false
	}
	return Timeouts{binary.BigEndian.Uint32(data), binary.BigEndian.Uint32(data[4:])}, true
}

// AppendRetryDelay appends the message with which a server ends a session for a reason: NoError is a shutdown, ServerFailure
// an overload (RFC 8490 section 7.2.1). The client closes the connection and does not connect again for a time in
// milliseconds.
func AppendRetryDelay(b []byte, reason int, milliseconds uint32) []byte {
	var data [4]byte
	binary.BigEndian.PutUint32(data[:], milliseconds)
	return AppendTLV(AppendHeader(b, 0, false, reason), RetryDelay, data[:]...)
}

// ReadRetryDelay reads the data of a RetryDelay TLV.
func ReadRetryDelay(data []byte) (milliseconds uint32, ok bool) {
	if len(data) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint32(data), true
}

// ReadSessionRequest reads the data of a Session TLV in a request, and reports whether the version is known. Bytes behind it
// are ignored. A server answers a request of another version with TypeNI.
func ReadSessionRequest(data []byte) (ok bool) { return len(data) > 0 && data[0] == Version }

// Opening is the data of a Session TLV in a response.
type Opening struct {
	// Instance identifies the process of the server: handles of another process stand for other data.
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

// AppendHandles appends handles, as option wire.OptionNotify of an answer has them.
func AppendHandles(b []byte, handles []uint64) []byte {
	for _, h := range handles {
		b = binary.BigEndian.AppendUint64(b, h)
	}
	return b
}

// ReadHandles appends the handles in the data of an Invalidate TLV or of option wire.OptionNotify to dst. It returns false if
// the length is not a multiple of a handle's.
func ReadHandles(dst []uint64, data []byte) ([]uint64, bool) {
	if len(data)%numberLen != 0 {
		return dst, false
	}
	for ; len(data) > 0; data = data[numberLen:] {
		dst = append(dst, binary.BigEndian.Uint64(data))
	}
	return dst, true
}

package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// The protocol of sessions, as plugin/internal/dso/README.md specifies it: this client is written from that page.
const (
	dsoOpcode      = 6
	dsoSession     = 0xF8A0
	dsoHeartbeat   = 0xF8A1
	dsoInvalidate  = 0xF8A2
	handleOption   = 65315
	handleSize     = 8
	sessionID      = 1                // of Session requests; queries have others
	sessionRepeats = 10 * time.Second // between two of them
	sessionTimeout = 60 * time.Second // for the messages before run
)

// sessionRequest is a Session request with its length.
var sessionRequest = []byte{0, 17, 0, sessionID, dsoOpcode << 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xF8, 0xA0, 0, 1, 1}

// handle is the number of data that an answer depends on.
type handle [handleSize]byte

// simulated is the session of a node cache, without clients.
type simulated struct {
	conn        net.Conn
	in          *bufio.Reader
	buffer      []byte
	lastRequest time.Time

	// What happens on the session. Each may be nil.
	beat  func(now time.Time)
	ended func(handles []byte, now time.Time) error // all handles if there are none
	reply func(answer []byte, now time.Time) error
}

// sourceOf is the address of a node: the server limits what the sessions of one address have.
func sourceOf(node int) *net.TCPAddr {
	return &net.TCPAddr{IP: net.IPv4(127, 1, byte(node/250), byte(1+node%250))} // #nosec G115 -- fewer than 250 * 250 nodes
}

// openSession opens a session of a node with a server.
func openSession(port, node int) (s *simulated, err error) {
	dialer := net.Dialer{LocalAddr: sourceOf(node)}
	conn, err := dialer.Dial("tcp", addressAt(port))
	if err != nil {
		return nil, err
	}
	s = newSimulated(conn)
	if err := conn.SetDeadline(time.Now().Add(sessionTimeout)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if _, err := conn.Write(sessionRequest); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	m, err := s.read()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if tlv, data := primaryTLV(m); m[3]&0xF != 0 || binary.BigEndian.Uint16(m) != sessionID || tlv != dsoSession || len(data) < 1+2*8 || data[0] != 1 {
		return nil, errors.Join(fmt.Errorf("%w to a Session request: %x", errWrong, m), conn.Close())
	}
	return s, nil
}

func newSimulated(conn net.Conn) *simulated {
	return &simulated{conn: conn, in: bufio.NewReaderSize(conn, 512), lastRequest: time.Now()}
}

// read returns the next message, which is valid until the next call.
func (s *simulated) read() ([]byte, error) {
	length, err := s.in.Peek(2)
	if err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(length))
	if n < headerSize {
		return nil, fmt.Errorf("%w of %d bytes", errWrong, n)
	}
	_, _ = s.in.Discard(2) // peeked
	s.buffer = slices.Grow(s.buffer[:0], n)[:n]
	_, err = io.ReadFull(s.in, s.buffer)
	return s.buffer, err
}

// primaryTLV returns the first TLV of a DSO message, type 0 without any.
func primaryTLV(m []byte) (tlv int, data []byte) {
	if m[2]>>3&0xF != dsoOpcode || len(m) < headerSize+4 {
		return 0, nil
	}
	m = m[headerSize:]
	if data = m[4:]; len(data) < int(binary.BigEndian.Uint16(m[2:])) {
		return 0, nil
	}
	return int(binary.BigEndian.Uint16(m)), data[:binary.BigEndian.Uint16(m[2:])]
}

// run processes messages until the connection ends. A request every sessionRepeats keeps the session alive. A deadline for
// each message would cost more than the message.
func (s *simulated) run() error {
	if err := s.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	for {
		m, err := s.read()
		if err != nil {
			return err
		}
		now := time.Now()
		if now.Sub(s.lastRequest) >= sessionRepeats {
			s.lastRequest = now
			if _, err := s.conn.Write(sessionRequest); err != nil {
				return err
			}
		}
		if err := s.handle(m, now); err != nil {
			return err
		}
	}
}

// handle processes a message.
func (s *simulated) handle(m []byte, now time.Time) error {
	if m[2]>>3&0xF != dsoOpcode {
		if s.reply == nil {
			return nil
		}
		return s.reply(m, now)
	}
	switch tlv, data := primaryTLV(m); {
	case tlv == dsoHeartbeat && len(data) >= 8:
		if s.beat != nil {
			s.beat(now)
		}
	case tlv == dsoInvalidate && len(data)%handleSize == 0:
		if s.ended != nil {
			return s.ended(data, now)
		}
	case tlv == dsoSession && binary.BigEndian.Uint16(m) == sessionID:
	default:
		return fmt.Errorf("%w: DSO message %x", errWrong, m)
	}
	return nil
}

// notifyQuery returns a query that requests handles, with its length. Its ID is 2.
func notifyQuery(name string) ([]byte, error) {
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	m.Id = sessionID + 1
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: handleOption})
	b, err := m.Pack()
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...), err // #nosec G115 -- small
}

// answered is the content of an answer.
type answered struct {
	result  string // response code and addresses
	handles []handle
}

func readAnswered(b []byte) (a answered, err error) {
	var m dns.Msg
	if err := m.Unpack(b); err != nil {
		return a, err
	}
	result := []string{dns.RcodeToString[m.Rcode]}
	for _, r := range m.Answer {
		if address, ok := r.(*dns.A); ok {
			result = append(result, address.A.String())
		}
	}
	a.result = strings.Join(result, " ")
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if local, ok := o.(*dns.EDNS0_LOCAL); ok && local.Code == handleOption {
				for data := range slices.Chunk(local.Data, handleSize) {
					a.handles = append(a.handles, handle(data))
				}
			}
		}
	}
	return a, nil
}

// hasHandle reports whether handles of an Invalidate message have one of some, or are all.
func hasHandle(data []byte, some []handle) bool {
	for one := range slices.Chunk(data, handleSize) {
		if slices.ContainsFunc(some, func(h handle) bool { return bytes.Equal(h[:], one) }) {
			return true
		}
	}
	return len(data) == 0
}

// observation is an answer of a node cache at a time.
type observation struct {
	cache  int
	result string
	at     time.Time
}

// watcher is a node cache that queries for a name, and again when the answer has ended.
type watcher struct {
	*simulated
	number  int
	query   atomic.Pointer[[]byte] // for the name
	handles []handle               // of the last answer
	found   chan<- observation
}

func newWatcher(port, number int, found chan<- observation) (*watcher, error) {
	s, err := openSession(port, number)
	if err != nil {
		return nil, err
	}
	w := &watcher{simulated: s, number: number, found: found}
	s.reply, s.ended = w.answer, w.end
	return w, nil
}

// watch queries for another name.
func (w *watcher) watch(query []byte) error {
	w.query.Store(&query)
	_, err := w.conn.Write(query)
	return err
}

func (w *watcher) answer(b []byte, now time.Time) error {
	if query := *w.query.Load(); len(query) < 2+headerSize || !bytes.HasPrefix(b[headerSize:], questionOf(query)) {
		return nil // to the query for an earlier name
	}
	a, err := readAnswered(b)
	if err != nil {
		return err
	}
	if len(a.handles) == 0 {
		return fmt.Errorf("%w: %s without handles", errWrong, a.result)
	}
	w.handles = a.handles
	w.found <- observation{w.number, a.result, now}
	return nil
}

// questionOf returns the question of a query that ends with its OPT record.
func questionOf(query []byte) []byte {
	const opt = 11 + 4 // an OPT record with one option without data
	return query[2+headerSize : len(query)-opt]
}

func (w *watcher) end(handles []byte, _ time.Time) error {
	if !hasHandle(handles, w.handles) {
		return nil
	}
	w.handles = nil
	_, err := w.conn.Write(*w.query.Load())
	return err
}

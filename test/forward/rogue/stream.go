package rogue

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// drainTime bounds the time for which a connection is read after the server has closed its direction: a full close with
// unread queries would be a reset.
const drainTime = 2 * time.Second

// stream is one connection.
type stream struct {
	s      *Server
	tcp    *net.TCPConn
	conn   net.Conn // tcp, or TLS over it
	number int

	writing sync.Mutex // held while frames are written, never with mu

	mu      sync.Mutex
	queries int
	answers int
	ending  bool
	gone    chan struct{} // closed with ending
}

func (s *Server) newStream(tcp *net.TCPConn) *stream {
	st := &stream{s: s, tcp: tcp, conn: tcp, number: s.ledger.opened(), gone: make(chan struct{})}
	if s.tls != nil {
		st.conn = tls.Server(tcp, s.tls)
	}
	return st
}

// serve reads queries until the connection ends.
func (st *stream) serve() {
	defer st.leave()
	if b := st.s.Behaviour(); b.CloseAtOnce {
		st.end(b.Reset)
		_, _ = io.Copy(io.Discard, st.tcp) // until the client closes it, or drainTime is over
		return
	}
	reader := bufio.NewReader(st.conn)
	for st.s.awaken(st.gone) {
		query, err := readFrame(reader)
		if err != nil {
			return
		}
		st.receive(query)
	}
}

// leave closes the connection in both directions.
func (st *stream) leave() {
	st.end(false)
	_ = st.tcp.Close() // it may be closed already
	st.s.mu.Lock()
	delete(st.s.streams, st)
	st.s.mu.Unlock()
	st.mu.Lock()
	defer st.mu.Unlock()
	st.s.ledger.closed(st.queries - st.answers)
	st.answers = st.queries
}

// readFrame reads a length prefix and its message (RFC 1035 section 4.2.2).
func readFrame(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	message := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(r, message)
	return message, err
}

// frame returns a message with its length prefix.
func frame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
}

// receive counts a query and answers it, or ends the connection as the behaviour requires.
func (st *stream) receive(packet []byte) {
	b := st.s.Behaviour()
	query := new(dns.Msg)
	if err := query.Unpack(packet); err != nil || query.Response || len(query.Question) != 1 {
		st.s.ledger.malformed()
		return
	}
	number, ended := st.count(query.Question[0].Name)
	if ended {
		return
	}
	if chance(b.ResetShare) {
		st.end(true)
		return
	}
	if number == b.CloseOnQuery {
		st.end(b.Reset)
		return
	}
	if chance(b.Drop) {
		return
	}
	if b.InOrder {
		st.answer(b, query)
		return
	}
	st.s.tasks.Go(func() { st.answer(b, query) })
}

// count counts a query, and returns its number on the connection and whether the connection is ending.
func (st *stream) count(name string) (number int, ended bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.queries++
	st.s.ledger.frame(name, st.number, st.queries-st.answers)
	return st.queries, st.ending
}

// answer sends the replies to a query.
func (st *stream) answer(b Behaviour, query *dns.Msg) {
	messages, err := b.messages(query, true)
	if err != nil {
		st.s.t.Errorf("rogue server %s: %v", st.s.Addr, err)
		return
	}
	if !st.s.pause(b.wait(query.Question[0].Name), st.gone) {
		return
	}
	st.writing.Lock()
	defer st.writing.Unlock()
	number := 0
	for i, m := range messages {
		// Counted before it is sent: a fast client may send its next query before the write returns.
		if i == len(messages)-1 && !b.OnlyWrong {
			number = st.answered()
		}
		if !st.send(b, frame(m)) {
			return
		}
	}
	if number > 0 && number == b.CloseAfter {
		st.end(b.Reset)
	}
}

// send writes a frame or a part of it, and reports whether the connection is still open.
func (st *stream) send(b Behaviour, frame []byte) bool {
	if b.Pause == 0 && b.Cut == 0 {
		_, err := st.conn.Write(frame)
		return err == nil
	}
	middle := 1 + rand.IntN(len(frame)-1)
	if _, err := st.conn.Write(frame[:middle]); err != nil {
		return false
	}
	if chance(b.Cut) {
		st.end(b.Reset)
		return false
	}
	if !st.s.pause(b.Pause, st.gone) {
		return false
	}
	_, err := st.conn.Write(frame[middle:])
	return err == nil
}

// answered counts an answer and returns its number on the connection.
func (st *stream) answered() int {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.answers < st.queries {
		st.answers++
		st.s.ledger.answered(true)
	}
	return st.answers
}

// end resets a connection or closes the server's direction. In the latter case serve reads for drainTime, or until the
// client closes the connection.
func (st *stream) end(reset bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.ending {
		return
	}
	st.ending = true
	close(st.gone)
	// Errors are ignored: the client may have closed the connection before.
	if reset {
		_ = st.tcp.SetLinger(0)
		_ = st.tcp.Close()
		return
	}
	_ = st.tcp.SetReadDeadline(time.Now().Add(drainTime))
	_ = st.tcp.CloseWrite()
}

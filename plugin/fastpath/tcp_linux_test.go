package fastpath

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/pkg/reuseport"
	"github.com/miekg/dns"
)

// newStreamListener returns a listener with an address over TCP that was taken over. Its server has a plugin chain of one handler.
func newStreamListener(t *testing.T, handle func(w dns.ResponseWriter, m *dns.Msg)) (l *listener, address string) {
	t.Helper()
	s := newServer(t, handle)
	s.chain = newChain(0)
	own, err := reuseport.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Close() })
	l = &listener{address: s.Addr}
	l.server.Store(s)
	address = own.Addr().String()
	if err := l.takeOver(own.(*net.TCPListener)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.drainStreams)
	return l, address
}

// dialTCP opens a connection that the test closes.
func dialTCP(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

// framed returns a packed query for a name with its length.
func framed(t *testing.T, id uint16, name string, change ...func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	m.Id = id
	for _, c := range change {
		c(m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
}

// readFrame reads a message.
func readFrame(r io.Reader) (*dns.Msg, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	m := new(dns.Msg)
	return m, m.Unpack(b)
}

// echo answers with the query's question.
func echo(w dns.ResponseWriter, m *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetReply(m)) }

func mustRead(t *testing.T, conn io.Reader, id uint16) *dns.Msg {
	t.Helper()
	m, err := readFrame(conn)
	if err != nil {
		t.Fatalf("reply %d: %v", id, err)
	}
	if m.Id != id || !m.Response {
		t.Fatalf("reply %d is\n%v", id, m)
	}
	return m
}

// TestPartialFrames splits two queries at every byte.
func TestPartialFrames(t *testing.T) {
	_, address := newStreamListener(t, echo)
	both := append(framed(t, 1, "one.example."), framed(t, 2, strings.Repeat("two.", 50)+"example.")...)
	for at := range both {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			conn := dialTCP(t, address)
			for _, part := range [][]byte{both[:at], both[at:]} {
				if _, err := conn.Write(part); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Millisecond)
			}
			seen := map[uint16]bool{}
			for range 2 {
				m, err := readFrame(conn)
				if err != nil {
					t.Fatal(err)
				}
				seen[m.Id] = true
			}
			if !seen[1] || !seen[2] {
				t.Errorf("replies %v", seen)
			}
		})
	}
}

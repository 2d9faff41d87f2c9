//go:build linux

package fastpath

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// quiet is the time after which a missing reply counts as no reply, if the other program does not reply either.
const quiet = 400 * time.Millisecond

// wire sends unchanged packets to a server, and receives the replies.
type wire struct {
	network string // udp, tcp or tls
	address string
	tls     *tls.Config // of a client over tls
	conn    net.Conn
}

// dial opens a connection or a socket. Over TCP there is a connection for each query: a server may close one after a
// malformed message.
func dial(t *testing.T, network, host string, s *server) *wire {
	t.Helper()
	w := &wire{network: network, address: net.JoinHostPort(host, strconv.Itoa(s.Port))}
	t.Cleanup(func() { w.hangUp(t) })
	if network == "udp" {
		w.connect(t)
	}
	return w
}

func (w *wire) connect(t *testing.T) {
	t.Helper()
	var conn net.Conn
	var err error
	if w.network == "tls" {
		conn, err = tls.Dial("tcp", w.address, w.tls)
	} else {
		conn, err = net.Dial(w.network, w.address)
	}
	kit.Must(t, err)
	w.conn = conn
}

func (w *wire) hangUp(t *testing.T) {
	t.Helper()
	if w.conn == nil {
		return
	}
	if err := w.conn.Close(); err != nil {
		t.Error(err)
	}
	w.conn = nil
}

// send sends a packet.
func (w *wire) send(t *testing.T, packet []byte) {
	t.Helper()
	if w.network != "udp" {
		w.hangUp(t)
		w.connect(t)
		packet = append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...)
	}
	if _, err := w.conn.Write(packet); err != nil {
		t.Fatal(err)
	}
}

// receive returns the next reply, or nil if there is none within a time.
func (w *wire) receive(t *testing.T, within time.Duration) []byte {
	t.Helper()
	kit.Must(t, w.conn.SetReadDeadline(time.Now().Add(within)))
	b := make([]byte, 65536)
	if w.network != "udp" {
		if _, err := io.ReadFull(w.conn, b[:2]); err != nil {
			return nothing(t, err)
		}
		b = b[:binary.BigEndian.Uint16(b)]
		if err := w.conn.SetReadDeadline(time.Now().Add(bounded)); err != nil { // there is a reply
			t.Fatal(err)
		}
		if _, err := io.ReadFull(w.conn, b); err != nil {
			return nothing(t, err)
		}
		return b
	}
	n, err := w.conn.Read(b)
	if err != nil {
		return nothing(t, err)
	}
	return b[:n]
}

// nothing fails the test unless an error only means that there was no reply.
func nothing(t *testing.T, err error) []byte {
	t.Helper()
	if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	return nil
}

// ask sends a query and returns the reply to it.
func (w *wire) ask(t *testing.T, query []byte) []byte {
	t.Helper()
	w.send(t, query)
	reply := w.receive(t, bounded)
	if reply == nil {
		t.Fatalf("no reply over %s to\n%s", w.network, describe(query))
	}
	return reply
}

// wires are connections to both programs of a pair.
type wires struct{ on, off *wire }

func (p pair) dial(t *testing.T, network, host string) wires {
	t.Helper()
	return wires{on: dial(t, network, host, p.on), off: dial(t, network, host, p.off)}
}

// ask sends a packet to both programs and returns the replies, nil for none.
func (w wires) ask(t *testing.T, packet []byte) (on, off []byte) {
	t.Helper()
	w.on.send(t, packet)
	w.off.send(t, packet)
	on = w.on.receive(t, quiet)
	if on != nil {
		return on, w.off.receive(t, bounded)
	}
	if off = w.off.receive(t, quiet/4); off != nil { // it has had as much time as the other
		on = w.on.receive(t, bounded)
	}
	for _, one := range []*wire{w.on, w.off} {
		if on == nil && off == nil && one.network == "udp" { // a late reply does not count as the one to the next packet
			one.hangUp(t)
			one.connect(t)
		}
	}
	return on, off
}

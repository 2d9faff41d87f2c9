//go:build linux

package search

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/netns"
)

// state is what becomes of the queries that a tap gets.
type state int

const (
	passing state = iota // to the server, and its replies back
	silent               // they are lost
	failing              // SERVFAIL
)

// tap stands before a server, writes down the queries that it gets, and passes them on as they are.
type tap struct {
	recorded
	in              *netns.Namespace
	address, server string // with ports

	running  sync.WaitGroup
	mu       sync.Mutex
	state    state
	listener net.Listener // nil while it is closed
	packets  net.PacketConn
	open     map[net.Conn]struct{}
	problem  error
}

// startTap starts a tap on one address of a namespace for the server on another, until the end of the test.
func startTap(t *testing.T, in *netns.Namespace, address, server string) *tap {
	t.Helper()
	p := &tap{in: in, address: net.JoinHostPort(address, "53"), server: net.JoinHostPort(server, "53"), open: map[net.Conn]struct{}{}}
	p.listen(t)
	t.Cleanup(func() {
		p.close()
		p.running.Wait()
		if p.problem != nil {
			t.Error(p.problem)
		}
	})
	return p
}

// listen opens the tap, also again after close.
func (p *tap) listen(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.in.Do(func() (err error) {
		if p.listener, err = net.Listen("tcp", p.address); err != nil {
			return err
		}
		p.packets, err = net.ListenPacket("udp", p.address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	listener, packets := p.listener, p.packets
	p.running.Go(func() { p.accept(listener) })
	p.running.Go(func() { p.datagrams(packets) })
}

// close ends the tap as if its host had nothing there: connections are reset, packets refused.
func (p *tap) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return
	}
	err := errors.Join(p.listener.Close(), p.packets.Close())
	p.listener = nil
	for c := range p.open {
		_ = c.Close() // the other side may have done so
	}
	p.problem = errors.Join(p.problem, err)
}

// become sets what becomes of queries from now on.
func (p *tap) become(s state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = s
}

// got writes a query down and returns what is to become of it.
func (p *tap) got(network string, packed []byte) state {
	q, err := newQuery(network, packed)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.problem = errors.Join(p.problem, err)
		return silent
	}
	p.add(q)
	return p.state
}

// dial makes a connection to the server.
func (p *tap) dial(network string) (c net.Conn, err error) {
	err = p.in.Do(func() error {
		c, err = net.DialTimeout(network, p.server, bounded)
		return err
	})
	return c, err
}

func (p *tap) datagrams(packets net.PacketConn) {
	for {
		b := make([]byte, dns.MaxMsgSize)
		n, from, err := packets.ReadFrom(b)
		if err != nil {
			return // it is closed
		}
		switch p.got("udp", b[:n]) {
		case passing:
			p.running.Go(func() { p.exchange(packets, from, b[:n]) })
		case failing:
			_, _ = packets.WriteTo(failure(b[:n]), from) // who asked may be gone
		}
	}
}

// exchange asks the server once.
func (p *tap) exchange(packets net.PacketConn, from net.Addr, packed []byte) {
	c, err := p.dial("udp")
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }() // there is nothing to lose
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return
	}
	if _, err := c.Write(packed); err != nil {
		return
	}
	b := make([]byte, dns.MaxMsgSize)
	if n, err := c.Read(b); err == nil {
		_, _ = packets.WriteTo(b[:n], from)
	}
}

func (p *tap) accept(listener net.Listener) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return // it is closed
		}
		p.running.Go(func() { p.connection(c) })
	}
}

// remember tells whether the tap is open; close closes these connections then.
func (p *tap) remember(all ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range all {
		p.open[c] = struct{}{}
	}
	return p.listener != nil
}

func (p *tap) forget(c net.Conn) {
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
	_ = c.Close()
}

// connection passes the messages of a connection on until one side closes it.
func (p *tap) connection(client net.Conn) {
	defer p.forget(client)
	server, err := p.dial("tcp")
	if err != nil {
		return
	}
	defer p.forget(server)
	if !p.remember(client, server) {
		return
	}
	var writing sync.Mutex // to the client
	p.running.Go(func() {
		defer func() { _ = client.Close() }() // ends the loop below
		for {
			reply, err := readMessage(server)
			if err != nil || writeMessage(&writing, client, reply) != nil {
				return
			}
		}
	})
	var alone sync.Mutex
	for {
		packed, err := readMessage(client)
		if err != nil {
			return
		}
		switch p.got("tcp", packed) {
		case passing:
			err = writeMessage(&alone, server, packed)
		case failing:
			err = writeMessage(&writing, client, failure(packed))
		}
		if err != nil {
			return
		}
	}
}

// failure returns the SERVFAIL to a query.
func failure(packed []byte) []byte {
	m := new(dns.Msg)
	if err := m.Unpack(packed); err != nil {
		return nil
	}
	reply, err := new(dns.Msg).SetRcode(m, dns.RcodeServerFailure).Pack()
	if err != nil {
		return nil
	}
	return reply
}

// readMessage reads a message with its length, RFC 1035 section 4.2.2.
func readMessage(c net.Conn) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(c, b)
	return b, err
}

// writeMessage writes a message with its length. Nobody else who has the lock writes between.
func writeMessage(lock *sync.Mutex, c net.Conn, packed []byte) error {
	lock.Lock()
	defer lock.Unlock()
	_, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...))
	return err
}

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

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/netns"
)

// state is how a tap handles queries.
type state int

const (
	passing state = iota // forwards them to the server, and the replies to the client
	silent               // drops them
	failing              // answers SERVFAIL
)

// tap is a proxy in front of a server that records the queries and forwards messages unchanged.
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

// startTap starts a tap on an address in front of a server in the same namespace, until the end of the test.
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

// listen opens the sockets, also again after close.
func (p *tap) listen(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	kit.Must(t, p.in.Do(func() (err error) {
		if p.listener, err = net.Listen("tcp", p.address); err != nil {
			return err
		}
		p.packets, err = net.ListenPacket("udp", p.address)
		return err
	}))
	listener, packets := p.listener, p.packets
	p.running.Go(func() { p.accept(listener) })
	p.running.Go(func() { p.datagrams(packets) })
}

// close closes all sockets, as if the server were not running: connections are reset, packets refused.
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

// set sets the state.
func (p *tap) set(s state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = s
}

// record records a query and returns the state.
func (p *tap) record(network string, packed []byte) state {
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

// dial opens a connection to the server.
func (p *tap) dial(network string) (c net.Conn, err error) {
	return p.in.Dial(net.Dialer{Timeout: maxWait}, network, p.server)
}

func (p *tap) datagrams(packets net.PacketConn) {
	for {
		b := make([]byte, dns.MaxMsgSize)
		n, from, err := packets.ReadFrom(b)
		if err != nil {
			return // it is closed
		}
		switch p.record("udp", b[:n]) {
		case passing:
			p.running.Go(func() { p.exchange(packets, from, b[:n]) })
		case failing:
			_, _ = packets.WriteTo(failure(b[:n]), from) // the client may have closed its socket
		}
	}
}

// exchange forwards one query and its reply.
func (p *tap) exchange(packets net.PacketConn, from net.Addr, packed []byte) {
	c, err := p.dial("udp")
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }() // a datagram socket
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

// register registers connections, which close closes. It reports whether the tap is open.
func (p *tap) register(all ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range all {
		p.open[c] = struct{}{}
	}
	return p.listener != nil
}

func (p *tap) unregister(c net.Conn) {
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
	_ = c.Close()
}

// connection forwards the messages of a connection until one side closes it.
func (p *tap) connection(client net.Conn) {
	defer p.unregister(client)
	server, err := p.dial("tcp")
	if err != nil {
		return
	}
	defer p.unregister(server)
	if !p.register(client, server) {
		return
	}
	var toClient, toServer sync.Mutex
	p.running.Go(func() {
		defer func() { _ = client.Close() }() // ends the loop below
		for {
			reply, err := readMessage(server)
			if err != nil || writeMessage(&toClient, client, reply) != nil {
				return
			}
		}
	})
	for {
		packed, err := readMessage(client)
		if err != nil {
			return
		}
		switch p.record("tcp", packed) {
		case passing:
			err = writeMessage(&toServer, server, packed)
		case failing:
			err = writeMessage(&toClient, client, failure(packed))
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

// writeMessage writes a message with its length, with the connection's lock held.
func writeMessage(lock *sync.Mutex, c net.Conn, packed []byte) error {
	lock.Lock()
	defer lock.Unlock()
	_, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...))
	return err
}

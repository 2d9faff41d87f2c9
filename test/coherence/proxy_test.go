//go:build linux

package coherence

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// proxy forwards TCP connections to a server, and injects faults.
type proxy struct {
	address string
	in      *netns.Namespace // of the clients
	delay   atomic.Int64     // of both directions, in nanoseconds
	held    atomic.Bool      // nothing is written

	mu       sync.Mutex
	listener net.Listener // nil while connections are refused
	target   string
	open     map[net.Conn]bool
}

// startProxy starts a proxy on a free port until the test ends.
func startProxy(t testing.TB, target string) *proxy {
	t.Helper()
	return startProxyIn(t, nil, target)
}

// startProxyIn starts a proxy for clients in a namespace, to a server in the network of the test.
func startProxyIn(t testing.TB, n *netns.Namespace, target string) *proxy {
	t.Helper()
	p := &proxy{address: "127.0.0.1:0", in: n, target: target, open: map[net.Conn]bool{}}
	p.listen(t)
	t.Cleanup(p.refuse)
	return p
}

// listen accepts connections, again after refuse.
func (p *proxy) listen(t testing.TB) {
	t.Helper()
	var l net.Listener
	err := within(p.in, func() (err error) {
		l, err = net.Listen("tcp", p.address)
		return err
	})
	kit.Must(t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener, p.address = l, l.Addr().String()
	go p.accept(l)
}

// refuse refuses connections, and ends those that are open, as a server that has ended.
func (p *proxy) refuse() {
	p.mu.Lock()
	_ = p.listener.Close() // it is open
	p.mu.Unlock()
	p.cut()
}

func (p *proxy) accept(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return // closed
		}
		p.mu.Lock()
		target := p.target
		p.mu.Unlock()
		server, err := net.DialTimeout("tcp", target, time.Second)
		if err != nil {
			_ = client.Close() // as a server that ends
			continue
		}
		p.mu.Lock()
		moved := p.target != target
		p.open[client], p.open[server] = true, true
		p.mu.Unlock()
		if moved {
			p.cut()
			continue
		}
		go p.forward(client, server)
		go p.forward(server, client)
	}
}

// redirect makes new connections go to another server, and ends those that are open.
func (p *proxy) redirect(target string) {
	p.mu.Lock()
	p.target = target
	p.mu.Unlock()
	p.cut()
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		_ = c.Close() // one side may have closed it
		delete(p.open, c)
	}
}

// piece is the bytes of one read, and the time from which they may be written.
type piece struct {
	bytes []byte
	due   time.Time
}

// maxPieces is the number of pieces that wait in one direction.
const maxPieces = 4096

func (p *proxy) forward(from, to net.Conn) {
	pieces := make(chan piece, maxPieces)
	go func() {
		defer close(pieces)
		for {
			buffer := make([]byte, 8192)
			n, err := from.Read(buffer)
			if n > 0 {
				pieces <- piece{buffer[:n], time.Now().Add(time.Duration(p.delay.Load()))}
			}
			if err != nil {
				return
			}
		}
	}()
	for piece := range pieces {
		for time.Sleep(time.Until(piece.due)); p.held.Load(); {
			time.Sleep(time.Millisecond)
		}
		if _, err := to.Write(piece.bytes); err != nil {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range []net.Conn{from, to} {
		_ = c.Close() // the other direction may have closed it
		delete(p.open, c)
	}
	go drain(pieces)
}

// drain lets the reader of a direction end.
func drain(pieces chan piece) {
	for range pieces {
		continue
	}
}

// startEcho starts a server that sends back what it receives, and returns its address.
func startEcho(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c) }() // until the client closes
		}
	}()
	return l.Addr().String()
}

func dialProxy(t *testing.T, p *proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.address)
	kit.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// roundTrip returns the time in which some bytes come back.
func roundTrip(t *testing.T, c net.Conn) time.Duration {
	t.Helper()
	start := time.Now()
	if _, err := c.Write([]byte("bytes")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	return time.Since(start)
}

package main

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

// gate is a TCP proxy before an API server. It counts the bytes that it sends to the client.
type gate struct {
	address, backend string
	received         atomic.Int64 // by the client, or about to be

	mu       sync.Mutex
	listener net.Listener // nil while connections are refused
	conns    map[net.Conn]bool
	flows    chan struct{} // closed while bytes are forwarded
}

// newGate returns a gate that forwards connections to an address, until refuse.
func newGate(backend string) (*gate, error) {
	g := &gate{address: "127.0.0.1:0", backend: backend, conns: map[net.Conn]bool{}, flows: make(chan struct{})}
	close(g.flows)
	return g, g.open()
}

// open accepts connections, always on the same port.
func (g *gate) open() error {
	l, err := net.Listen("tcp", g.address)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listener, g.address = l, l.Addr().String()
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // refuse
			}
			go g.serve(client)
		}
	}()
	return nil
}

// hold stops all bytes and ends of connections, so that the client sees an idle server, until cut.
func (g *gate) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.flows = make(chan struct{})
}

// cut ends all connections. New ones are forwarded.
func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		_ = c.Close() // its goroutines end with the error
	}
	select {
	case <-g.flows:
	default:
		close(g.flows)
	}
}

// refuse ends all connections, and refuses new ones until open, as a host without an API server does.
func (g *gate) refuse() error {
	g.mu.Lock()
	l := g.listener
	g.listener = nil
	g.mu.Unlock()
	g.cut()
	if l == nil {
		return nil
	}
	return l.Close()
}

func (g *gate) serve(client net.Conn) {
	defer g.forget(client)
	if g.remember(client); g.wait() != nil {
		return
	}
	backend, err := net.Dial("tcp", g.backend)
	if err != nil {
		return
	}
	defer g.forget(backend)
	g.remember(backend)
	go func() {
		g.forward(backend, client, nil)
		_, _ = client.Close(), backend.Close() // so that the other direction ends
	}()
	g.forward(client, backend, &g.received)
}

// errRefused means that the gate was closed.
var errRefused = errors.New("connections are refused")

// wait waits while bytes are held.
func (g *gate) wait() error {
	g.mu.Lock()
	flows := g.flows
	g.mu.Unlock()
	<-flows
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.listener == nil {
		return errRefused
	}
	return nil
}

// forward copies bytes until an end of the connection, and counts them.
func (g *gate) forward(to, from net.Conn, count *atomic.Int64) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if g.wait() != nil {
			return
		}
		if n > 0 {
			if count != nil {
				count.Add(int64(n)) // before the client has the bytes and may read the count
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (g *gate) remember(c net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.conns[c] = true
}

func (g *gate) forget(c net.Conn) {
	_ = c.Close() // it may be closed
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
}

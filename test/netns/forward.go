//go:build linux

package netns

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Forward forwards TCP connections to an address of the namespace's loopback interface, such as "127.0.0.1:40123", to the
// same address outside, such as an API server's. It ends with the test.
func (n *Namespace) Forward(t testing.TB, address string) {
	t.Helper()
	var listener net.Listener
	if err := n.Do(func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	}); err != nil {
		t.Fatalf("forward %s: %v", address, err)
	}
	f := &forwarder{address: address, open: map[net.Conn]struct{}{}}
	f.running.Go(func() { f.accept(listener) })
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		f.close()
	})
}

// forwarder copies bytes between connections of two namespaces. It closes both on an error: the programs have to handle
// that.
type forwarder struct {
	address string
	running sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

func (f *forwarder) accept(listener net.Listener) {
	for {
		inside, err := listener.Accept()
		if err != nil {
			return
		}
		f.running.Go(func() { f.serve(inside) })
	}
}

func (f *forwarder) serve(inside net.Conn) {
	defer f.remove(inside)
	outside, err := net.Dial("tcp", f.address)
	if err != nil {
		return
	}
	defer f.remove(outside)
	if !f.add(inside, outside) {
		return
	}
	done := make(chan error, 2)
	go func() { done <- pipe(outside, inside) }()
	go func() { done <- pipe(inside, outside) }()
	<-done // the deferred closes end the other direction
}

func pipe(to, from net.Conn) error {
	_, err := io.Copy(to, from)
	return err
}

// add adds connections for close to close. It returns false if the forwarder is closed.
func (f *forwarder) add(all ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range all {
		f.open[c] = struct{}{}
	}
	return !f.closed
}

func (f *forwarder) remove(c net.Conn) {
	f.mu.Lock()
	delete(f.open, c)
	f.mu.Unlock()
	_ = c.Close()
}

func (f *forwarder) close() {
	f.mu.Lock()
	f.closed = true
	for c := range f.open {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.running.Wait()
}

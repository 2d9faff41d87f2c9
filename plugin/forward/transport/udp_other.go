//go:build !linux

package transport

import (
	"context"
	"net"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
)

// handle is the kernel's part of a UDP socket. A goroutine waits for each datagram.
type handle struct{ c net.Conn }

func (s *socket) open(address string, source net.IP) (err error) {
	s.c, err = Dialer("udp", source).DialContext(context.Background(), "udp", address)
	return err
}

func (h *handle) write(b []byte) error {
	_, err := h.c.Write(b)
	return err
}

// unread makes each query use a new socket: the content of a used one can't be examined.
func (*handle) unread() (answer, failed bool) { return false, true }

// watch calls readable after each datagram, until it returns false.
func (s *socket) watch() {
	go func() {
		buf := make([]byte, maxMessage+1)
		for {
			n, err := s.c.Read(buf)
			var b batch.Batch
			more := s.readable(&b, func(*socket) ([]byte, error) { return buf[:n], err })
			b.Flush()
			if !more {
				return
			}
		}
	}()
}

func (s *socket) close() { _ = s.c.Close() } // no data is lost

// openFiles returns the number of files that the process may have open on any system.
func openFiles() int { return 1024 }

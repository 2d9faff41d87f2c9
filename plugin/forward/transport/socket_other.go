//go:build !linux

package transport

import (
	"errors"
	"net"
	"syscall"
)

func control(string, string, syscall.RawConn) error { return nil }

// unread makes each query use a new socket: the content of a used one can't be examined.
func unread(*net.UDPConn) func() (answer, failed bool) { return unknownUnread }

func setUserTimeout(net.Conn) {}

const countsSegments = false

func segments(net.Conn) (packets, bool) { return packets{}, false }

// stream is not implemented: connections are written and read by their goroutines.
type stream struct{}

func newStream(net.Conn) *stream { return nil }

func (*stream) write([]byte) (int, error) { return 0, errors.ErrUnsupported }

func (*stream) read(*conn) error { return errors.ErrUnsupported }

func (s *socket) receive(q datagram) (buf *[]byte, n int, err error) {
	buf = bufferFor(q)
	if n, err = s.c.Read(*buf); err != nil {
		releaseBuffer(buf)
		return nil, 0, err
	}
	return buf, n, nil
}

//go:build !linux

package transport

import (
	"errors"
	"net"
)

func setUserTimeout(net.Conn) {}

const countsSegments = false

func segments(net.Conn) (packets, bool) { return packets{}, false }

// stream is not implemented: connections are written and read by their goroutines.
type stream struct{}

func newStream(net.Conn) *stream { return nil }

func (*stream) write([]byte) (int, error) { return 0, errors.ErrUnsupported }

func (*stream) read(*conn) error { return errors.ErrUnsupported }

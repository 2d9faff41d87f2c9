//go:build !linux

package rogue

import (
	"errors"
	"io"
	"net"
	"net/netip"
)

// ReservePort does nothing: the port stays free.
func ReservePort(netip.AddrPort, bool) (io.Closer, error) { return io.NopCloser(nil), nil }

// leaveNoQueue fails: a full queue loses packets on Linux only.
func leaveNoQueue(net.Listener) error { return errors.New("no black hole on this system") }

// limitBuffers does nothing: buffers retain their size.
func limitBuffers(net.Listener, bool) error { return nil }

// widenBuffer does nothing, as limitBuffers.
func widenBuffer(net.Conn) error { return nil }

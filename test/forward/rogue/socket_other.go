//go:build !linux

package rogue

import (
	"errors"
	"io"
	"net"
	"net/netip"
)

// KeepPort does nothing: the port is free.
func KeepPort(netip.AddrPort, bool) (io.Closer, error) { return io.NopCloser(nil), nil }

// leaveNoQueue fails: a full queue loses packets on Linux only.
func leaveNoQueue(net.Listener) error { return errors.New("no black hole on this system") }

// limitBuffers does nothing: buffers stay as large as they are.
func limitBuffers(net.Listener, bool) error { return nil }

// widenBuffer does nothing, as limitBuffers.
func widenBuffer(net.Conn) error { return nil }

//go:build !linux

package transport

import (
	"net"
	"syscall"
)

func control(string, string, syscall.RawConn) error { return nil }

// unread makes each query use a new socket: the content of a used one can't be examined.
func unread(*net.UDPConn) func() (answer, failed bool) { return unknownUnread }

func setUserTimeout(net.Conn) {}

const countsSegments = false

func segments(net.Conn) (packets, bool) { return packets{}, false }

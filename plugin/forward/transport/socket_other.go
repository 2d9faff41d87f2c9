//go:build !linux

package transport

import (
	"net"
	"syscall"
)

func control(string, string, syscall.RawConn) error { return nil }

// unread has each query sent from a socket of its own: whether an answer lies in a used one is not known.
func unread(*net.UDPConn) func() (answer, failed bool) { return noSecondUse }

func endSoon(net.Conn) {}

func segments(net.Conn) (packets, bool) { return packets{}, false }

//go:build !linux

package transport

import (
	"net"
	"syscall"
)

func control(string, string, syscall.RawConn) error { return nil }

func endSoon(net.Conn) {}

func segments(net.Conn) (packets, bool) { return packets{}, false }

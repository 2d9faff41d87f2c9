//go:build !linux

package controlplane

import (
	"fmt"
	"net"
)

// port is a TCP port of 127.0.0.1 that was free. Another program may bind it; port_linux.go prevents that.
type port struct {
	number int
}

// reservePort finds a free port.
func reservePort() (*port, error) {
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	number := listener.Addr().(*net.TCPAddr).Port
	if err := listener.Close(); err != nil {
		return nil, fmt.Errorf("find a free port: %w", err)
	}
	return &port{number: number}, nil
}

// release does nothing here.
func (p *port) release() error { return nil }

package controlplane

import (
	"errors"
	"fmt"
	"syscall"
)

// soReusePort is SO_REUSEPORT, which package syscall lacks on some machines.
const soReusePort = 0xf

// port is a TCP port of 127.0.0.1 that is reserved for the servers of this test, also while none of them listens on it.
// Only servers with SO_REUSEPORT can bind it; the kernel assigns it to no socket that binds port 0.
type port struct {
	number int
	socket int
}

// reservePort reserves a free port until release is called.
func reservePort() (_ *port, err error) {
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("reserve a port: socket: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, syscall.Close(socket))
		}
	}()
	if err := syscall.SetsockoptInt(socket, syscall.SOL_SOCKET, soReusePort, 1); err != nil {
		return nil, fmt.Errorf("reserve a port: share it: %w", err)
	}
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return nil, fmt.Errorf("reserve a port: bind: %w", err)
	}
	address, err := syscall.Getsockname(socket)
	if err != nil {
		return nil, fmt.Errorf("reserve a port: read its number: %w", err)
	}
	v4, ok := address.(*syscall.SockaddrInet4)
	if !ok {
		return nil, fmt.Errorf("reserve a port: unexpected kind of address %T", address)
	}
	return &port{number: v4.Port, socket: socket}, nil
}

// release lets the system assign the port again.
func (p *port) release() error {
	if err := syscall.Close(p.socket); err != nil {
		return fmt.Errorf("release port %d: %w", p.number, err)
	}
	return nil
}

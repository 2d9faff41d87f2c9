// Package inuse finds addresses on which another process listens. Servers listen with SO_REUSEPORT, with which the kernel
// divides the queries to an address among the processes of a user. Input is an address; output is an error. It imports no other
// package of the project.
package inuse

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
)

var shared atomic.Bool

// Share has Check permit all addresses: an update of nodecache starts the new process beside the old one.
func Share() { shared.Store(true) }

// Check returns an error if another process listens on an address of the network tcp or udp, or on an address that overlaps it,
// such as the wildcard address. The process itself must not listen there yet. Other errors are left to the listener.
func Check(network, address string) error {
	if shared.Load() {
		return nil
	}
	var socket interface{ Close() error } // without SO_REUSEPORT
	var err error
	if network == "udp" {
		socket, err = net.ListenPacket(network, address)
	} else {
		socket, err = net.Listen(network, address)
	}
	switch {
	case err == nil:
		return socket.Close()
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("listen %s %s: address already in use by another process: stop it, choose another port, or set -reuseport to share this one", network, address)
	}
	return nil
}

package fastpath

import (
	"net"
	"net/netip"
)

// maxBackground is how many queries that no client waits for the plugins send at a time. Each has a place of the process
// (runningCost), so that these leave more than half of the places to the queries of clients.
const maxBackground = 256

// StartBackground takes a place for a query that a plugin sends in the background on behalf of a client, such as for an
// answer that has expired. It fails if there is none. A client gets a part of the places. The caller calls end when the
// query has ended.
func StartBackground(client net.Addr) (end func(), ok bool) { return startBackground(hostOf(client)) }

// hostOf returns the address of a client without its port, and the zero address if it has none.
func hostOf(client net.Addr) netip.Addr {
	switch a := client.(type) {
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// Package fastpath answers UDP queries from the store of answers, and hands all others to CoreDNS's server: it is an
// accelerator, and every answer that it sends was made by the plugins. Input is datagrams of the sockets that it opens
// beside CoreDNS's; output is patched answers. It learns of server blocks and their plugins from package block.
package fastpath

import "github.com/nearside-dns/nearside/plugin/internal/block"

// Stop answers the queries that the listeners have received, and closes the listeners. A program calls it before it
// stops its servers; it does nothing after plugins were called at the end of their configuration.
func Stop() {
	fastPath{}.Leave(func(*block.Configuration) bool { return true }, false)
}

// fastPath implements block.FastPath.
type fastPath struct{}

// Package fastpath answers queries over UDP and TCP from the store of answers, and hands all others to CoreDNS's server. It is
// an accelerator: plugins have made every answer in the store. Input is datagrams of the sockets that it opens beside
// CoreDNS's, and connections of CoreDNS's listener, which it takes over; output is patched answers. It imports no other plugin:
// package block describes the server blocks and their plugins.
package fastpath

// process is the fast path of the process.
var process = newFastPath()

// Stop answers the queries that the listeners have received, and closes the listeners. A program calls it before it stops
// its servers.
func Stop() { process.Stop(nil) }

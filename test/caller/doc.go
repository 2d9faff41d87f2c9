// Package caller tests from outside that nodecache tells cluster DNS which node asks, and nobody else: with
// real nodecache, upstreams that write down each byte that they get, real CoreDNS and dig. In go Corefiles,
// flags and queries; it knows nothing of the code under test but the bytes that README.md of plugin forward
// documents.
package caller

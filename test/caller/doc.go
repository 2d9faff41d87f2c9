// Package caller tests end to end that nodecache sends the name of its node to cluster DNS, and to no other server: real
// nodecache, upstreams that record each byte of queries, real CoreDNS and dig. Input is Corefiles, flags and queries. Of
// the code under test it uses only the option, as README.md of plugin forward documents it.
package caller

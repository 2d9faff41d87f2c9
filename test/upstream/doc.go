// Package upstream runs CoreDNS's own tests against clusterdns and nodecache. Input is the module of CoreDNS and the table of
// reasons; output is a result for each case, and RESULTS.md. The tests are compiled in a temporary copy of the module, in which
// testdata/harness replaces the functions that start a server, parse a stanza or answer a query.
package upstream

// Package fastpath tests the fast path from outside: it starts the programs, sends datagrams, and
// compares what comes back with what the same program gives with "fastpath off". In go Corefiles,
// manifests and packets; it knows nothing of the code under test but its metrics and start lines.
//
// TestSoak lasts ten seconds. The long one is
//
//	go test ./test/fastpath -run TestSoak -soak 60s
package fastpath

// Package fastpath tests the fast path from outside: it starts the programs, sends datagrams, and compares the replies
// with those of the same program with "fastpath off". Input is Corefiles, manifests and packets; of the code under test
// it uses only metrics and log lines.
//
// TestSoak lasts ten seconds by default. To run it for longer: go test ./test/fastpath -run TestSoak -soak 60s
package fastpath

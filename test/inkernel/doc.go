// Package inkernel tests the answers in the kernel as pods receive them: nodecache with the option kernel of fastpath runs on a
// node in a network namespace, with pods behind veth pairs as network plugins make them, in both address families. The tests
// compare the answers, the metrics and the packets with those of nodecache without the option.
//
// It has tests only. They need root and the programs that test/install.sh installs.
package inkernel

// Package nodelocal tests nodecache on a node: as a black box, in the network namespaces of
// test/netns, with dig and a stream of queries from pods, with what ip, nft, iptables and conntrack
// say of the kernel, and with a real API server and kube-proxy where clients depend on Services.
//
// It has tests only. They need root and the programs that test/install.sh gets.
package nodelocal

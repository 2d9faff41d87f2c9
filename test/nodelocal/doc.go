// Package nodelocal tests nodecache on a node as a black box, in the network namespaces of test/netns: with dig and a
// stream of queries from pods, with the kernel's state as ip, nft, iptables and conntrack print it, and with a real API
// server and kube-proxy where clients use Services.
//
// It has tests only. They need root and the programs that test/install.sh installs.
package nodelocal

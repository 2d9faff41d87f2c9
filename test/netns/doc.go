// Package netns gives a test a small cluster network of Linux network namespaces: a node, two pods
// behind it, and a host on the node's far side where cluster DNS runs. All are joined by veth pairs,
// with IPv4 and IPv6, and the node forwards between them.
//
// In goes nothing but root and the program ip; out come namespaces in which the test runs programs,
// opens sockets and sends DNS load that it can measure outages with. Everything is gone after the
// test, and what a killed run left behind is removed by the next one. Nothing here knows what
// nodecache is.
package netns

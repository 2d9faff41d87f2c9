// Package netns sets up a small cluster network of Linux network namespaces for a test: a node, two pods on it, and an
// upstream host for cluster DNS, joined by veth pairs with IPv4 and IPv6; the node forwards between them.
//
// Tests run programs in the namespaces, open sockets there, and send DNS load to measure outages. The package needs root
// and the program ip. Namespaces are removed after the test, or by the next run if a test process was killed. The package
// does not depend on nodecache.
package netns

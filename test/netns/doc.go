// Package netns has Linux network namespaces for tests.
//
// A Bed is a small cluster network: a node, two pods on it, and an upstream host for cluster DNS, joined by veth pairs with
// IPv4 and IPv6; the node forwards between them. Tests run programs in the namespaces, open sockets there, and send DNS load
// to measure outages. Namespaces are removed after the test, or by the next run if a test process was killed.
//
// A test of one package runs in an empty namespace: on a thread (Enter), or in a process (Inside). Its interfaces and rules
// end with the namespace.
//
// The package needs root, and for a Bed the program ip. It imports no package of the product.
package netns

//go:build linux

package topology

import (
	"fmt"
	"testing"

	"github.com/nearside-dns/nearside/test/netns"
)

// nodes is the number of nodes, which are numbered from 1.
const nodes = 3

// Addresses of servers and of clients without a node.
const (
	clusterDNS  = "10.2.0.1" // upstream of nodecache
	clusterDNS6 = "fd02::1"
	otherDNS    = "10.2.0.2" // a second clusterdns, with another Corefile
	local       = "169.254.20.10"
	// fromTrusted and fromUntrusted are addresses of stranger that no object of the API has: a private one, and a public
	// one (RFC 5737).
	fromTrusted   = "10.3.0.2"
	fromUntrusted = "198.51.100.2"
	// fromPod is an address of stranger that a Pod has, outside of the pod ranges of all nodes.
	fromPod = "10.3.0.3"
)

// nodeRange is the range of the addresses of nodes.
const nodeRange = "10.2.0.0/16"

// podRanges returns the pod ranges of a node, as its Node has them.
func podRanges(node int) []string {
	return []string{fmt.Sprintf("10.1.%d.0/24", node), fmt.Sprintf("fd01:0:0:%d::/64", node)}
}

// nodeAddress returns the IPv4 address of a node.
func nodeAddress(node int) string { return fmt.Sprintf("10.2.%d.2", node) }

// bed is the network. All namespaces reach each other, through dns.
type bed struct {
	dns      *netns.Namespace        // with cluster DNS
	node     [nodes]*netns.Namespace // with nodecache
	pod      [nodes]*netns.Namespace // behind their nodes, with addresses of their pod ranges
	stranger *netns.Namespace        // a client that is on no node
}

// newBed creates the network, until the end of the test.
func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{dns: netns.Add(t, "dns"), stranger: netns.Add(t, "stranger")}
	for _, a := range []string{clusterDNS + "/32", otherDNS + "/32", clusterDNS6 + "/128"} {
		b.dns.Run(t, "ip", "addr", "add", a, "dev", "lo")
	}
	b.dns.Forwards(t)
	b.stranger.Join(t, b.dns, "stranger", "10.3.0.%d/24", "198.51.100.%d/24")
	b.stranger.Run(t, "ip", "addr", "add", fromPod+"/24", "dev", "eth0")
	for i := range nodes {
		k := i + 1
		b.node[i], b.pod[i] = netns.Add(t, fmt.Sprint("node", k)), netns.Add(t, fmt.Sprint("pod", k))
		b.node[i].Join(t, b.dns, fmt.Sprint("node", k), fmt.Sprintf("10.2.%d.%%d/24", k), fmt.Sprintf("fd02:0:0:%d::%%d/64", k))
		b.pod[i].Join(t, b.node[i], "pod", fmt.Sprintf("10.1.%d.%%d/24", k), fmt.Sprintf("fd01:0:0:%d::%%d/64", k))
		b.node[i].Forwards(t)
		for j, via := range []string{nodeAddress(k), fmt.Sprintf("fd02:0:0:%d::2", k)} {
			b.dns.Run(t, "ip", "route", "add", podRanges(k)[j], "via", via)
		}
	}
	return b
}

//go:build linux

package topology

import (
	"fmt"
	"testing"

	"github.com/nearside-dns/nearside/test/netns"
)

// nodes is how many there are; they count from 1.
const nodes = 3

// The addresses of servers.
const (
	clusterDNS  = "10.2.0.1" // what nodecache asks
	clusterDNS6 = "fd02::1"
	otherDNS    = "10.2.0.2" // a second clusterdns, with another Corefile
	local       = "169.254.20.10"
	// The addresses of stranger are a private one and one that the internet could have (RFC 5737), of which
	// nothing is known.
	fromTrusted   = "10.3.0.2"
	fromUntrusted = "198.51.100.2"
	// fromPod is one of a Pod, outside of the ranges of all nodes.
	fromPod = "10.3.0.3"
)

// nodeRange are the addresses of nodes.
const nodeRange = "10.2.0.0/16"

// podRanges are those of a node's pods, as in its Node.
func podRanges(node int) []string {
	return []string{fmt.Sprintf("10.1.%d.0/24", node), fmt.Sprintf("fd01:0:0:%d::/64", node)}
}

// nodeAddress is the IPv4 address of a node.
func nodeAddress(node int) string { return fmt.Sprintf("10.2.%d.2", node) }

// bed is the network. Each part of it has a link to dns, or behind it, and reaches all others.
type bed struct {
	dns      *netns.Namespace        // where cluster DNS runs
	node     [nodes]*netns.Namespace // where nodecache runs
	pod      [nodes]*netns.Namespace // behind their nodes, with an address of its range
	stranger *netns.Namespace        // with addresses of no node
}

// newBed makes the network, until the end of the test.
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

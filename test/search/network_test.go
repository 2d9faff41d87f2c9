//go:build linux

package search

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/netns"
)

// Addresses of the servers, which share one network namespace.
const (
	oursTap    = "10.2.0.1" // the tap in front of clusterdns
	ours       = "10.2.0.11"
	stockTap   = "10.2.0.2" // the tap in front of CoreDNS
	stock      = "10.2.0.12"
	upstreamIP = "10.2.0.3"
	local      = "169.254.20.10"
	local6     = "fd00::169:254:20:10"
	nodeRange  = "10.2.0.0/16"
)

// pod is a network namespace with the address of a pod.
type pod struct {
	*netns.Namespace
	// namespace and name are those of the pod in the API; the name is empty for a pod that is not in it.
	namespace, name string
	// search and server are the suffixes and the nameserver of its resolv.conf.
	search  []string
	server  string
	packets *capture
}

func (p *pod) String() string { return p.Name[strings.LastIndexByte(p.Name, '-')+1:] }

// node is a network namespace with pods behind it.
type node struct {
	*netns.Namespace
	world  *world
	number int
	name   string // in the API
	pods   int    // number of pods
	cache  *netns.Process
}

// newServers creates the network namespace of the servers, which routes between the nodes.
func newServers(t *testing.T) *netns.Namespace {
	t.Helper()
	n := netns.Add(t, "dns")
	for _, a := range []string{oursTap, ours, stockTap, stock, upstreamIP} {
		n.Run(t, "ip", "addr", "add", a+"/32", "dev", "lo")
	}
	n.Forwards(t)
	return n
}

// newNode creates a node, until the end of the test.
func (w *world) newNode(t *testing.T) *node {
	t.Helper()
	w.nodes++
	k := w.nodes
	n := &node{Namespace: netns.Add(t, fmt.Sprint("node", k)), world: w, number: k, name: fmt.Sprint("n", k)}
	n.Join(t, w.dns, n.name, fmt.Sprintf("10.2.%d.%%d/24", k), fmt.Sprintf("fd02:0:0:%d::%%d/64", k))
	n.Forwards(t)
	w.dns.Run(t, "ip", "route", "add", fmt.Sprintf("10.1%02d.0.0/16", k), "via", n.IPv4.String())
	n.Etc(t, "resolv.conf", "nameserver "+upstreamIP+"\nsearch "+strings.TrimSuffix(corp, ".")+"\n")
	if w.plane != nil {
		n.Forward(t, strings.TrimPrefix(w.plane.URL(), "https://"))
	}
	return n
}

// newPod creates the network namespace of a pod on the node, with its resolv.conf. The pod is not in the API.
func (n *node) newPod(t *testing.T, role, namespace string, search ...string) *pod {
	t.Helper()
	n.pods++
	p := &pod{Namespace: netns.Add(t, role), namespace: namespace, server: local}
	p.Join(t, n.Namespace, fmt.Sprint("pod", n.pods), fmt.Sprintf("10.1%02d.%d.%%d/24", n.number, n.pods), fmt.Sprintf("fd01:0:%d:%d::%%d/64", n.number, n.pods))
	p.configure(t, search...)
	p.packets = capturePackets(t, p.Namespace)
	return p
}

// configure sets the search list of a pod.
func (p *pod) configure(t *testing.T, search ...string) {
	t.Helper()
	p.search = search
	p.Etc(t, "resolv.conf", fmt.Sprintf("search %s\nnameserver %s\noptions ndots:5\n", strings.Join(search, " "), p.server))
	p.Etc(t, "nsswitch.conf", "hosts: files dns\n")
}

// addresses returns the addresses of a pod in the API.
func (p *pod) addresses() []netip.Addr { return []netip.Addr{p.IPv4, p.IPv6} }

// clusterSearch returns the search list of a pod with the policy ClusterFirst and more suffixes by dnsConfig.
func clusterSearch(namespace string, more ...string) []string {
	list := []string{namespace + ".svc.cluster.local", "svc.cluster.local", "cluster.local", strings.TrimSuffix(corp, ".")}
	return append(list, more...)
}

//go:build linux

package search

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/netns"
)

// The addresses of servers, which are all in one namespace.
const (
	oursTap   = "10.2.0.1" // clusterdns, with a tap before it
	ours      = "10.2.0.11"
	stockTap  = "10.2.0.2" // CoreDNS, with a tap before it
	stock     = "10.2.0.12"
	resolver  = "10.2.0.3" // upstream
	local     = "169.254.20.10"
	local6    = "fd00::169:254:20:10"
	nodeRange = "10.2.0.0/16"
)

// pod is a network namespace with the address of a pod.
type pod struct {
	*netns.Namespace
	// namespace is that of Kubernetes, name that of the pod, empty if the API has none.
	namespace, name string
	// search are the suffixes in its resolv.conf, server is the one that it asks.
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
	pods   int    // how many there are
	cache  *netns.Process
}

// newServers makes the namespace where the servers are, which routes between the nodes.
func newServers(t *testing.T) *netns.Namespace {
	t.Helper()
	n := netns.Add(t, "dns")
	for _, a := range []string{oursTap, ours, stockTap, stock, resolver} {
		n.Run(t, "ip", "addr", "add", a+"/32", "dev", "lo")
	}
	n.Forwards(t)
	return n
}

// newNode makes a node, until the end of the test.
func (w *world) newNode(t *testing.T) *node {
	t.Helper()
	w.nodes++
	k := w.nodes
	n := &node{Namespace: netns.Add(t, fmt.Sprint("node", k)), world: w, number: k, name: fmt.Sprint("n", k)}
	n.Join(t, w.dns, n.name, fmt.Sprintf("10.2.%d.%%d/24", k), fmt.Sprintf("fd02:0:0:%d::%%d/64", k))
	n.Forwards(t)
	w.dns.Run(t, "ip", "route", "add", fmt.Sprintf("10.1%02d.0.0/16", k), "via", n.IPv4.String())
	n.Etc(t, "resolv.conf", "nameserver "+resolver+"\nsearch "+strings.TrimSuffix(corp, ".")+"\n")
	if w.plane != nil {
		n.Forward(t, strings.TrimPrefix(w.plane.URL(), "https://"))
	}
	return n
}

// newPod makes a pod's network namespace on the node, with its resolv.conf. The API does not know of it.
func (n *node) newPod(t *testing.T, role, namespace string, search ...string) *pod {
	t.Helper()
	n.pods++
	p := &pod{Namespace: netns.Add(t, role), namespace: namespace, server: local}
	p.Join(t, n.Namespace, fmt.Sprint("pod", n.pods), fmt.Sprintf("10.1%02d.%d.%%d/24", n.number, n.pods), fmt.Sprintf("fd01:0:%d:%d::%%d/64", n.number, n.pods))
	p.configure(t, search...)
	p.packets = capturePackets(t, p.Namespace)
	return p
}

// configure gives a pod another search list.
func (p *pod) configure(t *testing.T, search ...string) {
	t.Helper()
	p.search = search
	p.Etc(t, "resolv.conf", fmt.Sprintf("search %s\nnameserver %s\noptions ndots:5\n", strings.Join(search, " "), p.server))
	p.Etc(t, "nsswitch.conf", "hosts: files dns\n")
}

// addresses are those of a pod, as the API has them.
func (p *pod) addresses() []netip.Addr { return []netip.Addr{p.IPv4, p.IPv6} }

// clusterSearch is the search list of a pod with the policy ClusterFirst, with what its dnsConfig adds.
func clusterSearch(namespace string, more ...string) []string {
	list := []string{namespace + ".svc.cluster.local", "svc.cluster.local", "cluster.local", strings.TrimSuffix(corp, ".")}
	return append(list, more...)
}

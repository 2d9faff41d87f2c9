package clients

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/coredns/caddy"
	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
)

// nodePods are the pods of one node, from the API server or from manifests. Startup does not wait for them: until they
// are synced, no pod is known.
type nodePods struct {
	options
	source source.Source
	host   *hostSearch
	handle atomic.Pointer[source.Handle] // nil before the start
	logged sync.Once
}

var log = clog.NewWithPlugin("autopath")

// NodeClients is the searchlist.Finder for the pods of one node.
type NodeClients struct {
	*Clients
	pods *nodePods
}

// ForNode parses the block of an autopath directive (see parseNodePods) and returns the Finder for a cluster with this zone,
// fully qualified.
func ForNode(c *caddy.Controller, zone string) (*NodeClients, error) {
	pods, err := parseNodePods(c)
	if err != nil {
		return nil, err
	}
	return &NodeClients{New(pods, pods.Status, zone, pods.hostSearch), pods}, nil
}

// Start watches the pods from the start of the configuration to its end.
func (n *NodeClients) Start(c *caddy.Controller) { n.pods.start(c) }

// open validates the options, and reads the manifests if they are the source.
func (o options) open() (*nodePods, error) {
	host, err := newHostSearch(o.resolvConf)
	if err != nil {
		return nil, known.Invalid("resolv_conf", o.resolvConfAt, fmt.Errorf("%q: %w", o.resolvConf, err))
	}
	src, err := o.from.Open(o.reads())
	if err != nil {
		return nil, err
	}
	return &nodePods{options: o, source: src, host: host}, nil
}

// reads selects the pods to read and the fields to retain.
func (o options) reads() source.Options {
	return source.Options{Pods: true, PodsOnly: true, SearchPaths: true, Node: o.node, Booted: booted()}
}

// identity is equal for configurations that can share one source.
func (o options) identity() string {
	return fmt.Sprintf("pods of a node|%s|%+v", o.from.Identity(), o.reads())
}

// start watches the pods from the start of the configuration to its end. A configuration with the same identity takes
// over the source with its data.
func (s *nodePods) start(c *caddy.Controller) {
	apiserver.RedirectKlog()
	source.Follow(c, s.identity, s.source, source.Snapshot{}, s.handle.Store)
}

// TenantsOf implements Pods. Before the start no pod is known.
func (s *nodePods) TenantsOf(a netip.Addr) index.Tenants {
	if handle := s.handle.Load(); handle != nil {
		return handle.Index().TenantsOf(a)
	}
	return index.Tenants{}
}

// Status returns the state of the source. Once it is synced, the number of pods is logged.
func (s *nodePods) Status() []source.Status {
	handle := s.handle.Load()
	if handle == nil {
		return s.source.Status()
	}
	all := handle.Status()
	if len(all) > 0 && all[0].Synced {
		s.logged.Do(func() { s.logCount(handle.Index().Pods()) })
	}
	return all
}

// logCount logs the number of pods. A node's cache that runs as a pod counts itself, so that 0 means a wrong node name.
func (s *nodePods) logCount(pods int) {
	if pods == 0 {
		log.Warningf("node %s has no pods: if the name is wrong, no names are expanded", s.node)
		return
	}
	log.Infof("pods synced: search lists of %d pods of node %s are available", pods, s.node)
}

// hostSearch returns the search list of the node's resolv.conf as the kubelet reads it. An unchanged list is the same
// slice.
func (s *nodePods) hostSearch() []string { return s.host.get() }

// Package pods knows the pods of this node. In go the options of a Corefile and, from an API server or from
// manifests, the pods of one node; out come their records by address, and the search list of the node, of which the
// kubelet makes those of the pods.
//
// It answers nothing, and the start waits for nothing that it reads: without pods, none is known.
package pods

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/coredns/caddy"
	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/manifests"
)

// Source is what knows the pods of one node. Parse makes it, and Start starts it with a configuration.
type Source struct {
	options
	source source.Source
	host   *hostSearch
	use    source.Use
	said   sync.Once
}

var log = clog.NewWithPlugin("autopath")

// open checks what the options name, and reads the manifests if those are what is read.
func (o options) open() (*Source, error) {
	host, err := newHostSearch(o.resolvConf)
	if err != nil {
		return nil, o.resolvConfAt.Errorf("resolv_conf: %v; it takes %s", err, known["resolv_conf"].Form)
	}
	src, err := o.newSource()
	if err != nil {
		return nil, o.sourceAt.Errorf("%v", err)
	}
	return &Source{options: o, source: src, host: host}, nil
}

func (o options) newSource() (source.Source, error) {
	skipped := new(source.Skipped)
	if o.manifests == "" {
		return apiserver.New(o.connection, o.reads(), skipped)
	}
	s, err := manifests.New(o.manifests, o.reads(), skipped)
	if err != nil {
		return nil, fmt.Errorf("manifests: %w", err)
	}
	return s, nil
}

// reads says which pods are read and what is kept of them.
func (o options) reads() source.Options {
	return source.Options{Pods: true, PodsOnly: true, SearchPaths: true, Node: o.node, Booted: booted()}
}

// identity is equal for configurations that one source serves.
func (o options) identity() string {
	return fmt.Sprintf("pods of a node|%s|%s|%+v", o.manifests, o.connection.Identity(), o.reads())
}

// Start has pods read from the start of the configuration to its end. A reload that changes nothing goes on with
// what has been read.
func (s *Source) Start(c *caddy.Controller) {
	apiserver.RedirectKlog()
	s.use.Follow(c)
	c.OnStartup(func() error {
		s.use.Begin(s.identity(), s.source)
		return nil
	})
}

// TenantsOf returns what is known of the pods with an address: of none before the start.
func (s *Source) TenantsOf(a netip.Addr) index.Tenants {
	if lease := s.use.Lease(); lease != nil {
		return lease.Index().TenantsOf(a)
	}
	return index.Tenants{}
}

// Status tells how far the pods that are known are in step. Once they have been read, it is logged how many there are.
func (s *Source) Status() []source.Status {
	lease := s.use.Lease()
	if lease == nil {
		return s.source.Status()
	}
	all := lease.Status()
	if len(all) > 0 && all[0].Synced {
		s.said.Do(func() { s.say(lease.Index().Pods()) })
	}
	return all
}

// say logs how many pods the node has. A cache that runs as a pod is one of them.
func (s *Source) say(pods int) {
	if pods == 0 {
		log.Warningf("node %s has no pods: if that is not its name, no names are expanded", s.node)
		return
	}
	log.Infof("search lists are known of the %d pods of node %s", pods, s.node)
}

// HostSearch returns the search list of the node, as the kubelet reads it from the resolv.conf: the same slice as
// long as it is the same list. The file is looked at about once a second.
func (s *Source) HostSearch() []string { return s.host.get() }

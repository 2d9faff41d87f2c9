// Package apiserver is the source that reads an API server, with client-go's reflectors over protobuf and streamed
// lists, whose store is the index itself: only the records of objects stay in memory. Input is a connection and the
// resources to read; output is records in the index, and the status of each resource. Custom resources are JSON, and may
// be missing: see custom. A watch that is open and no longer reports changes is replaced: see watchdog. The package
// imports neither client-go's typed clients nor CoreDNS's server.
package apiserver

import (
	"context"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/klog/v2"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

var log = clog.NewWithPlugin("kubernetes")

// logOf returns the log of the plugin that uses a source.
func logOf(o source.Options) clog.P {
	if o.PodsOnly {
		return clog.NewWithPlugin("autopath")
	}
	return log
}

// Source reads one API server. It implements source.Source.
type Source struct {
	options   source.Options
	stripper  source.Stripper
	decoder   *decoder
	clients   clients
	host      string
	server    func() string // see Server
	resources []*resource
	garbage   *garbage
	turn      chan struct{} // see takeTurn
	nodesRead atomic.Bool   // whole Nodes, of which only metadata are watched
	pace      pace
}

// New returns the source for a connection. It opens no connection yet; it fails if the files of the connection cannot be
// used.
func New(c Connection, o source.Options) (*Source, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	stripper := source.NewStripper(o)
	s := &Source{options: o, stripper: stripper, decoder: newDecoder(stripper), host: config.Host, server: func() string { return serverOf(config) }, garbage: processGarbage, turn: make(chan struct{}, 1), pace: defaultPace(o)}
	if s.clients, err = newClients(config, o, s.decoder); err != nil {
		return nil, err
	}
	for _, name := range o.Resources() {
		s.resources = append(s.resources, s.resource(name))
	}
	return s, nil
}

// finished is the field selector that leaves out pods that have ended.
const finished = "status.phase!=Succeeded,status.phase!=Failed,status.phase!=Unknown"

func (s *Source) resource(name string) *resource {
	r := &resource{name: name, host: s.host, client: s.clients.core, health: newHealth(), garbage: s.garbage, turn: s.turn, consequence: consequenceFor(name, s.options), log: logOf(s.options), listTimeout: listTimeout}
	watchesFrozen.WithLabelValues(name) // exported as 0, so that alerts see the first as an increase
	selector := s.options.Labels
	switch name {
	case source.EndpointSlices:
		r.client = s.clients.discovery
		if s.options.ImportsOnly {
			selector = imported(selector)
		}
	case source.Namespaces:
		selector = s.options.NamespaceLabels
	case source.Pods:
		r.fields = s.podFields()
	case source.ServiceImports:
		r.client = s.clients.imports
		r.definition = &serviceImports
	case source.ClusterProperties: // only the one with the ID
		r.client = s.clients.properties
		r.definition = &clusterProperties
		r.fields = fields.OneTermEqualSelector(metav1.ObjectNameField, source.ClusterPropertyName).String()
		selector = nil
	case source.Nodes: // only their metadata: the status is most of a Node and changes all the time
		r.accept, r.acceptList = metadataAs("PartialObjectMetadata"), metadataAs("PartialObjectMetadataList")
		selector = nil
	}
	if selector != nil {
		r.labels = selector.String()
	}
	return r
}

// imported restricts a selector to EndpointSlices that belong to a ServiceImport.
func imported(selector labels.Selector) labels.Selector {
	if selector == nil {
		selector = labels.Everything()
	}
	exists, err := labels.NewRequirement(mcsv1beta1.LabelServiceName, selection.Exists, nil)
	if err != nil {
		panic(err) // the label is a constant
	}
	return selector.Add(*exists)
}

// podFields returns the field selector for pods that run, or will.
func (s *Source) podFields() string {
	if s.options.Node == "" {
		return finished
	}
	return finished + "," + fields.OneTermEqualSelector("spec.nodeName", s.options.Node).String()
}

// Run implements source.Source.
func (s *Source) Run(ctx context.Context, ix *index.Index) {
	if s.options.PodsOnly { // on many nodes, perhaps without the permission: the watchdog logs the consequence
		ctx = klog.NewContext(ctx, withoutRepeats(logOf(s.options)))
	}
	s.decoder.index.Store(ix)
	var wg sync.WaitGroup
	for _, r := range s.resources {
		r.records = s.records(r.name, ix)
		r.health.pauses = s.pace.pauses()
		r.health.begins()
		wg.Go(func() { s.follow(ctx, r, ix) })
		wg.Go(func() { r.watchdog(ctx) })
		wg.Go(func() { r.records.run(ctx) })
	}
	wg.Wait()
}

// follow updates the records of a resource until ctx ends.
func (s *Source) follow(ctx context.Context, r *resource, ix *index.Index) {
	if r.definition != nil {
		r.custom(s.clients.core, s.pace, ix.Outdate).run(ctx)
		return
	}
	r.reflector(r).RunWithContext(ctx)
}

// Status implements source.Source.
func (s *Source) Status() []source.Status {
	all := make([]source.Status, 0, len(s.resources))
	for _, r := range s.resources {
		st := r.health.status(r.name)
		if r.name == source.Nodes {
			st.Synced = st.Synced && s.nodesRead.Load()
		}
		all = append(all, st)
	}
	return all
}

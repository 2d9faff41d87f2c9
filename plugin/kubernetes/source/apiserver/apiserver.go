// Package apiserver is the source that reads an API server: client-go reflectors over protobuf and
// streamed lists, whose store is the index itself. No object is kept besides its record.
//
// A watch that stays open and tells nothing any more is found and replaced; see watchdog.
package apiserver

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/tools/cache"

	clog "github.com/coredns/coredns/plugin/pkg/log"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

var log = clog.NewWithPlugin("kubernetes")

// Source reads one API server. It implements source.Source.
type Source struct {
	options   source.Options
	stripper  source.Stripper
	clients   clients
	host      string
	resources []*resource
}

// New returns the source for a connection. It opens no connection yet; it fails where the
// connection's files cannot be used.
func New(c Connection, o source.Options, skipped *source.Skipped) (*Source, error) {
	config, err := c.RESTConfig()
	if err != nil {
		return nil, err
	}
	s := &Source{options: o, stripper: source.Stripper{Options: o, Skipped: skipped}, host: config.Host}
	if s.clients, err = newClients(config); err != nil {
		return nil, err
	}
	for _, name := range o.Resources() {
		s.resources = append(s.resources, s.resource(name))
	}
	return s, nil
}

// finished is the field selector that leaves out pods that run no more.
const finished = "status.phase!=Succeeded,status.phase!=Failed,status.phase!=Unknown"

func (s *Source) resource(name string) *resource {
	r := &resource{name: name, host: s.host, client: s.clients.core, health: newHealth()}
	selector := s.options.Labels
	switch name {
	case source.Services:
		r.example, r.list = &corev1.Service{}, &corev1.ServiceList{}
	case source.EndpointSlices:
		r.client = s.clients.discovery
		r.example, r.list = &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{}
	case source.Namespaces:
		r.example, r.list = &corev1.Namespace{}, &corev1.NamespaceList{}
		selector = s.options.NamespaceLabels
	case source.Pods:
		r.example, r.list = &corev1.Pod{}, &corev1.PodList{}
		r.fields = finished
	}
	if selector != nil {
		r.labels = selector.String()
	}
	return r
}

// Run implements source.Source.
func (s *Source) Run(ctx context.Context, ix *index.Index) {
	var wg sync.WaitGroup
	for _, r := range s.resources {
		r.records = s.records(r.name, ix)
		r.health.begins()
		reflector := cache.NewReflectorWithOptions(r.listWatch(), r.example, r, cache.ReflectorOptions{Name: r.name})
		wg.Go(func() { reflector.RunWithContext(ctx) })
		wg.Go(func() { r.watchdog(ctx) })
	}
	wg.Wait()
}

// Status implements source.Source.
func (s *Source) Status() []source.Status {
	all := make([]source.Status, 0, len(s.resources))
	for _, r := range s.resources {
		all = append(all, r.health.status(r.name))
	}
	return all
}

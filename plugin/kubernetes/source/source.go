// Package source brings the state of a cluster into an index. In go Kubernetes objects, from an API
// server or from files; out come their stripped records, in the index, as long as the source runs.
//
// It does not know what answers look like: of DNS it knows only which names are valid.
package source

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// The resources, as the labels of metrics and logs call them.
const (
	Services       = "services"
	EndpointSlices = "endpointslices"
	Namespaces     = "namespaces"
	Pods           = "pods"
)

// Source keeps an index in step with a cluster.
type Source interface {
	// Run fills the index and keeps it in step until ctx ends. It is called once.
	Run(ctx context.Context, ix *index.Index)
	// Status tells how far each resource that the source reads is in step. It may be called at any
	// time, before Run too.
	Status() []Status
}

// Status is the state of one resource of a source.
type Status struct {
	// Resource is one of the constants of this package.
	Resource string
	// Synced is true from the moment that all objects have been read once.
	Synced bool
	// Heard is when the source last had word that the index is in step: from a list, an event or a
	// bookmark. It is zero before the first.
	Heard time.Time
	// Frozen is true while a watch is open that no longer tells of changes.
	Frozen bool
}

// Options say what a source reads and which parts of it are kept.
type Options struct {
	// Endpoints is false where EndpointSlices are not read at all.
	Endpoints bool
	// Pods is true where pods are read.
	Pods bool
	// EndpointPodNames names an endpoint without a hostname after its pod.
	EndpointPodNames bool
	// Zones keeps the zone of each endpoint.
	Zones bool
	// Labels selects Services, EndpointSlices and pods, NamespaceLabels namespaces; nil selects all.
	Labels, NamespaceLabels labels.Selector
}

// Resources returns the resources that are read with these options.
func (o Options) Resources() []string {
	all := []string{Services, Namespaces}
	if o.Endpoints {
		all = append(all, EndpointSlices)
	}
	if o.Pods {
		all = append(all, Pods)
	}
	return all
}

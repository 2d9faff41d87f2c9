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
	Services          = "services"
	EndpointSlices    = "endpointslices"
	Namespaces        = "namespaces"
	Pods              = "pods"
	Nodes             = "nodes"
	ServiceImports    = "serviceimports"
	ClusterProperties = "clusterproperties"
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
	// Denied is true while the server does not let the resource be read (401, 403).
	Denied bool
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
	// Topology is true where nodes are read. It keeps what Services say of topology, and of each endpoint
	// and pod the node, the zone and the hints.
	Topology bool
	// SearchPaths keeps of each pod what its search path hangs on.
	SearchPaths bool
	// PodsOnly is true where nothing is read but pods, and their labels are not kept.
	PodsOnly bool
	// Imports is true where ServiceImports are read, and of EndpointSlices what they say of them.
	Imports bool
	// ImportsOnly is true where nothing is read of Services, of their EndpointSlices and of pods. It goes with Imports.
	ImportsOnly bool
	// ClusterID is true where the ID of the cluster is read, from its ClusterProperty.
	ClusterID bool
	// Node is the name of the node whose pods are read; empty is every one.
	Node string
	// Booted is when that node was booted, zero where that is not known. Read with SearchPaths.
	Booted time.Time
	// Labels selects Services, ServiceImports, EndpointSlices and pods, NamespaceLabels namespaces; nil selects all.
	Labels, NamespaceLabels labels.Selector
}

// Resources returns the resources that are read with these options.
func (o Options) Resources() []string {
	if o.PodsOnly {
		return []string{Pods}
	}
	var all []string
	if !o.ImportsOnly {
		all = append(all, Services)
	}
	all = append(all, Namespaces)
	if o.Endpoints {
		all = append(all, EndpointSlices)
	}
	if o.Pods && !o.ImportsOnly {
		all = append(all, Pods)
	}
	if o.Imports {
		all = append(all, ServiceImports)
	}
	if o.Topology {
		all = append(all, Nodes)
	}
	if o.ClusterID {
		all = append(all, ClusterProperties)
	}
	return all
}

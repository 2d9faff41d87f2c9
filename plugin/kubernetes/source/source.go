// Package source updates an index from a cluster, and shares a running source between configurations. Input is
// Kubernetes objects, from an API server (package apiserver) or from files (package manifests); output is their stripped
// records in the index. It creates no answers and imports no plugin: of DNS it knows only which names are valid.
package source

import (
	"context"
	"fmt"
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

// Source updates an index from a cluster.
type Source interface {
	// Run fills the index and updates it until ctx ends. It is called once.
	Run(ctx context.Context, ix *index.Index)
	// Status returns the state of each resource that the source reads. It may be called at any time, also before Run.
	Status() []Status
}

// Inspector is a source that can read objects whose records are not in the index, for an explanation.
type Inspector interface {
	// NotReady requests the endpoints of a Service, or of a ServiceImport if imported is true, that the index does not have because they
	// are not ready.
	NotReady(ctx context.Context, namespace, name string, imported bool) (NotReady, error)
}

// NotReady are the endpoints of a Service that are not ready, as records of its EndpointSlices.
type NotReady struct {
	Terminating []*index.Slice // those that terminate
	Others      []*index.Slice
	Partial     bool // the Service has more EndpointSlices than were read
}

// Status is the state of one resource of a source.
type Status struct {
	// Resource is one of the constants of this package.
	Resource string
	// Synced is true from the moment that all objects have been read once.
	Synced bool
	// Restored is true while Synced is not, and the records are those of a snapshot.
	Restored bool
	// Heard is the time of the last list, event or bookmark: the index was up to date then. It is zero before the first.
	Heard time.Time
	// Frozen is true from the time that a watch no longer reports changes until the resource has been read again, except while
	// the API server is away.
	Frozen bool
	// Denied is true while the server refuses requests for the resource with 401 or 403.
	Denied bool
	// Uncertain is true while changes of the cluster may be missing: the API server is away or does not answer, or files cannot
	// be read. The records are the last known state then.
	Uncertain bool
}

// Options are the resources that a source reads, and the parts of them that it stores.
type Options struct {
	// Endpoints is true if EndpointSlices are read.
	Endpoints bool
	// Pods is true if pods are read.
	Pods bool
	// EndpointPodNames names an endpoint without a hostname after its pod.
	EndpointPodNames bool
	// Zones stores the zone of each endpoint.
	Zones bool
	// Topology is true where nodes are read. It stores the topology settings of Services, the node, the zone and the hints of
	// each endpoint, and the node of each pod.
	Topology bool
	// SearchPaths stores the fields of each pod that its search list depends on.
	SearchPaths bool
	// PodsOnly is true if only pods are read, and their labels are not stored.
	PodsOnly bool
	// Imports is true if ServiceImports are read, and the labels of EndpointSlices that refer to them.
	Imports bool
	// ImportsOnly is true if Services, their EndpointSlices and pods are not read. It implies Imports.
	ImportsOnly bool
	// ClusterID is true if the ID of the cluster is read, from its ClusterProperty.
	ClusterID bool
	// Node is the name of the node whose pods are read; "" is every node.
	Node string
	// Booted is the time at which that node was booted, zero if unknown. It is used with SearchPaths.
	Booted time.Time
	// Labels selects Services, ServiceImports, EndpointSlices and pods, NamespaceLabels namespaces; nil selects all.
	Labels, NamespaceLabels labels.Selector
}

// Identity is equal for options that select and store the same records.
func (o Options) Identity() string {
	selectors := ""
	for _, s := range []fmt.Stringer{o.Labels, o.NamespaceLabels} {
		if s != nil {
			selectors += s.String()
		}
		selectors += "|"
	}
	o.Labels, o.NamespaceLabels = nil, nil
	return fmt.Sprintf("%s%+v", selectors, o)
}

// IsOptional reports whether answers are made without a resource: the account may lack the permission.
func IsOptional(resource string) bool {
	switch resource {
	case ServiceImports, Nodes, ClusterProperties:
		return true
	}
	return false
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

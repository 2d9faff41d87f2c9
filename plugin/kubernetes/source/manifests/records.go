package manifests

import (
	"maps"
	"net/netip"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// record makes what is kept of an API object. Of one that is not asked for, that is its key.
func (p parser) record(o apiObject) *object {
	m := o.GetObjectMeta()
	selected := selects(p.opts.Labels, m.GetLabels())
	made := &object{}
	switch o := o.(type) {
	case *corev1.Service:
		if selected && !p.opts.PodsOnly && !p.opts.ImportsOnly {
			made.service = p.strip.Service(o)
		}
	case *mcsv1beta1.ServiceImport:
		if selected && p.opts.Imports {
			made.imported = p.strip.Import(o)
		}
	case *discoveryv1.EndpointSlice:
		switch {
		case !selected || !p.opts.Endpoints:
		case (p.opts.Zones || p.opts.Topology) && unplaced(o):
			o.ManagedFields, o.Annotations = nil, nil
			made.unplaced = o
		default:
			made.slice = p.strip.Slice(o)
		}
	case *corev1.Pod:
		if selected && p.reads(o) {
			podIPs(o)
			made.pod = p.strip.Pod(o)
		}
	case *corev1.Namespace:
		made.labels = o.Labels
	case *corev1.Node:
		made.zone = o.Labels[corev1.LabelTopologyZone]
		if p.opts.Topology {
			made.node = p.node(o)
		}
	case *clusterProperty:
		made.clusterID = p.strip.ClusterIDOf(&o.ClusterProperty)
	}
	return made
}

// node says of the ranges that a node has none where the file has none: the index would keep earlier ones.
func (p parser) node(o *corev1.Node) *index.Node {
	ranges, _ := source.NodeRanges(o)
	n := p.strip.Node(o.Labels, o.Name, string(o.UID), ranges...)
	if n.CIDRs == nil {
		n.CIDRs = []netip.Prefix{}
	}
	return n
}

// reads reports whether a pod is read.
func (p parser) reads(o *corev1.Pod) bool {
	return p.opts.Pods && (p.opts.Node == "" || o.Spec.NodeName == p.opts.Node)
}

// podIPs does what the API server does for a pod with podIP alone.
func podIPs(o *corev1.Pod) {
	if len(o.Status.PodIPs) == 0 && o.Status.PodIP != "" {
		o.Status.PodIPs = []corev1.PodIP{{IP: o.Status.PodIP}}
	}
}

func selects(s labels.Selector, l map[string]string) bool {
	return s == nil || s.Matches(labels.Set(l))
}

// unplaced tells whether a zone must be found by an endpoint's node. Endpoints that come from another cluster have
// their zones with them, and none of the nodes here.
func unplaced(o *discoveryv1.EndpointSlice) bool {
	if o.Labels[mcsv1beta1.LabelSourceCluster] != "" {
		return false
	}
	for i := range o.Endpoints {
		if e := &o.Endpoints[i]; e.Zone == nil && e.NodeName != nil {
			return true
		}
	}
	return false
}

// withZones returns the slice with the zones of its endpoints' nodes, as the EndpointSlice controller
// would write it.
func withZones(o *discoveryv1.EndpointSlice, zones map[string]string) *discoveryv1.EndpointSlice {
	placed := *o
	placed.Endpoints = append([]discoveryv1.Endpoint(nil), o.Endpoints...)
	for i := range placed.Endpoints {
		e := &placed.Endpoints[i]
		if e.Zone != nil || e.NodeName == nil {
			continue
		}
		if zone, ok := zones[*e.NodeName]; ok {
			e.Zone = &zone
		}
	}
	return &placed
}

// served is what the index has.
type served struct {
	objects map[key]*object
	zones   map[string]string // of nodes
	placed  int               // counts the states of zones, from 1
	kinds   map[string]struct{}
}

// serve makes the index what the files say. Records that say the same as before stay as they are.
func (s *Source) serve() {
	now := make(map[key]*object, len(s.served.objects))
	namespaces := map[string]map[string]string{corev1.NamespaceDefault: nil}
	zones := map[string]string{}
	for _, f := range s.inOrder() {
		for _, o := range f.good.all() {
			now[o.key] = o
			switch o.key.kind {
			case "Namespace":
				namespaces[o.key.name] = o.labels
			case "Node":
				if o.zone != "" {
					zones[o.key.name] = o.zone
				}
			}
		}
	}
	if s.served.placed == 0 || !maps.Equal(zones, s.served.zones) {
		s.served.zones = zones
		s.served.placed++
	}
	s.implied(namespaces)
	s.write(now)
	if !s.opts.PodsOnly {
		s.ix.ReplaceNamespaces(s.selected(namespaces))
	}
	s.served.objects = now
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inStep = true
}

// implied adds the namespaces that objects are in: a cluster would have refused them otherwise.
func (s *Source) implied(namespaces map[string]map[string]string) {
	add := func(name string) {
		if _, ok := namespaces[name]; !ok && name != "" {
			namespaces[name] = nil
		}
	}
	for _, f := range s.files {
		for _, o := range f.good.all() {
			add(o.key.namespace)
		}
		if f.good != nil {
			for _, o := range f.good.others {
				add(o.namespace)
			}
		}
	}
}

// selected returns the namespaces that opts selects. Each has the label with its name that the API
// server gives it.
func (s *Source) selected(namespaces map[string]map[string]string) []string {
	var all []string
	for _, name := range sorted(namespaces) {
		l := maps.Clone(namespaces[name])
		if l == nil {
			l = map[string]string{}
		}
		l[corev1.LabelMetadataName] = name
		if !selects(s.opts.NamespaceLabels, l) {
			continue
		}
		o := &corev1.Namespace{}
		o.Name = name
		if name := s.parser.strip.Namespace(o); name != "" {
			all = append(all, name)
		}
	}
	return all
}

// recordLists are the records of all objects.
type recordLists struct {
	services, imports []*index.Service
	slices            []*index.Slice
	pods              []*index.Pod
	nodes             []*index.Node
	clusterID         index.Symbol
}

func (r *recordLists) add(o *object) {
	if o.service != nil {
		r.services = append(r.services, o.service)
	}
	if o.imported != nil {
		r.imports = append(r.imports, o.imported)
	}
	if o.slice != nil {
		r.slices = append(r.slices, o.slice)
	}
	if o.pod != nil {
		r.pods = append(r.pods, o.pod)
	}
	if o.node != nil {
		r.nodes = append(r.nodes, o.node)
	}
	if o.clusterID != (index.Symbol{}) {
		r.clusterID = o.clusterID
	}
}

// write replaces the records of the index. Nodes and the ID of the cluster, which say where endpoints are, come
// before these, endpoints before the Services and ServiceImports whose names make them visible, and namespaces last.
func (s *Source) write(now map[key]*object) {
	var all recordLists
	for k, o := range now {
		s.placeSlice(o)
		if old := s.served.objects[k]; old != nil && old != o {
			o.keep(old)
		}
		all.add(o)
	}
	if s.opts.Topology {
		s.ix.ReplaceNodes(all.nodes)
	}
	if s.opts.ClusterID {
		s.ix.SetClusterID(all.clusterID)
	}
	if s.opts.Endpoints {
		s.ix.ReplaceSlices(all.slices)
	}
	if s.opts.Pods {
		s.ix.ReplacePods(all.pods)
	}
	s.ix.ReplaceServices(all.services)
	s.ix.ReplaceImports(all.imports)
}

// placeSlice makes the record of a slice that hangs on Nodes, where it is not of their present state.
func (s *Source) placeSlice(o *object) {
	if o.unplaced == nil || o.placed == s.served.placed {
		return
	}
	o.placed = s.served.placed
	r := s.parser.strip.Slice(withZones(o.unplaced, s.served.zones))
	if !reflect.DeepEqual(r, o.slice) {
		o.slice = r
	}
}

// keep takes the records of old that say the same.
func (o *object) keep(old *object) {
	if reflect.DeepEqual(o.service, old.service) {
		o.service = old.service
	}
	if reflect.DeepEqual(o.imported, old.imported) {
		o.imported = old.imported
	}
	if reflect.DeepEqual(o.slice, old.slice) {
		o.slice = old.slice
	}
	if reflect.DeepEqual(o.pod, old.pod) {
		o.pod = old.pod
	}
	if o.node != nil && old.node != nil && old.node.Equal(o.node) {
		o.node = old.node
	}
}

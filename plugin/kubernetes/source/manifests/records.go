package manifests

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// object is the data stored for an API object.
type object struct {
	key  key
	file string // path below the directory
	line int
	// record is an *index.Service, *index.Slice, *index.Pod, *index.Node, or the index.Symbol of the ID of the cluster; nil
	// if the options do not select the object.
	record any
	labels map[string]string // of a Namespace
	zone   string            // of a Node
	// unplaced is an EndpointSlice with endpoints in the zones of their Nodes. Its record is made when the zones are known.
	unplaced *discoveryv1.EndpointSlice
}

// record returns the data to store for an API object.
func (p parser) record(o apiObject) *object {
	selected := selects(p.opts.Labels, o.GetObjectMeta().GetLabels())
	made := &object{}
	switch o := o.(type) {
	case *corev1.Service:
		if selected && !p.opts.PodsOnly && !p.opts.ImportsOnly {
			made.record = orNil(p.strip.Service(o))
		}
	case *mcsv1beta1.ServiceImport:
		if selected && p.opts.Imports {
			made.record = orNil(p.strip.Import(o))
		}
	case *discoveryv1.EndpointSlice:
		switch {
		case !selected || !p.opts.Endpoints:
		case (p.opts.Zones || p.opts.Topology) && isUnplaced(o):
			o.ManagedFields, o.Annotations = nil, nil
			made.unplaced = o
		default:
			made.record = orNil(p.strip.Slice(o))
		}
	case *corev1.Pod:
		if selected && p.opts.Pods && (p.opts.Node == "" || o.Spec.NodeName == p.opts.Node) {
			if len(o.Status.PodIPs) == 0 && o.Status.PodIP != "" { // which the API server copies
				o.Status.PodIPs = []corev1.PodIP{{IP: o.Status.PodIP}}
			}
			made.record = orNil(p.strip.Pod(o))
		}
	case *corev1.Namespace:
		made.labels = o.Labels
	case *corev1.Node:
		made.zone = o.Labels[corev1.LabelTopologyZone]
		if p.opts.Topology {
			made.record = p.node(o)
		}
	case *clusterProperty:
		if id := p.strip.ClusterIDOf(&o.ClusterProperty); p.opts.ClusterID && id != (index.Symbol{}) {
			made.record = id
		}
	}
	return made
}

// orNil returns an untyped nil for a nil record.
func orNil[R any](r *R) any {
	if r == nil {
		return nil
	}
	return r
}

// node returns the record of a node. Where the file has no ranges, the record has an empty list: without a list, the
// index would retain earlier ones.
func (p parser) node(o *corev1.Node) *index.Node {
	ranges, _ := source.NodeRanges(o)
	n := p.strip.Node(o.Labels, o.Name, string(o.UID), ranges...)
	if n.CIDRs == nil {
		n.CIDRs = []netip.Prefix{}
	}
	return n
}

func selects(s labels.Selector, l map[string]string) bool {
	return s == nil || s.Matches(labels.Set(l))
}

// isUnplaced reports whether an endpoint of the slice has a Node and no zone, and so is in the Node's zone. Endpoints of
// another cluster have their own zones, and are on none of the Nodes here.
func isUnplaced(o *discoveryv1.EndpointSlice) bool {
	if o.Labels[mcsv1beta1.LabelSourceCluster] != "" {
		return false
	}
	return slices.ContainsFunc(o.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Zone == nil && e.NodeName != nil })
}

// withZones returns the slice with the zones of its endpoints' Nodes, as the EndpointSlice controller writes it.
func withZones(o *discoveryv1.EndpointSlice, zones map[string]string) *discoveryv1.EndpointSlice {
	placed := *o
	placed.Endpoints = slices.Clone(o.Endpoints)
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

// cluster is a valid state of the directory.
type cluster struct {
	files      map[string]*contents // by path below the directory
	objects    map[key]*object
	zones      map[string]string            // of Nodes
	namespaces map[string]map[string]string // labels by name
}

func newCluster() *cluster {
	return &cluster{
		files:      map[string]*contents{},
		objects:    map[key]*object{},
		zones:      map[string]string{},
		namespaces: map[string]map[string]string{corev1.NamespaceDefault: nil},
	}
}

// add adds a file. If one of its objects is in another file too, it returns the object of that file, and that of this one.
func (c *cluster) add(path string, file *contents) (first, again *object) {
	c.files[path] = file
	for _, o := range file.objects {
		if first := c.objects[o.key]; first != nil {
			return first, o
		}
		c.objects[o.key] = o
		c.imply(o.key.namespace)
		switch {
		case o.key.kind == "Namespace":
			c.namespaces[o.key.name] = o.labels
		case o.zone != "":
			c.zones[o.key.name] = o.zone
		}
	}
	for _, u := range file.unread {
		c.imply(u.namespace)
	}
	return nil, nil
}

// imply adds the namespace of an object: without it, a cluster would have refused the object.
func (c *cluster) imply(namespace string) {
	if _, ok := c.namespaces[namespace]; !ok && namespace != "" {
		c.namespaces[namespace] = nil
	}
}

// complete makes the records that depend on Nodes, and replaces records by equal ones of the state before: otherwise the
// records of an edited file would be in memory twice.
func (c *cluster) complete(before *cluster, strip source.Stripper) {
	moved := !maps.Equal(c.zones, before.zones)
	for k, o := range c.objects {
		if o.unplaced != nil && (o.record == nil || moved) {
			o.record = orNil(strip.Slice(withZones(o.unplaced, c.zones)))
		}
		if old := before.objects[k]; old != nil && old != o && reflect.DeepEqual(old.record, o.record) {
			o.record = old.record
		}
	}
}

// namespaceNames returns the namespaces that a selector selects. Each has the label with its name that the API server
// adds.
func (c *cluster) namespaceNames(s labels.Selector, strip source.Stripper) (all []string) {
	for name, l := range c.namespaces {
		l = maps.Clone(l)
		if l == nil {
			l = map[string]string{}
		}
		l[corev1.LabelMetadataName] = name
		o := &corev1.Namespace{}
		if o.Name = name; selects(s, l) && strip.Namespace(o) != "" {
			all = append(all, name)
		}
	}
	return all
}

// serve replaces the records of the index. Nodes and the ID of the cluster, which locate endpoints, are replaced
// before the endpoints, endpoints before the Services and ServiceImports whose names make them visible, and namespaces last.
func (s *Source) serve() {
	var (
		services, imports []*index.Service
		endpoints         []*index.Slice
		pods              []*index.Pod
		nodes             []*index.Node
		clusterID         index.Symbol
	)
	for k, o := range s.cluster.objects {
		switch r := o.record.(type) {
		case *index.Service:
			if k.kind == "ServiceImport" {
				imports = append(imports, r)
			} else {
				services = append(services, r)
			}
		case *index.Slice:
			endpoints = append(endpoints, r)
		case *index.Pod:
			pods = append(pods, r)
		case *index.Node:
			nodes = append(nodes, r)
		case index.Symbol:
			clusterID = r
		}
	}
	s.ix.ReplaceNodes(nodes)
	s.ix.SetClusterID(clusterID)
	s.ix.ReplaceSlices(endpoints)
	s.ix.ReplacePods(pods)
	s.ix.ReplaceServices(services)
	s.ix.ReplaceImports(imports)
	if !s.opts.PodsOnly {
		s.ix.ReplaceNamespaces(s.cluster.namespaceNames(s.opts.NamespaceLabels, s.parser.strip))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inStep = true
}

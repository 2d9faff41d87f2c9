package differential

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/test/randomcluster"
)

// cluster is the part of the objects that a variant's options select. Questions are made from it, and allowed
// differences are judged by it.
type cluster struct {
	variant    *variant
	namespaces map[string]bool // existing namespaces that the options select
	services   []*corev1.Service
	slices     []*discoveryv1.EndpointSlice
	imports    []*mcsv1beta1.ServiceImport  // all: selection is one of the differences
	imported   []*discoveryv1.EndpointSlice // slices of imports, also with noendpoints
	pods       []*corev1.Pod
	own        []netip.Addr // the servers' own addresses

	pools pools
}

// newCluster returns the objects that a variant selects.
func newCluster(v *variant, objs []runtime.Object, own []netip.Addr) *cluster {
	c := &cluster{variant: v, namespaces: map[string]bool{}, own: own}
	ofObjects, ofNamespaces := labels.Everything(), labels.Everything()
	if v.labels != "" {
		ofObjects = v.selector(v.labels)
	}
	if v.nsLabels != "" {
		ofNamespaces = v.selector(v.nsLabels)
	}
	for _, obj := range objs {
		switch o := obj.(type) {
		case *corev1.Namespace:
			if ofNamespaces.Matches(labels.Set(o.Labels)) && (len(v.namespaces) == 0 || slices.Contains(v.namespaces, o.Name)) {
				c.namespaces[o.Name] = true
			}
		case *corev1.Service:
			if ofObjects.Matches(labels.Set(o.Labels)) {
				c.services = append(c.services, o)
			}
		case *discoveryv1.EndpointSlice:
			if !ofObjects.Matches(labels.Set(o.Labels)) {
				break
			}
			if !v.noEndpoints {
				c.slices = append(c.slices, o)
			}
			if importOf(o) != "" {
				c.imported = append(c.imported, o)
			}
		case *mcsv1beta1.ServiceImport:
			c.imports = append(c.imports, o)
		case *corev1.Pod:
			c.pods = append(c.pods, o)
		}
	}
	c.pools = c.makePools()
	return c
}

// service returns the Service of that name, or nil.
func (c *cluster) service(namespace, name string) *corev1.Service {
	for _, s := range c.services {
		if s.Namespace == namespace && s.Name == name {
			return s
		}
	}
	return nil
}

// slicesOf returns the EndpointSlices of the Service of that name.
func (c *cluster) slicesOf(namespace, service string) (found []*discoveryv1.EndpointSlice) {
	for _, s := range c.slices {
		if s.Namespace == namespace && serviceOf(s) == service {
			found = append(found, s)
		}
	}
	return found
}

// serviceOf returns the name of the Service that a slice belongs to, or "".
func serviceOf(s *discoveryv1.EndpointSlice) string { return s.Labels[discoveryv1.LabelServiceName] }

// importOf returns the name of the ServiceImport that a slice belongs to, or "".
func importOf(s *discoveryv1.EndpointSlice) string { return s.Labels[mcsv1beta1.LabelServiceName] }

// sourceOf returns the cluster ID of a slice's endpoints, unchanged, or "".
func sourceOf(s *discoveryv1.EndpointSlice) string { return s.Labels[mcsv1beta1.LabelSourceCluster] }

// serviceImport returns the ServiceImport of that name, or nil.
func (c *cluster) serviceImport(namespace, name string) *mcsv1beta1.ServiceImport {
	for _, s := range c.imports {
		if s.Namespace == namespace && s.Name == name {
			return s
		}
	}
	return nil
}

// importedOf returns the EndpointSlices of the ServiceImport of that name.
func (c *cluster) importedOf(namespace, name string) (found []*discoveryv1.EndpointSlice) {
	for _, s := range c.imported {
		if s.Namespace == namespace && importOf(s) == name {
			found = append(found, s)
		}
	}
	return found
}

// isReady reports whether an endpoint is served. In the EndpointSlice API, nil means ready.
func isReady(e *discoveryv1.Endpoint) bool {
	return e.Conditions.Ready == nil || *e.Conditions.Ready
}

func isHeadless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

func isExternalName(s *corev1.Service) bool { return s.Spec.Type == corev1.ServiceTypeExternalName }

// clusterIPs returns the addresses of a Service.
func clusterIPs(s *corev1.Service) []string {
	if isHeadless(s) || isExternalName(s) {
		return nil
	}
	if len(s.Spec.ClusterIPs) > 0 {
		return s.Spec.ClusterIPs
	}
	return []string{s.Spec.ClusterIP}
}

// address is one ready address of a slice.
type address struct {
	slice    *discoveryv1.EndpointSlice
	endpoint *discoveryv1.Endpoint
	text     string
}

// addresses returns the ready addresses of slices.
func addresses(endpoints []*discoveryv1.EndpointSlice) (all []address) {
	for _, s := range endpoints {
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; isReady(e) {
				for _, a := range e.Addresses {
					all = append(all, address{s, e, a})
				}
			}
		}
	}
	return all
}

// naming makes the label of an endpoint. The zero naming is CoreDNS's.
type naming struct {
	canonical bool // of the address in its canonical form
	oneLabel  bool // of a pod's name only if that is one label
}

// label returns the label that an endpoint has below its Service.
func (n naming) label(a address, podNames bool) string {
	if a.endpoint.Hostname != nil && *a.endpoint.Hostname != "" {
		return *a.endpoint.Hostname
	}
	if ref := a.endpoint.TargetRef; podNames && ref != nil && ref.Name != "" && len(ref.Name) < 64 &&
		!(n.oneLabel && strings.Contains(ref.Name, ".")) {
		return ref.Name
	}
	text := a.text
	if ip, err := netip.ParseAddr(text); err == nil && n.canonical {
		text = ip.String()
	}
	return dashed(text)
}

// dashed returns an address as one label.
func dashed(ip string) string {
	if strings.Contains(ip, ".") {
		return strings.ReplaceAll(ip, ".", "-")
	}
	label := strings.ReplaceAll(ip, ":", "-")
	if strings.HasSuffix(label, "-") {
		label += "0"
	}
	return label
}

// fullName joins labels to a name in a zone.
func fullName(zone string, labels ...string) string {
	if zone == "." {
		zone = ""
	}
	return strings.Join(labels, ".") + "." + zone
}

// newObjects makes the random cluster of a seed. Its imports have a random source of their own.
func newObjects(r, imports *rand.Rand, own []netip.Addr) []runtime.Object {
	size := 6 + r.IntN(30)
	if r.IntN(4) == 0 {
		size = 80
	}
	objs := randomcluster.Random(r, size)
	objs = randomcluster.Apply(objs, additions(r, own), nil)
	objs = append(objs, randomcluster.Imports(imports, 3+imports.IntN(12))...)
	return randomcluster.Stored(randomcluster.Apply(objs, importAdditions(), nil))
}

// mutated makes some updates and returns them with the new objects.
func mutated(r *rand.Rand, objs []runtime.Object) (changed, deleted, now []runtime.Object) {
	now = objs
	for range 2 + r.IntN(12) {
		c, d := randomcluster.Mutate(r, now)
		c = randomcluster.Stored(c)
		now = randomcluster.Apply(now, c, d)
		changed = randomcluster.Apply(changed, c, d)
		deleted = append(deleted, d...)
	}
	// Deletion and creation of an object are one update.
	remaining := randomcluster.Apply(nil, now, nil)
	deleted = slices.DeleteFunc(deleted, func(obj runtime.Object) bool {
		return len(randomcluster.Apply(remaining, nil, []runtime.Object{obj})) < len(remaining)
	})
	return changed, deleted, now
}

// isName reports whether the address is a name.
func (a address) isName() bool { return a.slice.AddressType == discoveryv1.AddressTypeFQDN }

func (a address) isIP() bool { return !a.isName() }

package randomcluster

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// TestImportVariety checks that the things worth comparing come up in a few
// clusters with imports, at first and after updates.
func TestImportVariety(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	first, later := seen{}, seen{}
	for range 40 {
		objs := Apply(Random(r, 20), Imports(r, 12), nil)
		noteImports(first, objs)
		imports := map[string]bool{}
		for _, obj := range objs {
			if imp, ok := obj.(*mcsv1beta1.ServiceImport); ok {
				imports[identity(imp)] = true
			}
		}
		for range 20 {
			changed, deleted := Mutate(r, objs)
			objs = Apply(objs, changed, deleted)
			for _, obj := range changed {
				if imp, ok := obj.(*mcsv1beta1.ServiceImport); ok {
					later.note("import made by an update", !imports[identity(imp)])
					later.note("import changed by an update", imports[identity(imp)])
				}
			}
			later.note("import deleted", slices.ContainsFunc(deleted, func(o runtime.Object) bool { return imports[identity(o)] }))
		}
		noteImports(later, objs)
	}
	first.check(t)
	later.check(t)
}

// noteImports counts what there is about imports in a cluster.
func noteImports(s seen, objs []runtime.Object) {
	namespaces, services, clusters := map[string]bool{}, map[string]bool{}, map[string]map[string]bool{}
	for _, obj := range objs {
		switch o := obj.(type) {
		case *corev1.Namespace:
			namespaces[o.Name] = true
		case *corev1.Service:
			services[o.Namespace+"/"+o.Name] = true
		}
	}
	for _, obj := range objs {
		switch o := obj.(type) {
		case *mcsv1beta1.ServiceImport:
			noteImport(s, o)
			s.note("import in a namespace that does not exist", !namespaces[o.Namespace])
			s.note("import named as a Service", services[o.Namespace+"/"+o.Name])
			s.note("import not named as a Service", !services[o.Namespace+"/"+o.Name])
		case *discoveryv1.EndpointSlice:
			if !isImported(o) {
				continue
			}
			s.note("slice of an import and a Service", services[o.Namespace+"/"+o.Labels[discoveryv1.LabelServiceName]])
			cluster := noteSource(s, o)
			key := o.Namespace + "/" + o.Labels[mcsv1beta1.LabelServiceName]
			if clusters[key] == nil {
				clusters[key] = map[string]bool{}
			}
			clusters[key][cluster] = true
			s.note("three clusters", len(clusters[key]) == 3)
		}
	}
	noteShared(s, objs)
}

func noteImport(s seen, imp *mcsv1beta1.ServiceImport) {
	kind := string(imp.Spec.Type)
	s.note(kind+" without ports", len(imp.Spec.Ports) == 0)
	s.note(kind+" with labels", len(imp.Labels) > 0)
	s.note(kind+" with three ports", len(imp.Spec.Ports) == 3)
	s.note(kind+" with one port of no name", len(imp.Spec.Ports) == 1 && imp.Spec.Ports[0].Name == "")
	s.note(kind+" with a port of no protocol", slices.ContainsFunc(imp.Spec.Ports, func(p mcsv1beta1.ServicePort) bool { return p.Protocol == "" }))
	s.note(kind+" with a number on two protocols", len(imp.Spec.Ports) > 1 && imp.Spec.Ports[0].Port == imp.Spec.Ports[1].Port &&
		imp.Spec.Ports[0].Protocol != imp.Spec.Ports[1].Protocol)
	if imp.Spec.Type == mcsv1beta1.ClusterSetIP {
		s.note("no address", len(imp.Spec.IPs) == 0)
		s.note("two addresses", len(imp.Spec.IPs) == 2)
		s.note("one IPv6 address", len(imp.Spec.IPs) == 1 && netip.MustParseAddr(imp.Spec.IPs[0]).Is6())
	}
}

// noteSource counts what is to be said of a slice's cluster, and returns its ID.
func noteSource(s seen, slice *discoveryv1.EndpointSlice) string {
	id := slice.Labels[mcsv1beta1.LabelSourceCluster]
	s.note("cluster unknown", id == "")
	s.note("cluster that is no name", id != "" && len(validation.IsDNS1123Subdomain(strings.ToLower(id))) > 0)
	s.note("cluster of two labels", strings.Count(id, ".") == 1)
	s.note("cluster with dashes", strings.Count(id, "-") > 3)
	return id
}

// noteShared counts what endpoints of two clusters of one import share.
func noteShared(s seen, objs []runtime.Object) {
	known := map[string]string{} // clusters by import and address or hostname
	for _, obj := range objs {
		slice, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok || !isImported(slice) {
			continue
		}
		cluster := slice.Labels[mcsv1beta1.LabelSourceCluster]
		about := func(what, value string) {
			key := slice.Namespace + " " + slice.Labels[mcsv1beta1.LabelServiceName] + " " + value
			other, ok := known[key]
			s.note(what+" in two clusters", ok && other != cluster)
			known[key] = cluster
		}
		for _, e := range slice.Endpoints {
			s.note("imported endpoint not ready", e.Conditions.Ready != nil && !*e.Conditions.Ready)
			s.note("imported endpoint of IPv6", slice.AddressType == discoveryv1.AddressTypeIPv6)
			s.note("imported endpoint without hostname", e.Hostname == nil)
			about("address", e.Addresses[0])
			if e.Hostname != nil {
				about("hostname", *e.Hostname)
			}
		}
	}
}

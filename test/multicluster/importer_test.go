//go:build linux

package multicluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/test/kit"
)

// importer is the creator of the imports' objects.
const importer = "importer.test"

// apply creates or updates an object of a cluster.
func (c *cluster) apply(t *testing.T, resource schema.GroupVersionResource, kind string, object metav1.Object) {
	t.Helper()
	kit.Must(t, c.tryApply(t.Context(), resource, kind, object))
}

func (c *cluster) tryApply(ctx context.Context, resource schema.GroupVersionResource, kind string, object metav1.Object) error {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: fields}
	u.SetAPIVersion(resource.GroupVersion().String())
	u.SetKind(kind)
	options := metav1.ApplyOptions{FieldManager: importer, Force: true}
	if _, err := c.objects.Resource(resource).Namespace(object.GetNamespace()).Apply(ctx, object.GetName(), u, options); err != nil {
		return fmt.Errorf("apply %s %s: %w", kind, object.GetName(), err)
	}
	return nil
}

// applyImport creates or updates a ServiceImport, in the version of the API that the cluster serves.
func (c *cluster) applyImport(t *testing.T, s *mcsv1beta1.ServiceImport) {
	t.Helper()
	c.apply(t, serviceImports.GroupResource().WithVersion(c.version), mcsv1beta1.ServiceImportKindName, s)
}

// deleteImport removes a ServiceImport.
func (c *cluster) deleteImport(t *testing.T, name string) {
	t.Helper()
	kit.Must(t, c.objects.Resource(serviceImports).Namespace(shop).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// applySlice creates or updates an EndpointSlice.
func (c *cluster) applySlice(t *testing.T, s *discoveryv1.EndpointSlice) {
	t.Helper()
	c.apply(t, endpointSlices, "EndpointSlice", s)
}

// export makes the ServiceExport of a Service.
func (c *cluster) export(t *testing.T, service string) {
	t.Helper()
	c.apply(t, serviceExports, mcsv1beta1.ServiceExportKindName, &mcsv1beta1.ServiceExport{ObjectMeta: meta(service)})
}

// exported is a Service that a cluster exports, with its EndpointSlices.
type exported struct {
	cluster *cluster
	service *corev1.Service
	slices  []discoveryv1.EndpointSlice
}

// readExports returns the exports of a name, by cluster.
func (cs *clusterset) readExports(ctx context.Context, namespace, name string) (all []exported, err error) {
	for _, c := range cs.all() {
		_, err := c.objects.Resource(serviceExports).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		service, err := c.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		list, err := c.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
		if err != nil {
			return nil, err
		}
		all = append(all, exported{c, service, list.Items})
	}
	return all, nil
}

// importEverywhere is the work of an implementation's controllers for a name: the exports of all clusters have a
// ServiceImport in each cluster, and EndpointSlices with their endpoints.
func (cs *clusterset) importEverywhere(ctx context.Context, namespace, name string) error {
	all, err := cs.readExports(ctx, namespace, name)
	if err != nil || len(all) == 0 {
		return err
	}
	for _, c := range cs.all() {
		err = errors.Join(err, c.importInto(ctx, name, all))
	}
	return err
}

// importInto applies the import of a name in one cluster.
func (c *cluster) importInto(ctx context.Context, name string, all []exported) error {
	version := serviceImports.GroupResource().WithVersion(c.version)
	err := c.tryApply(ctx, version, mcsv1beta1.ServiceImportKindName, c.importOf(name, all))
	for _, e := range all {
		for _, s := range e.slices {
			err = errors.Join(err, c.tryApply(ctx, endpointSlices, "EndpointSlice", copyOf(name, e.cluster.id, s)))
		}
	}
	return err
}

// importInterval is the time between two rounds of importAll.
const importInterval = 100 * time.Millisecond

// importAll imports the exports of all namespaces again and again, until the context ends. It returns the errors of its
// last round: one of an earlier round is for an object that had yet to be created, or for a namespace that was removed.
func (cs *clusterset) importAll(ctx context.Context) (err error) {
	for ; ctx.Err() == nil; time.Sleep(importInterval) {
		failed := cs.importRound(ctx)
		if ctx.Err() == nil {
			err = failed
		}
	}
	return err
}

// importRound imports all exports once. An import's namespace exists in all clusters (KEP-1645).
func (cs *clusterset) importRound(ctx context.Context) (err error) {
	done := map[string]bool{}
	for _, c := range cs.all() {
		list, lerr := c.objects.Resource(serviceExports).List(ctx, metav1.ListOptions{})
		if lerr != nil {
			return lerr
		}
		for _, e := range list.Items {
			if key := e.GetNamespace() + "/" + e.GetName(); !done[key] {
				done[key] = true
				err = errors.Join(err, cs.importEverywhere(ctx, e.GetNamespace(), e.GetName()))
			}
		}
	}
	return err
}

// importOf is the ServiceImport of Services: of their type, with all of their ports. Its addresses are of the families of the
// first Service. In shop they are the cluster's own, so that an answer with those of the other cluster is detected; in all
// other namespaces they are the same in every cluster, as the conformance suite expects.
func (c *cluster) importOf(name string, all []exported) *mcsv1beta1.ServiceImport {
	s := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: all[0].service.Namespace, Name: name}}
	first := all[0].service.Spec
	s.Spec.Type = mcsv1beta1.Headless
	if first.ClusterIP != corev1.ClusterIPNone {
		s.Spec.Type = mcsv1beta1.ClusterSetIP
		for i, family := range first.IPFamilies {
			ip := sharedIP(first.ClusterIPs[i])
			if s.Namespace == shop {
				ip = c.clusterSetIP(family, slices.Index(numbered, name))
			}
			s.Spec.IPs = append(s.Spec.IPs, ip)
		}
	}
	s.Spec.IPFamilies = first.IPFamilies
	for _, e := range all {
		for _, p := range e.service.Spec.Ports {
			port := mcsv1beta1.ServicePort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: p.Port}
			if !slices.Contains(s.Spec.Ports, port) {
				s.Spec.Ports = append(s.Spec.Ports, port)
			}
		}
	}
	return s
}

// numbered are the names of imports with addresses, which contain their numbers.
var numbered = []string{"", "hello", "web"}

// clusterSetIP is the address in a cluster of the import with a number.
func (c *cluster) clusterSetIP(family corev1.IPFamily, number int) string {
	if family == corev1.IPv6Protocol {
		return fmt.Sprintf("fd00:112:0:%d::%d", c.subnet, number)
	}
	return fmt.Sprintf("10.112.%d.%d", c.subnet, number)
}

// sharedIP is the address in all clusters of the import of a Service with this cluster IP, which no other Service has.
func sharedIP(clusterIP string) string {
	octets := netip.MustParseAddr(clusterIP).AsSlice()
	octets[1]++ // another range than that of cluster IPs
	ip, _ := netip.AddrFromSlice(octets)
	return ip.String()
}

// copyOf is the copy of an exported Service's EndpointSlice in every cluster.
func copyOf(name, id string, s discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	c := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "imported-" + id + "-" + s.Name}}
	c.Labels = importedLabels(name, id)
	c.AddressType, c.Endpoints, c.Ports = s.AddressType, s.Endpoints, s.Ports
	return c
}

// importedLabels are the labels of an import's EndpointSlice with endpoints in a cluster.
func importedLabels(name, id string) map[string]string {
	return map[string]string{
		mcsv1beta1.LabelServiceName:   name,
		mcsv1beta1.LabelSourceCluster: id,
		discoveryv1.LabelManagedBy:    importer,
	}
}

// meta is the metadata of an object of the tests.
func meta(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: shop, Name: name} }

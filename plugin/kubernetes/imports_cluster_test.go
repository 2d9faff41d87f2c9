package kubernetes

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// clusterset returns a block with zones of the cluster, of its clusterset and of addresses, and these options.
func clusterset(options ...string) string {
	return "kubernetes cluster.local clusterset.local 10.in-addr.arpa 8.b.d.0.1.0.0.2.ip6.arpa {\nmulticluster clusterset.local\n" +
		strings.Join(options, "\n") + "\n}"
}

// imported returns a ServiceImport with these ClusterSetIPs, headless for "None".
func imported(ns, name string, ips []string, ports ...corev1.ServicePort) *mcsv1beta1.ServiceImport {
	i := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	i.Spec.Type, i.Spec.IPs = mcsv1beta1.ClusterSetIP, ips
	if len(ips) > 0 && ips[0] == corev1.ClusterIPNone {
		i.Spec.Type, i.Spec.IPs = mcsv1beta1.Headless, nil
	}
	for _, p := range ports {
		i.Spec.Ports = append(i.Spec.Ports, mcsv1beta1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
	}
	return i
}

// importedSlice returns an EndpointSlice of a ServiceImport with endpoints in a cluster, without a cluster ID if that
// is empty; the ports are those of the ServiceImport.
func importedSlice(imported *mcsv1beta1.ServiceImport, cluster, name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	s := slice(&corev1.Service{ObjectMeta: imported.ObjectMeta}, name, endpoints...)
	s.Labels = map[string]string{mcsv1beta1.LabelServiceName: imported.Name}
	if cluster != "" {
		s.Labels[mcsv1beta1.LabelSourceCluster] = cluster
	}
	for i := range imported.Spec.Ports {
		p := &imported.Spec.Ports[i]
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port})
	}
	return s
}

// ofService makes an EndpointSlice belong to a Service as well.
func ofService(s *discoveryv1.EndpointSlice, service string) *discoveryv1.EndpointSlice {
	s.Labels[discoveryv1.LabelServiceName] = service
	return s
}

// labeled adds labels to an object.
func labeled[O metav1.Object](o O, key, value string) O {
	all := o.GetLabels()
	if all == nil {
		all = map[string]string{}
	}
	all[key] = value
	o.SetLabels(all)
	return o
}

func parsedAddr(t testing.TB, text string) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(text)
	kit.Must(t, err)
	return a
}

func addrs(t testing.TB, texts ...string) (all []netip.Addr) {
	t.Helper()
	for _, text := range texts {
		all = append(all, parsedAddr(t, text))
	}
	return all
}

// multiclustering is answering for a block of directive multicluster.
func multiclustering(t testing.TB, block string, objects ...runtime.Object) *Kubernetes {
	t.Helper()
	k := parsed(t, multiclusterDirective, block)
	k.attach(index.New(), nil)
	strip := source.NewStripper(k.source)
	for _, o := range objects {
		if _, ok := o.(*corev1.Service); ok {
			continue // the source does not read them
		}
		put(k, strip, o)
	}
	return withStatus(k)
}

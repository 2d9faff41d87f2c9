package generated

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// ImportEndpoints is the number of endpoints of an import, in all of its clusters
// together.
const ImportEndpoints = 10

// importClusters returns the IDs of the clusters that every import is of.
func importClusters() []string { return []string{"cluster-a", "cluster-b"} }

// Import has the names and addresses of one ServiceImport of a Cluster.
type Import struct {
	Namespace string
	Name      string
	Headless  bool
	IP        string // "" when headless
}

// Import returns the n-th import.
func (g Cluster) Import(n int) Import {
	i := Import{
		Namespace: g.Namespace(n % g.Namespaces),
		Name:      fmt.Sprintf("imp-%05d", n),
		Headless:  g.headless(n),
	}
	if !i.Headless {
		i.IP = addressAfter("10.112.0.0", n)
	}
	return i
}

// Endpoint returns the hostname of the e-th endpoint of a headless import, from 0
// to ImportEndpoints-1, and the ID of the cluster that it is in.
func (i Import) Endpoint(e int) (hostname, cluster string) {
	clusters := importClusters()
	each := ImportEndpoints / len(clusters)
	return fmt.Sprintf("%s-%d", i.Name, e%each), clusters[e/each]
}

// ImportPodIP returns the address of the e-th endpoint of the n-th import.
func (g Cluster) ImportPodIP(n, e int) string {
	return addressAfter("100.64.0.0", n*ImportEndpoints+e)
}

// importUID returns the UID of the n-th import.
func (g Cluster) importUID(n int) types.UID { return types.UID(uid(g.random(randomImport, n))) }

// ImportObject returns the n-th import.
func (g Cluster) ImportObject(n int) *mcsv1beta1.ServiceImport {
	i := g.Import(n)
	o := &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: i.Namespace, Name: i.Name, UID: g.importUID(n), Generation: 1, CreationTimestamp: generatedTime(),
			Labels: serviceLabels(i.Name),
			ManagedFields: []metav1.ManagedFieldsEntry{
				managed("mcs-controller", mcsv1beta1.GroupVersion.String(), "",
					`{"f:metadata":{"f:labels":{".":{},"f:app.kubernetes.io/instance":{},"f:app.kubernetes.io/managed-by":{},"f:app.kubernetes.io/name":{},"f:app.kubernetes.io/version":{},"f:helm.sh/chart":{}}},"f:spec":{".":{},"f:ipFamilies":{},"f:ips":{},"f:ports":{},"f:sessionAffinity":{},"f:type":{}}}`),
				managed("mcs-controller", mcsv1beta1.GroupVersion.String(), "status",
					`{"f:status":{".":{},"f:clusters":{".":{},"k:{\"cluster\":\"cluster-a\"}":{".":{},"f:cluster":{}},"k:{\"cluster\":\"cluster-b\"}":{".":{},"f:cluster":{}}},"f:endpointSliceObjects":{}}}`),
			},
		},
		Spec: mcsv1beta1.ServiceImportSpec{
			Type: mcsv1beta1.Headless, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []mcsv1beta1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
		Status: mcsv1beta1.ServiceImportStatus{EndpointSliceObjects: mcsv1beta1.EndpointSliceObjectsPresent},
	}
	if !i.Headless {
		o.Spec.Type, o.Spec.IPs = mcsv1beta1.ClusterSetIP, []string{i.IP}
	}
	for _, cluster := range importClusters() {
		o.Status.Clusters = append(o.Status.Clusters, mcsv1beta1.ClusterStatus{Cluster: cluster})
	}
	return o
}

// ImportSliceObjects returns the EndpointSlices of the n-th import, one for each
// cluster.
func (g Cluster) ImportSliceObjects(n int) []*discoveryv1.EndpointSlice {
	i, r := g.Import(n), g.random(randomImportSlices, n)
	owner := g.importUID(n)
	replicaSet := i.Name + "-" + suffix(r, 10)
	clusters := importClusters()
	each := ImportEndpoints / len(clusters)
	var slices []*discoveryv1.EndpointSlice
	for c, cluster := range clusters {
		slice := emptySlice(r, i.Namespace, i.Name+"-"+cluster,
			metav1.NewControllerRef(&metav1.ObjectMeta{Name: i.Name, UID: owner}, schema.FromAPIVersionAndKind(mcsv1beta1.GroupVersion.String(), "ServiceImport")))
		slice.Labels = importLabels(i.Name, cluster)
		slice.ManagedFields = []metav1.ManagedFieldsEntry{managed("mcs-controller", "discovery.k8s.io/v1", "",
			`{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:generateName":{},"f:labels":{".":{},"f:app.kubernetes.io/instance":{},"f:app.kubernetes.io/managed-by":{},"f:app.kubernetes.io/name":{},"f:app.kubernetes.io/version":{},"f:endpointslice.kubernetes.io/managed-by":{},"f:helm.sh/chart":{},"f:multicluster.kubernetes.io/service-name":{},"f:multicluster.kubernetes.io/source-cluster":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"`+string(owner)+`\"}":{}}},"f:ports":{}}`)}
		for e := c * each; e < (c+1)*each; e++ {
			endpoint := g.readyEndpoint(r, i.Namespace, g.ImportPodIP(n, e))
			if i.Headless {
				hostname, _ := i.Endpoint(e)
				endpoint.Hostname = &hostname
			}
			endpoint.TargetRef.Name = podName(r, endpoint.Hostname, replicaSet)
			slice.Endpoints = append(slice.Endpoints, endpoint)
		}
		slices = append(slices, slice)
	}
	return slices
}

// importLabels are those of an EndpointSlice of an import, whose endpoints are
// in a cluster.
func importLabels(name, cluster string) map[string]string {
	labels := serviceLabels(name)
	labels[mcsv1beta1.LabelServiceName] = name
	labels[mcsv1beta1.LabelSourceCluster] = cluster
	labels[discoveryv1.LabelManagedBy] = "mcs-controller.example.com"
	return labels
}

package generated

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The kinds of generated objects, which their randomness depends on.
const (
	randomNamespace uint64 = iota
	randomNode
	randomService
	randomSlices
	randomImport
	randomImportSlices
	randomPod
)

// generatedImages is the number of container images of a node.
const generatedImages = 25

// generatedTime is the creation time of all objects.
func generatedTime() metav1.Time {
	return metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
}

// managed returns managed fields as a client writes them.
func managed(manager, apiVersion, subresource, fields string) metav1.ManagedFieldsEntry {
	when := generatedTime()
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: apiVersion,
		Time: &when, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields), Subresource: subresource,
	}
}

func (g Cluster) namespaceObject(n int) *corev1.Namespace {
	name := g.Namespace(n)
	return &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(uid(g.random(randomNamespace, n))), CreationTimestamp: generatedTime(),
			Labels: map[string]string{corev1.LabelMetadataName: name},
			ManagedFields: []metav1.ManagedFieldsEntry{managed("kubectl-create", "v1", "",
				`{"f:metadata":{"f:labels":{".":{},"f:kubernetes.io/metadata.name":{}}}}`)},
		},
		Spec:   corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
		Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}
}

func (g Cluster) nodeObject(n int) *corev1.Node {
	r := g.random(randomNode, n)
	name, zone := g.Node(n)
	address := addressAfter("172.16.0.0", n)
	podCIDR := fmt.Sprintf("10.%d.%d.0/24", 128+n>>8, n&255)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(uid(r)), CreationTimestamp: generatedTime(),
			Labels: map[string]string{
				corev1.LabelHostname: name, corev1.LabelTopologyZone: zone, corev1.LabelTopologyRegion: "region",
				corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux", corev1.LabelInstanceTypeStable: "standard-16",
				corev1.LabelFailureDomainBetaZone: zone, corev1.LabelFailureDomainBetaRegion: "region",
				"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "node.example.com/pool": "default",
			},
			Annotations: map[string]string{
				"node.alpha.kubernetes.io/ttl":                           "300",
				"volumes.kubernetes.io/controller-managed-attach-detach": "true",
				"csi.volume.kubernetes.io/nodeid":                        fmt.Sprintf(`{"csi.example.com":"i-%s"}`, suffix(r, 17)),
			},
			ManagedFields: []metav1.ManagedFieldsEntry{
				managed("kube-controller-manager", "v1", "", `{"f:metadata":{"f:annotations":{"f:node.alpha.kubernetes.io/ttl":{}}},"f:spec":{"f:podCIDR":{},"f:podCIDRs":{".":{},"v:\"`+podCIDR+`\"":{}}}}`),
				managed("kubelet", "v1", "status", `{"f:status":{"f:conditions":{"k:{\"type\":\"DiskPressure\"}":{"f:lastHeartbeatTime":{}},"k:{\"type\":\"MemoryPressure\"}":{"f:lastHeartbeatTime":{}},"k:{\"type\":\"PIDPressure\"}":{"f:lastHeartbeatTime":{}},"k:{\"type\":\"Ready\"}":{"f:lastHeartbeatTime":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},"f:status":{}}},"f:images":{}}}`),
			},
		},
		Spec: corev1.NodeSpec{PodCIDR: podCIDR, PodCIDRs: []string{podCIDR}, ProviderID: "example://region/" + zone + "/i-" + suffix(r, 17)},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU: quantity.MustParse("16"), corev1.ResourceMemory: quantity.MustParse("65000000Ki"), corev1.ResourcePods: quantity.MustParse("110"),
			},
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: quantity.MustParse("15800m"), corev1.ResourceMemory: quantity.MustParse("63000000Ki"), corev1.ResourcePods: quantity.MustParse("110"),
			},
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: address}, {Type: corev1.NodeHostName, Address: name},
			},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: suffix(r, 32), SystemUUID: uid(r), BootID: uid(r), KernelVersion: "6.1.0", OSImage: "Debian GNU/Linux 12",
				ContainerRuntimeVersion: "containerd://2.0.0", KubeletVersion: "v1.37.1", OperatingSystem: "linux", Architecture: "amd64",
			},
		},
	}
	for _, c := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady} {
		status := corev1.ConditionFalse
		if c == corev1.NodeReady {
			status = corev1.ConditionTrue
		}
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: c, Status: status, LastHeartbeatTime: generatedTime(), LastTransitionTime: generatedTime(),
			Reason: "KubeletHas" + string(c), Message: "kubelet reports " + string(c),
		})
	}
	for range generatedImages {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
			Names:     []string{"images.example.com/library/app@sha256:" + suffix(r, 64), "images.example.com/library/app:" + suffix(r, 8)},
			SizeBytes: r.Int64N(1 << 30),
		})
	}
	return node
}

// serviceLabels are those of a Service's chart, which its slices get as well.
func serviceLabels(name string) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name": name, "app.kubernetes.io/instance": name + "-release",
		"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/version": "1.2.3", "helm.sh/chart": "app-4.5.6",
	}
}

// serviceUID returns the UID of the n-th Service.
func (g Cluster) serviceUID(n int) types.UID { return types.UID(uid(g.random(randomService, n))) }

// ServiceObject returns the n-th Service.
func (g Cluster) ServiceObject(n int) *corev1.Service {
	s := g.Service(n)
	policy, traffic := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name, UID: g.serviceUID(n), CreationTimestamp: generatedTime(), Labels: serviceLabels(s.Name),
			Annotations: map[string]string{
				"meta.helm.sh/release-name": s.Name + "-release", "meta.helm.sh/release-namespace": s.Namespace,
			},
			ManagedFields: []metav1.ManagedFieldsEntry{managed("helm", "v1", "",
				`{"f:metadata":{"f:annotations":{".":{},"f:meta.helm.sh/release-name":{},"f:meta.helm.sh/release-namespace":{}},"f:labels":{".":{},"f:app.kubernetes.io/instance":{},"f:app.kubernetes.io/managed-by":{},"f:app.kubernetes.io/name":{},"f:app.kubernetes.io/version":{},"f:helm.sh/chart":{}}},"f:spec":{"f:internalTrafficPolicy":{},"f:ports":{".":{},"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{},"f:targetPort":{}}},"f:selector":{},"f:sessionAffinity":{},"f:type":{}}}`)},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: s.ClusterIP, ClusterIPs: []string{s.ClusterIP},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &policy, InternalTrafficPolicy: &traffic,
			SessionAffinity: corev1.ServiceAffinityNone,
			Selector:        map[string]string{"app.kubernetes.io/name": s.Name, "app.kubernetes.io/instance": s.Name + "-release"},
			Ports:           []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	return svc
}

// SliceObjects returns the EndpointSlices of the n-th Service.
func (g Cluster) SliceObjects(n int) []*discoveryv1.EndpointSlice {
	s, r := g.Service(n), g.random(randomSlices, n)
	owner := g.serviceUID(n)
	labels := serviceLabels(s.Name)
	labels[discoveryv1.LabelServiceName] = s.Name
	labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
	if s.Headless {
		labels[corev1.IsHeadlessService] = ""
	}
	replicaSet := s.Name + "-" + suffix(r, 10)
	var slices []*discoveryv1.EndpointSlice
	for first := 0; first < s.Endpoints; first += maxSliceEndpoints {
		slice := emptySlice(r, s.Namespace, s.Name,
			metav1.NewControllerRef(&metav1.ObjectMeta{Name: s.Name, UID: owner}, corev1.SchemeGroupVersion.WithKind("Service")))
		slice.Labels = maps.Clone(labels)
		slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-01T00:00:00Z"}
		slice.ManagedFields = []metav1.ManagedFieldsEntry{managed("kube-controller-manager", "discovery.k8s.io/v1", "",
			`{"f:addressType":{},"f:endpoints":{},"f:metadata":{"f:annotations":{".":{},"f:endpoints.kubernetes.io/last-change-trigger-time":{}},"f:generateName":{},"f:labels":{".":{},"f:app.kubernetes.io/instance":{},"f:app.kubernetes.io/managed-by":{},"f:app.kubernetes.io/name":{},"f:app.kubernetes.io/version":{},"f:endpointslice.kubernetes.io/managed-by":{},"f:helm.sh/chart":{},"f:kubernetes.io/service-name":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"`+string(owner)+`\"}":{}}},"f:ports":{}}`)}
		for i := first; i < min(first+maxSliceEndpoints, s.Endpoints); i++ {
			e := g.readyEndpoint(r, s.Namespace, g.PodIP(s.FirstPod+i))
			if s.Headless {
				e.Hostname = new(s.Hostname(i))
			}
			e.TargetRef.Name = podName(r, e.Hostname, replicaSet)
			slice.Endpoints = append(slice.Endpoints, e)
		}
		slices = append(slices, slice)
	}
	return slices
}

// emptySlice returns a slice without labels and endpoints, of an owner in a
// namespace.
func emptySlice(r *rand.Rand, namespace, service string, owner *metav1.OwnerReference) *discoveryv1.EndpointSlice {
	name, protocol, port := "http", corev1.ProtocolTCP, int32(8080)
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: service + "-" + suffix(r, 5), GenerateName: service + "-",
			UID: types.UID(uid(r)), Generation: 1, CreationTimestamp: generatedTime(),
			OwnerReferences: []metav1.OwnerReference{*owner},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
	}
}

// readyEndpoint returns an endpoint on a random node, whose pod has no name yet.
func (g Cluster) readyEndpoint(r *rand.Rand, namespace, address string) discoveryv1.Endpoint {
	node, zone := g.Node(r.IntN(g.Nodes))
	ready, serving, terminating := true, true, false
	return discoveryv1.Endpoint{
		Addresses:  []string{address},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
		NodeName:   &node,
		Zone:       &zone,
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, UID: types.UID(uid(r))},
	}
}

// podName returns the name of a pod: its hostname, or a random one of a replica
// set.
func podName(r *rand.Rand, hostname *string, replicaSet string) string {
	if hostname != nil {
		return *hostname
	}
	return replicaSet + "-" + suffix(r, 5)
}

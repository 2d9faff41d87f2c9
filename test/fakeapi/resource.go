package fakeapi

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// The names of the served resources, as they stand in paths and as the fault
// methods of Server take them.
const (
	Services       = "services"
	Pods           = "pods"
	Nodes          = "nodes"
	Namespaces     = "namespaces"
	EndpointSlices = "endpointslices"

	ServiceImports    = "serviceimports"
	ServiceExports    = "serviceexports"
	ClusterProperties = "clusterproperties"
)

// aboutGroup is the API group of ClusterProperties.
const aboutGroup = "about.k8s.io"

// object is what every served object is: typed and with metadata.
type object interface {
	runtime.Object
	metav1.Object
}

// resource describes one served resource.
type resource struct {
	name       string
	group      string
	versions   []string // that there are, the preferred one first
	kind       string
	namespaced bool
	newObject  func() object
	custom     *custom // nil for what is built in

	// fieldLabels are the labels which a field selector may use, apart from
	// metadata.name (and metadata.namespace where there are namespaces).
	fieldLabels []string
	// fields gives the values for fieldLabels, nil when there are none.
	fields func(runtime.Object) fields.Set
}

func (r *resource) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.group, Resource: r.name}
}

func (r *resource) gvk(version string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.group, Version: version, Kind: r.kind}
}

// convertFieldLabel refuses the labels which field selectors can't use, in the
// words of a real server.
func (r *resource) convertFieldLabel(label, value string) (string, string, error) {
	if label == "metadata.name" || (r.namespaced && label == "metadata.namespace") {
		return label, value, nil
	}
	for _, l := range r.fieldLabels {
		if l == label {
			return label, value, nil
		}
	}
	if len(r.fieldLabels) == 0 && r.custom == nil {
		return "", "", fmt.Errorf("%q is not a known field selector: only %q, %q", label, "metadata.name", "metadata.namespace")
	}
	return "", "", fmt.Errorf("field label not supported: %s", label)
}

// noFields is for resources without fields for field selectors.
func noFields(runtime.Object) fields.Set { return nil }

// servedResources lists everything the server knows.
func servedResources() []*resource {
	v1 := []string{"v1"}
	return []*resource{
		{
			name: Services, versions: v1, kind: "Service", namespaced: true,
			newObject:   func() object { return &corev1.Service{} },
			fieldLabels: []string{"spec.clusterIP", "spec.type"},
			fields:      serviceFields,
		},
		{
			name: Pods, versions: v1, kind: "Pod", namespaced: true,
			newObject: func() object { return &corev1.Pod{} },
			fieldLabels: []string{
				"spec.nodeName", "spec.restartPolicy", "spec.schedulerName",
				"spec.serviceAccountName", "spec.hostNetwork",
				"status.phase", "status.podIP", "status.nominatedNodeName",
			},
			fields: podFields,
		},
		{
			name: Nodes, versions: v1, kind: "Node",
			newObject:   func() object { return &corev1.Node{} },
			fieldLabels: []string{"spec.unschedulable"},
			fields:      nodeFields,
		},
		{
			name: Namespaces, versions: v1, kind: "Namespace",
			newObject:   func() object { return &corev1.Namespace{} },
			fieldLabels: []string{"status.phase"},
			fields:      namespaceFields,
		},
		{
			name: EndpointSlices, group: discoveryv1.GroupName, versions: v1, kind: "EndpointSlice", namespaced: true,
			newObject: func() object { return &discoveryv1.EndpointSlice{} },
			fields:    noFields,
		},
		{
			name: ServiceImports, group: mcsv1beta1.GroupName, versions: []string{"v1beta1", "v1alpha1"}, kind: "ServiceImport", namespaced: true,
			newObject: func() object { return &mcsv1beta1.ServiceImport{} },
			fields:    noFields,
			custom:    &custom{singular: "serviceimport", shortNames: []string{"svcim", "svcimport"}, status: true},
		},
		{
			name: ServiceExports, group: mcsv1beta1.GroupName, versions: []string{"v1beta1", "v1alpha1"}, kind: "ServiceExport", namespaced: true,
			newObject: func() object { return &mcsv1beta1.ServiceExport{} },
			fields:    noFields,
			custom:    &custom{singular: "serviceexport", shortNames: []string{"svcex", "svcexport"}, status: true, absent: true},
		},
		{
			name: ClusterProperties, group: aboutGroup, versions: []string{"v1", "v1beta1", "v1alpha1"}, kind: "ClusterProperty",
			newObject: func() object { return &ClusterProperty{} },
			fields:    noFields,
			custom:    &custom{singular: "clusterproperty"},
		},
	}
}

// resourceName gives the resource an object belongs to, by its Go type.
func resourceName(obj runtime.Object) (string, error) {
	switch obj.(type) {
	case *corev1.Service:
		return Services, nil
	case *corev1.Pod:
		return Pods, nil
	case *corev1.Node:
		return Nodes, nil
	case *corev1.Namespace:
		return Namespaces, nil
	case *discoveryv1.EndpointSlice:
		return EndpointSlices, nil
	case *mcsv1beta1.ServiceImport:
		return ServiceImports, nil
	case *mcsv1beta1.ServiceExport:
		return ServiceExports, nil
	case *ClusterProperty:
		return ClusterProperties, nil
	}
	return "", fmt.Errorf("objects of type %T are not served", obj)
}

func serviceFields(obj runtime.Object) fields.Set {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return nil
	}
	return fields.Set{"spec.clusterIP": svc.Spec.ClusterIP, "spec.type": string(svc.Spec.Type)}
}

func podFields(obj runtime.Object) fields.Set {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	podIP := pod.Status.PodIP
	if podIP == "" && len(pod.Status.PodIPs) > 0 {
		podIP = pod.Status.PodIPs[0].IP
	}
	return fields.Set{
		"spec.nodeName":            pod.Spec.NodeName,
		"spec.restartPolicy":       string(pod.Spec.RestartPolicy),
		"spec.schedulerName":       pod.Spec.SchedulerName,
		"spec.serviceAccountName":  pod.Spec.ServiceAccountName,
		"spec.hostNetwork":         strconv.FormatBool(pod.Spec.HostNetwork),
		"status.phase":             string(pod.Status.Phase),
		"status.podIP":             podIP,
		"status.nominatedNodeName": pod.Status.NominatedNodeName,
	}
}

func nodeFields(obj runtime.Object) fields.Set {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	return fields.Set{"spec.unschedulable": strconv.FormatBool(node.Spec.Unschedulable)}
}

func namespaceFields(obj runtime.Object) fields.Set {
	ns, ok := obj.(*corev1.Namespace)
	if !ok {
		return nil
	}
	return fields.Set{"status.phase": string(ns.Status.Phase)}
}

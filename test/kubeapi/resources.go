package kubeapi

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// The names of resources in paths, and in the methods for faults.
const (
	Services          = "services"
	Pods              = "pods"
	Nodes             = "nodes"
	Namespaces        = "namespaces"
	EndpointSlices    = "endpointslices"
	ServiceImports    = "serviceimports"
	ServiceExports    = "serviceexports"
	ClusterProperties = "clusterproperties"
	IPAddresses       = "ipaddresses"
)

// resource is one that a cluster here has objects of.
type resource struct {
	name     string
	group    string
	versions []string // the preferred one first
	kind     string
	keys     string // the prefix of its keys in etcd
	custom   bool   // defined by a CustomResourceDefinition
	absent   bool   // until ServeVersions is called
}

var resources = []*resource{
	{name: Services, versions: []string{"v1"}, kind: "Service", keys: "/registry/services/specs/"},
	{name: Pods, versions: []string{"v1"}, kind: "Pod", keys: "/registry/pods/"},
	{name: Nodes, versions: []string{"v1"}, kind: "Node", keys: "/registry/minions/"},
	{name: Namespaces, versions: []string{"v1"}, kind: "Namespace", keys: "/registry/namespaces/"},
	{name: EndpointSlices, group: discoveryv1.GroupName, versions: []string{"v1"}, kind: "EndpointSlice", keys: "/registry/endpointslices/"},
	{name: IPAddresses, group: networkingv1.GroupName, versions: []string{"v1"}, kind: "IPAddress", keys: "/registry/ipaddresses/"},
	custom(ServiceImports, mcsv1beta1.GroupName, "ServiceImport", "v1beta1", "v1alpha1"),
	custom(ServiceExports, mcsv1beta1.GroupName, "ServiceExport", "v1beta1", "v1alpha1"),
	custom(ClusterProperties, "about.k8s.io", "ClusterProperty", "v1", "v1beta1", "v1alpha1"),
}

func custom(name, group, kind string, versions ...string) *resource {
	return &resource{
		name: name, group: group, versions: versions, kind: kind, keys: "/registry/" + group + "/" + name + "/",
		custom: true, absent: name == ServiceExports,
	}
}

// scheme has the Go types of objects.
var scheme = newScheme()

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, mcsv1beta1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err) // these types fit together
		}
	}
	return s
}

// resourceOf returns the resource of an object.
func resourceOf(object runtime.Object) (*resource, error) {
	kind := object.GetObjectKind().GroupVersionKind()
	if kind.Empty() {
		kinds, _, err := scheme.ObjectKinds(object)
		if err != nil {
			return nil, err
		}
		kind = kinds[0]
	}
	for _, r := range resources {
		if r.kind == kind.Kind && r.group == kind.Group {
			return r, nil
		}
	}
	return nil, fmt.Errorf("no resource of %s", kind)
}

// customResource returns the custom resource of a name if it has the versions.
func customResource(name string, versions []string) (*resource, error) {
	for _, r := range resources {
		if r.custom && r.name == name {
			for _, v := range versions {
				if !slices.Contains(r.versions, v) {
					return nil, fmt.Errorf("invalid version %q of %s: want one of %q", v, name, r.versions)
				}
			}
			return r, nil
		}
	}
	return nil, fmt.Errorf("no custom resource %q", name)
}

func (r *resource) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.group, Version: r.versions[0], Kind: r.kind}
}

// path returns the path of all objects in a version.
func (r *resource) path(version string) string {
	if r.group == "" {
		return "/api/" + version + "/" + r.name
	}
	return "/apis/" + r.group + "/" + version + "/" + r.name
}

// objectPath returns the path of an object in the first version.
func (r *resource) objectPath(o metav1.Object) string {
	path := r.path(r.versions[0])
	if namespace := o.GetNamespace(); namespace != "" {
		path = strings.TrimSuffix(path, r.name) + "namespaces/" + namespace + "/" + r.name
	}
	return path + "/" + o.GetName()
}

// target is the resource, the version and the objects that a request names.
type target struct {
	*resource
	version string
	single  bool // one object
}

// find returns what a path such as /api/v1/namespaces/NAMESPACE/services is about.
func find(u *url.URL) (target, bool) {
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	if parts[0] == "api" {
		parts = slices.Insert(parts, 1, "")
	}
	if len(parts) < 4 {
		return target{}, false
	}
	group, version, parts := parts[1], parts[2], parts[3:]
	if len(parts) >= 3 && parts[0] == Namespaces {
		parts = parts[2:]
	}
	for _, r := range resources {
		if r.group == group && r.name == parts[0] && slices.Contains(r.versions, version) {
			return target{resource: r, version: version, single: len(parts) > 1}, true
		}
	}
	return target{}, false
}

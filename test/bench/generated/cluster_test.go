package generated

import (
	"fmt"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestCluster checks, for several sizes, the number of the objects, that they have
// the names that the naming functions return, and that they are the same each time.
func TestCluster(t *testing.T) {
	for _, g := range []Cluster{
		{Services: 1000, Endpoints: 11000, Nodes: 50, Namespaces: 100, Pods: 300, Headless: 0.1, Seed: 1},
		{Services: 7, Endpoints: 3, Nodes: 1, Namespaces: 2, Headless: 0.5, Seed: 2},
		{Services: 10, Endpoints: 1234, Nodes: 3, Namespaces: 1, Headless: 1, Seed: 3},
		{Services: 10, Endpoints: 0, Nodes: 3, Namespaces: 1, Headless: 0, Seed: 3},
	} {
		var order []runtime.Object
		if err := g.Each(func(obj runtime.Object) error {
			order = append(order, obj)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		i := 0
		if err := g.Each(func(obj runtime.Object) error {
			if !reflect.DeepEqual(obj, order[i]) {
				t.Fatalf("%+v: object %d differs the second time", g, i)
			}
			i++
			return nil
		}); err != nil {
			t.Fatal(err)
		}

		total, headless := 0, 0
		for n := range g.Services {
			want, svc := g.Service(n), g.ServiceObject(n)
			if svc.Name != want.Name || svc.Namespace != want.Namespace || svc.Spec.ClusterIP != want.ClusterIP {
				t.Fatalf("%+v: service %d is %v", g, n, svc)
			}
			if want.Headless != (svc.Spec.ClusterIP == corev1.ClusterIPNone) {
				t.Fatalf("%+v: service %d is headless or not: %v", g, n, svc)
			}
			if want.Headless {
				headless++
			}
			pods := 0
			for _, slice := range g.SliceObjects(n) {
				if len(slice.Endpoints) > 100 || slice.Labels[discoveryv1.LabelServiceName] != want.Name {
					t.Fatalf("%+v: service %d has slice %v", g, n, slice)
				}
				for _, e := range slice.Endpoints {
					if e.Addresses[0] != g.PodIP(want.FirstPod+pods) {
						t.Fatalf("%+v: service %d has endpoint %v", g, n, e)
					}
					if want.Headless && *e.Hostname != want.Hostname(pods) {
						t.Fatalf("%+v: service %d has endpoint %v", g, n, e)
					}
					pods++
				}
			}
			if pods != want.Endpoints || want.FirstPod != total {
				t.Fatalf("%+v: service %d has %d endpoints from %d: %+v", g, n, pods, total, want)
			}
			total += pods
		}
		if total != g.Endpoints || headless != int(float64(g.Services)*g.Headless) {
			t.Errorf("%+v: %d endpoints, %d headless services", g, total, headless)
		}
		checkNames(t, g, order)
	}
	if got := (Cluster{Services: 10000, Namespaces: 100, Headless: 0.1}).Service(42); got.Name != "svc-00042" || got.Namespace != "ns-042" || got.ClusterIP != "10.96.0.43" {
		t.Errorf("service 42 is %+v", got)
	}
	if err := (Cluster{Services: -1}).Each(nil); err == nil {
		t.Error("a negative number was accepted")
	}
}

// checkNames checks the number of objects of each kind, and that no two have the
// same name.
func checkNames(t *testing.T, g Cluster, all []runtime.Object) {
	t.Helper()
	counts, seen := map[string]int{}, map[string]bool{}
	for _, o := range all {
		kind, meta := fmt.Sprintf("%T", o), o.(metav1.Object)
		counts[kind]++
		name := kind + " " + meta.GetNamespace() + "/" + meta.GetName()
		if seen[name] {
			t.Errorf("%+v: two objects are %s", g, name)
		}
		seen[name] = true
	}
	for kind, want := range map[string]int{
		"*v1.Service": g.Services, "*v1.Node": g.Nodes, "*v1.Namespace": g.Namespaces, "*v1beta1.ServiceImport": g.Imports, "*v1.Pod": g.Pods,
	} {
		if counts[kind] != want {
			t.Errorf("%+v: %d objects %s, want %d", g, counts[kind], kind, want)
		}
	}
}

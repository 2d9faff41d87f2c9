package generated

import (
	"fmt"
	"reflect"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// TestImports checks, for several sizes, that a cluster with imports is
// the one without, and then the imports, which are what the naming functions
// say.
func TestImports(t *testing.T) {
	for _, g := range []Cluster{
		{Services: 100, Endpoints: 500, Nodes: 5, Namespaces: 10, Imports: 20, Headless: 0.1, Seed: 1},
		{Services: 3, Endpoints: 7, Nodes: 1, Namespaces: 2, Imports: 1, Headless: 1, Seed: 2},
		{Services: 3, Endpoints: 7, Nodes: 1, Namespaces: 2, Imports: 3, Headless: 0, Seed: 2},
	} {
		t.Run(fmt.Sprintf("%d imports, %g headless", g.Imports, g.Headless), func(t *testing.T) {
			without := g
			without.Imports = 0
			base, all := generatedObjects(t, without), generatedObjects(t, g)
			if len(all) < len(base) || !reflect.DeepEqual(all[:len(base)], base) {
				t.Fatal("imports change what else is in the cluster")
			}
			if again := generatedObjects(t, g); !reflect.DeepEqual(again, all) {
				t.Error("objects differ the second time")
			}
			imports := all[len(base):]
			if want := 3 * g.Imports; len(imports) != want {
				t.Fatalf("%d objects of imports, want %d", len(imports), want)
			}
			headless := 0
			for n := range g.Imports {
				checkImport(t, g, n, imports[3*n:3*n+3])
				if g.Import(n).Headless {
					headless++
				}
			}
			if want := int(float64(g.Imports) * g.Headless); headless != want {
				t.Errorf("%d headless imports, want %d", headless, want)
			}
			checkNames(t, g, all)
		})
	}
}

func generatedObjects(t *testing.T, g Cluster) (all []runtime.Object) {
	t.Helper()
	err := g.Each(func(obj runtime.Object) error {
		all = append(all, obj)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// checkImport compares the objects of the n-th import, its slices last, with what
// the naming functions say.
func checkImport(t *testing.T, g Cluster, n int, objs []runtime.Object) {
	t.Helper()
	want, got := g.Import(n), objs[0].(*mcsv1beta1.ServiceImport)
	if got.Name != want.Name || got.Namespace != want.Namespace {
		t.Errorf("import %d is %s/%s, want %s/%s", n, got.Namespace, got.Name, want.Namespace, want.Name)
	}
	kind, ips := mcsv1beta1.Headless, []string(nil)
	if !want.Headless {
		kind, ips = mcsv1beta1.ClusterSetIP, []string{want.IP}
	}
	if got.Spec.Type != kind || !reflect.DeepEqual(got.Spec.IPs, ips) {
		t.Errorf("import %d is %s with addresses %q, want %s with %q", n, got.Spec.Type, got.Spec.IPs, kind, ips)
	}
	e := 0
	for _, obj := range objs[1:] {
		slice := obj.(*discoveryv1.EndpointSlice)
		if slice.Namespace != want.Namespace || slice.Labels[mcsv1beta1.LabelServiceName] != want.Name || slice.Labels[discoveryv1.LabelServiceName] != "" {
			t.Errorf("import %d has a slice in %s with labels %v", n, slice.Namespace, slice.Labels)
		}
		for _, endpoint := range slice.Endpoints {
			hostname, cluster := want.Endpoint(e)
			if got := slice.Labels[mcsv1beta1.LabelSourceCluster]; got != cluster {
				t.Errorf("import %d: endpoint %d is in cluster %q, want %q", n, e, got, cluster)
			}
			if want.Headless != (endpoint.Hostname != nil) || want.Headless && *endpoint.Hostname != hostname {
				t.Errorf("import %d: endpoint %d is %v, want hostname %q if headless", n, e, endpoint, hostname)
			}
			if want := []string{g.ImportPodIP(n, e)}; !reflect.DeepEqual(endpoint.Addresses, want) {
				t.Errorf("import %d: endpoint %d has addresses %q, want %q", n, e, endpoint.Addresses, want)
			}
			e++
		}
	}
	if e != ImportEndpoints {
		t.Errorf("import %d has %d endpoints, want %d", n, e, ImportEndpoints)
	}
}

// TestImportNames pins names that a load generator computes.
func TestImportNames(t *testing.T) {
	g := Cluster{Services: 1, Nodes: 1, Namespaces: 100, Imports: 2000, Headless: 0.1}
	if got, want := g.Import(142), (Import{Namespace: "ns-042", Name: "imp-00142", IP: "10.112.0.143"}); got != want {
		t.Errorf("import 142 is %+v, want %+v", got, want)
	}
	headless := g.Import(9)
	if want := (Import{Namespace: "ns-009", Name: "imp-00009", Headless: true}); headless != want {
		t.Errorf("import 9 is %+v, want %+v", headless, want)
	}
	for e, want := range map[int][3]string{
		0: {"imp-00009-0", "cluster-a", "100.64.0.91"}, 4: {"imp-00009-4", "cluster-a", "100.64.0.95"}, 5: {"imp-00009-0", "cluster-b", "100.64.0.96"},
	} {
		hostname, cluster := headless.Endpoint(e)
		if got := [3]string{hostname, cluster, g.ImportPodIP(9, e)}; got != want {
			t.Errorf("endpoint %d of import 9 is %q, want %q", e, got, want)
		}
	}
	for _, n := range []int{-1, 100_001} {
		g.Imports = n
		if g.Validate() == nil {
			t.Errorf("%d imports were accepted", n)
		}
	}
}

package apiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/mcs-api/config/crd"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
)

// propertyCRD defines ClusterProperties by KEP-2149.
const propertyCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: clusterproperties.about.k8s.io
  annotations:
    api-approved.kubernetes.io: "unapproved, for a test"
spec:
  group: about.k8s.io
  scope: Cluster
  names: {plural: clusterproperties, singular: clusterproperty, kind: ClusterProperty}
  versions:
  - name: v1beta1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, required: [value], properties: {value: {type: string}}}
`

const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"

// realCluster is a real API server whose objects are created from manifests.
type realCluster struct {
	t     *testing.T
	plane *controlplane.ControlPlane
}

func (c *realCluster) client() rest.Interface { return c.plane.Client().CoreV1().RESTClient() }

// object returns the JSON of a manifest.
func (c *realCluster) object(manifest []byte) []byte {
	c.t.Helper()
	text, err := yaml.ToJSON(manifest)
	kit.Must(c.t, err)
	return text
}

func (c *realCluster) create(path string, manifest []byte) {
	c.t.Helper()
	// A kind that has just been defined is not served at once.
	kit.Within(c.t, realServerWait, "create in "+path, func() bool {
		err := c.client().Post().AbsPath(path).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(c.object(manifest)).Do(c.t.Context()).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			c.t.Fatal(err)
		}
		return err == nil
	})
}

func (c *realCluster) delete(path string) {
	c.t.Helper()
	kit.Must(c.t, c.client().Delete().AbsPath(path).Do(c.t.Context()).Error())
}

// createImport creates an import in one of the versions of its API.
func (c *realCluster) createImport(version, name, ip string) {
	c.t.Helper()
	c.create("/apis/multicluster.x-k8s.io/"+version+"/namespaces/default/serviceimports", fmt.Appendf(nil, `
apiVersion: multicluster.x-k8s.io/%s
kind: ServiceImport
metadata: {name: %s, namespace: default}
spec: {type: ClusterSetIP, ips: [%s], ports: [{name: http, port: 80, protocol: TCP}]}
`, version, name, ip))
}

// serve sets the served versions of ServiceImports.
func (c *realCluster) serve(versions ...string) {
	c.t.Helper()
	path := definitionsPath + mcsv1beta1.ServiceImportFullName
	kit.Within(c.t, realServerWait, "an update of the definition", func() bool { // the server updates its status at the same time
		text, err := c.client().Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).DoRaw(c.t.Context())
		kit.Must(c.t, err)
		var definition unstructured.Unstructured
		kit.Must(c.t, definition.UnmarshalJSON(text))
		all, _, err := unstructured.NestedSlice(definition.Object, "spec", "versions")
		kit.Must(c.t, err)
		for _, v := range all {
			one := v.(map[string]any)
			one["served"] = slices.Contains(versions, one["name"].(string))
		}
		kit.Must(c.t, unstructured.SetNestedSlice(definition.Object, all, "spec", "versions"))
		if text, err = definition.MarshalJSON(); err != nil {
			c.t.Fatal(err)
		}
		err = c.client().Put().AbsPath(path).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(text).Do(c.t.Context()).Error()
		if err != nil && !apierrors.IsConflict(err) {
			c.t.Fatal(err)
		}
		return err == nil
	})
}

// realServerWait is long enough for a real API server on a busy machine.
const realServerWait = 2 * time.Minute

// realSource is a running source that checks for custom resources every second.
type realSource struct {
	*Source
	ix *index.Index
}

// runReal runs a source until the test ends.
func runReal(t *testing.T, kubeconfig string, o source.Options) *realSource {
	t.Helper()
	s, err := New(Connection{Kubeconfig: kubeconfig, QPS: 50, Burst: 100}, o)
	kit.Must(t, err)
	s.pace.check, s.pace.confirm, s.pace.retry = time.Second, time.Second/2, time.Second/10
	r := &realSource{Source: s, ix: index.New()}
	kit.Background(t, func(ctx context.Context) { s.Run(ctx, r.ix) })
	return r
}

func (s *realSource) ip(name string) string {
	e := s.ix.Import("default", name)
	if e == nil || len(e.Service.IPs) == 0 {
		return ""
	}
	return e.Service.IPs[0].String()
}

// TestRealServer reads ServiceImports and ClusterProperties of a real API server while their definitions are added, changed
// and deleted, with a role that allows only the necessary.
func TestRealServer(t *testing.T) {
	c := &realCluster{t: t, plane: controlplane.Start(t)}
	log := kit.Logged(t)
	imports := func(s *realSource) source.Status { return status(s.Source, source.ServiceImports) }
	properties := func(s *realSource) source.Status { return status(s.Source, source.ClusterProperties) }
	wantLines := func(n int, parts ...string) {
		t.Helper()
		if got := log.Lines(parts...); len(got) != n {
			t.Errorf("logged %q, want %d lines with %q", got, n, parts)
		}
	}

	const user = "system:serviceaccount:kube-system:nearside"
	c.grant(user, "basic", []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services", "namespaces"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
	})
	kubeconfig := c.plane.KubeconfigFor(user, "system:serviceaccounts", "system:authenticated")
	s := runReal(t, kubeconfig, withImports)

	kit.Within(t, realServerWait, "synced without definitions and without rights to what they define", func() bool { return synced(s.Source) })
	wantLines(1, "[WARNING]", "serviceimports: the API server", "does not serve")
	wantLines(1, "[WARNING]", "clusterproperties: the API server", "does not serve")
	if imports(s).Denied || properties(s).Denied {
		t.Error("a missing resource is reported as denied")
	}

	c.create(definitionsPath, crd.ServiceImportCRD)
	c.create(definitionsPath, []byte(propertyCRD))
	c.createImport("v1beta1", "first", "10.97.0.1")
	c.create("/apis/about.k8s.io/v1beta1/clusterproperties", []byte(`
apiVersion: about.k8s.io/v1beta1
kind: ClusterProperty
metadata: {name: cluster.clusterset.k8s.io}
spec: {value: east}
`))
	kit.Within(t, realServerWait, "denied without the right", func() bool {
		return imports(s).Denied && !imports(s).Synced && properties(s).Denied && !properties(s).Synced
	})
	for _, r := range []string{source.Services, source.EndpointSlices, source.Namespaces} {
		if st := status(s.Source, r); !st.Synced || st.Denied {
			t.Errorf("%+v", st)
		}
	}
	c.grant(user, "imports", []rbacv1.PolicyRule{
		{APIGroups: []string{"multicluster.x-k8s.io"}, Resources: []string{"serviceimports"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"about.k8s.io"}, Resources: []string{"clusterproperties"}, ResourceNames: []string{source.ClusterPropertyName}, Verbs: []string{"list", "watch"}},
	})
	kit.Within(t, realServerWait, "an import, once it may be read", func() bool { return s.ip("first") == "10.97.0.1" && !imports(s).Denied })
	kit.Within(t, realServerWait, "the ID, once it may be read", func() bool { return s.ix.ClusterID() == index.NewSymbol("east") && !properties(s).Denied })
	c.createImport("v1alpha1", "second", "10.97.0.2")
	kit.Within(t, realServerWait, "another import", func() bool { return s.ip("second") == "10.97.0.2" })

	t.Run("a version is switched off", func(t *testing.T) {
		kept := s.ix.ImportRecord("default", "first")
		c.serve("v1alpha1")
		kit.Within(t, realServerWait, "the switch", func() bool {
			return len(log.Lines("[INFO]", "serves multicluster.x-k8s.io/v1alpha1 now instead of v1beta1")) == 1
		})
		c.createImport("v1alpha1", "third", "10.97.0.3")
		kit.Within(t, realServerWait, "an import of the other version", func() bool { return s.ip("third") == "10.97.0.3" })
		if s.ix.ImportRecord("default", "first") != kept {
			t.Error("records were given up in between")
		}
	})

	t.Run("only v1alpha1 is served at the start", func(t *testing.T) {
		other := runReal(t, c.plane.Kubeconfig(), withImports)
		kit.Within(t, realServerWait, "synced", func() bool { return synced(other.Source) })
		if other.ip("first") != "10.97.0.1" || other.ip("third") != "10.97.0.3" || other.ix.ClusterID() != index.NewSymbol("east") {
			t.Error("imports, or the ID of the cluster, are missing")
		}
		o := withImports
		o.ImportsOnly = true
		other = runReal(t, c.plane.Kubeconfig(), o)
		kit.Within(t, realServerWait, "synced with imports alone", func() bool { return synced(other.Source) })
		if other.ip("first") != "10.97.0.1" || other.ix.SliceRecord("default", "kubernetes") != nil {
			t.Error("want imports, and no EndpointSlices of Services")
		}
	})

	t.Run("the API server restarts", func(t *testing.T) {
		c.plane.KillAPIServer()
		c.plane.StartAPIServer()
		c.createImport("v1alpha1", "fourth", "10.97.0.4")
		kit.Within(t, realServerWait, "an import", func() bool { return s.ip("fourth") == "10.97.0.4" })
		wantLines(0, "no longer serves")
	})

	t.Run("the definitions are removed", func(t *testing.T) {
		c.delete(definitionsPath + mcsv1beta1.ServiceImportFullName)
		c.delete(definitionsPath + "clusterproperties.about.k8s.io")
		kit.Within(t, realServerWait, "no import", func() bool {
			return s.ip("first") == "" && len(log.Lines("[WARNING]", "serviceimports", "no longer serves")) > 0
		})
		kit.Within(t, realServerWait, "no ID", func() bool {
			return s.ix.ClusterID() == index.Symbol{} && len(log.Lines("[WARNING]", "clusterproperties", "no longer serves")) > 0
		})
		if !synced(s.Source) {
			t.Errorf("status %+v", s.Status())
		}
	})

	t.Run("another kind of the group stays", func(t *testing.T) {
		c.create(definitionsPath, crd.ServiceExportCRD)
		before := imports(s).Heard
		kit.Within(t, realServerWait, "a look", func() bool { return imports(s).Heard.After(before) })
		if !imports(s).Synced {
			t.Error("out of step for another kind")
		}
	})

	t.Run("a definition comes back", func(t *testing.T) {
		c.create(definitionsPath, crd.ServiceImportCRD)
		c.createImport("v1beta1", "first", "10.97.0.9")
		kit.Within(t, realServerWait, "an import", func() bool { return s.ip("first") == "10.97.0.9" })
	})
	wantLines(1, "[WARNING]", "serviceimports", "no longer serves")
	wantLines(1, "[WARNING]", "clusterproperties", "no longer serves")
	for _, line := range log.Lines("client-go", "UnhandledError") {
		if strings.Contains(line, "serviceimports") || strings.Contains(line, "clusterproperties") {
			t.Errorf("logged %q", line)
		}
	}
}

// grant binds a role to a user.
func (c *realCluster) grant(user, name string, rules []rbacv1.PolicyRule) {
	c.t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	if _, err := c.plane.Client().RbacV1().ClusterRoles().Create(c.t.Context(), role, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	parts := strings.Split(user, ":")
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: parts[2], Name: parts[3]}},
	}
	if _, err := c.plane.Client().RbacV1().ClusterRoleBindings().Create(c.t.Context(), binding, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

package test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
)

// objects returns the objects of a YAML text, decoded as strictly as by the API server: unknown fields are errors.
func objects(text []byte) (all []runtime.Object, err error) {
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		object, _, err := strict.Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, object)
	}
}

// kustomized returns the objects of a folder's kustomization, which must include all files of the folder.
func kustomized(t *testing.T, folder string) (all []runtime.Object) {
	t.Helper()
	var kustomization struct{ Resources []string }
	kit.Must(t, yaml.Unmarshal([]byte(kit.Read(t, filepath.Join(folder, "kustomization.yaml"))), &kustomization))
	files, err := os.ReadDir(folder)
	kit.Must(t, err)
	for _, f := range files {
		if f.Name() == "README.md" || f.Name() == "kustomization.yaml" {
			continue
		}
		if !slices.Contains(kustomization.Resources, f.Name()) {
			t.Errorf("%s is not in the kustomization", f.Name())
		}
		found, err := objects([]byte(kit.Read(t, filepath.Join(folder, f.Name()))))
		if err != nil {
			t.Fatalf("%s: %v", f.Name(), err)
		}
		all = append(all, found...)
	}
	return all
}

// TestInvalidObjects has objects with an unknown field, which is an error.
func TestInvalidObjects(t *testing.T) {
	const role = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: a\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: b\n"
	if all, err := objects([]byte(role)); err != nil || len(all) != 2 {
		t.Errorf("%d objects, error %v", len(all), err)
	}
	if _, err := objects([]byte(role + "rule: []\n")); err == nil || !strings.Contains(err.Error(), `unknown field "rule"`) {
		t.Errorf("error %v", err)
	}
}

// create makes the role and the binding of a folder in an API server.
func create(t *testing.T, client kubernetes.Interface, all []runtime.Object, options metav1.CreateOptions) {
	t.Helper()
	for _, object := range all {
		var err error
		switch o := object.(type) {
		case *rbacv1.ClusterRole:
			_, err = client.RbacV1().ClusterRoles().Create(t.Context(), o, options)
		case *rbacv1.ClusterRoleBinding:
			_, err = client.RbacV1().ClusterRoleBindings().Create(t.Context(), o, options)
		default:
			t.Fatalf("there is a %T", o)
		}
		kit.Must(t, err)
	}
}

// TestMulticlusterOverlay asserts that the overlay of the README names the binding, and a field of it.
func TestMulticlusterOverlay(t *testing.T) {
	folder := filepath.Join(root, "deploy", "multicluster")
	shown := slices.DeleteFunc(blocks(kit.Read(t, filepath.Join(folder, "README.md"))), func(b block) bool { return b.language != "yaml" })
	if len(shown) != 1 {
		t.Fatalf("there are %d blocks of YAML", len(shown))
	}
	var overlay struct {
		Patches []struct {
			Target struct{ Kind, Name string }
			Patch  string
		}
	}
	kit.Must(t, yaml.Unmarshal([]byte(shown[0].text), &overlay))
	var operations []struct{ Op, Path, Value string }
	kit.Must(t, yaml.Unmarshal([]byte(overlay.Patches[0].Patch), &operations))
	if len(operations) != 1 || operations[0].Op != "replace" || operations[0].Path != "/subjects/0/name" || operations[0].Value == "" {
		t.Errorf("the overlay has %+v", operations)
	}
	target := overlay.Patches[0].Target
	if !slices.ContainsFunc(kustomized(t, folder), func(object runtime.Object) bool {
		b, ok := object.(*rbacv1.ClusterRoleBinding)
		return ok && target.Kind == b.Kind && target.Name == b.Name && len(b.Subjects) == 1
	}) {
		t.Errorf("there is no %+v", target)
	}
}

// TestMulticlusterRights applies deploy/multicluster to a real API server, and queries the permissions of cluster DNS's
// account then.
func TestMulticlusterRights(t *testing.T) {
	all := kustomized(t, filepath.Join(root, "deploy", "multicluster"))
	if len(all) != 2 {
		t.Fatalf("there are %d objects, want a role and its binding", len(all))
	}
	client := controlplane.Start(t).Client()
	create(t, client, all, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict})
	may := func(user, verb, group, resource string) bool {
		review, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource},
		}}, metav1.CreateOptions{})
		kit.Must(t, err)
		return review.Status.Allowed
	}
	const account = "system:serviceaccount:kube-system:coredns"
	if may(account, "list", "multicluster.x-k8s.io", "serviceimports") {
		t.Fatal("the account has the permissions before")
	}
	create(t, client, all, metav1.CreateOptions{})
	kit.Eventually(t, "the permissions are granted", func() bool { return may(account, "list", "multicluster.x-k8s.io", "serviceimports") })
	for _, tc := range []struct {
		user, verb, group, resource string
		want                        bool
	}{
		{account, "watch", "multicluster.x-k8s.io", "serviceimports", true},
		{account, "list", "about.k8s.io", "clusterproperties", true},
		{account, "watch", "about.k8s.io", "clusterproperties", true},
		{account, "get", "multicluster.x-k8s.io", "serviceimports", false},
		{account, "update", "multicluster.x-k8s.io", "serviceimports", false},
		{account, "list", "multicluster.x-k8s.io", "serviceexports", false},
		{account, "list", "", "secrets", false},
		{"system:serviceaccount:default:coredns", "list", "multicluster.x-k8s.io", "serviceimports", false},
	} {
		if got := may(tc.user, tc.verb, tc.group, tc.resource); got != tc.want {
			t.Errorf("%s may %s %s of %q: %v", tc.user, tc.verb, tc.resource, tc.group, got)
		}
	}
}

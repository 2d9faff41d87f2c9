package searchpath

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nearside-dns/nearside/test/kit"
)

// directory is the directory under test.
var directory = filepath.Join("..", "..", "deploy", "searchpath")

// policy is a policy and its binding.
type policy struct {
	policy  *admissionv1.MutatingAdmissionPolicy
	binding *admissionv1.MutatingAdmissionPolicyBinding
}

// read returns the text of a file in the directory.
func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(directory, name))
	kit.Must(t, err)
	return text
}

// fromFiles returns the policy of the kustomization.
func fromFiles(t *testing.T) *policy {
	t.Helper()
	var kustomization struct{ Resources []string }
	kit.Must(t, yaml.Unmarshal(read(t, "kustomization.yaml"), &kustomization))
	p := new(policy)
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	for _, name := range kustomization.Resources {
		object, _, err := strict.Decode(read(t, name), nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p.set(t, object)
	}
	if p.policy == nil || p.binding == nil {
		t.Fatalf("resources %q: got %+v", kustomization.Resources, p)
	}
	return p
}

func (p *policy) set(t *testing.T, object runtime.Object) {
	t.Helper()
	switch o := object.(type) {
	case *admissionv1.MutatingAdmissionPolicy:
		p.policy = o
	case *admissionv1.MutatingAdmissionPolicyBinding:
		p.binding = o
	default:
		t.Fatalf("unexpected %T in the directory", o)
	}
}

// with sets the expressions of variables.
func (p *policy) with(t *testing.T, values map[string]string) *policy {
	t.Helper()
	for name, expression := range values {
		i := slices.IndexFunc(p.policy.Spec.Variables, func(v admissionv1.Variable) bool { return v.Name == name })
		if i < 0 {
			t.Fatalf("the policy has no variable %s", name)
		}
		p.policy.Spec.Variables[i].Expression = expression
	}
	return p
}

// named sets the name of both objects.
func (p *policy) named(name string) *policy {
	p.policy.Name, p.binding.Name, p.binding.Spec.PolicyName = name, name, name
	return p
}

// operation is an operation of a JSON patch (RFC 6902).
type operation struct{ Op, Path, Value string }

// overlay returns the variables that the overlay in README.md sets, by name.
func overlay(t *testing.T) map[string]string {
	t.Helper()
	_, text, _ := strings.Cut(string(read(t, "README.md")), "   ```yaml\n")
	text, _, found := strings.Cut(text, "   ```\n")
	if !found {
		t.Fatal("README.md has no overlay")
	}
	var kustomization struct {
		Resources []string
		Patches   []struct {
			Target struct{ Kind, Name string }
			Patch  string
		}
	}
	kit.Must(t, yaml.Unmarshal([]byte(strings.ReplaceAll("\n"+text, "\n   ", "\n")), &kustomization))
	p := fromFiles(t).policy
	if len(kustomization.Patches) != 1 || kustomization.Patches[0].Target.Kind != p.Kind || kustomization.Patches[0].Target.Name != p.Name {
		t.Fatalf("patches of the overlay: %+v", kustomization.Patches)
	}
	var operations []operation
	kit.Must(t, yaml.Unmarshal([]byte(kustomization.Patches[0].Patch), &operations))
	return variablesOf(t, p.Spec.Variables, operations)
}

// variablesOf returns the variables that operations set, by name.
func variablesOf(t *testing.T, variables []admissionv1.Variable, operations []operation) map[string]string {
	t.Helper()
	values := map[string]string{}
	for _, o := range operations {
		number, is := strings.CutPrefix(strings.TrimSuffix(o.Path, "/expression"), "/spec/variables/")
		i, err := strconv.Atoi(number)
		if !is || err != nil || i >= len(variables) || o.Op != "replace" {
			t.Fatalf("unexpected operation of the overlay: %+v", o)
		}
		values[variables[i].Name] = o.Value
	}
	return values
}

// TestOverlay asserts that the overlay in README.md sets the variables that must be set, in any order of the variables.
func TestOverlay(t *testing.T) {
	got := overlay(t)
	for name, want := range map[string]string{"nameservers": "['169.254.20.10']", "zone": "'cluster.local'", "suffix": "'ap.k8s.io'"} {
		if got[name] != want {
			t.Errorf("%s is %s, want %s", name, got[name], want)
		}
	}
	if len(got) != 3 {
		t.Errorf("the overlay sets %v", got)
	}
}

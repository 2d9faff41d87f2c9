package deploy

import (
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// nodecacheOn returns a client with the token of a pod of nodecache on a node, as the kubelet gets it.
func (s *server) nodecacheOn(t *testing.T, node string) kubernetes.Interface {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "nodecache-" + node},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: "nodecache", Containers: []corev1.Container{{Name: "nodecache", Image: "nearside/nodecache"}}},
	}
	pod, err := s.Client().CoreV1().Pods("kube-system").Create(t.Context(), pod, metav1.CreateOptions{})
	kit.Must(t, err)
	token, err := s.Client().CoreV1().ServiceAccounts("kube-system").CreateToken(t.Context(), "nodecache", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	kit.Must(t, err)
	config := rest.AnonymousClientConfig(s.Config())
	config.BearerToken = token.Status.Token
	client, err := kubernetes.NewForConfig(config)
	kit.Must(t, err)
	return client
}

// TestStartupTaint applies the component startup-taint to a real API server, and changes nodes with the account of nodecache: it
// may remove its taint from its own node, and nothing else.
func TestStartupTaint(t *testing.T) {
	const key = "nearside.dev/nodecache-not-ready"
	taints := []corev1.Taint{{Key: key, Effect: corev1.TaintEffectNoExecute}, {Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
	s := newServer(t)
	for _, name := range []string{"node-a", "node-b"} {
		node, err := s.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"a": "b"}}}, metav1.CreateOptions{})
		kit.Must(t, err)
		node.Spec.Taints = taints // without that of a new node, which an admission plugin adds
		if _, err := s.Client().CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.run(t, "apply", "--server-side", "-k", mine(t, "nodecache", "overlays/components/startup-taint"))
	client := s.nodecacheOn(t, "node-a")
	const before = `{"op":"test","path":"/spec/taints","value":[{"key":"` + key + `","effect":"NoExecute"},{"key":"dedicated","effect":"NoSchedule"}]},`
	replaced := func(taints string) string {
		return `[` + before + `{"op":"replace","path":"/spec/taints","value":` + taints + `}]`
	}
	patch := func(node, patch, subresource string) error {
		_, err := client.CoreV1().Nodes().Patch(t.Context(), node, types.JSONPatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, strings.Fields(subresource)...)
		return err
	}
	removal := replaced(`[{"key":"dedicated","effect":"NoSchedule"}]`)
	kit.Succeeds(t, deadline, "the policy and the rights have effect", func() error {
		if err := patch("node-a", removal, ""); err != nil {
			return err
		}
		if patch("node-b", removal, "") == nil {
			return fmt.Errorf("another node can be changed")
		}
		return nil
	})
	for _, tc := range []struct{ name, node, patch, subresource, want string }{
		{"its taint of another node", "node-b", removal, "", "its own node only"},
		{"another taint", "node-a", replaced(`[{"key":"` + key + `","effect":"NoExecute"}]`), "", "only remove its startup taint"},
		{"all taints", "node-a", replaced(`[]`), "", "only remove its startup taint"},
		{"a new taint", "node-a", replaced(`[{"key":"dedicated","effect":"NoSchedule"},{"key":"x","effect":"NoExecute"}]`), "", "only remove its startup taint"},
		{"another effect", "node-a", replaced(`[{"key":"` + key + `","effect":"NoSchedule"},{"key":"dedicated","effect":"NoSchedule"}]`), "", "only remove its startup taint"},
		{"a label", "node-a", `[{"op":"add","path":"/metadata/labels/x","value":"y"}]`, "", "taints of a node only"},
		{"an annotation", "node-a", `[{"op":"add","path":"/metadata/annotations","value":{"x":"y"}}]`, "", "taints of a node only"},
		{"a finalizer", "node-a", `[{"op":"add","path":"/metadata/finalizers","value":["example.com/x"]}]`, "", "taints of a node only"},
		{"cordon", "node-a", `[{"op":"add","path":"/spec/unschedulable","value":true}]`, "", "taints of a node only"},
		{"the provider's ID", "node-a", `[{"op":"add","path":"/spec/providerID","value":"x://y"}]`, "", "taints of a node only"},
		{"the status", "node-a", `[{"op":"add","path":"/status/phase","value":"Running"}]`, "status", "forbidden"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := patch(tc.node, tc.patch, tc.subresource); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("other accounts", func(t *testing.T) {
		_, err := s.Client().CoreV1().Nodes().Patch(t.Context(), "node-b", types.JSONPatchType, []byte(`[{"op":"add","path":"/metadata/labels/x","value":"y"}]`), metav1.PatchOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	for _, tc := range []struct {
		verb, group, resource string
		want                  bool
	}{
		{"get", "", "nodes", true},
		{"patch", "", "nodes", true},
		{"list", "", "nodes", false},
		{"update", "", "nodes", false},
		{"delete", "", "nodes", false},
		{"list", "", "secrets", false},
	} {
		if got := may(t, s.Client(), "system:serviceaccount:kube-system:nodecache", tc.verb, tc.group, tc.resource); got != tc.want {
			t.Errorf("nodecache may %s %s: %v", tc.verb, tc.resource, got)
		}
	}
}

// TestStartupTaintWithoutCluster starts nodecache where no API server can be found: it answers, and logs why the taint stays.
func TestStartupTaintWithoutCluster(t *testing.T) {
	p := daemon.Start(t, daemon.Program(t, "nodecache"), ".:PORT {\n    bind 127.0.0.1\n    forward . "+upstream(t, "192.0.2.80")+"\n}\n",
		"-remove-taint", "nearside.dev/nodecache-not-ready", "-node-name", "node-a")
	kit.Succeeds(t, deadline, "the reason in the log", func() error {
		if !strings.Contains(p.Output(), "Taint nearside.dev/nodecache-not-ready stays on node node-a: no API server to read") {
			return fmt.Errorf("log %s", p.Output())
		}
		return nil
	})
	awaitAnswer(t, p.Addr, "www.example.com A", "A 192.0.2.80")
}

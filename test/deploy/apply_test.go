package deploy

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// server is a real API server with the namespace kube-system, and kubectl for it.
type server struct {
	*controlplane.ControlPlane
	kubectl string
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{kubectl: controlplane.RequireBinary(t, "kubectl")}
	s.ControlPlane = controlplane.Start(t)
	return s
}

// run runs kubectl and returns its output, with errors.
func (s *server) run(t *testing.T, args ...string) string {
	t.Helper()
	out, complaint, err := output(s.kubectl, append([]string{"--kubeconfig", s.Kubeconfig()}, args...)...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, complaint)
	}
	return out + complaint
}

// known writes the objects of a rendered text whose kinds every API server has to a file.
func known(t *testing.T, all objects) string {
	t.Helper()
	list := corev1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	for _, name := range all.names() {
		if kind := all[name].GetObjectKind().GroupVersionKind(); !foreign[kind.String()] {
			list.Items = append(list.Items, runtime.RawExtension{Object: all[name]})
		}
	}
	path := filepath.Join(t.TempDir(), "list.json")
	encoded, err := json.Marshal(list)
	kit.Must(t, err)
	kit.Write(t, path, string(encoded))
	return path
}

// TestAdmission has a real API server validate everything in a dry run.
func TestAdmission(t *testing.T) {
	s := newServer(t)
	everything := rendered(t)
	for name, all := range everything {
		t.Run(name, func(t *testing.T) {
			out := s.run(t, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", known(t, all))
			if strings.Contains(out, "Warning") {
				t.Errorf("kubectl says\n%s", out)
			}
		})
	}
}

// TestApplyAndDelete follows docs/migration.md in a cluster with CoreDNS's Service: it applies clusterdns and nodecache,
// and deletes them again.
func TestApplyAndDelete(t *testing.T) {
	s := newServer(t)
	services := s.Client().CoreV1().Services("kube-system")
	existing := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kube-dns"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"k8s-app": "kube-dns"},
		Ports:    []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP}},
	}}
	before, err := services.Create(t.Context(), existing, metav1.CreateOptions{})
	kit.Must(t, err)
	has := func(name string) bool {
		service, err := services.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil && (name != "kube-dns" || service.Spec.ClusterIP == before.Spec.ClusterIP && service.UID == before.UID)
	}
	deployments := func() int {
		all, err := s.Client().AppsV1().Deployments("kube-system").List(t.Context(), metav1.ListOptions{})
		kit.Must(t, err)
		return len(all.Items)
	}

	beside, nodes, both := deployed+"/overlays/beside-coredns", deployed+"/nodecache", deployed+"/overlays/kube-proxy"
	s.run(t, "apply", "-k", beside)
	s.run(t, "delete", "-k", beside)
	if !has("kube-dns") || deployments() != 0 {
		t.Fatal("deleting beside-coredns deletes the Service kube-dns, or not the Deployment")
	}
	for _, folder := range []string{deployed + "/overlays/labelled-nodes", deployed + "/overlays/labelled-nodes-ipvs"} {
		s.run(t, "apply", "-k", folder)
		if !has("nodecache") || !has("nodecache-upstream") || has("kube-dns-upstream") {
			t.Errorf("%s has no Services of its own, or one of the cluster", folder)
		}
		s.run(t, "delete", "-k", folder)
		if !has("kube-dns") || has("nodecache-upstream") {
			t.Errorf("deleting %s deletes the Service kube-dns, or leaves nodecache-upstream", folder)
		}
	}
	s.run(t, "apply", "-k", both)
	if !has("kube-dns") || !has("kube-dns-upstream") || !has("nodecache") || deployments() != 1 {
		t.Fatal("the Service kube-dns was replaced, or an object was not created")
	}
	s.run(t, "delete", "-k", nodes, "-l", "app.kubernetes.io/part-of=nearside")
	if !has("kube-dns-upstream") || has("nodecache") {
		t.Error("with the label, deleting nodecache deletes kube-dns-upstream, or not the rest")
	}
	s.run(t, "delete", "-k", both, "-l", "app.kubernetes.io/part-of=nearside", "--ignore-not-found")
	if !has("kube-dns") || deployments() != 0 {
		t.Error("with the label, deleting deletes the Service kube-dns, or not the Deployment")
	}
	left := s.run(t, "get", "serviceaccounts,configmaps,daemonsets,poddisruptionbudgets,clusterroles,clusterrolebindings", "-A", "-l", "app.kubernetes.io/part-of=nearside", "-o", "name")
	if strings.Contains(left, "/") {
		t.Errorf("these are left:\n%s", left)
	}
	t.Run("the chart keeps the replicas when an autoscaler is added", s.addAutoscaler)
}

func (s *server) addAutoscaler(t *testing.T) {
	for _, step := range []struct {
		values string
		want   int32
	}{{"replicas: 3", 3}, {"autoscaling: {mode: nodes}", 3}, {"replicas: 4", 4}} {
		path := valuesFile(t, "nodecache: {enabled: false}\nclusterdns: {service: {create: false}, "+step.values+"}\n")
		_, complaint, err := output(controlplane.RequireBinary(t, "helm"), "upgrade", "--install", "nearside", chart,
			"--namespace", "kube-system", "--kubeconfig", s.Kubeconfig(), "--values", path)
		if err != nil {
			t.Fatalf("helm upgrade with %s: %v\n%s", step.values, err, complaint)
		}
		d, err := s.Client().AppsV1().Deployments("kube-system").Get(t.Context(), "clusterdns", metav1.GetOptions{})
		kit.Must(t, err)
		if *d.Spec.Replicas != step.want {
			t.Errorf("after an upgrade with %s, %d replicas, want %d", step.values, *d.Spec.Replicas, step.want)
		}
	}
}

// rights are the permissions of a role: "list services" and so on.
func rights(role *rbacv1.ClusterRole) (all []string) {
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				all = append(all, verb+" "+resource)
			}
		}
	}
	slices.Sort(all)
	return all
}

// asked are the permissions that the requests to an API server need: for a watch that begins with a list, both.
func asked(api *kubeapi.Server) (all []string) {
	for request := range api.Requests() {
		switch request.Verb {
		case kubeapi.VerbWatchList, kubeapi.VerbWatch, kubeapi.VerbList:
			all = append(all, "list "+request.Resource, "watch "+request.Resource) // a client falls back from one to the other
		default:
			all = append(all, request.Verb+" "+request.Resource)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestRights compares the permissions of each account with the requests of the program with its Corefile.
func TestRights(t *testing.T) {
	compare := func(t *testing.T, all objects, name, corefile string) {
		role, ok := all["ClusterRole "+name].(*rbacv1.ClusterRole)
		want := []string{}
		if ok {
			want = rights(role)
		}
		api := cluster(t)
		daemon.Start(t, daemon.Program(t, name), onLoopback(t, corefile, api.URL(), upstream(t, "192.0.2.80")))
		kit.Succeeds(t, deadline, "the requests need exactly the permissions", func() error {
			if got := asked(api); !slices.Equal(got, want) {
				return fmt.Errorf("it asks for %q, and has %q", got, want)
			}
			return nil
		})
	}
	everything := rendered(t)
	for _, name := range []string{"kube-proxy", "topology", "pods-verified", "chart all", "chart clusterset", "chart own Corefiles"} {
		corefile := find[*corev1.ConfigMap](t, everything[name], "ConfigMap clusterdns").Data["Corefile"]
		t.Run("clusterdns/"+name, func(t *testing.T) { compare(t, everything[name], "clusterdns", corefile) })
	}
	for _, name := range []string{"cilium", "chart without autopath"} {
		corefile := find[*corev1.ConfigMap](t, everything[name], "ConfigMap nodecache").Data["Corefile.base"]
		corefile = strings.NewReplacer(
			"__PILLAR__CLUSTER__DNS__", upstream(t, "10.96.12.34"), "__PILLAR__UPSTREAM__SERVERS__", "/etc/resolv.conf",
			"    bind __PILLAR__LOCAL__DNS__\n", "", "__PILLAR__LOCAL__DNS__:", ":",
		).Replace(corefile)
		t.Run("nodecache/"+name, func(t *testing.T) { compare(t, everything[name], "nodecache", corefile) })
	}
}

// TestAccounts queries a real API server for the permissions of the accounts, and runs clusterdns with its own.
func TestAccounts(t *testing.T) {
	s := newServer(t)
	s.run(t, "apply", "-k", deployed+"/overlays/kube-proxy")
	const ofClusterDNS, ofNodecache = "system:serviceaccount:kube-system:clusterdns", "system:serviceaccount:kube-system:nodecache"
	kit.Succeeds(t, deadline, "the permissions are granted", func() error {
		if !may(t, s.Client(), ofClusterDNS, "list", "", "services") {
			return fmt.Errorf("%s may not list services", ofClusterDNS)
		}
		return nil
	})
	for _, tc := range []struct {
		user, verb, group, resource string
		want                        bool
	}{
		{ofClusterDNS, "watch", "discovery.k8s.io", "endpointslices", true},
		{ofClusterDNS, "watch", "", "namespaces", true},
		{ofClusterDNS, "get", "", "services", false},
		{ofClusterDNS, "list", "", "pods", false},
		{ofClusterDNS, "list", "", "nodes", false},
		{ofClusterDNS, "list", "", "secrets", false},
		{ofClusterDNS, "update", "", "services", false},
		{ofNodecache, "list", "", "pods", true},
		{ofNodecache, "watch", "", "pods", true},
		{ofNodecache, "get", "", "pods", false},
		{ofNodecache, "list", "", "services", false},
		{ofNodecache, "list", "", "configmaps", false},
		{"system:serviceaccount:default:clusterdns", "list", "", "services", false},
	} {
		if got := may(t, s.Client(), tc.user, tc.verb, tc.group, tc.resource); got != tc.want {
			t.Errorf("%s may %s %s: %v", tc.user, tc.verb, tc.resource, got)
		}
	}
	corefile := kit.Read(t, deployed+"/clusterdns/Corefile")
	withAccount := strings.Replace(onLoopback(t, corefile, "API", upstream(t, "192.0.2.80")), "endpoint API", "kubeconfig "+s.KubeconfigFor(ofClusterDNS), 1)
	p := daemon.Start(t, daemon.Program(t, "clusterdns"), withAccount)
	ip, err := s.Client().CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	kit.Must(t, err)
	awaitAnswer(t, p.Addr, "kubernetes.default.svc.cluster.local A", "A "+ip.Spec.ClusterIP)
}

// may queries the permissions of an account.
func may(t *testing.T, client kubernetes.Interface, user, verb, group, resource string) bool {
	t.Helper()
	review, err := client.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource},
	}}, metav1.CreateOptions{})
	kit.Must(t, err)
	return review.Status.Allowed
}

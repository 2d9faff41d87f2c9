package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/test/controlplane"
)

const migration = "../../docs/migration.md"

// step is what a reader does next: a command, or a file that is written.
type step struct{ command, file, text string }

// steps returns those of a page: the commands of its console blocks, and its YAML blocks that begin with the name of a
// file in a comment.
func steps(page string) (all []step) {
	fence := regexp.MustCompile("(?ms)^( *)```(console|yaml)\n(.*?)^ *```$")
	for _, m := range fence.FindAllStringSubmatch(page, -1) {
		text := regexp.MustCompile(`(?m)^`+m[1]).ReplaceAllString(m[3], "")
		switch m[2] {
		case "console":
			for line := range strings.Lines(text) {
				if command, ok := strings.CutPrefix(strings.TrimSpace(line), "$ "); ok {
					all = append(all, step{command: command})
				}
			}
		case "yaml":
			if name := regexp.MustCompile(`^# (\S+/\S+)\n`).FindStringSubmatch(text); name != nil {
				all = append(all, step{file: name[1], text: text})
			}
		}
	}
	return all
}

// waiting matches the commands that need pods.
var waiting = regexp.MustCompile(`^dig |rollout|exec|logs| delete pod `)

// TestMigration does what the page says, in a cluster with CoreDNS and node-local-dns that has no kubelet.
func TestMigration(t *testing.T) {
	text, err := os.ReadFile(migration)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t)
	helm := controlplane.RequireBinary(t, "helm")
	before := s.withPredecessors(t)
	work := t.TempDir()
	if err := os.CopyFS(filepath.Join(work, "deploy"), os.DirFS(deployed)); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, do := range steps(string(text)) {
		switch {
		case do.file != "":
			if err := os.MkdirAll(filepath.Dir(filepath.Join(work, do.file)), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(work, do.file), []byte(do.text), 0o600); err != nil {
				t.Fatal(err)
			}
		case !waiting.MatchString(do.command):
			ran++
			cmd := exec.Command("bash", "-euo", "pipefail", "-c", do.command)
			cmd.Dir = work
			cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig(), "HELM_CACHE_HOME="+work, "HELM_CONFIG_HOME="+work, "HELM_DATA_HOME="+work,
				"PATH="+filepath.Dir(s.kubectl)+":"+filepath.Dir(helm)+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if ended := cmd.ProcessState; err != nil && !(strings.HasPrefix(do.command, "kubectl diff") && ended.ExitCode() == 1) { // 1 is that there are differences
				t.Fatalf("%s: %v\n%s", do.command, err, out)
			}
			s.lookAt(t, do.command)
		}
		service, err := s.Client().CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
		if err != nil || service.UID != before.UID || service.Spec.ClusterIP != before.Spec.ClusterIP {
			t.Fatalf("after %s%s, the Service kube-dns is %v, %v", do.command, do.file, service, err)
		}
	}
	if ran < 20 {
		t.Errorf("only %d commands were run", ran)
	}
	for _, folder := range []string{"new"} {
		all := decoded(t, kustomize(t, filepath.Join(work, folder)))
		service, upstream := find[*corev1.Service](t, all, "Service kube-dns"), find[*corev1.Service](t, all, "Service kube-dns-upstream")
		if service.Spec.ClusterIP != "10.96.0.10" || upstream.Spec.ClusterIP != "" {
			t.Errorf("%s: the addresses are %q and %q", folder, service.Spec.ClusterIP, upstream.Spec.ClusterIP)
		}
	}
}

// TestSteps shows how a page is read.
func TestSteps(t *testing.T) {
	got := steps("1. text\n\n   ```console\n   $ a b\n   output\n   $ c\n   ```\n\n```yaml\n# x/y.yaml\nz: 1\n```\n\n```yaml\nz: 2\n```\n")
	want := []step{{command: "a b"}, {command: "c"}, {file: "x/y.yaml", text: "# x/y.yaml\nz: 1\n"}}
	if !slices.Equal(got, want) {
		t.Errorf("steps %+v, want %+v", got, want)
	}
}

// withPredecessors makes the Service kube-dns, CoreDNS, node-local-dns and a node. It returns the Service.
func (s *server) withPredecessors(t *testing.T) *corev1.Service {
	t.Helper()
	client := s.Client()
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: "kube-system"}
	}
	pods := func(app, container string) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
		labels := map[string]string{"k8s-app": app}
		return &metav1.LabelSelector{MatchLabels: labels}, corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: container, Image: "example/" + container}}},
		}
	}
	service := func(name string) *corev1.Service {
		return &corev1.Service{ObjectMeta: meta(name), Spec: corev1.ServiceSpec{
			Selector: map[string]string{"k8s-app": "kube-dns"},
			Ports:    []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP}},
		}}
	}
	kubeDNS, err := client.CoreV1().Services("kube-system").Create(t.Context(), service("kube-dns"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	var daemons appsv1.DaemonSet
	deployment.ObjectMeta, daemons.ObjectMeta = meta("coredns"), meta("node-local-dns")
	deployment.Spec.Selector, deployment.Spec.Template = pods("kube-dns", "coredns")
	daemons.Spec.Selector, daemons.Spec.Template = pods("node-local-dns", "node-cache")
	corefile, err := os.ReadFile(deployed + "/clusterdns/Corefile")
	if err != nil {
		t.Fatal(err)
	}
	template, err := os.ReadFile(deployed + "/nodecache/Corefile.base")
	if err != nil {
		t.Fatal(err)
	}
	_, upstreamErr := client.CoreV1().Services("kube-system").Create(t.Context(), service("kube-dns-upstream"), metav1.CreateOptions{})
	_, deploymentErr := client.AppsV1().Deployments("kube-system").Create(t.Context(), &deployment, metav1.CreateOptions{})
	_, daemonsErr := client.AppsV1().DaemonSets("kube-system").Create(t.Context(), &daemons, metav1.CreateOptions{})
	_, nodeErr := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, metav1.CreateOptions{})
	_, configErr := client.CoreV1().ConfigMaps("kube-system").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta("coredns"), Data: map[string]string{"Corefile": string(corefile)}}, metav1.CreateOptions{})
	_, templateErr := client.CoreV1().ConfigMaps("kube-system").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta("node-local-dns"), Data: map[string]string{"Corefile": string(template)}}, metav1.CreateOptions{})
	for _, err := range []error{upstreamErr, deploymentErr, daemonsErr, nodeErr, configErr, templateErr} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return kubeDNS
}

// lookAt holds what the page promises of a command.
func (s *server) lookAt(t *testing.T, command string) {
	t.Helper()
	client := s.Client()
	there := func(err error) bool {
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	}
	deployment := func(name string) bool {
		_, err := client.AppsV1().Deployments("kube-system").Get(t.Context(), name, metav1.GetOptions{})
		return there(err)
	}
	daemons := func(name string) *appsv1.DaemonSet {
		set, err := client.AppsV1().DaemonSets("kube-system").Get(t.Context(), name, metav1.GetOptions{})
		if !there(err) {
			return nil
		}
		return set
	}
	budgets := func() *policyv1.PodDisruptionBudgetList {
		all, err := client.PolicyV1().PodDisruptionBudgets("kube-system").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	var wrong error
	switch {
	case command == "kubectl apply -k mine":
		if !deployment("clusterdns") || len(budgets().Items) != 1 {
			wrong = fmt.Errorf("clusterdns is not there")
		}
	case command == "kubectl delete -k mine":
		if deployment("clusterdns") || len(budgets().Items) != 0 || !deployment("coredns") {
			wrong = fmt.Errorf("clusterdns is there, or CoreDNS is not")
		}
	case strings.Contains(command, "set image"):
		if set := daemons("node-local-dns"); set.Spec.Template.Spec.Containers[0].Image != "registry.example.com/nearside/nodecache:dev" || set.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
			wrong = fmt.Errorf("the DaemonSet is %+v", set.Spec)
		}
	case strings.Contains(command, "DoesNotExist"):
		if set := daemons("node-local-dns"); set.Spec.Template.Spec.Affinity == nil {
			wrong = fmt.Errorf("the DaemonSet is %+v", set.Spec)
		}
	case command == "kubectl apply -k nodes":
		if set := daemons("nodecache"); set == nil || set.Spec.Template.Spec.NodeSelector["nearside.dev/nodecache"] != "true" {
			wrong = fmt.Errorf("the DaemonSet is %+v", set)
		}
	case strings.HasPrefix(command, "kubectl delete -k nodes"):
		if _, err := client.CoreV1().Services("kube-system").Get(t.Context(), "kube-dns-upstream", metav1.GetOptions{}); !there(err) || daemons("nodecache") != nil {
			wrong = fmt.Errorf("kube-dns-upstream is gone, or nodecache is not")
		}
	case strings.HasPrefix(command, "helm uninstall"):
		if deployment("clusterdns") || daemons("nodecache") != nil {
			wrong = fmt.Errorf("something of the chart is left")
		}
	}
	if wrong != nil {
		t.Errorf("after %s: %v", command, wrong)
	}
}

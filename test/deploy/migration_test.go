package deploy

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
)

const migration = "../../docs/migration.md"

// step is the next action of a reader: a command, a file to write, or a text to add to the first block of a file.
type step struct{ command, file, into, text string }

// steps returns the steps of a page: the commands of its console blocks, its YAML blocks that begin with a file name in
// a comment, and its Corefile blocks that begin with the place where they are added.
func steps(page string) (all []step) {
	fence := regexp.MustCompile("(?ms)^( *)```(console|yaml|corefile)\n(.*?)^ *```$")
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
		case "corefile":
			if name := regexp.MustCompile(`^# (\S+/\S+): add to the first block\n`).FindStringSubmatch(text); name != nil {
				all = append(all, step{into: name[1], text: strings.TrimPrefix(text, name[0])})
			}
		}
	}
	return all
}

// inFirstBlock returns a Corefile with more directives in its first block.
func inFirstBlock(t *testing.T, corefile, directives string) string {
	t.Helper()
	first, rest, ok := strings.Cut(corefile, "{\n")
	if !ok {
		t.Fatalf("no block in\n%s", corefile)
	}
	return first + "{\n" + directives + rest
}

// ofTemplate returns the block that the page adds to the template of node-local-dns.
func ofTemplate(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(migration)
	kit.Must(t, err)
	all := steps(string(page))
	i := slices.IndexFunc(all, func(s step) bool { return s.into == "nodes/Corefile.base" })
	if i < 0 {
		t.Fatal("the page adds nothing to the template")
	}
	return all[i].text
}

// installed returns the template of the manifest of node-local-dns, with the values of an installation.
func installed(t *testing.T, clusterIP string) string {
	t.Helper()
	text := kit.Read(t, "../../cmd/internal/dropin/testdata/render/stock.base")
	return strings.NewReplacer("__PILLAR__LOCAL__DNS__", "169.254.20.10", "__PILLAR__DNS__SERVER__", clusterIP).Replace(text)
}

// waiting matches the commands that need pods.
var waiting = regexp.MustCompile(`^dig | rollout status | exec | logs | delete pod `)

// TestMigration follows the page, in a cluster with CoreDNS and node-local-dns that has no kubelet.
func TestMigration(t *testing.T) {
	text, err := os.ReadFile(migration)
	kit.Must(t, err)
	s := newServer(t)
	helm := controlplane.RequireBinary(t, "helm")
	before := s.withPredecessors(t)
	work := t.TempDir()
	kit.Must(t, os.CopyFS(filepath.Join(work, "deploy"), os.DirFS(deployed)))
	ran := map[string]bool{}
	for _, do := range steps(string(text)) {
		switch {
		case do.file != "":
			kit.Write(t, filepath.Join(work, do.file), do.text)
		case do.into != "":
			path := filepath.Join(work, do.into)
			text := kit.Read(t, path)
			kit.Write(t, path, inFirstBlock(t, text, do.text))
		case !waiting.MatchString(do.command):
			ran[do.command] = true
			last := s.daemons(t, "node-local-dns")
			cmd := exec.Command("bash", "-euo", "pipefail", "-c", do.command)
			cmd.Dir = work
			cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig(), "HELM_CACHE_HOME="+work, "HELM_CONFIG_HOME="+work, "HELM_DATA_HOME="+work,
				"PATH="+filepath.Dir(s.kubectl)+":"+filepath.Dir(helm)+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if ended := cmd.ProcessState; err != nil && !(strings.HasPrefix(do.command, "kubectl diff") && ended.ExitCode() == 1) { // 1 stands for differences
				t.Fatalf("%s: %v\n%s", do.command, err, out)
			}
			s.lookAt(t, do.command, before)
			if s.daemons(t, "node-local-dns") == nil { // the way back continues with the step before
				again := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: last.Name, Namespace: last.Namespace}, Spec: last.Spec}
				if _, err := s.Client().AppsV1().DaemonSets("kube-system").Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		service, err := s.Client().CoreV1().Services("kube-system").Get(t.Context(), "kube-dns", metav1.GetOptions{})
		if err != nil || service.UID != before.service.UID || service.Spec.ClusterIP != before.service.Spec.ClusterIP {
			t.Fatalf("after %s%s, the Service kube-dns is %v, %v", do.command, do.file, service, err)
		}
	}
	for command := range placement {
		if !ran[command] {
			t.Errorf("the page does not have the command %s", command)
		}
	}
	all := decoded(t, kustomize(t, filepath.Join(work, "new")))
	service, upstream := find[*corev1.Service](t, all, "Service kube-dns"), find[*corev1.Service](t, all, "Service kube-dns-upstream")
	if service.Spec.ClusterIP != "10.96.0.10" || upstream.Spec.ClusterIP != "" {
		t.Errorf("new: the addresses are %q and %q", service.Spec.ClusterIP, upstream.Spec.ClusterIP)
	}
	s.withVolumes(t, filepath.Join(work, "mine"))
}

// withVolumes adds the line that the page shows to an overlay, and checks the volumes of clusterdns then.
func (s *server) withVolumes(t *testing.T, overlay string) {
	t.Helper()
	page, err := os.ReadFile(migration)
	kit.Must(t, err)
	line := regexp.MustCompile("`(patches: .*volumes.yaml.*)`").FindStringSubmatch(string(page))
	if line == nil {
		t.Fatal("the page has no line that uses volumes.yaml")
	}
	path := filepath.Join(overlay, "kustomization.yaml")
	text, err := os.ReadFile(path)
	kit.Must(t, err)
	kit.Must(t, os.WriteFile(path, append(text, line[1]+"\n"...), 0o600))
	s.run(t, "apply", "--dry-run=server", "--validate=strict", "-k", overlay)
	pod := find[*appsv1.Deployment](t, decoded(t, kustomize(t, overlay)), "Deployment clusterdns").Spec.Template.Spec
	from := map[string]string{}
	for _, v := range pod.Volumes {
		if v.ConfigMap != nil {
			from[v.Name] = v.ConfigMap.Name
		}
	}
	got := map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		got[m.MountPath] = from[m.Name]
	}
	if want := map[string]string{"/etc/coredns": "coredns", "/etc/coredns/custom": "coredns-custom", snapshotFolder: ""}; !maps.Equal(got, want) {
		t.Errorf("clusterdns mounts %v, want %v", got, want)
	}
}

// TestParseMigrationPage has an example of a page.
func TestParseMigrationPage(t *testing.T) {
	got := steps("1. text\n\n   ```console\n   $ a b\n   output\n   $ c\n   ```\n\n```yaml\n# x/y.yaml\nz: 1\n```\n\n```yaml\nz: 2\n```\n\n```corefile\n# x/y: add to the first block\n    log\n```\n")
	want := []step{{command: "a b"}, {command: "c"}, {file: "x/y.yaml", text: "# x/y.yaml\nz: 1\n"}, {into: "x/y", text: "    log\n"}}
	if !slices.Equal(got, want) {
		t.Errorf("steps %+v, want %+v", got, want)
	}
}

// predecessors are the workloads at the begin of the page.
type predecessors struct {
	service *corev1.Service   // kube-dns
	daemons *appsv1.DaemonSet // node-local-dns
}

// withPredecessors makes the Service kube-dns, CoreDNS, node-local-dns and two nodes.
func (s *server) withPredecessors(t *testing.T) (all predecessors) {
	t.Helper()
	client := s.Client()
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: "kube-system"}
	}
	pods := func(app, container, image string, args ...string) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
		labels := map[string]string{"k8s-app": app}
		return &metav1.LabelSelector{MatchLabels: labels}, corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: container, Image: image, Args: args}}},
		}
	}
	service := func(name string) *corev1.Service {
		return &corev1.Service{ObjectMeta: meta(name), Spec: corev1.ServiceSpec{
			Selector: map[string]string{"k8s-app": "kube-dns"},
			Ports:    []corev1.ServicePort{{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP}},
		}}
	}
	var err error
	if all.service, err = client.CoreV1().Services("kube-system").Create(t.Context(), service("kube-dns"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	address := all.service.Spec.ClusterIP
	tenth := intstr.FromString("10%")
	deployment, daemons := appsv1.Deployment{ObjectMeta: meta("coredns")}, appsv1.DaemonSet{ObjectMeta: meta("node-local-dns")}
	deployment.Spec.Selector, deployment.Spec.Template = pods("kube-dns", "coredns", "registry.k8s.io/coredns/coredns:v1.12.1")
	daemons.Spec.Selector, daemons.Spec.Template = pods("node-local-dns", "node-cache", "registry.k8s.io/dns/k8s-dns-node-cache:1.26.4",
		"-localip", "169.254.20.10,"+address, "-conf", "/etc/Corefile", "-upstreamsvc", "kube-dns-upstream")
	daemons.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &tenth}
	if all.daemons, err = client.AppsV1().DaemonSets("kube-system").Create(t.Context(), &daemons, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	corefile := kit.Read(t, deployed+"/clusterdns/Corefile")
	_, upstreamErr := client.CoreV1().Services("kube-system").Create(t.Context(), service("kube-dns-upstream"), metav1.CreateOptions{})
	_, deploymentErr := client.AppsV1().Deployments("kube-system").Create(t.Context(), &deployment, metav1.CreateOptions{})
	node := func(name string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
	}
	_, nodeErr := client.CoreV1().Nodes().Create(t.Context(), node("node-a"), metav1.CreateOptions{})
	_, otherErr := client.CoreV1().Nodes().Create(t.Context(), node("node-b"), metav1.CreateOptions{})
	_, configErr := client.CoreV1().ConfigMaps("kube-system").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta("coredns"), Data: map[string]string{"Corefile": corefile}}, metav1.CreateOptions{})
	_, templateErr := client.CoreV1().ConfigMaps("kube-system").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta("node-local-dns"), Data: map[string]string{"Corefile": installed(t, address)}}, metav1.CreateOptions{})
	for _, err := range []error{upstreamErr, deploymentErr, nodeErr, otherErr, configErr, templateErr} {
		kit.Must(t, err)
	}
	return all
}

// wants reports whether a DaemonSet has a pod on a node, by its node selector and its affinity.
func wants(t *testing.T, set *appsv1.DaemonSet, node *corev1.Node) bool {
	t.Helper()
	pod := set.Spec.Template.Spec
	has := labels.Set(node.Labels)
	if !labels.SelectorFromSet(pod.NodeSelector).Matches(has) {
		return false
	}
	if pod.Affinity == nil {
		return true
	}
	operators := map[corev1.NodeSelectorOperator]selection.Operator{corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist, corev1.NodeSelectorOpIn: selection.In}
	for _, term := range pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		all := labels.NewSelector()
		for _, e := range term.MatchExpressions {
			r, err := labels.NewRequirement(e.Key, operators[e.Operator], e.Values)
			kit.Must(t, err)
			all = all.Add(*r)
		}
		if all.Matches(has) {
			return true
		}
	}
	return false
}

// placement is the workload of node-a and of node-b after each command of the page.
var placement = map[string][2]string{
	"kubectl apply -k nodes":                                                                        {"node-local-dns", "node-local-dns"},
	"kubectl label node node-a nearside.dev/nodecache=true":                                         {"nodecache", "node-local-dns"},
	"kubectl label nodes --all nearside.dev/nodecache=true --overwrite":                             {"nodecache", "nodecache"},
	"kubectl label node node-a nearside.dev/nodecache=leaving --overwrite":                          {"", "nodecache"},
	"kubectl label node node-a nearside.dev/nodecache-":                                             {"node-local-dns", "nodecache"},
	"kubectl label nodes -l nearside.dev/nodecache=true nearside.dev/nodecache=leaving --overwrite": {"node-local-dns", ""},
	"kubectl label nodes -l nearside.dev/nodecache=leaving nearside.dev/nodecache-":                 {"node-local-dns", "node-local-dns"},
}

// place returns the placement.
func (s *server) place(t *testing.T) (got [2]string) {
	t.Helper()
	for i, name := range []string{"node-a", "node-b"} {
		node, err := s.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		kit.Must(t, err)
		var all []string
		for _, name := range []string{"nodecache", "node-local-dns"} {
			if set := s.daemons(t, name); set != nil && wants(t, set, node) {
				all = append(all, name)
			}
		}
		got[i] = strings.Join(all, " and ")
	}
	return got
}

// daemons returns a DaemonSet, nil if there is none.
func (s *server) daemons(t *testing.T, name string) *appsv1.DaemonSet {
	t.Helper()
	set, err := s.Client().AppsV1().DaemonSets("kube-system").Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	kit.Must(t, err)
	return set
}

// deployment reports whether there is one.
func (s *server) deployment(t *testing.T, name string) bool {
	t.Helper()
	_, err := s.Client().AppsV1().Deployments("kube-system").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

// lookAt checks the effects that the page describes of a command. before is the state at the begin.
func (s *server) lookAt(t *testing.T, command string, before predecessors) {
	t.Helper()
	old := before.daemons.Spec
	if want, ok := placement[command]; ok {
		if got := s.place(t); got != want {
			t.Errorf("after %s, the nodes want %q, not %q", command, got, want)
		}
	}
	switch {
	case command == "kubectl apply -k mine", command == "kubectl delete -k mine":
		budgets, err := s.Client().PolicyV1().PodDisruptionBudgets("kube-system").List(t.Context(), metav1.ListOptions{})
		kit.Must(t, err)
		if applied := strings.Contains(command, "apply"); s.deployment(t, "clusterdns") != applied || len(budgets.Items) == 1 != applied || !s.deployment(t, "coredns") {
			t.Errorf("after %s: clusterdns %v, coredns %v, %d budgets", command, s.deployment(t, "clusterdns"), s.deployment(t, "coredns"), len(budgets.Items))
		}
	case strings.Contains(command, "node-cache=registry.example.com"):
		if now := s.daemons(t, "node-local-dns").Spec; now.Template.Spec.Containers[0].Image != "registry.example.com/nearside/nodecache:dev" || now.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
			t.Errorf("after %s, the DaemonSet is %+v", command, now)
		}
	case strings.Contains(command, `"op":"add"`):
		if args := s.daemons(t, "node-local-dns").Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "-skipteardown") {
			t.Errorf("after %s, the arguments are %q", command, args)
		}
	case strings.Contains(command, "node-cache="+old.Template.Spec.Containers[0].Image), strings.Contains(command, "helm install") && strings.Contains(command, "clusterdns.enabled=false"): // each after a way back
		if now := s.daemons(t, "node-local-dns").Spec; !equality.Semantic.DeepEqual(now, old) {
			t.Errorf("at %s, node-local-dns is not as it was:\n%+v\n%+v", command, now, old)
		}
	case command == "kubectl apply -k nodes":
		config, err := s.Client().CoreV1().ConfigMaps("kube-system").Get(t.Context(), "nodecache", metav1.GetOptions{})
		if want := inFirstBlock(t, installed(t, before.service.Spec.ClusterIP), ofTemplate(t)); err != nil || config.Data["Corefile.base"] != want {
			t.Errorf("after %s, the template is %v, %v; want\n%s", command, config, err, want)
		}
	case strings.HasPrefix(command, "kubectl delete -k nodes"):
		if _, err := s.Client().CoreV1().Services("kube-system").Get(t.Context(), "kube-dns-upstream", metav1.GetOptions{}); err != nil || s.daemons(t, "nodecache") != nil {
			t.Errorf("after %s, nodecache is there, or kube-dns-upstream is not: %v", command, err)
		}
	case strings.HasPrefix(command, "helm uninstall"):
		if s.deployment(t, "clusterdns") || s.daemons(t, "nodecache") != nil {
			t.Errorf("after %s, something of the chart is left", command)
		}
	}
}

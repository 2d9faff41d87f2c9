package searchpath

import (
	"context"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
)

// The label of namespaces, which is also an annotation of pods, and its values; and the namespaces of the tests.
const (
	label      = "nearside.dev/search-path"
	byServer   = "server"
	byClient   = "client"
	labelled   = "shop"
	unlabelled = "office"
)

// maxWait bounds waiting until a policy or the label of a namespace is effective: the API server watches them.
const maxWait = time.Minute

// cluster is an API server for a test.
type cluster struct {
	t *testing.T
	kubernetes.Interface
}

func start(t *testing.T) cluster { return cluster{t, controlplane.Start(t).Client()} }

// namespace creates a namespace with labels.
func (c cluster) namespace(name string, labels map[string]string) {
	c.t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	if _, err := c.CoreV1().Namespaces().Create(c.t.Context(), ns, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// relabel sets the label of a namespace, or removes it if the value is empty.
func (c cluster) relabel(namespace, value string) {
	c.t.Helper()
	patch := `{"metadata":{"labels":{"` + label + `":null}}}`
	if value != "" {
		patch = `{"metadata":{"labels":{"` + label + `":"` + value + `"}}}`
	}
	if _, err := c.CoreV1().Namespaces().Patch(c.t.Context(), namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// apply creates a policy and its binding.
func (c cluster) apply(p *policy) {
	c.t.Helper()
	api := c.AdmissionregistrationV1()
	if _, err := api.MutatingAdmissionPolicies().Create(c.t.Context(), p.policy, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	if _, err := api.MutatingAdmissionPolicyBindings().Create(c.t.Context(), p.binding, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// create creates a pod. All tests assert that the API server does not refuse it.
func (c cluster) create(p *corev1.Pod) *corev1.Pod {
	c.t.Helper()
	made, err := c.CoreV1().Pods(p.Namespace).Create(c.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatalf("pod %s/%s%s: %v", p.Namespace, p.Name, p.GenerateName, err)
	}
	return made
}

// await waits until the policy sets, or does not set, the search entry of a plain pod in a namespace.
func (c cluster) await(namespace string, served bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), maxWait)
	defer cancel()
	for {
		got, err := c.CoreV1().Pods(namespace).Create(ctx, pod(namespace, "probe"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		kit.Must(c.t, err)
		if (got.Spec.DNSPolicy == corev1.DNSNone) == served {
			return
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("in namespace %s a pod has dnsPolicy %s after %v", namespace, got.Spec.DNSPolicy, maxWait)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// pod returns a pod without DNS settings, with changes.
func pod(namespace, name string, changes ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.org/main:1"}}},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

// served returns the fields that the policy sets.
func served(namespace string) (corev1.DNSPolicy, *corev1.PodDNSConfig) {
	five := "5"
	return corev1.DNSNone, &corev1.PodDNSConfig{
		Nameservers: []string{"169.254.20.10"},
		Searches:    []string{"v1.search." + namespace + ".cluster.local.ap.k8s.io"},
		Options:     []corev1.PodDNSConfigOption{{Name: "ndots", Value: &five}},
	}
}

// check compares a created pod with the one that was sent: they are equal, except the DNS fields of a served pod.
func (c cluster) check(sent, got *corev1.Pod, isServed bool) {
	c.t.Helper()
	want := sent.Spec.DeepCopy()
	if want.DNSPolicy == "" {
		want.DNSPolicy = corev1.DNSClusterFirst
	}
	if isServed {
		want.DNSPolicy, want.DNSConfig = served(got.Namespace)
	}
	if got.Spec.DNSPolicy != want.DNSPolicy || !reflect.DeepEqual(got.Spec.DNSConfig, want.DNSConfig) {
		c.t.Errorf("dnsPolicy %s and dnsConfig %v, want %s and %v", got.Spec.DNSPolicy, got.Spec.DNSConfig, want.DNSPolicy, want.DNSConfig)
	}
	for key, value := range sent.Annotations {
		if got.Annotations[key] != value {
			c.t.Errorf("annotation %s is %q, want %q", key, got.Annotations[key], value)
		}
	}
	if len(got.Annotations) != len(sent.Annotations) || len(got.Spec.Containers) != 1 || got.Spec.HostNetwork != sent.Spec.HostNetwork {
		c.t.Errorf("other fields have changed: %v", got)
	}
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = value
	}
}

func withPolicy(policy corev1.DNSPolicy) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.DNSPolicy = policy }
}

func withConfig(config corev1.PodDNSConfig) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.DNSConfig = &config }
}

func onHost(p *corev1.Pod) { p.Spec.HostNetwork = true }

func onSystem(name corev1.OSName) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: name} }
}

func generated(p *corev1.Pod) { p.Name, p.GenerateName = "", "generated-" }

// kinds are kinds of pods, and whether they receive the search entry in a labelled namespace.
var kinds = []struct {
	name    string
	changes []func(*corev1.Pod)
	served  bool
}{
	{"plain", nil, true},
	{"cluster-first", []func(*corev1.Pod){withPolicy(corev1.DNSClusterFirst)}, true},
	{"generated-name", []func(*corev1.Pod){generated}, true},
	{"not-on-host", []func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.HostNetwork = false }}, true},
	{"hostname", []func(*corev1.Pod){func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "web-0", "web" }}, true},
	{"linux", []func(*corev1.Pod){onSystem(corev1.Linux)}, true},
	{"opted-in", []func(*corev1.Pod){annotated(label, byServer)}, true},
	{"other-annotation", []func(*corev1.Pod){annotated("example.org/search-path", byClient)}, true},

	{"opted-out", []func(*corev1.Pod){annotated(label, byClient)}, false},
	{"opted-out-among-others", []func(*corev1.Pod){annotated("a.example.org/x", "y"), annotated(label, byClient)}, false},
	{"empty-annotation", []func(*corev1.Pod){annotated(label, "")}, false},
	{"host-network", []func(*corev1.Pod){onHost}, false},
	{"host-network-cluster-first", []func(*corev1.Pod){onHost, withPolicy(corev1.DNSClusterFirst)}, false},
	{"host-network-with-cluster-names", []func(*corev1.Pod){onHost, withPolicy(corev1.DNSClusterFirstWithHostNet)}, false},
	{"with-host-net", []func(*corev1.Pod){withPolicy(corev1.DNSClusterFirstWithHostNet)}, false},
	{"default", []func(*corev1.Pod){withPolicy(corev1.DNSDefault)}, false},
	{"none", []func(*corev1.Pod){withPolicy(corev1.DNSNone), withConfig(corev1.PodDNSConfig{Nameservers: []string{"192.0.2.53"}})}, false},
	{"searches", []func(*corev1.Pod){withConfig(corev1.PodDNSConfig{Searches: []string{"example.org"}})}, false},
	{"options", []func(*corev1.Pod){withConfig(corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "use-vc"}}})}, false},
	{"empty-config", []func(*corev1.Pod){withConfig(corev1.PodDNSConfig{})}, false},
	{"windows", []func(*corev1.Pod){onSystem(corev1.Windows)}, false},
	{"mirror", []func(*corev1.Pod){annotated(corev1.MirrorPodAnnotationKey, "0123"), func(p *corev1.Pod) { p.Spec.NodeName = "node-a" }}, false},
}

func TestPolicy(t *testing.T) {
	c := start(t)
	c.namespace(labelled, map[string]string{label: byServer})
	c.namespace(unlabelled, nil)
	c.namespace("byclient", map[string]string{label: byClient})
	before := c.create(pod(labelled, "before")) // the policy never changes it
	c.check(pod(labelled, "before"), before, false)

	p := fromFiles(t)
	c.apply(p.with(t, overlay(t)))
	c.await(labelled, true)

	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			c := cluster{t, c.Interface}
			for namespace, isLabelled := range map[string]bool{labelled: true, unlabelled: false, "byclient": false} {
				sent := pod(namespace, kind.name, kind.changes...)
				c.check(sent, c.create(sent), kind.served && isLabelled)
			}
		})
	}
	t.Run("later", func(t *testing.T) { cluster{t, c.Interface}.testLater(before) })
	t.Run("relabelled", func(t *testing.T) { cluster{t, c.Interface}.testRelabelled() })
	t.Run("removed", func(t *testing.T) {
		c := cluster{t, c.Interface}
		kit.Must(t, c.AdmissionregistrationV1().MutatingAdmissionPolicyBindings().Delete(t.Context(), p.binding.Name, metav1.DeleteOptions{}))
		c.await(labelled, false)
	})
}

// testLater changes existing pods in all ways that the API has: the policy applies to none of them.
func (c cluster) testLater(before *corev1.Pod) {
	ctx, pods := c.t.Context(), c.CoreV1().Pods(labelled)
	for _, name := range []string{before.Name, "plain", "opted-out"} {
		p, err := pods.Get(ctx, name, metav1.GetOptions{})
		kit.Must(c.t, err)
		dns := []any{p.Spec.DNSPolicy, p.Spec.DNSConfig}
		p.Labels = map[string]string{"changed": "yes"}
		p.Spec.Containers[0].Image = "example.org/main:2"
		if p, err = pods.Update(ctx, p, metav1.UpdateOptions{}); err != nil {
			c.t.Errorf("%s: update: %v", name, err)
			continue
		}
		p.Status.Phase = corev1.PodPending
		if p, err = pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
			c.t.Errorf("%s: update of the status: %v", name, err)
			continue
		}
		if err := pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-a"}}, metav1.CreateOptions{}); err != nil {
			c.t.Errorf("%s: binding to a node: %v", name, err)
		}
		if p, err = pods.Get(ctx, name, metav1.GetOptions{}); err != nil {
			c.t.Fatal(err)
		}
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "example.org/debug:1"}}}
		if p, err = pods.UpdateEphemeralContainers(ctx, name, p, metav1.UpdateOptions{}); err != nil {
			c.t.Errorf("%s: ephemeral container: %v", name, err)
			continue
		}
		if got := []any{p.Spec.DNSPolicy, p.Spec.DNSConfig}; !reflect.DeepEqual(got, dns) {
			c.t.Errorf("%s: DNS was %v and is %v", name, dns, got)
		}
		if err := pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: labelled}}); err != nil {
			c.t.Errorf("%s: eviction: %v", name, err)
		}
	}
}

// testRelabelled removes the label of a namespace and sets it again. Existing pods stay unchanged.
func (c cluster) testRelabelled() {
	existing := c.create(pod(labelled, "existing"))
	for _, value := range []string{byClient, byServer, "", byServer} {
		c.relabel(labelled, value)
		c.await(labelled, value == byServer)
	}
	c.relabel(unlabelled, byServer)
	c.await(unlabelled, true)
	got, err := c.CoreV1().Pods(labelled).Get(c.t.Context(), existing.Name, metav1.GetOptions{})
	kit.Must(c.t, err)
	if !reflect.DeepEqual(got.Spec, existing.Spec) {
		c.t.Errorf("the pod's spec was %v and is %v", existing.Spec, got.Spec)
	}
}

// refused are values of the policy's variables that the API server refuses, because it cannot compile them.
var refused = map[string]map[string]string{
	"number":            nameservers("[1]"),
	"no list":           nameservers("'169.254.20.10'"),
	"null":              nameservers("null"),
	"no such variable":  nameservers("variables.nothing"),
	"no expression":     nameservers("169.254.20.10"),
	"zone is a number":  zone("1"),
	"zone has no quote": zone("cluster.local"),
}

// wrongs are values with which the policy must not change pods.
var wrongs = []struct {
	name   string
	values map[string]string // by variable
}{
	{"no-overlay", map[string]string{}},
	{"no-address", nameservers("['ap.k8s.io']")},
	{"address-and-port", nameservers("['169.254.20.10:53']")},
	{"one-of-two", nameservers("['169.254.20.10', '10.96.0.300']")},
	{"zone-of-address", nameservers("['fe80::1%eth0']")},
	{"empty-address", nameservers("['']")},
	{"four", nameservers("['192.0.2.1', '192.0.2.2', '192.0.2.3', '192.0.2.4']")},
	{"runtime-error", nameservers("['10.0.0.' + string(1 / int(request.namespace.size() - request.namespace.size()))]")},
	{"number", nameservers("dyn([1])")},
	{"null", nameservers("dyn([null])")},
	{"no-list", nameservers("dyn('169.254.20.10')")},
	{"no-such-field", nameservers("[object.spec.nothing]")},
	{"upper-case", zone("'Cluster.Local'")},
	{"empty-label", zone("'cluster..local'")},
	{"empty-zone", zone("''")},
	{"dot-at-end", zone("'cluster.local.'")},
	{"hyphen-at-end", zone("'cluster.local-'")},
	{"blank", zone("'cluster local'")},
	{"too-long", zone("'" + longZone + "'")},
	{"wrong-suffix", map[string]string{"nameservers": "['169.254.20.10']", "suffix": "'ap_k8s'"}},
}

// longZone is a zone with which the search entry exceeds the max length of a name.
var longZone = func() string {
	name := make([]byte, 240)
	for i := range name {
		if name[i] = 'a'; i%8 == 7 {
			name[i] = '.'
		}
	}
	return string(name) + "x"
}()

func nameservers(expression string) map[string]string {
	return map[string]string{"nameservers": expression}
}

func zone(expression string) map[string]string {
	return map[string]string{"nameservers": "['169.254.20.10']", "zone": expression}
}

// TestInvalidPolicies has policies with wrong values, each for a namespace of its own, in which pods can still be created. The
// right policy is last: the API server watches policies in order.
func TestInvalidPolicies(t *testing.T) {
	c := start(t)
	right := fromFiles(t).with(t, overlay(t))
	for name, values := range refused {
		p := fromFiles(t).with(t, values).policy
		if _, err := c.AdmissionregistrationV1().MutatingAdmissionPolicies().Create(t.Context(), p, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("%s: error %v, want an invalid policy", name, err)
		}
	}
	for _, w := range wrongs {
		c.namespace(w.name, map[string]string{"wrong": w.name})
		p := fromFiles(t).with(t, w.values).named(w.name)
		p.binding.Spec.MatchResources.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"wrong": w.name}}
		c.apply(p)
	}
	c.namespace(labelled, map[string]string{label: byServer})
	c.apply(right)
	c.await(labelled, true)
	for _, w := range wrongs {
		t.Run(w.name, func(t *testing.T) {
			c := cluster{t, c.Interface}
			sent := pod(w.name, "web")
			c.check(sent, c.create(sent), false)
		})
	}
}

// TestMaxAddresses has the max number of addresses, of both families.
func TestMaxAddresses(t *testing.T) {
	c := start(t)
	c.namespace(labelled, map[string]string{label: byServer})
	addresses := []string{"169.254.20.10", "fd00:96::a", "10.96.0.10"}
	c.apply(fromFiles(t).with(t, map[string]string{
		"nameservers": "['169.254.20.10', 'fd00:96::a', '10.96.0.10']", "zone": "'k8s.example.com'", "suffix": "'search.internal'",
	}))
	c.await(labelled, true)
	got := c.create(pod(labelled, "web")).Spec.DNSConfig
	if !slices.Equal(got.Nameservers, addresses) || !slices.Equal(got.Searches, []string{"v1.search.shop.k8s.example.com.search.internal"}) {
		t.Errorf("dnsConfig %v", got)
	}
}

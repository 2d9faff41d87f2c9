package startuptaint

import (
	"context"
	"errors"
	"flag"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clog "github.com/coredns/coredns/plugin/pkg/log"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
)

const (
	nodeName = "node-a"
	key      = "nearside.dev/nodecache-not-ready"
	// deadline bounds the wait for a state.
	deadline = time.Minute
)

// foreign are taints of other programs.
var foreign = []corev1.Taint{
	{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoExecute},
	{Key: "dedicated", Value: "dns", Effect: corev1.TaintEffectNoSchedule},
}

// startup is the startup taint with an effect.
func startup(effect corev1.TaintEffect) corev1.Taint { return corev1.Taint{Key: key, Effect: effect} }

// logged returns the log of a test.
func logged(t *testing.T) *kit.Log {
	t.Helper()
	o := new(kit.Log)
	clog.SetOutput(o)
	t.Cleanup(func() { clog.SetOutput(io.Discard) })
	return o
}

// plane is a real API server with a node.
type plane struct {
	*controlplane.ControlPlane
	t *testing.T
}

func (p plane) taint(taints ...corev1.Taint) {
	p.t.Helper()
	node, err := p.Client().CoreV1().Nodes().Get(p.t.Context(), nodeName, metav1.GetOptions{})
	kit.Must(p.t, err)
	node.Spec.Taints = taints
	if _, err := p.Client().CoreV1().Nodes().Update(p.t.Context(), node, metav1.UpdateOptions{}); err != nil {
		p.t.Fatal(err)
	}
}

func (p plane) taints() []corev1.Taint {
	p.t.Helper()
	node, err := p.Client().CoreV1().Nodes().Get(p.t.Context(), nodeName, metav1.GetOptions{})
	kit.Must(p.t, err)
	return node.Spec.Taints
}

// awaitOthers waits until the node has the foreign taints only.
func (p plane) awaitOthers() {
	p.t.Helper()
	kit.Within(p.t, deadline, "the foreign taints alone", func() bool { return slices.Equal(p.taints(), foreign) })
}

// start starts a Remover that is ready when ready is true. polled counts the checks of that.
func (p plane) start(t *testing.T, kubeconfig string, ready *atomic.Bool) (polled *atomic.Int32) {
	polled = new(atomic.Int32)
	r := &Remover{
		Node: func() string { return nodeName }, key: key, api: apiserver.Connection{Kubeconfig: kubeconfig},
		Ready: func() bool { polled.Add(1); return ready.Load() },
	}
	r.Started()
	t.Cleanup(r.Stopped)
	return polled
}

func TestRemove(t *testing.T) {
	p := plane{controlplane.Start(t), t}
	if _, err := p.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	always := new(atomic.Bool)
	always.Store(true)
	t.Run("once ready", func(t *testing.T) {
		log := logged(t)
		p.taint(foreign[0], startup(corev1.TaintEffectNoExecute), startup(corev1.TaintEffectNoSchedule), foreign[1])
		ready := new(atomic.Bool)
		polled := p.start(t, p.Kubeconfig(), ready)
		kit.Within(t, deadline, "checks whether nodecache is ready", func() bool { return polled.Load() > 2 })
		if got := p.taints(); len(got) != 4 {
			t.Fatalf("before nodecache is ready: %v", got)
		}
		ready.Store(true)
		p.awaitOthers()
		kit.Within(t, deadline, "a log line", func() bool {
			return log.Count("Taint nearside.dev/nodecache-not-ready removed from node node-a: nodecache is ready") == 1
		})
		p.taint(append(slices.Clone(foreign), startup(corev1.TaintEffectNoExecute))...) // as Karpenter does
		p.awaitOthers()
	})
	t.Run("the only taint", func(t *testing.T) {
		p.taint(startup(corev1.TaintEffectNoSchedule))
		p.start(t, p.Kubeconfig(), always)
		kit.Within(t, deadline, "no taint", func() bool { return len(p.taints()) == 0 })
	})
	t.Run("without rights at first", func(t *testing.T) {
		const user = "system:serviceaccount:kube-system:nodecache"
		log := logged(t)
		p.taint(append(slices.Clone(foreign), startup(corev1.TaintEffectNoSchedule))...)
		polled := p.start(t, p.KubeconfigFor(user), always)
		kit.Within(t, deadline, "a second try", func() bool { return polled.Load() > 1 })
		if n := log.Count("stays on node node-a until a retry succeeds: read node node-a: nodes \"node-a\" is forbidden"); n != 1 {
			t.Errorf("the reason is logged %d times", n)
		}
		meta := metav1.ObjectMeta{Name: "nodecache"}
		if _, err := p.Client().RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
			ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "patch"}}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "nodecache"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		p.awaitOthers()
	})
	t.Run("changed by another client meanwhile", func(t *testing.T) {
		stale := []corev1.Taint{startup(corev1.TaintEffectNoSchedule)}
		now := append(slices.Clone(foreign), stale...)
		p.taint(now...)
		patch, err := without(stale, key)
		kit.Must(t, err)
		if _, err := p.Client().CoreV1().Nodes().Patch(t.Context(), nodeName, types.JSONPatchType, patch, metav1.PatchOptions{}); err == nil {
			t.Error("a patch for other taints is accepted")
		}
		if got := p.taints(); !slices.Equal(got, now) {
			t.Errorf("taints %v, want %v", got, now)
		}
	})
	t.Run("API server down at first", func(t *testing.T) {
		log := logged(t)
		p.taint(append(slices.Clone(foreign), startup(corev1.TaintEffectNoSchedule))...)
		p.KillAPIServer()
		polled := p.start(t, p.Kubeconfig(), always)
		kit.Within(t, deadline, "a second try", func() bool { return polled.Load() > 1 })
		if log.Count("stays on node node-a until a retry succeeds: read node node-a: ") == 0 {
			t.Error("a log line")
		}
		p.StartAPIServer()
		p.awaitOthers()
	})
}

// TestWithout has the patches for lists of taints.
func TestWithout(t *testing.T) {
	no, yes := startup(corev1.TaintEffectNoSchedule), foreign[0]
	for _, tc := range []struct {
		name   string
		taints []corev1.Taint
		want   string
	}{
		{"no taint", nil, ""},
		{"another taint", []corev1.Taint{yes}, ""},
		{"one of two", []corev1.Taint{yes, no}, `[{"op":"test","path":"/spec/taints/1/key","value":"nearside.dev/nodecache-not-ready"},{"op":"remove","path":"/spec/taints/1"}]`},
		{"two, the last one first", []corev1.Taint{no, yes, no}, `{"op":"remove","path":"/spec/taints/2"},{"op":"test","path":"/spec/taints/0/key",`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := without(tc.taints, key)
			if err != nil || (got == nil) != (tc.want == "") || !strings.Contains(string(got), tc.want) {
				t.Errorf("%s, %v, want %s", got, err, tc.want)
			}
		})
	}
}

// TestStops has a node without a name, a process outside of a cluster, and the end during a request.
func TestStops(t *testing.T) {
	t.Run("no name", func(t *testing.T) {
		log := logged(t)
		r := &Remover{Node: func() string { return "" }, key: key}
		r.run(t.Context())
		if log.Count("stays on this node: its name is unknown; set NODE_NAME") != 1 {
			t.Errorf("log %s", log)
		}
	})
	t.Run("no cluster", func(t *testing.T) {
		t.Setenv("KUBERNETES_SERVICE_HOST", "")
		log := logged(t)
		r := &Remover{Node: func() string { return nodeName }, key: key}
		r.run(t.Context())
		if log.Count("stays on node node-a: no API server to read: not in a cluster") != 1 {
			t.Errorf("log %s", log)
		}
	})
	t.Run("end during a request", func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		log := logged(t)
		r := &Remover{Ready: func() bool { return true }, key: key}
		r.follow(ctx, func(ctx context.Context) (bool, error) {
			end()
			return false, errors.New("interrupted")
		}, nodeName)
		if log.Count("interrupted") > 0 {
			t.Error("the end is logged as an error")
		}
	})
	t.Run("no flag", func(t *testing.T) {
		r := &Remover{Node: func() string { t.Error("it starts"); return "" }}
		r.Started()
		r.Stopped()
	})
}

func TestFlag(t *testing.T) {
	for _, tc := range []struct{ value, want string }{
		{key, ""},
		{"not-ready", ""},
		{"", "name part must be non-empty"},
		{"a/b/c", "a valid label key must consist of"},
		{"nearside.dev/", "name part must be non-empty"},
		{"node.kubernetes.io/not-ready", "node.kubernetes.io/not-ready is a taint of Kubernetes"},
		{"kubernetes.io/x", "is a taint of Kubernetes"},
		{"my-kubernetes.io/x", ""},
		{"a.k8s.io/x", "is a taint of Kubernetes"},
	} {
		t.Run(tc.value, func(t *testing.T) {
			var r Remover
			f := flag.NewFlagSet("test", flag.ContinueOnError)
			f.SetOutput(io.Discard)
			r.Flags(f)
			err := f.Parse([]string{"-remove-taint", tc.value})
			switch {
			case tc.want == "" && (err != nil || r.key != tc.value):
				t.Errorf("key %q, error %v", r.key, err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want %s", err, tc.want)
			}
		})
	}
}

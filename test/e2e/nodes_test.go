package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source/apiserver"
	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
)

// nodesSettle bounds the wait for a change of nodes to arrive, backoff of the source included.
const nodesSettle = 60 * time.Second

// nodeCluster is a real API server and a source that reads its nodes into an index.
type nodeCluster struct {
	client kubernetes.Interface
	source *apiserver.Source
	ix     *index.Index
}

// runNodes starts a source as the account, which may not read nodes yet.
func runNodes(t *testing.T) *nodeCluster {
	t.Helper()
	control := controlplane.Start(t)
	grant(t, control.Client())
	s, err := apiserver.New(apiserver.Connection{Kubeconfig: control.KubeconfigFor(account)},
		source.Options{Endpoints: true, Topology: true})
	kit.Must(t, err)
	c := &nodeCluster{client: control.Client(), source: s, ix: index.New()}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx, c.ix)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	return c
}

// allow grants the additional permissions of topology: to list and watch nodes, not to get them.
func (c *nodeCluster) allow(t *testing.T) {
	t.Helper()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "clusterdns-nodes"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}}},
	}
	if _, err := c.client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: account}},
	}
	if _, err := c.client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *nodeCluster) create(t *testing.T, name, zone string, podCIDRs ...string) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelTopologyZone: zone,
	}}}
	if len(podCIDRs) > 0 {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = podCIDRs[0], podCIDRs
	}
	if _, err := c.client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *nodeCluster) patch(t *testing.T, name, patch string, subresources ...string) {
	t.Helper()
	_, err := c.client.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
	kit.Must(t, err)
}

func (c *nodeCluster) remove(t *testing.T, name string) {
	t.Helper()
	kit.Must(t, c.client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
}

func (c *nodeCluster) node(name string) *index.Node { return c.ix.Node(index.NewSymbol(name)) }

// becomes waits until a node is in a zone and, unless ip is empty, the address belongs to it.
func (c *nodeCluster) becomes(t *testing.T, name, zone, ip string) {
	t.Helper()
	kit.Within(t, nodesSettle, fmt.Sprintf("node %s in zone %s with %q", name, zone, ip), func() bool {
		n := c.node(name)
		if n == nil {
			return false
		}
		z, _ := n.Label(index.NewSymbol(corev1.LabelTopologyZone))
		return z.String() == zone && (ip == "" || c.at(ip) == name)
	})
}

// at returns the name of the node that an address of a pod is on, or "".
func (c *nodeCluster) at(ip string) string {
	if n := c.ix.NodeByIP(netip.MustParseAddr(ip)); n != nil {
		return n.Name.String()
	}
	return ""
}

func (c *nodeCluster) synced(resource string) bool {
	for _, st := range c.source.Status() {
		if st.Resource == resource {
			return st.Synced
		}
	}
	return false
}

func TestNodes(t *testing.T) {
	c := runNodes(t)
	for i := range 12 { // more than the limit of single reads
		c.create(t, fmt.Sprintf("n%d", i), fmt.Sprintf("z%d", i%3), fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:10:244:%d::/64", i+1))
	}
	kit.Within(t, nodesSettle, "the resources that the account can read", func() bool {
		return c.synced(source.Services) && c.synced(source.EndpointSlices) && c.synced(source.Namespaces)
	})
	if c.synced(source.Nodes) || c.node("n0") != nil {
		t.Fatal("nodes were read although the account may not")
	}
	c.allow(t)
	c.becomes(t, "n11", "z2", "10.244.11.7")
	for i := range 12 { // in one list
		c.becomes(t, fmt.Sprintf("n%d", i), fmt.Sprintf("z%d", i%3), fmt.Sprintf("fd00:10:244:%d::7", i+1))
	}

	t.Run("heartbeats change nothing", func(t *testing.T) {
		before, generation := c.node("n1"), c.ix.NodesGeneration().Load()
		for i := range 5 {
			c.patch(t, "n1", fmt.Sprintf(`{"metadata":{"annotations":{"beat":"%d"}}}`, i))
			c.patch(t, "n1", fmt.Sprintf(`{"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"2026-01-01T00:00:%02dZ"}]}}`, i), "status")
		}
		c.create(t, "sentinel", "z9", "10.245.0.0/24")
		c.becomes(t, "sentinel", "z9", "")
		if c.node("n1") != before {
			t.Error("the record was replaced")
		}
		if got := c.ix.NodesGeneration().Load(); got != generation+1 {
			t.Errorf("the generation advanced by %d, want 1, for the new node", got-generation)
		}
	})

	t.Run("labels change", func(t *testing.T) {
		c.patch(t, "n2", `{"metadata":{"labels":{"topology.kubernetes.io/zone":"z7"}}}`)
		c.becomes(t, "n2", "z7", "10.244.2.1")
	})

	t.Run("the range of addresses is set after the node exists", func(t *testing.T) {
		c.create(t, "late", "z1")
		c.becomes(t, "late", "z1", "")
		c.patch(t, "late", `{"spec":{"podCIDR":"10.246.0.0/24","podCIDRs":["10.246.0.0/24"]}}`)
		c.becomes(t, "late", "z1", "10.246.0.1")
	})

	t.Run("a node goes", func(t *testing.T) {
		c.remove(t, "n3")
		kit.Within(t, nodesSettle, "no node n3", func() bool { return c.node("n3") == nil && c.at("10.244.3.1") == "" })
	})

	t.Run("another node of the same name", func(t *testing.T) {
		c.remove(t, "n4")
		c.create(t, "n4", "z8", "10.247.0.0/24")
		c.becomes(t, "n4", "z8", "10.247.0.1")
		if got := c.at("10.244.4.1"); got != "" {
			t.Errorf("the range of the node that is gone leads to %s", got)
		}
	})
}

package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// withNodes are the options of a source that reads nodes.
var withNodes = source.Options{Endpoints: true, Topology: true}

// node returns an old node, with a range of pod addresses or none.
func node(name, zone, podCIDR string) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      map[string]string{corev1.LabelTopologyZone: zone, corev1.LabelHostname: name},
			Annotations: map[string]string{"volumes": "attached"},
		},
		Status: corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{"image"}}}},
	}
	if podCIDR != "" {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = podCIDR, []string{podCIDR}
	}
	return n
}

// joined sets the time at which a node was created.
func joined(n *corev1.Node, at time.Time) *corev1.Node {
	n.CreationTimestamp = metav1.NewTime(at)
	return n
}

// heartbeat updates a node as its kubelet does every five minutes.
func heartbeat(n *corev1.Node, i int) *corev1.Node {
	n.Annotations["beat"] = fmt.Sprint(i)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.NewTime(time.Unix(int64(i), 0))}}
	return n
}

// nodeSource is a running source that reads nodes with short intervals.
type nodeSource struct {
	*Source
	t     *testing.T
	api   *kubeapi.Server
	ix    *index.Index
	clock *clock
}

func runNodes(t *testing.T, api *kubeapi.Server, endpoint string) *nodeSource {
	t.Helper()
	s, err := New(Connection{Endpoint: endpoint, QPS: 1000, Burst: 1000}, withNodes)
	kit.Must(t, err)
	n := &nodeSource{Source: s, t: t, api: api, ix: index.New(), clock: new(clock)}
	s.pace = pace{now: n.clock.now, again: time.Millisecond, retry: time.Millisecond, maxRetry: 10 * time.Millisecond}
	kit.Background(t, func(ctx context.Context) { s.Run(ctx, n.ix) })
	return n
}

// startNodes runs a source with these objects, and waits until it is in step.
func startNodes(t *testing.T, objects ...runtime.Object) *nodeSource {
	t.Helper()
	api := kubeapi.New(t)
	kit.Must(t, api.Put(objects...))
	n := runNodes(t, api, api.URL())
	kit.Eventually(t, "synced", func() bool { return synced(n.Source) })
	return n
}

func (n *nodeSource) put(objects ...runtime.Object) {
	n.t.Helper()
	kit.Must(n.t, n.api.Put(objects...))
}

func (n *nodeSource) node(name string) *index.Node { return n.ix.Node(index.NewSymbol(name)) }

// zone returns the zone of a node, "none" without the node.
func (n *nodeSource) zone(name string) string {
	r := n.node(name)
	if r == nil {
		return "none"
	}
	z, _ := r.Label(index.NewSymbol(corev1.LabelTopologyZone))
	return z.String()
}

// at returns the name of the node of a pod address, or "".
func (n *nodeSource) at(ip string) string {
	if r := n.ix.NodeByIP(netip.MustParseAddr(ip)); r != nil {
		return r.Name.String()
	}
	return ""
}

// reads returns the number of pages of whole Nodes that have been read.
func (n *nodeSource) reads() int {
	return n.api.Requests()[kubeapi.Request{Verb: kubeapi.VerbList, Resource: kubeapi.Nodes, ContentType: runtime.ContentTypeProtobuf}]
}

// pass waits until all events so far have been processed.
func (n *nodeSource) pass(mark string) {
	n.t.Helper()
	n.put(node("pass", mark, "10.200.0.0/24"))
	kit.Eventually(n.t, "event "+mark, func() bool { return n.zone("pass") == mark && n.at("10.200.0.1") == "pass" })
}

// away makes changes while the API server refuses requests for nodes; they are listed again then.
func (n *nodeSource) away(change func()) {
	n.t.Helper()
	n.api.Refuse(true)
	n.api.DropWatches(kubeapi.Nodes)
	change()
	n.api.Expire()
	n.api.Refuse(false)
}

// jsonOnly is a proxy before an API server that makes it answer in JSON.
func jsonOnly(t *testing.T, api *kubeapi.Server) string {
	t.Helper()
	to, err := url.Parse(api.URL())
	kit.Must(t, err)
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		accepted := strings.Split(r.In.Header.Get("Accept"), ",")
		accepted = slices.DeleteFunc(accepted, func(a string) bool { return strings.Contains(a, "protobuf") })
		r.Out.Header.Set("Accept", strings.Join(accepted, ","))
	}}
	// Watches that end with the source are not logged.
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	server := httptest.NewServer(proxy)
	t.Cleanup(server.Close)
	return server.URL
}

func TestNodes(t *testing.T) {
	for _, tc := range []struct {
		name        string
		lists, json bool
		metadata    string // the form in which nodes must be watched
	}{
		{"streamed lists", false, false, runtime.ContentTypeProtobuf},
		{"paged lists", true, false, runtime.ContentTypeProtobuf},
		{"in JSON", false, true, runtime.ContentTypeJSON},
		{"paged lists in JSON", true, true, runtime.ContentTypeJSON},
	} {
		t.Run(tc.name, func(t *testing.T) {
			api := kubeapi.New(t)
			api.DisableWatchList(tc.lists)
			var all []runtime.Object
			for i := range 1200 { // more than two pages
				all = append(all, node(fmt.Sprintf("n%d", i), fmt.Sprintf("Zone-%d", i%3), fmt.Sprintf("10.%d.%d.0/24", i/250, i%250)))
			}
			kit.Must(t, api.Load(all...))
			endpoint := api.URL()
			if tc.json {
				endpoint = jsonOnly(t, api)
			}
			n := runNodes(t, api, endpoint)
			kit.Eventually(t, "synced", func() bool { return synced(n.Source) })
			kit.Eventually(t, "a watch", func() bool { return api.OpenWatches(kubeapi.Nodes) == 1 })
			for i := range 1200 {
				if got, want := n.zone(fmt.Sprintf("n%d", i)), fmt.Sprintf("Zone-%d", i%3); got != want {
					t.Fatalf("n%d is in zone %s, want %s", i, got, want)
				}
			}
			kit.Eventually(t, "the range of the last name", func() bool { return n.at("10.3.249.255") == "n999" })
			if n.at("10.0.7.9") != "n7" || n.at("10.4.199.1") != "n1199" || n.at("10.5.0.1") != "" {
				t.Error("addresses lead to other nodes")
			}
			for r, count := range api.Requests() {
				switch {
				case r.Resource != kubeapi.Nodes:
				case strings.HasSuffix(r.ContentType, ";as=PartialObjectMetadata"):
					if !strings.HasPrefix(r.ContentType, tc.metadata) {
						t.Errorf("%v", r)
					}
				case r.Verb != kubeapi.VerbList || count != 3:
					t.Errorf("%d requests %v of whole Nodes, want 3 pages", count, r)
				}
			}

			n.put(node("n7", "Zone-X", "10.0.7.0/24"), node("new", "Zone-0", "10.9.0.0/24"))
			kit.Must(t, api.Delete(node("n8", "", "")))
			kit.Eventually(t, "a changed label", func() bool { return n.zone("n7") == "Zone-X" && n.at("10.0.7.1") == "n7" })
			kit.Eventually(t, "a new node", func() bool { return n.zone("new") == "Zone-0" && n.at("10.9.0.1") == "new" })
			kit.Eventually(t, "a removed node", func() bool { return n.zone("n8") == "none" && n.at("10.0.8.1") == "" })
		})
	}
}

// TestNodeHeartbeats: the periodic updates of kubelets change no record.
func TestNodeHeartbeats(t *testing.T) {
	n := startNodes(t, node("a", "z1", "10.1.0.0/24"), node("b", "z2", "")) // b is on a network without ranges
	kit.Eventually(t, "the range", func() bool { return n.at("10.1.0.1") == "a" })
	n.pass("first")
	generation, reads, a, b := n.ix.NodesGeneration().Load(), n.reads(), n.node("a"), n.node("b")
	for i := range 5 {
		n.put(heartbeat(node("a", "z1", "10.1.0.0/24"), i), heartbeat(node("b", "z2", ""), i))
	}
	n.put(node("a", "z1", "10.1.0.0/24"), node("sentinel", "z3", "10.3.0.0/24"))
	kit.Eventually(t, "the last event", func() bool { return n.zone("sentinel") == "z3" && n.at("10.3.0.1") == "sentinel" })
	if got := n.ix.NodesGeneration().Load(); got != generation+1 {
		t.Errorf("the generation advanced by %d, want 1, for the new node", got-generation)
	}
	if n.node("a") != a || n.node("b") != b {
		t.Error("records were replaced")
	}
	if got := n.reads() - reads; got != 1 {
		t.Errorf("%d reads of whole Nodes, want 1, of the new node", got)
	}
}

// TestNodeRanges: a node without a range of addresses is read again while it is young.
func TestNodeRanges(t *testing.T) {
	t.Run("given to a young node", func(t *testing.T) {
		n := startNodes(t)
		before := n.reads()
		n.put(joined(node("young", "z1", ""), time.Now()))
		kit.Eventually(t, "the first read", func() bool { return n.reads() == before+1 })
		n.put(joined(node("young", "z1", "10.1.0.0/24"), time.Now()))
		kit.Eventually(t, "the range", func() bool { return n.at("10.1.0.1") == "young" })
	})

	t.Run("not given while it is young", func(t *testing.T) {
		n := startNodes(t)
		before, now := n.reads(), time.Now() // all have been read once
		n.put(joined(node("young", "z1", ""), now))
		kit.Eventually(t, "the first read", func() bool { return n.reads() == before+1 })
		n.put(heartbeat(joined(node("young", "z1", ""), now), 1))
		kit.Eventually(t, "the second read", func() bool { return n.reads() == before+2 })
		n.clock.advance(youngFor)
		for i := range 3 {
			n.put(heartbeat(joined(node("young", "z1", ""), now), i))
		}
		n.pass("last")
		if got := n.reads() - before; got != 3 {
			t.Errorf("%d reads, want 3: two of the young node and one of the last", got)
		}
	})

	t.Run("of another node of the same name", func(t *testing.T) {
		n := startNodes(t, node("a", "z1", "10.1.0.0/24"), node("b", "z1", ""))
		kit.Eventually(t, "the range", func() bool { return n.at("10.1.0.1") == "a" })
		n.pass("first")
		kit.Must(t, n.api.Delete(node("a", "", ""), node("b", "", "")))
		n.put(node("a", "z1", "10.2.0.0/24"), node("b", "z1", "10.3.0.0/24"))
		kit.Eventually(t, "the ranges of the new nodes", func() bool { return n.at("10.2.0.1") == "a" && n.at("10.3.0.1") == "b" })
		if n.at("10.1.0.1") != "" {
			t.Error("the range of the node that is gone stayed")
		}
	})

	t.Run("of another node of the same name, unseen", func(t *testing.T) {
		n := startNodes(t, node("a", "z1", "10.1.0.0/24"), node("b", "z1", ""))
		kit.Eventually(t, "the range", func() bool { return n.at("10.1.0.1") == "a" })
		n.pass("first")
		n.away(func() {
			kit.Must(t, n.api.Delete(node("a", "", ""), node("b", "", "")))
			n.put(node("a", "z1", "10.2.0.0/24"), node("b", "z1", "10.3.0.0/24"))
		})
		kit.Eventually(t, "the ranges of the new nodes", func() bool { return n.at("10.2.0.1") == "a" && n.at("10.3.0.1") == "b" })
		if n.at("10.1.0.1") != "" {
			t.Error("the range of the node that is gone stayed")
		}
	})

	t.Run("without one in the whole cluster", func(t *testing.T) {
		var all []runtime.Object
		for i := range 3 * fewNodes {
			all = append(all, node(fmt.Sprintf("n%d", i), "z1", ""))
		}
		n := startNodes(t, all...)
		kit.Eventually(t, "the list", func() bool { return n.reads() == 1 })
		n.pass("first")
		n.away(func() {})
		n.pass("last")
		if got := n.reads(); got != 2 {
			t.Errorf("%d reads, want 2: one list of all, and one of the last node", got)
		}
	})
}

// TestNodesRelist lists all nodes again after missed changes: unchanged records stay.
func TestNodesRelist(t *testing.T) {
	var all []runtime.Object
	for i := range 3 * fewNodes {
		o := node(fmt.Sprintf("n%d", i), "z1", fmt.Sprintf("10.1.%d.0/24", i))
		o.UID = types.UID("uid of " + o.Name)
		all = append(all, o)
	}
	n := startNodes(t, all...)
	kit.Eventually(t, "the range of the last name", func() bool { return n.at("10.1.9.1") == "n9" })
	kept, reads := n.node("n5"), n.reads()
	n.away(func() {
		n.put(node("late", "z2", "10.2.0.0/24"), node("n3", "z3", "10.1.3.0/24"))
		kit.Must(t, n.api.Delete(node("n4", "", "")))
	})
	kit.Eventually(t, "the missed changes", func() bool { return n.zone("late") == "z2" && n.at("10.2.0.1") == "late" })
	if n.zone("n4") != "none" || n.at("10.1.4.1") != "" || n.zone("n3") != "z3" || n.at("10.1.3.1") != "n3" {
		t.Error("a missed deletion or change is not in the index")
	}
	if n.node("n5") != kept {
		t.Error("the record of an unchanged node was replaced")
	}
	unchanged := &metav1.PartialObjectMetadata{ObjectMeta: node("n5", "z1", "").ObjectMeta}
	unchanged.UID = "uid of n5"
	if r, err := theResource(n.Source, source.Nodes).records.strip(unchanged); err != nil || r != any(kept) {
		t.Errorf("a list makes another record of an unchanged node: %v, %v", r, err)
	}
	if got := n.reads() - reads; got != 1 {
		t.Errorf("%d reads of whole Nodes, want 1, of the new node", got)
	}
}

// TestNodeRangesFail: ranges that cannot be read delay nothing, are logged once and read later.
func TestNodeRangesFail(t *testing.T) {
	log := kit.Logged(t)
	n := startNodes(t, node("a", "z1", "10.1.0.0/24"))
	kit.Eventually(t, "the range", func() bool { return n.at("10.1.0.1") == "a" })
	n.api.Forbid(kubeapi.Nodes, true) // the watch stays open
	reads := n.reads()
	n.put(node("b", "z2", "10.2.0.0/24"))
	kit.Eventually(t, "several attempts", func() bool { return n.reads() > reads+5 })
	n.put(node("c", "z3", "10.3.0.0/24"))
	kit.Eventually(t, "the labels of the next node", func() bool { return n.zone("c") == "z3" })
	n.api.Forbid(kubeapi.Nodes, false)
	kit.Eventually(t, "the ranges", func() bool { return n.at("10.2.0.1") == "b" && n.at("10.3.0.1") == "c" })
	if got := log.Lines("[WARNING]", "nodes: the ranges of pod addresses cannot be read", `cannot list resource "nodes"`); len(got) != 1 {
		t.Errorf("logged %q, want one line", got)
	}
	kit.Eventually(t, "the end in the log", func() bool { return len(log.Lines("[INFO]", "nodes: the ranges of pod addresses are read")) == 1 })
}

// TestNodesForbidden: a cluster whose RBAC denies Nodes is served all the same.
func TestNodesForbidden(t *testing.T) {
	log := kit.Logged(t)
	api := kubeapi.New(t)
	api.Forbid(kubeapi.Nodes, true)
	kit.Must(t, api.Put(namespace("shop"), service("web", "10.96.0.1", nil), node("a", "z1", "10.1.0.0/24")))
	n := runNodes(t, api, api.URL())
	all := []string{source.Services, source.EndpointSlices, source.Namespaces}
	kit.Eventually(t, "the other resources", func() bool {
		return !slices.ContainsFunc(all, func(r string) bool { return !status(n.Source, r).Synced })
	})
	n.put(service("web", "10.96.0.2", nil))
	kit.Eventually(t, "an update of another resource", func() bool { return hasIP(n.ix, "web", "10.96.0.2") })
	if st := status(n.Source, source.Nodes); st.Resource != source.Nodes || st.Synced || st.Frozen {
		t.Errorf("nodes: %+v", st)
	}
	r, state := theResource(n.Source, source.Nodes), new(watching)
	kit.Eventually(t, "the reason", func() bool { _, err := r.health.away(); return err != nil })
	if !status(n.Source, source.Nodes).Denied || status(n.Source, source.Services).Denied {
		t.Errorf("want Nodes denied, and nothing else: %+v", n.Status())
	}
	r.health.mu.Lock()
	r.health.closed = r.health.closed.Add(-lostAfter) // long without a watch
	r.health.mu.Unlock()
	for range 3 {
		r.check(t.Context(), state)
	}
	if got := log.Lines("[WARNING]", "nodes: no watch on the API server", "callers may be unknown", `resource "nodes"`); len(got) != 1 {
		t.Errorf("logged %q, want one line", got)
	}
	api.Forbid(kubeapi.Nodes, false)
	kit.Eventually(t, "the node, once it may be read", func() bool { return n.zone("a") == "z1" && n.at("10.1.0.1") == "a" })
	if status(n.Source, source.Nodes).Denied {
		t.Error("still denied")
	}
}

// TestNodesStop ends a source while it reads whole Nodes.
func TestNodesStop(t *testing.T) {
	api := kubeapi.New(t)
	api.Hang(kubeapi.Nodes, true)
	s, err := New(Connection{Endpoint: api.URL()}, withNodes)
	kit.Must(t, err)
	p := s.podCIDRs(index.New())
	p.queue.Add(everyNode)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.run(ctx)
	}()
	kit.Eventually(t, "the request", func() bool {
		return api.Requests()[kubeapi.Request{Verb: kubeapi.VerbList, Resource: kubeapi.Nodes, ContentType: runtime.ContentTypeProtobuf}] == 1
	})
	stop()
	kit.Eventually(t, "the end", func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
}

// TestNodesSynced: Nodes are synced when their ranges have been read, not only their metadata. Until then an unknown
// caller may be on a node.
func TestNodesSynced(t *testing.T) {
	n := startNodes(t, node("a", "z1", "10.1.0.0/24"))
	read := func() bool {
		for _, s := range n.Source.Status() {
			if s.Resource == source.Nodes {
				return s.Synced
			}
		}
		return false
	}
	kit.Eventually(t, "Nodes are read", read)
	if n.at("10.1.0.1") != "a" {
		t.Error("without their ranges")
	}
	n.Source.nodesRead.Store(false)
	if read() {
		t.Error("their metadata are enough")
	}
}

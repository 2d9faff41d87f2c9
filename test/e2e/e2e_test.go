// Package e2e runs clusterdns against a real API server and queries it with dig.
package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// account is the user of clusterdns; it has the permissions of README.md, and no more.
const account = "system:serviceaccount:kube-system:clusterdns"

// cluster is a real API server with a clusterdns that reads it.
type cluster struct {
	*controlplane.ControlPlane
	whole      *testing.T // the parent of all tests; clusterdns runs as long as it
	client     kubernetes.Interface
	program    string
	kubeconfig string
	dns        *daemon.Process
	status     string // host:port of readiness
	metrics    string // host:port of metrics
}

// corefile has all options set: pods verified watches pods too.
const corefile = `.:PORT {
    bind 127.0.0.1
    errors
    ready 127.0.0.1:%d
    prometheus 127.0.0.1:%d
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig %s
        pods verified
        ttl 1
    }
    hosts {
        192.0.2.53 payments.example.com
        fallthrough
    }
}
`

func start(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{whole: t, program: daemon.Program(t, "clusterdns"), ControlPlane: controlplane.Start(t)}
	c.client = c.Client()
	grant(t, c.client)
	c.kubeconfig = c.KubeconfigFor(account)
	fill(t, c.client)
	return c
}

// run starts clusterdns; it does not wait for it to answer.
func (c *cluster) run(t *testing.T) {
	t.Helper()
	c.runWith(t, corefile)
}

// runWith is run with a Corefile in the form of the constant corefile.
func (c *cluster) runWith(t *testing.T, corefile string) {
	t.Helper()
	ready, metrics := daemon.FreePort(t), daemon.FreePort(t)
	c.dns = daemon.Launch(c.whole, c.program, fmt.Sprintf(corefile, ready, metrics, c.kubeconfig))
	c.status, c.metrics = fmt.Sprintf("127.0.0.1:%d", ready), fmt.Sprintf("127.0.0.1:%d", metrics)
}

// grant gives the account the permissions of the README: to list and watch, nothing else.
func grant(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services", "namespaces", "pods"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "clusterdns"}, Rules: rules}
	if _, err := client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "clusterdns"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "clusterdns"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: account}},
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// dig runs dig with its default options and returns the lines of the short answer, sorted.
func (c *cluster) dig(t *testing.T, args ...string) []string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(c.digLong(t, append([]string{"+short"}, args...)...)), "\n")
	slices.Sort(lines)
	return slices.Compact(lines)
}

func (c *cluster) digLong(t *testing.T, args ...string) string {
	t.Helper()
	base := []string{"@127.0.0.1", "-p", fmt.Sprint(c.dns.Port), "+tries=1", "+time=3"}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "dig", append(base, args...)...).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "no servers could be reached") {
		t.Fatalf("dig %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// rcode returns the response code of a query, "" without a reply.
func (c *cluster) rcode(t *testing.T, args ...string) string {
	t.Helper()
	for _, r := range kit.ParseDig(c.digLong(t, args...)) {
		return r.Status
	}
	return ""
}

func (c *cluster) ready(t *testing.T) bool {
	t.Helper()
	code, _ := get(t, "http://"+c.status+"/ready")
	return code == http.StatusOK
}

// get returns the status code and the text of a page, 0 without a reply.
func get(t *testing.T, url string) (code int, text string) {
	t.Helper()
	client := http.Client{Timeout: 2 * time.Second}
	reply, err := client.Get(url)
	if err != nil {
		return 0, ""
	}
	page, err := io.ReadAll(reply.Body)
	kit.Must(t, err)
	kit.Must(t, reply.Body.Close())
	return reply.StatusCode, string(page)
}

// answering waits until clusterdns is ready and answers.
func (c *cluster) answering(t *testing.T, within time.Duration) {
	t.Helper()
	kit.Within(t, within, "ready", func() bool { return c.ready(t) })
	kit.Within(t, within, "an answer", func() bool { return c.rcode(t, "web.shop.svc.cluster.local") == "NOERROR" })
}

func TestCluster(t *testing.T) {
	kit.Require(t, "dig")
	c := start(t)
	c.run(t)
	c.answering(t, 30*time.Second)

	t.Run("answers", func(t *testing.T) { testAnswers(t, c) })
	t.Run("updates", func(t *testing.T) { testUpdates(t, c) })
	t.Run("metrics", func(t *testing.T) { testMetrics(t, c) })
	t.Run("reload", func(t *testing.T) { testReload(t, c) })
	t.Run("API server killed and restarted under load", func(t *testing.T) { testOutage(t, c) })
	t.Run("start without an API server", func(t *testing.T) { testBlindStart(t, c) })
	t.Run("start from a snapshot without an API server", func(t *testing.T) { testSnapshot(t, c) })
}

func testAnswers(t *testing.T, c *cluster) {
	web := clusterIPs(t, c.client, "web")
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"ClusterIP A", []string{"web.shop.svc.cluster.local", "A"}, web[:1]},
		{"ClusterIP AAAA", []string{"web.shop.svc.cluster.local", "AAAA"}, web[1:]},
		{"over TCP", []string{"+tcp", "web.shop.svc.cluster.local", "A"}, web[:1]},
		{"mixed case", []string{"WEB.shop.SVC.Cluster.local", "A"}, web[:1]},
		{"the API server's own Service", []string{"kubernetes.default.svc.cluster.local", "A"}, clusterIPsIn(t, c.client, "default", "kubernetes")[:1]},
		{"ClusterIP SRV", []string{"_http._tcp.web.shop.svc.cluster.local", "SRV"}, []string{"0 50 80 web.shop.svc.cluster.local."}},
		{"ClusterIP PTR", []string{"-x", web[0]}, []string{"web.shop.svc.cluster.local."}},
		{"ClusterIP PTR, IPv6", []string{"-x", web[1]}, []string{"web.shop.svc.cluster.local."}},
		{"headless A", []string{"db.shop.svc.cluster.local", "A"}, []string{"10.244.0.10", "10.244.1.10"}},
		{"headless AAAA", []string{"db.shop.svc.cluster.local", "AAAA"}, []string{"fd00:10:244::a"}},
		{"endpoint name", []string{"db-0.db.shop.svc.cluster.local", "A"}, []string{"10.244.0.10"}},
		{"headless SRV", []string{"_postgres._tcp.db.shop.svc.cluster.local", "SRV"}, []string{"0 33 5432 db-0.db.shop.svc.cluster.local.", "0 33 5432 db-1.db.shop.svc.cluster.local."}},
		{"endpoint PTR", []string{"-x", "10.244.1.10"}, []string{"db-1.db.shop.svc.cluster.local."}},
		{"ExternalName", []string{"payments.shop.svc.cluster.local", "A"}, []string{"192.0.2.53", "payments.example.com."}},
		{"pod", []string{"10-244-0-10.shop.pod.cluster.local", "A"}, []string{"10.244.0.10"}},
		{"schema version", []string{"dns-version.cluster.local", "TXT"}, []string{`"1.1.0"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := c.dig(t, tc.args...); !slices.Equal(got, tc.want) {
				t.Errorf("dig %s printed %q, want %q", strings.Join(tc.args, " "), got, tc.want)
			}
		})
	}
	for name, want := range map[string]string{
		"nothere.shop.svc.cluster.local":    "NXDOMAIN",
		"web.nowhere.svc.cluster.local":     "NXDOMAIN",
		"10-244-9-9.shop.pod.cluster.local": "NXDOMAIN",
		"shop.svc.cluster.local":            "NOERROR",
	} {
		if got := c.rcode(t, name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func testUpdates(t *testing.T, c *cluster) {
	ctx, shop := t.Context(), "shop"
	if _, err := c.client.CoreV1().Services(shop).Create(ctx, headless("late"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	endpointSlices := c.client.DiscoveryV1().EndpointSlices(shop)
	late, err := endpointSlices.Create(ctx, slice("late-1", "late", "10.244.0.77"), metav1.CreateOptions{})
	kit.Must(t, err)
	is := func(want ...string) func() bool {
		return func() bool { return slices.Equal(c.dig(t, "late.shop.svc.cluster.local"), want) }
	}
	kit.Within(t, 5*time.Second, "the new Service", is("10.244.0.77"))
	late.Endpoints[0].Addresses = []string{"10.244.0.78"}
	late.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
	if late, err = endpointSlices.Update(ctx, late, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Within(t, 5*time.Second, "the new address", is("10.244.0.78"))
	late.Annotations = nil
	notReady := false
	late.Endpoints[0].Conditions.Ready = &notReady
	if _, err = endpointSlices.Update(ctx, late, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Within(t, 5*time.Second, "nothing ready", func() bool { return c.rcode(t, "late.shop.svc.cluster.local") == "NXDOMAIN" })
	kit.Must(t, c.client.CoreV1().Services(shop).Delete(ctx, "late", metav1.DeleteOptions{}))
}

// testMetrics checks that the metrics of the plugin's README exist, except those of events that have not happened:
// client-go times requests that are not watches.
func testMetrics(t *testing.T, c *cluster) {
	_, page := get(t, "http://"+c.metrics+"/metrics")
	for _, want := range []string{
		`nearside_kubernetes_last_sync_seconds{resource="services"} `,
		`nearside_kubernetes_last_sync_seconds{resource="endpointslices"} `,
		`nearside_kubernetes_last_sync_seconds{resource="namespaces"} `,
		`nearside_kubernetes_last_sync_seconds{resource="pods"} `,
		`coredns_kubernetes_dns_programming_duration_seconds_count{service_kind="headless_with_selector"} 1`,
		`coredns_kubernetes_rest_client_requests_total{code="200",host=`,
	} {
		if !strings.Contains(page, "\n"+want) {
			t.Errorf("no metric %s", want)
		}
	}
}

// testReload writes an invalid Corefile and then a changed one: the first changes nothing, and neither lists the cluster
// again.
func testReload(t *testing.T, c *cluster) {
	good := fmt.Sprintf(corefile, daemon.FreePort(t), daemon.FreePort(t), c.kubeconfig)
	c.dns.Configure(t, strings.Replace(good, "ttl 1", "ttl 99999", 1))
	c.dns.Signal(t, reloadSignal)
	kit.Within(t, 10*time.Second, "the error", func() bool {
		return strings.Contains(c.dns.Output(), `Corefile:9 - Error during parsing: invalid ttl "99999": want seconds, 0 to 3600`)
	})
	web := clusterIPs(t, c.client, "web")
	if got := c.dig(t, "web.shop.svc.cluster.local"); !slices.Equal(got, web[:1]) {
		t.Fatalf("after a broken configuration: %q", got)
	}
	c.KillAPIServer() // the last known state must survive a reload without the API server
	c.dns.Configure(t, strings.Replace(good, "ttl 1", "ttl 7", 1))
	c.dns.Signal(t, reloadSignal)
	kit.Within(t, 10*time.Second, "the new ttl", func() bool {
		return strings.Contains(strings.Join(strings.Fields(c.digLong(t, "web.shop.svc.cluster.local")), " "), " 7 IN A "+web[0])
	})
	c.StartAPIServer()
	c.dns.Stop(t)
	c.run(t)
	c.answering(t, 30*time.Second)
}

func testBlindStart(t *testing.T, c *cluster) {
	c.dns.Stop(t)
	c.KillAPIServer()
	c.run(t)
	kit.Within(t, 30*time.Second, "an answer", func() bool { return c.rcode(t, "web.shop.svc.cluster.local") != "" })
	for _, name := range []string{"web.shop.svc.cluster.local", "nothere.shop.svc.cluster.local", "shop.svc.cluster.local"} {
		if got := c.rcode(t, name); got != "SERVFAIL" {
			t.Errorf("%s before the first reading: %s, want SERVFAIL", name, got)
		}
	}
	if c.ready(t) {
		t.Error("ready before the first sync")
	}
	c.StartAPIServer()
	kit.Within(t, 60*time.Second, "ready after the API server started", func() bool { return c.ready(t) })
	if got, want := c.dig(t, "web.shop.svc.cluster.local"), clusterIPs(t, c.client, "web")[:1]; !slices.Equal(got, want) {
		t.Errorf("after the API server came: %q, want %q", got, want)
	}
}

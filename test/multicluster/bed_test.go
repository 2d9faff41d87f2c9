//go:build linux

package multicluster

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

const (
	// account is the user of clusterdns; it has the permissions of README.md, and no more.
	account = "system:serviceaccount:kube-system:clusterdns"
	// deniedAccount has the same permissions, except to read ServiceImports.
	deniedAccount = "system:serviceaccount:kube-system:clusterdns-without-imports"
	// clusterHost is the address of cluster DNS for nodecache, which does not query 127.0.0.1: that could be itself.
	clusterHost = "127.0.0.2"
	// clusterVariable is the environment variable in which the kubelet sets the address of cluster DNS.
	clusterVariable = "KUBE_DNS_SERVICE_HOST"
)

// TestMain sets the environment of the programs.
func TestMain(m *testing.M) {
	if err := errors.Join(os.Setenv(clusterVariable, clusterHost), os.Setenv("NODE_NAME", ""), os.Setenv("NODE_ZONE", "")); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// clusterset is all clusters. A namespace is the same in each of them (KEP-1645).
type clusterset struct {
	west *cluster // its ID is of one label
	east *cluster // its ID is of two labels
}

func (cs *clusterset) all() []*cluster { return []*cluster{cs.west, cs.east} }

// cluster is one cluster of the set: an API server, and a clusterdns that reads it.
type cluster struct {
	*controlplane.ControlPlane
	id      string
	subnet  int    // part of its addresses
	version string // of the ServiceImports that the tests write
	client  kubernetes.Interface
	objects dynamic.Interface // by resource
	main    *server
}

// start starts two clusters, without the tests' objects and without the definitions of their kinds.
func start(t *testing.T) *clusterset {
	t.Helper()
	kit.Require(t, "dig")
	return &clusterset{west: startCluster(t, "west", 1), east: startCluster(t, "east.prod", 2)}
}

func startCluster(t *testing.T, id string, subnet int) *cluster {
	t.Helper()
	c := &cluster{ControlPlane: controlplane.Start(t), id: id, subnet: subnet, version: serviceImports.Version}
	c.client = c.Client()
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	kit.Must(t, err)
	config.QPS = -1 // no limit
	if c.objects, err = dynamic.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	c.grant(t, "clusterdns", account, rightsOfAll...)
	c.grant(t, "clusterdns-imports", account, rightsOfImports)
	c.grant(t, "clusterdns-without-imports", deniedAccount, rightsOfAll...)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}}
	if _, err := c.client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// The permissions of clusterdns: to list and watch, nothing else.
var (
	watch       = []string{"list", "watch"}
	rightsOfAll = []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services", "namespaces", "nodes"}, Verbs: watch},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: watch},
		{APIGroups: []string{"about.k8s.io"}, Resources: []string{"clusterproperties"}, Verbs: watch},
	}
	rightsOfImports = rbacv1.PolicyRule{APIGroups: []string{"multicluster.x-k8s.io"}, Resources: []string{"serviceimports"}, Verbs: watch}
)

// grant grants a user permissions in the whole cluster.
func (c *cluster) grant(t *testing.T, role, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	object := metav1.ObjectMeta{Name: role}
	if _, err := c.client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: object, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: object,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := c.client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// server is a running clusterdns. It has a block for each setup, on a port of its own.
type server struct {
	*daemon.Process
	ports  map[string]int // by setup
	status string         // host:port of readiness
}

// setups are the server blocks of a clusterdns, by name. KUBECONFIG stands for the path of a file.
type setups map[string]string

// launch starts a clusterdns as a user of the cluster, until the end of the test, and returns at once.
func (c *cluster) launch(t *testing.T, user string, all setups) *server {
	t.Helper()
	s := &server{ports: map[string]int{}, status: "127.0.0.1:" + strconv.Itoa(daemon.FreePort(t))}
	var corefile strings.Builder
	for name, text := range all {
		s.ports[name] = daemon.FreePort(t)
		fmt.Fprintf(&corefile, ".:%d {\n    bind 127.0.0.1 %s\n    errors\n    ready %s\n    %s}\n", s.ports[name], clusterHost, s.status, text)
	}
	text := strings.ReplaceAll(corefile.String(), "KUBECONFIG", c.KubeconfigFor(user))
	s.Process = daemon.Launch(t, daemon.Program(t, "clusterdns"), text)
	return s
}

// launchMain starts a clusterdns with one setup, the usual one, whose name is "".
func (c *cluster) launchMain(t *testing.T) *server {
	t.Helper()
	return c.launch(t, account, setups{"": imports()})
}

// at returns a query to a setup of the server.
func (s *server) at(setup string) asking {
	return at(fmt.Sprintf("127.0.0.1:%d", s.ports[setup]))
}

// upstream is the address of a setup for nodecache.
func (s *server) upstream(setup string) string {
	return fmt.Sprintf("%s:%d", clusterHost, s.ports[setup])
}

// isReady returns an error unless the server is ready.
func (s *server) isReady() error {
	_, err := kit.Get(&http.Client{Timeout: bounded}, "http://"+s.status+"/ready")
	return err
}

// awaitReady waits until the server is ready.
func (s *server) awaitReady(t *testing.T) {
	t.Helper()
	kit.Succeeds(t, bounded, "clusterdns is ready", s.isReady)
}

// wantLines fails the test unless the log, after its first before bytes, has want lines with all of these words.
func (s *server) wantLines(t *testing.T, before, want int, words ...string) {
	t.Helper()
	if all := s.lines(before, words...); len(all) != want {
		t.Errorf("%d lines with %q, want %d:\n%s", len(all), words, want, strings.Join(all, "\n"))
	}
}

// lines returns the lines of the log, after its first before bytes, with all of these words.
func (s *server) lines(before int, words ...string) (all []string) {
	for line := range strings.Lines(s.Output()[before:]) {
		if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// awaitLine waits until the log, after its first before bytes, has a line with all of these words.
func (s *server) awaitLine(t *testing.T, before int, words ...string) {
	t.Helper()
	kit.Succeeds(t, bounded, fmt.Sprintf("the log has %q", words), func() error {
		if len(s.lines(before, words...)) == 0 {
			return fmt.Errorf("the log is\n%s", s.Output()[before:])
		}
		return nil
	})
}

// since logs a duration.
func since(t *testing.T, begin time.Time, what string) {
	t.Helper()
	t.Logf("%s after %v", what, time.Since(begin).Round(100*time.Millisecond))
}

package controlplane

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nearside-dns/nearside/test/kit"
)

func TestControlPlane(t *testing.T) {
	begin := time.Now()
	c := Start(t)
	t.Logf("started in %v; memory: etcd %s, kube-apiserver %s",
		time.Since(begin).Round(time.Millisecond), residentMemory(t, c.etcd), residentMemory(t, c.apiServer))

	served, err := c.Client().Discovery().ServerVersion()
	kit.Must(t, err)
	if _, err := version.ParseSemantic(served.GitVersion); err != nil {
		t.Errorf("version %q: %v", served.GitVersion, err)
	}
	if want := fmt.Sprintf("v%s.%s.", served.Major, served.Minor); !strings.HasPrefix(served.GitVersion, want) {
		t.Errorf("version %q does not begin with %q", served.GitVersion, want)
	}

	ctx := t.Context()
	makeObjects(ctx, t, c.Client())
	before := readService(ctx, t, c.Client())

	c.KillAPIServer()
	if err := get(ctx, c.Client()); err == nil {
		t.Error("a killed API server answers")
	}
	begin = time.Now()
	c.StartAPIServer()
	t.Logf("restarted in %v; memory: kube-apiserver %s",
		time.Since(begin).Round(time.Millisecond), residentMemory(t, c.apiServer))
	after := readService(ctx, t, c.Client())
	if before.UID != after.UID || !slices.Equal(before.Spec.ClusterIPs, after.Spec.ClusterIPs) {
		t.Errorf("the service was %v before the restart and is %v after it", before.Spec, after.Spec)
	}

	t.Run("freeze", func(t *testing.T) { testFreeze(t, c) })
	t.Run("limited user", func(t *testing.T) { testLimitedUser(t, c) })

	c.FreezeAPIServer()
	c.Stop() // also ends a frozen server
	c.Stop()
	if c.apiServer.running() || c.etcd.running() {
		t.Error("a server runs after Stop")
	}
}

// testFreeze asserts that a frozen server answers nothing and a thawed one does.
func testFreeze(t *testing.T, c *ControlPlane) {
	c.FreezeAPIServer()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := get(ctx, c.Client()); err == nil {
		t.Error("a frozen API server answers")
	}
	c.ThawAPIServer()
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := get(ctx, c.Client()); err != nil {
		t.Errorf("after the thaw: %v", err)
	}
}

// testLimitedUser asserts that a user has the permissions of RBAC and no others.
func testLimitedUser(t *testing.T, c *ControlPlane) {
	ctx := t.Context()
	const user = "system:serviceaccount:kube-system:reader"
	client := clientFor(t, c.KubeconfigFor(user))
	if err := get(ctx, client); !apierrors.IsForbidden(err) {
		t.Errorf("without a role: %v, want forbidden", err)
	}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"get"}}},
	}
	if _, err := c.Client().RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "kube-system", Name: "reader"}},
	}
	if _, err := c.Client().RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	err := get(ctx, client)
	for err != nil && time.Now().Before(deadline) { // the API server reads the role by a watch
		time.Sleep(50 * time.Millisecond)
		err = get(ctx, client)
	}
	if err != nil {
		t.Errorf("with a role: %v", err)
	}
	if _, err := client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list secrets: %v, want forbidden", err)
	}
}

// The names of the objects that makeObjects makes.
const (
	testNamespace = "bench"
	testService   = "web"
	testSlice     = "web-1"
)

// makeObjects makes a namespace with a dual-stack service and its endpoints.
func makeObjects(ctx context.Context, t *testing.T, client kubernetes.Interface) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: testNamespace}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dualStack := corev1.IPFamilyPolicyRequireDualStack
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: testService},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: &dualStack,
			Ports:          []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	if _, err := client.CoreV1().Services(testNamespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: testSlice, Labels: map[string]string{discoveryv1.LabelServiceName: testService}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.2.3"}}},
	}
	if _, err := client.DiscoveryV1().EndpointSlices(testNamespace).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// readService reads the objects of makeObjects and checks the addresses.
func readService(ctx context.Context, t *testing.T, client kubernetes.Interface) *corev1.Service {
	t.Helper()
	service, err := client.CoreV1().Services(testNamespace).Get(ctx, testService, metav1.GetOptions{})
	kit.Must(t, err)
	if len(service.Spec.ClusterIPs) != 2 {
		t.Fatalf("cluster IPs %v, want two", service.Spec.ClusterIPs)
	}
	for i, text := range strings.Split(ServiceCIDRs, ",") {
		address, err := netip.ParseAddr(service.Spec.ClusterIPs[i])
		kit.Must(t, err)
		if !netip.MustParsePrefix(text).Contains(address) {
			t.Errorf("cluster IP %v is not in %s", address, text)
		}
	}
	slice, err := client.DiscoveryV1().EndpointSlices(testNamespace).Get(ctx, testSlice, metav1.GetOptions{})
	kit.Must(t, err)
	if len(slice.Endpoints) != 1 || !slices.Equal(slice.Endpoints[0].Addresses, []string{"10.1.2.3"}) {
		t.Errorf("endpoints %v, want 10.1.2.3", slice.Endpoints)
	}
	return service
}

// get reads the service with a client and reports whether that worked.
func get(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.CoreV1().Services(testNamespace).Get(ctx, testService, metav1.GetOptions{})
	return err
}

// clientFor makes a client from a kubeconfig file.
func clientFor(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	kit.Must(t, err)
	client, err := kubernetes.NewForConfig(config)
	kit.Must(t, err)
	return client
}

// residentMemory returns the resident memory of a process, such as "123456 kB".
func residentMemory(t *testing.T, p *process) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "VmRSS:"); found {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

func TestReservePort(t *testing.T) {
	p, err := reservePort()
	kit.Must(t, err)
	address := net.JoinHostPort("127.0.0.1", fmt.Sprint(p.number))
	if connection, err := net.Dial("tcp", address); err == nil {
		t.Errorf("a process listens on reserved port %d: %v", p.number, connection.Close())
	}
	kit.Must(t, p.release())
}

func TestLogTail(t *testing.T) {
	path := t.TempDir() + "/log"
	kit.Write(t, path, "first\nsecond\nthird\n")
	for limit, want := range map[int64]string{6: "third\n", 10: "third\n", 100: "first\nsecond\nthird\n"} {
		got, err := logTail(path, limit)
		kit.Must(t, err)
		if got != want {
			t.Errorf("last %d bytes: %q, want %q", limit, got, want)
		}
	}
}

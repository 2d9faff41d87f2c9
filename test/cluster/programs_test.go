//go:build linux

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	_ "embed"

	"github.com/nearside-dns/nearside/test/kit"
)

const (
	nodeName = "node"
	// outsideIPv4 and outsideIPv6 are the addresses of the host next to the node.
	outsideIPv4, outsideIPv6 = "10.2.0.1", "fd02::1"
	// nodeSearch is the search list of the node itself.
	nodeSearch = "node.test"
	// serviceRanges are the ranges of cluster IPs, and apiService the first one, the address of the API server.
	serviceRanges, apiService = "10.96.0.0/16,fd00:96::/112", "10.96.0.1"
	// clusterDNS is the address of the Service kube-dns, which the kubelet writes into resolv.conf.
	clusterDNS = "10.96.0.10"
	// cniFolder is the folder of Debian's package containernetworking-plugins.
	cniFolder = "/usr/lib/cni"
)

// podRanges are the ranges of addresses of the pods of a node.
func podRanges(number int) []string {
	return []string{fmt.Sprintf("10.244.%d.0/24", number), fmt.Sprintf("fd00:244:0:%x::/64", number)}
}

// The configuration of the node's programs. startNode replaces FOLDER, CA_FILE, RANGE_IPV4 and RANGE_IPV6.
var (
	//go:embed testdata/containerd.toml
	containerdConfig string
	//go:embed testdata/network.conflist
	networkConfig string
	//go:embed testdata/kubelet.yaml
	kubeletConfig string
)

// program is a program that runs on the node.
type program struct {
	name  string
	group int           // process group
	log   string        // its path
	ended chan struct{} // closed at its end
}

// start starts a program of the node, with its output in a file. It ends with the node.
func (c *cluster) start(t *testing.T, name string, args ...string) {
	t.Helper()
	p := &program{name: name, log: filepath.Join(c.folder, name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	kit.Must(t, err)
	if built, ok := c.binaries[name]; ok {
		name = built
	} else if name, err = exec.LookPath(name); err != nil {
		t.Fatal(err)
	}
	// Not with the context of the test, which ends before the cleanup.
	cmd := c.command(context.Background(), append([]string{c.inside, "join", name}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // with which Linux ends the child
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- errors.Join(err, log.Close())
		if err == nil {
			_ = cmd.Wait() // its log has the reason of the end
		}
		close(p.ended)
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	p.group = cmd.Process.Pid
	c.programs = append(c.programs, p)
}

// signal sends a signal to a program and to the nsenter around it, which stops with its child, and has to continue as well.
func (c *cluster) signal(t *testing.T, name string, s syscall.Signal) {
	t.Helper()
	for _, p := range c.programs {
		if p.name == name {
			if err := syscall.Kill(-p.group, s); err != nil {
				t.Fatalf("signal %s to %s: %v", s, name, err)
			}
			return
		}
	}
	t.Fatalf("no program %s", name)
}

// showLogs logs the ends of all logs in the test's output.
func (c *cluster) showLogs(t *testing.T) {
	for _, p := range c.programs {
		text, err := os.ReadFile(p.log)
		if err != nil {
			t.Log(err)
			continue
		}
		t.Logf("the end of the log of %s:\n%s", p.name, text[max(0, len(text)-logTail):])
	}
}

// startControlPlane starts etcd, the API server, the controllers and the scheduler on the node, and waits until they
// are ready.
func (c *cluster) startControlPlane(t *testing.T) {
	t.Helper()
	keys := filepath.Join(c.folder, "keys")
	kit.Must(t, os.Mkdir(keys, 0o700))
	c.keys = newAuthority(t, keys)
	address := c.Node.IPv4.String()
	c.url = "https://" + net.JoinHostPort(address, "6443")
	c.keys.server(t, "apiserver", []string{"kubernetes.default.svc", "localhost"}, net.ParseIP(address), net.ParseIP(apiService))
	c.keys.server(t, "accounts", nil) // whose key signs the tokens of service accounts
	c.keys.client(t, "admin", c.url, "admin", "system:masters")
	for _, part := range []string{"kube-controller-manager", "kube-scheduler", "kube-proxy"} {
		c.keys.client(t, part, c.url, "system:"+part)
	}
	c.connect(t)
	c.start(t, "etcd", "--data-dir="+filepath.Join(c.folder, "etcd"), "--unsafe-no-fsync", "--log-level=warn")
	c.start(t, "kube-apiserver",
		"--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address="+address,
		"--tls-cert-file="+c.keys.path("apiserver.crt"), "--tls-private-key-file="+c.keys.path("apiserver.key"),
		"--client-ca-file="+c.keys.path("ca.crt"),
		"--kubelet-client-certificate="+c.keys.path("admin.crt"), "--kubelet-client-key="+c.keys.path("admin.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+c.keys.path("accounts.key"), "--service-account-signing-key-file="+c.keys.path("accounts.key"),
		"--service-cluster-ip-range="+serviceRanges,
		"--profiling=false",
	)
	c.wait(t, "the API server", startTimeout, func() error {
		_, err := c.Client.CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
		return err
	})
	c.start(t, "kube-controller-manager",
		"--kubeconfig="+c.keys.path("kube-controller-manager.kubeconfig"),
		"--service-account-private-key-file="+c.keys.path("accounts.key"), "--root-ca-file="+c.keys.path("ca.crt"),
		"--use-service-account-credentials=true", "--leader-elect=false", "--bind-address=127.0.0.1",
	)
	c.start(t, "kube-scheduler",
		"--kubeconfig="+c.keys.path("kube-scheduler.kubeconfig"), "--leader-elect=false", "--bind-address=127.0.0.1",
	)
	c.wait(t, "the controllers", startTimeout, func() error {
		// A pod needs this account, which the controllers create.
		_, err := c.Client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}

// startNode starts containerd, the kubelet and kube-proxy, and waits until the node is ready.
func (c *cluster) startNode(t *testing.T) {
	t.Helper()
	settings := strings.NewReplacer("FOLDER", c.folder, "CA_FILE", c.keys.path("ca.crt"), "RANGE_IPV4", c.ranges[0], "RANGE_IPV6", c.ranges[1])
	for path, text := range map[string]string{
		"containerd.toml":         containerdConfig,
		"network/10-ptp.conflist": networkConfig,
		"kubelet.yaml":            kubeletConfig,
	} {
		path = filepath.Join(c.folder, path)
		kit.Write(t, path, settings.Replace(text))
	}
	c.start(t, "containerd", "--config="+filepath.Join(c.folder, "containerd.toml"))
	c.wait(t, "containerd", startTimeout, func() error {
		_, err := c.try(t.Context(), "ctr", "version")
		return err
	})
	for _, archive := range c.archives {
		c.load(t, archive)
	}
	c.keys.client(t, "kubelet-"+c.name, c.url, "system:node:"+c.name, "system:nodes")
	c.startKubelet(t)
	c.start(t, "kube-proxy",
		"--kubeconfig="+c.keys.path("kube-proxy.kubeconfig"), "--hostname-override="+c.name,
		"--proxy-mode=nftables", "--cluster-cidr="+strings.Join(c.ranges, ","),
		// These parameters of the kernel cannot be set in a network namespace.
		"--conntrack-max-per-core=0", "--conntrack-min=0",
		"--healthz-bind-address=127.0.0.1:10256", "--metrics-bind-address=127.0.0.1:10249",
	)
	c.wait(t, "the node", startTimeout, func() error { return c.nodeReady(t) })
}

// startKubelet starts the kubelet with the configuration in the folder of the test.
func (c *cluster) startKubelet(t *testing.T) {
	t.Helper()
	c.start(t, "kubelet",
		"--config="+filepath.Join(c.folder, "kubelet.yaml"), "--kubeconfig="+c.keys.path("kubelet-"+c.name+".kubeconfig"),
		"--hostname-override="+c.name, "--node-ip="+c.nodeAddress(false)+","+c.nodeAddress(true),
	)
}

// importImage imports an image into containerd of each node.
func (c *cluster) importImage(t *testing.T, archive string) {
	t.Helper()
	c.archives = append(c.archives, archive)
	for _, node := range append([]*cluster{c}, c.workers...) {
		node.load(t, archive)
	}
}

// load imports an image into containerd of this node.
func (c *cluster) load(t *testing.T, archive string) {
	t.Helper()
	t.Logf("images: %s", c.run(t, "ctr", "--namespace=k8s.io", "images", "import", archive))
}

// nodeReady returns nil when the node is ready.
func (c *cluster) nodeReady(t *testing.T) error {
	node, err := c.Client.CoreV1().Nodes().Get(t.Context(), c.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("conditions: %v", node.Status.Conditions)
}

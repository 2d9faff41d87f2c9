package controlplane

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nearside-dns/nearside/test/kit"
)

// The names of the files in the folder of a control plane.
const (
	authorityFile        = "ca.crt"
	adminCertificateFile = "admin.crt"
	adminKeyFile         = "admin.key"
	adminKubeconfigFile  = "admin.kubeconfig"
	servingCertFile      = "serving.crt"
	servingKeyFile       = "serving.key"
	signingKeyFile       = "service-account.key"
	etcdLogFile          = "etcd.log"
	apiServerLogFile     = "kube-apiserver.log"
)

// logTailBytes is how much of each log a failed test shows, in bytes.
const logTailBytes = 8 << 10

// adminUser is the user of Kubeconfig and Client; its group has all permissions.
const (
	adminUser  = "nearside-test-admin"
	adminGroup = "system:masters"
)

// ControlPlane is a running etcd and kube-apiserver. Methods without an error as result are for a control plane of Start:
// they fail its test, so call them only from the goroutine of the test.
type ControlPlane struct {
	t             testing.TB // nil if it belongs to no test
	dir           string     // everything is in this folder
	apiServerLog  string
	etcdLog       string
	apiServerPort *port
	etcdPort      *port
	ports         []*port // all that Close releases
	authority     *authority
	client        kubernetes.Interface
	config        *rest.Config
	etcd          *process
	apiServer     *process
}

// Start starts a control plane and waits until it is ready, which takes some seconds. It stops when the test ends, and
// logs the ends of the two logs if the test failed. The test is skipped when the binaries are missing.
func Start(t testing.TB) *ControlPlane {
	t.Helper()
	Require(t)
	c := newControlPlane(t.TempDir())
	c.t = t
	t.Cleanup(func() {
		c.Stop()
		if t.Failed() {
			c.showLogs()
		}
	})
	kit.Must(t, c.start())
	return c
}

// Require skips the test, or fails it, as RequireBinary does, if a binary of a
// control plane is missing.
func Require(t testing.TB) {
	t.Helper()
	RequireBinary(t, "etcd")
	RequireBinary(t, "kube-apiserver")
}

// Run starts a control plane that belongs to no test, with its files in an
// existing folder, and waits until it is ready. The caller closes it.
func Run(folder string) (*ControlPlane, error) {
	c := newControlPlane(folder)
	if err := c.start(); err != nil {
		logs, _ := logTail(c.apiServerLog, logTailBytes)
		return nil, fmt.Errorf("%w\n%s", errors.Join(err, c.Close()), logs)
	}
	return c, nil
}

func newControlPlane(folder string) *ControlPlane {
	return &ControlPlane{
		dir:          folder,
		etcdLog:      filepath.Join(folder, etcdLogFile),
		apiServerLog: filepath.Join(folder, apiServerLogFile),
	}
}

// start starts etcd and the API server, and waits until they are ready.
func (c *ControlPlane) start() error {
	if err := c.prepare(); err != nil {
		return fmt.Errorf("prepare control plane: %w", err)
	}
	binary, err := Binary("etcd")
	if err != nil {
		return err
	}
	if c.etcd, err = startEtcd(binary, c.dir, c.etcdLog, c.etcdPort, c.ports[2]); err != nil {
		return err
	}
	return c.runAPIServer()
}

// prepare reserves the ports, writes all files and makes the client.
func (c *ControlPlane) prepare() error {
	for range 3 {
		p, err := reservePort()
		if err != nil {
			return err
		}
		c.ports = append(c.ports, p)
	}
	c.apiServerPort, c.etcdPort = c.ports[0], c.ports[1]

	var err error
	if c.authority, err = newAuthority(); err != nil {
		return err
	}
	servingCertificate, servingKey, err := c.authority.server(
		[]string{"localhost", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		[]net.IP{net.IPv4(127, 0, 0, 1)},
	)
	if err != nil {
		return err
	}
	adminCertificate, adminKey, err := c.authority.client(adminUser, []string{adminGroup})
	if err != nil {
		return err
	}
	signingKey, err := newSigningKey()
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		authorityFile:        c.authority.pem,
		servingCertFile:      servingCertificate,
		servingKeyFile:       servingKey,
		adminCertificateFile: adminCertificate,
		adminKeyFile:         adminKey,
		signingKeyFile:       signingKey,
	} {
		if err := writePrivate(filepath.Join(c.dir, name), text); err != nil {
			return err
		}
	}
	kubeconfig := newKubeconfig(c.URL(), c.authority.pem, adminCertificate, adminKey)
	if err := writeKubeconfig(c.Kubeconfig(), kubeconfig); err != nil {
		return err
	}
	if c.config, err = clientcmd.NewDefaultClientConfig(*kubeconfig, nil).ClientConfig(); err != nil {
		return fmt.Errorf("make admin client: %w", err)
	}
	c.config.QPS = -1 // a test that makes thousands of objects must not be slowed down
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return fmt.Errorf("make admin client: %w", err)
	}
	return nil
}

// URL returns the address of the API server, like "https://127.0.0.1:40123". It
// stays the same over restarts.
func (c *ControlPlane) URL() string {
	return fmt.Sprintf("https://127.0.0.1:%d", c.apiServerPort.number)
}

// Kubeconfig returns the path of a kubeconfig file for a user with all permissions.
func (c *ControlPlane) Kubeconfig() string { return filepath.Join(c.dir, adminKubeconfigFile) }

// CAFile returns the path of the PEM certificate of the authority that signed
// the API server's certificate.
func (c *ControlPlane) CAFile() string { return filepath.Join(c.dir, authorityFile) }

// CertFile returns the path of the PEM client certificate of the user of
// Kubeconfig.
func (c *ControlPlane) CertFile() string { return filepath.Join(c.dir, adminCertificateFile) }

// KeyFile returns the path of the PEM key that belongs to CertFile.
func (c *ControlPlane) KeyFile() string { return filepath.Join(c.dir, adminKeyFile) }

// EtcdURL returns the address of etcd, which also serves its API as JSON there.
func (c *ControlPlane) EtcdURL() string { return fmt.Sprintf("http://127.0.0.1:%d", c.etcdPort.number) }

// Config returns the configuration of Client.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Client returns a client that may do anything, without a limit on requests
// per second.
func (c *ControlPlane) Client() kubernetes.Interface { return c.client }

// KubeconfigFor returns the path of a new kubeconfig file for a user in these groups. The user has the permissions that
// the RBAC objects in the API server grant, and those of every authenticated user. A service account has the name
// "system:serviceaccount:NAMESPACE:NAME".
func (c *ControlPlane) KubeconfigFor(user string, groups ...string) string {
	c.t.Helper()
	path, err := c.UserKubeconfig(user, groups...)
	kit.Must(c.t, err)
	return path
}

// UserKubeconfig is KubeconfigFor for a control plane that belongs to no test. Each file has another certificate.
func (c *ControlPlane) UserKubeconfig(user string, groups ...string) (path string, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("make kubeconfig for %q: %w", user, err)
		}
	}()
	certificate, key, err := c.authority.client(user, groups)
	if err != nil {
		return "", err
	}
	file, err := os.CreateTemp(c.dir, "user-*.kubeconfig")
	if err != nil {
		return "", err
	}
	if err := file.Close(); err != nil {
		return "", err
	}
	return file.Name(), writeKubeconfig(file.Name(), newKubeconfig(c.URL(), c.authority.pem, certificate, key))
}

// StartAPIServer starts the API server again after KillAPIServer, on the same
// port and with the same data, and waits until it is ready.
func (c *ControlPlane) StartAPIServer() {
	c.t.Helper()
	if c.apiServer.running() {
		c.t.Fatal("start kube-apiserver: it is running")
	}
	kit.Must(c.t, c.runAPIServer())
}

// runAPIServer starts the API server and waits until it is ready.
func (c *ControlPlane) runAPIServer() (err error) {
	if c.apiServer, err = c.startAPIServer(); err != nil {
		return err
	}
	return waitReady(c.client, c.apiServer, c.etcd)
}

// KillAPIServer ends the API server with SIGKILL, frozen or not, and waits for its end. From then on, connections to its
// port are refused.
func (c *ControlPlane) KillAPIServer() {
	c.t.Helper()
	kit.Must(c.t, c.apiServer.kill())
}

// EndAPIServer is KillAPIServer for a control plane that belongs to no test.
func (c *ControlPlane) EndAPIServer() error { return c.apiServer.kill() }

// LaunchAPIServer starts the API server again after EndAPIServer, on the same port and with the same data. It does not wait
// until the API server is ready.
func (c *ControlPlane) LaunchAPIServer() (err error) {
	c.apiServer, err = c.startAPIServer()
	return err
}

// FreezeAPIServer stops the API server with SIGSTOP: its connections stay open and the kernel accepts new ones, but no
// request is answered.
func (c *ControlPlane) FreezeAPIServer() {
	c.t.Helper()
	kit.Must(c.t, c.apiServer.signal(syscall.SIGSTOP))
	kit.Within(c.t, killTimeout, "the API server stops after SIGSTOP", c.apiServer.stopped)
}

// ThawAPIServer continues a frozen API server with SIGCONT. It does not wait until the API server is ready.
func (c *ControlPlane) ThawAPIServer() {
	c.t.Helper()
	kit.Must(c.t, c.apiServer.signal(syscall.SIGCONT))
}

// Stop is Close for a control plane of Start. It runs at the end of the test; a second call does nothing.
func (c *ControlPlane) Stop() {
	c.t.Helper()
	if err := c.Close(); err != nil {
		c.t.Error(err)
	}
}

// Close ends both servers with SIGKILL, since their data is for tests only, and
// releases the ports. A second call does nothing.
func (c *ControlPlane) Close() error {
	err := errors.Join(c.apiServer.kill(), c.etcd.kill())
	for _, p := range c.ports {
		err = errors.Join(err, p.release())
	}
	c.ports = nil
	if err != nil {
		return fmt.Errorf("stop control plane: %w", err)
	}
	return nil
}

// showLogs logs the ends of both logs in the test's output.
func (c *ControlPlane) showLogs() {
	for _, path := range []string{c.etcdLog, c.apiServerLog} {
		text, err := logTail(path, logTailBytes)
		if err != nil {
			c.t.Logf("%s: %v", filepath.Base(path), err)
			continue
		}
		c.t.Logf("the end of %s:\n%s", filepath.Base(path), text)
	}
}

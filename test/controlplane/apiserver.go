package controlplane

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// ServiceCIDRs are the ranges of cluster IPs, the primary range first.
const ServiceCIDRs = "10.96.0.0/16,fd00:96::/112"

// advertiseAddress is the address of the API server in the EndpointSlice of the
// Service kubernetes. Kubernetes allows no loopback address there, so it is one
// reserved for documentation.
const advertiseAddress = "192.0.2.1"

const (
	// readyTimeout bounds the wait for a ready API server. An idle machine needs a few seconds.
	readyTimeout = 2 * time.Minute
	// readyInterval is the time between two checks of readiness.
	readyInterval = 50 * time.Millisecond
	// readyRequestTimeout bounds one such check.
	readyRequestTimeout = 5 * time.Second
)

// startAPIServer starts kube-apiserver with the files that Start made, and does
// not wait until it is ready.
func (c *ControlPlane) startAPIServer() (*process, error) {
	binary, err := Binary("kube-apiserver")
	if err != nil {
		return nil, err
	}
	return startProcess("kube-apiserver", binary, c.dir, c.apiServerLog,
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", c.etcdPort.number),
		"--bind-address=127.0.0.1",
		"--secure-port="+strconv.Itoa(c.apiServerPort.number),
		"--permit-port-sharing=true",
		"--advertise-address="+advertiseAddress,
		"--tls-cert-file="+filepath.Join(c.dir, servingCertFile),
		"--tls-private-key-file="+filepath.Join(c.dir, servingKeyFile),
		"--client-ca-file="+c.CAFile(),
		"--anonymous-auth=false",
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+filepath.Join(c.dir, signingKeyFile),
		"--service-account-signing-key-file="+filepath.Join(c.dir, signingKeyFile),
		"--service-cluster-ip-range="+ServiceCIDRs,
		"--disable-admission-plugins=ServiceAccount",
		"--profiling=false",
	)
}

// waitReady waits until the API server is ready and has created its own objects. It fails when one of the servers ends,
// or after readyTimeout.
func waitReady(client kubernetes.Interface, apiServer, etcd *process) error {
	deadline := time.NewTimer(readyTimeout)
	defer deadline.Stop()
	for {
		err := lookReady(client)
		if err == nil {
			return nil
		}
		select {
		case <-apiServer.exited:
			return fmt.Errorf("wait for kube-apiserver: %w", apiServer.ended())
		case <-etcd.exited:
			return fmt.Errorf("wait for kube-apiserver: %w", etcd.ended())
		case <-deadline.C:
			return fmt.Errorf("wait for kube-apiserver: not ready after %v: %w", readyTimeout, err)
		case <-time.After(readyInterval):
		}
	}
}

// lookReady returns nil when the API server is ready. The API server creates the namespaces and the Service kubernetes
// only after it reports readiness; a test must not see them appear.
func lookReady(client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(context.Background(), readyRequestTimeout)
	defer cancel()
	if body, err := client.CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return fmt.Errorf("/readyz: %w: %s", err, body)
	}
	for _, name := range []string{metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease, metav1.NamespaceDefault} {
		if _, err := client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
	}
	const name = "kubernetes"
	if _, err := client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("service %s: %w", name, err)
	}
	if _, err := client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("endpoint slice %s: %w", name, err)
	}
	return nil
}

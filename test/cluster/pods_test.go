//go:build linux

package cluster

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nearside-dns/nearside/test/kit"
)

const (
	// shop is the namespace of testdata/workloads.yaml.
	shop = "shop"
	// clientPort is the port of the program of client/.
	clientPort = "9999"
	// askTimeout bounds a request to it: Go's resolver queries every name of a search list twice.
	askTimeout = time.Minute
)

// pod is a pod that runs the program of client/.
type pod struct {
	name       string
	ipv4, ipv6 string
	client     *http.Client
}

// startWorkloads creates the objects of testdata/workloads.yaml and waits until they are ready.
func (c *cluster) startWorkloads(t *testing.T) {
	t.Helper()
	c.apply(t, "workloads.yaml", workloads)
	c.kubectl(t, "-n", shop, "rollout", "status", "statefulset/web", "--timeout=2m")
	c.kubectl(t, "-n", shop, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=2m")
}

// pod finds a pod.
func (c *cluster) pod(t *testing.T, name string) *pod {
	t.Helper()
	found, err := c.Client.CoreV1().Pods(shop).Get(t.Context(), name, metav1.GetOptions{})
	kit.Must(t, err)
	p := &pod{name: name, client: c.Node.Client()}
	p.client.Timeout = askTimeout
	for _, a := range found.Status.PodIPs {
		if strings.Contains(a.IP, ":") {
			p.ipv6 = a.IP
		} else {
			p.ipv4 = a.IP
		}
	}
	return p
}

// request sends a request to the program in the pod, and returns the body.
func (p *pod) request(method, path string, values url.Values) (text string, err error) {
	address := url.URL{Scheme: "http", Host: net.JoinHostPort(p.ipv4, clientPort), Path: path, RawQuery: values.Encode()}
	request, err := http.NewRequest(method, address.String(), nil)
	if err != nil {
		return "", err
	}
	reply, err := p.client.Do(request)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(reply.Body)
	if closed := reply.Body.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return "", err
	}
	if reply.StatusCode != http.StatusOK {
		return "", fmt.Errorf("pod %s: %s %s: %s", p.name, method, path, strings.TrimSpace(string(body)))
	}
	return string(body), nil
}

// clients are the pods that send queries: one in its own network, one in the node's.
var clients = []string{"client", "host-client"}

// waitAnswers waits until both receive an answer of cluster DNS: kube-proxy has the rules of a new Service a moment
// after its pods are ready.
func (c *cluster) waitAnswers(t *testing.T) {
	t.Helper()
	for _, name := range clients {
		p := c.pod(t, name)
		c.wait(t, "an answer for "+name, startTimeout, func() error {
			for _, network := range []string{"udp", "tcp"} {
				text, err := p.request("GET", "/ask", url.Values{"name": {"kubernetes.default.svc.cluster.local"}, "network": {network}})
				if err != nil {
					return err
				}
				if !strings.HasPrefix(text, "NOERROR") {
					return fmt.Errorf("over %s: %s", network, text)
				}
			}
			return nil
		})
	}
}

// serviceAddresses returns the cluster IPs of a Service.
func (c *cluster) serviceAddresses(t *testing.T, namespace, name string) (ipv4, ipv6 string) {
	t.Helper()
	service, err := c.Client.CoreV1().Services(namespace).Get(t.Context(), name, metav1.GetOptions{})
	kit.Must(t, err)
	for _, a := range service.Spec.ClusterIPs {
		if a == corev1.ClusterIPNone {
			continue
		}
		if strings.Contains(a, ":") {
			ipv6 = a
		} else {
			ipv4 = a
		}
	}
	return ipv4, ipv6
}

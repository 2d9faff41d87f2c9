package external

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// bounded is the maximum time of a request for metrics.
const bounded = 10 * time.Second

// clusterHost is the address of clusterdns for nodecache, which does not query 127.0.0.1: that could be itself.
const clusterHost = "127.0.0.2"

// clusterCorefile is the Corefile of clusterdns. All TTLs are longer than the test.
const clusterCorefile = `.:PORT {
    bind 127.0.0.1 CLUSTERHOST
    errors
    prometheus METRICS
    CACHE
    kubernetes cluster.local {
        kubeconfig KUBECONFIG
        ttl 3600
        coherent
    }
    k8s_external example.org 113.0.203.in-addr.arpa {
        ttl 3600
        headless
    }
    forward . OUTSIDE
}
`

const nodeCorefile = `.:PORT {
    bind 127.0.0.1
    cache 3600
    forward . CLUSTERHOST:CLUSTERPORT {
        coherent
    }
}
`

// changing is a real cluster with a Service of type LoadBalancer, whose status changes.
type changing struct {
	client kubernetes.Interface
}

func newChanging(t *testing.T, c *controlplane.ControlPlane) *changing {
	t.Helper()
	k := &changing{c.Client()}
	s := service("default", "web", "", port("http", corev1.ProtocolTCP, 80))
	s.Spec.ClusterIPs, s.Spec.Type = nil, corev1.ServiceTypeLoadBalancer
	_, err := k.client.CoreV1().Services("default").Create(t.Context(), s, metav1.CreateOptions{})
	kit.Must(t, err)
	return k
}

// balance sets the status of the Service, as the controller of a load balancer does.
func (k *changing) balance(t *testing.T, balancer ...corev1.LoadBalancerIngress) {
	t.Helper()
	s, err := k.client.CoreV1().Services("default").Get(t.Context(), "web", metav1.GetOptions{})
	kit.Must(t, err)
	s.Status.LoadBalancer.Ingress = balancer
	_, err = k.client.CoreV1().Services("default").UpdateStatus(t.Context(), s, metav1.UpdateOptions{})
	kit.Must(t, err)
}

// shows waits until a server answers a question with a text in its records, or with none for "".
func (s *server) shows(t *testing.T, q dns.Question, want string) {
	t.Helper()
	kit.Succeeds(t, time.Minute, fmt.Sprintf("%s answers %s with %q", s.name, q.String(), want), func() error {
		m, err := s.ask(q)
		if err != nil {
			return err
		}
		if text := fmt.Sprint(m.Answer); want == "" != (len(m.Answer) == 0) || !strings.Contains(text, want) {
			return fmt.Errorf("reply:\n%v", m)
		}
		return nil
	})
}

// TestValidity changes the load balancer of a Service in a real API server: caches whose TTLs are longer than the test show each
// change, as do answers from the fast path and, with sessions, a node's cache.
func TestValidity(t *testing.T) {
	plane, outside := controlplane.Start(t), startOutside(t)
	k := newChanging(t, plane)
	metrics := map[string]string{}
	start := func(name, cache string) *server {
		metrics[name] = "127.0.0.1:" + strconv.Itoa(daemon.FreePort(t))
		text := strings.NewReplacer("CLUSTERHOST", clusterHost, "METRICS", metrics[name], "CACHE", cache, "KUBECONFIG", plane.Kubeconfig(), "OUTSIDE", outside).Replace(clusterCorefile)
		return &server{daemon.Start(t, daemon.Program(t, "clusterdns"), text), name}
	}
	uncached, cached := start("clusterdns", ""), start("clusterdns with cache", "cache 3600")
	onNode := func(name string, cluster *server) *server {
		text := strings.NewReplacer("CLUSTERHOST", clusterHost, "CLUSTERPORT", strconv.Itoa(cluster.Port)).Replace(nodeCorefile)
		return &server{daemon.Start(t, daemon.Program(t, "nodecache"), text), name}
	}
	servers := []*server{uncached, cached, onNode("nodecache", uncached), onNode("nodecache behind a cache", cached)}
	a, srv := question("web.default.example.org.", dns.TypeA), question("_http._tcp.web.default.example.org.", dns.TypeSRV)
	pointer := func(ip string) dns.Question {
		name, err := dns.ReverseAddr(ip)
		kit.Must(t, err)
		return question(name, dns.TypePTR)
	}
	for _, s := range servers {
		s.shows(t, a, "")
	}
	before := ""
	for version := 1; version <= 5; version++ {
		ip := fmt.Sprintf("203.0.113.%d", version)
		for _, s := range servers {
			s.shows(t, pointer(ip), "")
		}
		k.balance(t, address(ip))
		for _, s := range servers {
			s.shows(t, a, ip)
			s.shows(t, srv, "web.default.example.org.")
			s.shows(t, pointer(ip), "web.default.example.org.")
			if before != "" {
				s.shows(t, pointer(before), "")
			}
		}
		before = ip
	}
	// The answer with the records of a host is another server's in part: in nodecache its TTL ends it.
	for _, h := range []string{"lb.example.com", "lb3.example.net"} {
		k.balance(t, host(h))
		for _, s := range servers[:2] {
			s.shows(t, a, h+".\t")
		}
	}
	k.balance(t, address("203.0.113.99"))
	for _, s := range servers[:2] {
		s.shows(t, a, "203.0.113.99")
	}
	k.balance(t)
	for _, s := range servers[:2] {
		s.shows(t, a, "")
		s.shows(t, srv, "")
	}

	t.Run("fast path", func(t *testing.T) {
		k.balance(t, address("203.0.113.7"))
		client := &http.Client{Timeout: bounded}
		for _, s := range servers[:2] {
			for _, q := range []dns.Question{a, srv, pointer("203.0.113.7"), question("none.default.example.org.", dns.TypeA)} {
				s.shows(t, pointer("203.0.113.7"), "web.default.example.org.")
				if _, err := s.ask(q); err != nil { // it may be the first one
					t.Fatal(err)
				}
				first := daemon.Scrape(t, client, metrics[s.name])
				const queries = 5
				for range queries {
					if _, err := s.ask(q); err != nil {
						t.Fatal(err)
					}
				}
				if n := daemon.Scrape(t, client, metrics[s.name]).Since(first).Sum("nearside_fastpath_answered_total"); n != queries {
					t.Errorf("%s: %v of %d queries for %s were answered by the fast path", s.name, n, queries, q.String())
				}
			}
		}
	})
}

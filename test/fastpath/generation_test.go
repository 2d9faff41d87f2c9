//go:build linux

package fastpath

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

const pod = `apiVersion: v1
kind: Pod
metadata: {name: late, namespace: shop}
spec: {nodeName: node-a1, containers: [{name: a, image: b}]}
status: {phase: Running, podIP: 10.244.77.7, podIPs: [{ip: 10.244.77.7}]}
`

const dualStack = `apiVersion: v1
kind: Service
metadata: {name: moving, namespace: shop}
spec:
  clusterIP: 10.96.200.2
  clusterIPs: [10.96.200.2, "fd00:96::200:2"]
  ports: [{name: http, port: 80, protocol: TCP}]
`

const elsewhere = `apiVersion: v1
kind: Service
metadata: {name: first, namespace: newcomers}
spec: {clusterIP: 10.96.201.1, ports: [{name: http, port: 80, protocol: TCP}]}
`

// brief returns an answer as text: the code, and the data of its records in order.
func brief(t *testing.T, packet []byte) string {
	t.Helper()
	m := new(dns.Msg)
	kit.Must(t, m.Unpack(packet))
	var data []string
	for _, rr := range m.Answer {
		data = append(data, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	slices.Sort(data)
	return strings.TrimSpace(dns.RcodeToString[m.Rcode] + " " + strings.Join(data, ", "))
}

// TestChangedAnswers changes manifests. Once the plugins return the new answer, the fast path must never return the old
// one.
func TestChangedAnswers(t *testing.T) {
	for name, more := range map[string]string{"by generation": "", "with cache": "cache 3600"} {
		t.Run(name, func(t *testing.T) {
			folder := newCluster(t)
			s := start(t, "clusterdns", strings.ReplaceAll(clusterBlock(folder, more), "FASTPATH", ""))
			udp := []*wire{dial(t, "udp", "127.0.0.1", s), dial(t, "udp", "::1", s)}
			tcp := dial(t, "tcp", "127.0.0.1", s)
			hits := s.scrape(t).Sum(answeredTotal)
			for _, step := range []struct {
				what, file, text string // an empty text removes the file
				name             string
				qtype            uint16
				before, after    string
			}{
				{"a Service comes", "moving.yaml", clusterIP("moving", "10.96.200.1"), "moving.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN", "NOERROR 10.96.200.1"},
				{"its address changes", "moving.yaml", clusterIP("moving", "10.96.200.2"), "moving.shop.svc.cluster.local.", dns.TypeA, "NOERROR 10.96.200.1", "NOERROR 10.96.200.2"},
				{"a second family is added", "moving.yaml", dualStack, "moving.shop.svc.cluster.local.", dns.TypeAAAA, "NOERROR", "NOERROR fd00:96::200:2"},
				{"it goes", "moving.yaml", "", "moving.shop.svc.cluster.local.", dns.TypeA, "NOERROR 10.96.200.2", "NXDOMAIN"},
				{"its reverse name is added", "moving.yaml", dualStack, "2.200.96.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN", "NOERROR moving.shop.svc.cluster.local."},
				{"its reverse name is removed", "moving.yaml", clusterIP("moving", "10.96.200.3"), "2.200.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR moving.shop.svc.cluster.local.", "NXDOMAIN"},
				{"a headless Service is added", "growing.yaml", headlessAt("growing", "10.245.9.1"), "growing.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN", "NOERROR 10.245.9.1"},
				{"an endpoint comes", "growing.yaml", headlessAt("growing", "10.245.9.1", "10.245.9.2"), "growing.shop.svc.cluster.local.", dns.TypeA, "NOERROR 10.245.9.1", "NOERROR 10.245.9.1, 10.245.9.2"},
				{"an endpoint's hostname is set", "growing.yaml", headlessAt("growing", "10.245.9.1", "10.245.9.2", "10.245.9.3"), "ep-2.growing.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN", "NOERROR 10.245.9.3"},
				{"SRV loses endpoints", "growing.yaml", headlessAt("growing", "10.245.9.4"), "_http._tcp.growing.shop.svc.cluster.local.", dns.TypeSRV,
					"NOERROR 0 33 80 10-245-9-2.growing.shop.svc.cluster.local., 0 33 80 ep-0.growing.shop.svc.cluster.local., 0 33 80 ep-2.growing.shop.svc.cluster.local.",
					"NOERROR 0 100 80 ep-0.growing.shop.svc.cluster.local."},
				{"the last endpoint is removed", "growing.yaml", headlessAt("growing"), "growing.shop.svc.cluster.local.", dns.TypeA, "NOERROR 10.245.9.4", "NXDOMAIN"},
				{"an alias comes", "alias.yaml", external("alias", "one.example.org"), "alias.shop.svc.cluster.local.", dns.TypeCNAME, "NXDOMAIN", "NOERROR one.example.org."},
				{"the alias changes", "alias.yaml", external("alias", "two.example.org"), "alias.shop.svc.cluster.local.", dns.TypeCNAME, "NOERROR one.example.org.", "NOERROR two.example.org."},
				{"the alias becomes a Service", "alias.yaml", clusterIP("alias", "10.96.202.1"), "alias.shop.svc.cluster.local.", dns.TypeA, "", "NOERROR 10.96.202.1"},
				{"a pod comes", "pod.yaml", pod, "10-244-77-7.shop.pod.cluster.local.", dns.TypeA, "NXDOMAIN", "NOERROR 10.244.77.7"},
				{"the pod goes", "pod.yaml", "", "10-244-77-7.shop.pod.cluster.local.", dns.TypeA, "NOERROR 10.244.77.7", "NXDOMAIN"},
				{"a namespace comes", "namespace.yaml", elsewhere, "newcomers.svc.cluster.local.", dns.TypeA, "NXDOMAIN", "NOERROR"},
				{"the namespace goes", "namespace.yaml", "", "first.newcomers.svc.cluster.local.", dns.TypeA, "NOERROR 10.96.201.1", "NXDOMAIN"},
			} {
				query := pack(t, newQuery(step.name, step.qtype))
				mixed := pack(t, newQuery(mixCase(step.name), step.qtype))
				if step.before != "" { // so often that it is stored
					for range 3 {
						for _, w := range udp {
							if got := brief(t, w.ask(t, query)); got != step.before {
								t.Errorf("%s: before that, %q, want %q", step.what, got, step.before)
							}
						}
					}
				}
				if step.text == "" {
					kit.Must(t, os.Remove(filepath.Join(folder, step.file)))
				} else {
					manifest(t, folder, step.file, step.text)
				}
				kit.Eventually(t, fmt.Sprintf("%s: %q", step.what, step.after), func() bool {
					if got := brief(t, udp[0].ask(t, query)); got != step.before && got != step.after && step.before != "" {
						t.Fatalf("%s: %q is neither the old answer nor the new one", step.what, got)
					}
					return brief(t, tcp.ask(t, query)) == step.after
				})
				for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
					for _, w := range udp {
						for _, q := range [][]byte{query, mixed} {
							if got := strings.ToLower(brief(t, w.ask(t, q))); got != strings.ToLower(step.after) {
								t.Errorf("%s: %q after it is seen over TCP, want %q", step.what, got, step.after)
							}
						}
					}
				}
			}
			if s.scrape(t).Sum(answeredTotal)-hits < 100 {
				t.Error("the fast path has answered too little")
			}
		})
	}
}

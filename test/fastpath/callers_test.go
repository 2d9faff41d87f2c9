//go:build linux

package fastpath

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// placedCluster is a Service whose callers receive the endpoint on their node, and a cluster of three nodes, of which
// the third has no endpoint. Pods have loopback addresses, from which tests can send queries.
const placedCluster = `
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: east}}
spec: {podCIDRs: [127.1.1.0/24]}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {topology.kubernetes.io/zone: west}}
spec: {podCIDRs: [127.1.2.0/24]}
---
apiVersion: v1
kind: Node
metadata: {name: n3, labels: {topology.kubernetes.io/zone: west}}
spec: {podCIDRs: [127.1.3.0/24]}
---
apiVersion: v1
kind: Service
metadata: {name: near, namespace: shop}
spec:
  clusterIP: None
  internalTrafficPolicy: Local
  ports: [{name: http, port: 80, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: near-1, namespace: shop, labels: {kubernetes.io/service-name: near}}
addressType: IPv4
ports: [{name: http, port: 80, protocol: TCP}]
endpoints:
- {addresses: [10.250.0.1], nodeName: n1}
- {addresses: [10.250.0.2], nodeName: n2}
- {addresses: [127.1.9.9], nodeName: n2}
`

// fromAddress opens a socket to a server from an address.
func fromAddress(t *testing.T, s *server, address string) *wire {
	t.Helper()
	server := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: s.Port}
	conn, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(address)}, server)
	kit.Must(t, err)
	w := &wire{network: "udp", address: server.String(), conn: conn}
	t.Cleanup(func() { w.hangUp(t) })
	return w
}

// namedQuery returns a query with caller options, given their data.
func namedQuery(t *testing.T, name string, qtype uint16, options ...string) []byte {
	t.Helper()
	m := newQuery(name, qtype)
	if options != nil {
		m.SetEdns0(1232, false)
		for _, data := range options {
			m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: 65313, Data: []byte(data)})
		}
	}
	return pack(t, m)
}

// addressesIn returns the addresses in a reply, or the response code.
func addressesIn(t *testing.T, reply []byte) string {
	t.Helper()
	m := new(dns.Msg)
	kit.Must(t, m.Unpack(reply))
	if opt := m.IsEdns0(); opt != nil && len(opt.Option) > 0 {
		t.Errorf("options in the reply: %v", opt)
	}
	if m.Rcode != dns.RcodeSuccess {
		return dns.RcodeToString[m.Rcode]
	}
	var all []string
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			all = append(all, a.A.String())
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// TestCallers sends queries from addresses on different nodes, and with options, in random order, many times: each
// caller receives its own answer, from the fast path or not, with and without cache.
func TestCallers(t *testing.T) {
	const first, second = "10.250.0.1", "10.250.0.2 127.1.9.9"
	option := func(node string) string { return "\x01" + string(rune(len(node))) + node }
	callers := []struct {
		from    string
		options []string
		want    string
		stored  bool // for the fast path
	}{
		{"127.1.1.7", nil, first, true},
		{"127.1.1.8", nil, first, true},
		{"127.1.2.7", nil, second, true},
		{"127.1.3.7", nil, "", true},
		{"127.1.9.9", nil, second, true},
		{"127.1.4.7", nil, "", true},
		{"127.1.4.7", []string{option("n1")}, first, true},
		{"127.1.1.7", []string{option("n2")}, second, true},
		{"127.1.1.7", []string{option("n2") + "\x04west"}, second, true},
		{"127.1.1.7", []string{option("n3")}, "", true},
		{"127.1.4.7", []string{option("unknown")}, "", true},
		{"127.1.2.7", []string{"\x07"}, second, true},
		{"127.1.1.7", []string{option("n2"), option("n2")}, first, false},
	}
	for _, cache := range []string{"", "    cache 30\n"} {
		t.Run(fmt.Sprintf("cache %t", cache != ""), func(t *testing.T) {
			folder := newCluster(t)
			manifest(t, folder, "placed.yaml", placedCluster)
			p := startPair(t, "clusterdns", fmt.Sprintf(
				".:PORT {\n    prometheus METRICS\n    errors\n%s    kubernetes cluster.local {\n        manifests %s\n        topology\n    }\n    FASTPATH\n}\n", cache, folder))
			before := p.on.scrape(t)
			asked, stored := 0, 0
			for range 3 {
				for i, c := range callers {
					t.Run(strconv.Itoa(i), func(t *testing.T) {
						query := namedQuery(t, "near.shop.svc.cluster.local.", dns.TypeA, c.options...)
						on, off := fromAddress(t, p.on, c.from).ask(t, query), fromAddress(t, p.off, c.from).ask(t, query)
						for _, reply := range [][]byte{on, off} {
							maskSerials(reply)
							if got := addressesIn(t, reply); got != c.want {
								t.Errorf("from %s with %q: %q, want %q", c.from, c.options, got, c.want)
							}
						}
						if !bytes.Equal(on, off) {
							t.Errorf("with the fast path\n%s\nwithout\n%s", describe(on), describe(off))
						}
					})
					asked++
					if c.stored {
						stored++
					}
				}
			}
			// Each of five views is resolved once: those of three nodes, of a node without a record, and of unknown callers.
			if answered, _ := p.counted(t, before, asked); answered != stored-5 {
				t.Errorf("the fast path answered %d of %d queries, want %d", answered, asked, stored-5)
			}
			all := p.on.scrape(t).Since(before)
			for caller, want := range map[string]float64{"option": 12, "unknown_node": 3, "endpoint": 3, "pod_cidr": 18, "unknown_address": 3, "malformed_option": 0} {
				if got := all.Sum("nearside_kubernetes_topology_answers_total", "caller", caller); got != want {
					t.Errorf("%v answers by %s, want %v", got, caller, want)
				}
			}
		})
	}
}

//go:build linux

package cluster

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// question is a query of a pod, with the wanted answer. In both, {web4} and {web6} are the cluster IPs of the Service
// web, and {pod0}, {pod1} the addresses of its pods; {dashes0} is the first with dashes.
type question struct {
	name, path, query string
	want              string // words and lines in any order
}

var answers = []question{
	{"the kubelet's resolv.conf", "/resolv.conf", "", "search shop.svc.cluster.local svc.cluster.local cluster.local " + nodeSearch + "\nnameserver " + clusterDNS + "\noptions ndots:5"},

	{"search path, own namespace", "/lookup", "name=web", "{web4} {web6}"},
	{"search path, with namespace", "/lookup", "name=web.shop", "{web4} {web6}"},
	{"search path, with svc", "/lookup", "name=kubernetes.default.svc", apiService},
	{"search path of the node", "/lookup", "name=printer", "198.51.100.9"},
	{"search path, external name", "/lookup", "name=www.example.test", "198.51.100.7 2001:db8::7"},

	{"A over UDP", "/ask", "name=web.shop.svc.cluster.local", "NOERROR\nweb.shop.svc.cluster.local. A {web4}"},
	{"A over TCP", "/ask", "name=web.shop.svc.cluster.local&network=tcp", "NOERROR\nweb.shop.svc.cluster.local. A {web4}"},
	{"AAAA over UDP", "/ask", "name=web.shop.svc.cluster.local&type=AAAA", "NOERROR\nweb.shop.svc.cluster.local. AAAA {web6}"},
	{"AAAA over TCP", "/ask", "name=web.shop.svc.cluster.local&type=AAAA&network=tcp", "NOERROR\nweb.shop.svc.cluster.local. AAAA {web6}"},
	{"another type", "/ask", "name=web.shop.svc.cluster.local&type=MX", "NOERROR"},
	{"no such Service", "/ask", "name=none.shop.svc.cluster.local", "NXDOMAIN"},
	{"ExternalName", "/ask", "name=partner.shop.svc.cluster.local", "NOERROR\npartner.shop.svc.cluster.local. CNAME www.example.test.\nwww.example.test. A 198.51.100.7"},
	{"name of a pod by its address", "/ask", "name={dashes0}.shop.pod.cluster.local", "NOERROR\n{dashes0}.shop.pod.cluster.local. A {pod0}"},

	{"headless", "/lookup", "name=pods", "{pod0} {pod1}"},
	{"headless, one pod", "/lookup", "name=web-1.pods", "{pod1}"},
	{"SRV, headless", "/lookup", "kind=srv&name=_http._tcp.pods.shop.svc.cluster.local", "web-0.pods.shop.svc.cluster.local.:9999 web-1.pods.shop.svc.cluster.local.:9999"},
	{"SRV, cluster IP", "/lookup", "kind=srv&name=_http._tcp.web.shop.svc.cluster.local", "web.shop.svc.cluster.local.:80"},
	{"reverse, IPv4", "/lookup", "kind=addr&name={web4}", "web.shop.svc.cluster.local."},
	{"reverse, IPv6", "/lookup", "kind=addr&name={web6}", "web.shop.svc.cluster.local."},
	// Endpoints of both Services.
	{"reverse, a pod", "/lookup", "kind=addr&name={pod0}", "web-0.pods.shop.svc.cluster.local. {dashes0}.web.shop.svc.cluster.local."},

	{"external over UDP", "/ask", "name=www.example.test", "NOERROR\nwww.example.test. A 198.51.100.7"},
	{"external over TCP", "/ask", "name=www.example.test&network=tcp", "NOERROR\nwww.example.test. A 198.51.100.7"},
	{"external alias", "/ask", "name=alias.example.test", "NOERROR\nalias.example.test. CNAME www.example.test.\nwww.example.test. A 198.51.100.7"},
	{"external, large", "/ask", "name=large.example.test&type=TXT&network=tcp", "NOERROR\nlarge.example.test. TXT " + strings.TrimSpace(strings.Repeat(`"`+strings.Repeat("x", 200)+`" `, 10))},
	{"external, no such name", "/ask", "name=none.example.test", "NXDOMAIN"},
	{"external, reverse", "/lookup", "kind=addr&name=198.51.100.7", "www.example.test."},
}

// testAnswers sends every query from a pod, once each, and checks whether nodecache received it.
func (c *cluster) testAnswers(t *testing.T, from string, cached bool) {
	p := c.pod(t, from)
	web4, web6 := c.serviceAddresses(t, shop, "web")
	pod0, pod1 := c.pod(t, "web-0"), c.pod(t, "web-1")
	values := strings.NewReplacer("{web4}", web4, "{web6}", web6,
		"{pod0}", pod0.ipv4, "{pod1}", pod1.ipv4, "{dashes0}", strings.ReplaceAll(pod0.ipv4, ".", "-"))
	before := c.requests(t)
	for _, a := range answers {
		t.Run(a.name, func(t *testing.T) {
			query, err := url.ParseQuery(values.Replace(a.query))
			kit.Must(t, err)
			got, err := p.request("GET", a.path, query)
			kit.Must(t, err)
			if want := values.Replace(a.want); !slices.Equal(sorted(got), sorted(want)) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
	if !cached {
		return
	}
	c.wait(t, "count of queries", startTimeout, func() error { // those that the kernel answers are counted later
		if after := c.requests(t); after-before < float64(len(answers)-1) {
			return fmt.Errorf("nodecache counted %v queries, for %d questions and more", after-before, len(answers)-1)
		}
		return nil
	})
}

// sorted returns the words of a text in a fixed order, line by line.
func sorted(text string) (lines []string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		words := strings.Fields(line)
		if !strings.HasPrefix(line, "search ") {
			slices.Sort(words)
		}
		lines = append(lines, strings.Join(words, " "))
	}
	slices.Sort(lines)
	return lines
}

// testAddress queries nodecache at an address that the pods' resolv.conf does not have.
func (c *cluster) testAddress(t *testing.T, address string) {
	web4, _ := c.serviceAddresses(t, shop, "web")
	before := c.requests(t)
	for _, from := range clients {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(from+" "+network, func(t *testing.T) {
				got, err := c.pod(t, from).request("GET", "/ask", url.Values{
					"name": {"web.shop.svc.cluster.local"}, "server": {address}, "network": {network},
				})
				if want := "NOERROR\nweb.shop.svc.cluster.local. A " + web4; err != nil || got != want {
					t.Errorf("got %q, %v, want %q", got, err, want)
				}
			})
		}
	}
	c.wait(t, "count of queries", startTimeout, func() error {
		if after := c.requests(t); after-before < 4 {
			return fmt.Errorf("nodecache counted %v queries, for 4 questions", after-before)
		}
		return nil
	})
}

package differential

import (
	"net"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/controlplane"
)

// TestFindsOtherConfigurations asserts that the test can fail: CoreDNS is compared to CoreDNS with another Corefile, and
// the differences are reported as not allowed.
func TestFindsOtherConfigurations(t *testing.T) {
	binary := controlplane.RequireBinary(t, "coredns")
	if testing.Short() {
		t.Skip("starts two servers for each case")
	}
	for _, c := range []struct{ name, variant, was, is string }{
		{"time to live", "verified", "ttl 30", "ttl 31"},
		{"pods", "default", "pods insecure", "pods verified"},
		{"names of endpoints", "verified", "endpoint_pod_names", ""},
		{"zones", "verified", "zonal", ""},
		{"fallthrough", "reverse fallthrough", "fallthrough in-addr.arpa", "fallthrough"},
		{"empty Services", "namespaces", "ignore empty_service", ""},
		{"namespaces", "namespaces", "edge", "edge kube-system"},
		{"labels", "labels", "labels colour notin (blue)\n        namespace", "namespace"},
		{"clusterset", "clusterset", "multicluster clusterset.local", ""},
		{"clusterset's zones", "two clustersets", "multicluster MCS.example.net", "multicluster"},
		{"first zone", "mixed zones", "K8s.Example.net ns-a.svc.cluster.local cluster.local", "cluster.local ns-a.svc.cluster.local k8s.example.net"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v *variant
			for _, w := range variants {
				if w.name == c.variant {
					v = w
				}
			}
			other := strings.Replace(v.corefile, c.was, c.is, 1)
			if other == v.corefile {
				t.Fatalf("%q is not in the Corefile of %q", c.was, v.name)
			}
			r := newRun(t)
			reported := 0
			r.fail = func(string) { reported++ }
			r.serve(t, v, program{"CoreDNS", binary, v.corefile}, program{"CoreDNS otherwise", binary, other})
			kit.Must(t, r.seed(1))
			if reported == 0 {
				t.Errorf("%d questions found no difference", r.asked[v.name])
			}
		})
	}
}

// TestComparesAll asserts that every part of an answer is compared.
func TestComparesAll(t *testing.T) {
	reply := func() *dns.Msg {
		m := new(dns.Msg)
		m.SetQuestion("web.default.svc.cluster.local.", dns.TypeSRV)
		m.Response, m.Authoritative = true, true
		header := func(name string, t uint16) dns.RR_Header {
			return dns.RR_Header{Name: name, Rrtype: t, Class: dns.ClassINET, Ttl: 5}
		}
		m.Answer = []dns.RR{
			&dns.SRV{Hdr: header("web.default.svc.cluster.local.", dns.TypeSRV), Weight: 50, Port: 80, Target: "a.web.default.svc.cluster.local."},
			&dns.SRV{Hdr: header("web.default.svc.cluster.local.", dns.TypeSRV), Weight: 50, Port: 80, Target: "b.web.default.svc.cluster.local."},
		}
		m.Ns = []dns.RR{&dns.SOA{Hdr: header("cluster.local.", dns.TypeSOA), Ns: "ns.", Mbox: "mbox.", Serial: 1, Minttl: 5}}
		m.Extra = []dns.RR{&dns.A{Hdr: header("a.web.default.svc.cluster.local.", dns.TypeA), A: net.IPv4(10, 0, 0, 1)}}
		return m
	}
	for _, c := range []struct {
		name   string
		change func(m *dns.Msg)
		same   bool
	}{
		{"order", func(m *dns.Msg) { m.Answer[0], m.Answer[1] = m.Answer[1], m.Answer[0] }, true},
		{"record twice", func(m *dns.Msg) { m.Answer = append(m.Answer, m.Answer[0]) }, true},
		{"serial", func(m *dns.Msg) { m.Ns[0].(*dns.SOA).Serial = 2 }, true},
		{"identity", func(m *dns.Msg) { m.Id++ }, true},
		{"code", func(m *dns.Msg) { m.Rcode = dns.RcodeNameError }, false},
		{"authority of the answer", func(m *dns.Msg) { m.Authoritative = false }, false},
		{"recursion", func(m *dns.Msg) { m.RecursionAvailable = true }, false},
		{"truncation", func(m *dns.Msg) { m.Truncated = true }, false},
		{"EDNS", func(m *dns.Msg) { m.SetEdns0(4096, false) }, false},
		{"question", func(m *dns.Msg) { m.Question[0].Name = strings.ToUpper(m.Question[0].Name) }, false},
		{"record missing", func(m *dns.Msg) { m.Answer = m.Answer[1:] }, false},
		{"authority missing", func(m *dns.Msg) { m.Ns = nil }, false},
		{"additional missing", func(m *dns.Msg) { m.Extra = nil }, false},
		{"wrong section", func(m *dns.Msg) { m.Answer, m.Extra = append(m.Answer, m.Extra...), nil }, false},
		{"case of the owner", func(m *dns.Msg) { m.Answer[0].Header().Name = "WEB.default.svc.cluster.local." }, false},
		{"case of the target", func(m *dns.Msg) { m.Answer[0].(*dns.SRV).Target = "A.web.default.svc.cluster.local." }, false},
		{"time to live", func(m *dns.Msg) { m.Answer[0].Header().Ttl++ }, false},
		{"weight", func(m *dns.Msg) { m.Answer[0].(*dns.SRV).Weight++ }, false},
		{"address", func(m *dns.Msg) { m.Extra[0].(*dns.A).A = net.IPv4(10, 0, 0, 2) }, false},
		{"minimum of SOA", func(m *dns.Msg) { m.Ns[0].(*dns.SOA).Minttl++ }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := reply()
			c.change(m)
			if got := newAnswer(m).equal(newAnswer(reply())); got != c.same {
				t.Errorf("equal: %t, want %t", got, c.same)
			}
			if newAnswer(nil).equal(newAnswer(m)) {
				t.Error("equal to no reply")
			}
		})
	}
}

package kubernetes

import (
	"context"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// smallCluster has objects of every kind.
func smallCluster(t testing.TB, block string) *Kubernetes {
	db := service("shop", "db", headless, tcp("sql", 5432), udp("", 53))
	web := service("shop", "web", []string{"10.0.0.1", "2001:db8::1"}, tcp("http", 80))
	k := answering(t, block, namespace("shop"), db, web,
		podIn("shop", "p", corev1.PodRunning, "10.1.0.7", "2001:db8::7"),
		externalName("shop", "out", "www.example.org"), externalName("shop", "in", "web.shop.svc.cluster.local"),
		externalName("shop", "dead", "none.shop.svc.cluster.local"), externalName("shop", "self", "self.shop.svc.cluster.local"),
		slice(web, "a", endpoint("10.1.0.1")),
		slice(db, "a", endpoint("10.1.0.1", hostname("db-0"), inZone("east")), endpoint("10.1.0.2", inZone("corp.example.com"))),
		slice(db, "b", endpoint("2001:db8::2")))
	k.localIPs = []netip.Addr{netip.MustParseAddr("10.9.9.9")}
	k.upstream = upstreamOf(t, "www.example.org. 60 IN A 192.0.2.1")
	return k
}

// question returns a query as it is unpacked, or nil for an invalid one.
func question(name []byte, qtype uint16) *dns.Msg {
	wire := []byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	wire = append(wire, name...)
	wire = binary.BigEndian.AppendUint16(wire, qtype)
	wire = binary.BigEndian.AppendUint16(wire, dns.ClassINET)
	r := new(dns.Msg)
	if r.Unpack(wire) != nil || len(r.Question) != 1 {
		return nil
	}
	return r
}

// onWire is a reply as the client unpacks it.
func onWire(t *testing.T, m *dns.Msg) *dns.Msg {
	t.Helper()
	wire, err := m.Pack()
	if err != nil {
		t.Fatalf("the reply does not pack: %v\n%v", err, m)
	}
	again := new(dns.Msg)
	if err := again.Unpack(wire); err != nil {
		t.Fatalf("the reply does not unpack: %v\n%v", err, m)
	}
	return again
}

func FuzzServeDNS(f *testing.F) {
	names := append([]string{"dns-version.cluster.local.", "ns.dns.cluster.local.", "dns.cluster.local.", "out.shop.svc.cluster.local.", "in.shop.svc.cluster.local.",
		"dead.shop.svc.cluster.local.", "self.shop.svc.cluster.local.", "1.0.0.10.in-addr.arpa.", "2.0.1.10.in-addr.arpa.", "10.in-addr.arpa.", "ns.dns.10.in-addr.arpa.",
		"1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.", "Web.SHOP.svc.Cluster.Local.", "2001-db8--7.shop.pod.cluster.local."}, parsedNames...)
	var servers []*Kubernetes
	for _, options := range []string{"pods insecure", "pods verified\nzonal\nendpoint_pod_names"} {
		servers = append(servers, smallCluster(f, allZones+" {\n"+options+"\n}"))
	}
	fuzzServe(f, names, servers)
}

// fuzzServe checks the properties of every reply, and that a name exists for all types or for none.
func fuzzServe(f *testing.F, names []string, servers []*Kubernetes) {
	for _, name := range names {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeSRV, dns.TypeNS, dns.TypePTR} {
			f.Add(wireName(f, name), qtype)
		}
	}
	f.Fuzz(func(t *testing.T, name []byte, qtype uint16) {
		if question(name, qtype) == nil || qtype == dns.TypeAXFR || qtype == dns.TypeIXFR {
			t.Skip()
		}
		for _, k := range servers {
			m := served(t, k, question(name, qtype))
			if m == nil || m.Rcode == dns.RcodeSuccess && len(m.Answer) == 0 {
				continue
			}
			for _, other := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeCNAME, dns.TypePTR, dns.TypeTXT, dns.TypeNS, dns.TypeSOA, dns.TypeMX} {
				if o := served(t, k, question(name, other)); o.Rcode != m.Rcode {
					t.Errorf("%v is answered with %s and its type %d with %s", m.Question, dns.RcodeToString[m.Rcode], other, dns.RcodeToString[o.Rcode])
				}
			}
		}
	})
}

// served returns the reply as the client unpacks it, or nil for a query of another zone, and checks the properties of
// every reply.
func served(t *testing.T, k *Kubernetes, r *dns.Msg) *dns.Msg {
	t.Helper()
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	asked := r.Question[0]
	rcode, err := k.ServeDNS(context.Background(), w, r)
	if w.Msg == nil {
		if rcode != dns.RcodeServerFailure || err == nil {
			t.Errorf("%v: neither a reply nor an error", asked)
		}
		return nil
	}
	if err != nil {
		t.Errorf("%v: %v", asked, err)
	}
	m := onWire(t, w.Msg)
	if m.Rcode != dns.RcodeSuccess && m.Rcode != dns.RcodeNameError {
		t.Errorf("%v: rcode %s", asked, dns.RcodeToString[m.Rcode])
	}
	if len(m.Question) != 1 || m.Question[0] != asked {
		t.Errorf("the question is %v, want %v", m.Question, asked)
	}
	if len(m.Answer) == 0 {
		if len(m.Ns) != 1 || m.Ns[0].Header().Rrtype != dns.TypeSOA || !dns.IsSubDomain(m.Ns[0].Header().Name, asked.Name) ||
			!strings.HasSuffix(asked.Name, m.Ns[0].Header().Name) {
			t.Errorf("%v: authority section is %v", asked, m.Ns)
		}
		return m
	}
	if m.Rcode != dns.RcodeSuccess || m.Answer[0].Header().Name != asked.Name {
		t.Errorf("%v: %s and the answer is for %s", asked, dns.RcodeToString[m.Rcode], m.Answer[0].Header().Name)
	}
	owner := asked.Name
	for _, rr := range m.Answer {
		if rr.Header().Name != owner {
			t.Errorf("%v: %v does not follow from what is before it", asked, rr)
		}
		if c, ok := rr.(*dns.CNAME); ok {
			owner = c.Target
		} else if rr.Header().Rrtype != asked.Qtype {
			t.Errorf("%v: %v is of another type", asked, rr)
		}
	}
	return m
}

// FuzzSearch compares the reply to a query with any search list with the result of querying its candidates one by one,
// or with the reply for the name if the option reports that they were not tried.
func FuzzSearch(f *testing.F) {
	for i, list := range append(searchLists, []string{"shop.svc.cluster.local."}, []string{`a\.b.cluster.local.`, "cluster.local."}) {
		data, ok := searchlist.AppendSuffixes(nil, list)
		if !ok {
			f.Fatalf("%v is no search list", list)
		}
		for _, base := range []string{"web", "out.shop", "10-1-0-7.shop", `w\.b`, "Web.SHOP.svc"} {
			f.Add(wireName(f, base+"."+list[0]), []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeCNAME}[i%4], data)
		}
	}
	f.Add([]byte("\x03web\x04shop\x00"), dns.TypeA, []byte("\x04shop\x00"))
	k := smallCluster(f, allZones+" {\npods verified\nzonal\n}")
	k.Next = plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		return dns.RcodeRefused, w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeRefused))
	})
	f.Fuzz(func(t *testing.T, name []byte, qtype uint16, data []byte) {
		r := question(name, qtype)
		if r == nil || qtype == dns.TypeAXFR || qtype == dns.TypeIXFR {
			t.Skip()
		}
		m := direct(t, k, searchlist.WithOption(r, data), "10.240.0.1")
		onWire(t, m)
		suffixes, ok := searchlist.ParseSuffixes(data)
		if tried := resultOf(m) != notTried; tried && (!ok || len(suffixes) == 0) {
			t.Fatalf("candidates of malformed data tried: %q", data)
		} else if !tried {
			suffixes = nil
		}
		want, got := walk(func(name string, qtype uint16) *dns.Msg {
			return direct(t, k, new(dns.Msg).SetQuestion(name, qtype), "10.240.0.1")
		}, r.Question[0], suffixes), walkedOf(m)
		if !got.same(want) {
			t.Errorf("%v with %v:\n%+v\nwant\n%+v", r.Question[0], suffixes, got, want)
		}
	})
}

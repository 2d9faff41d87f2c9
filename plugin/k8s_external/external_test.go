package external

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/exposed"
)

const soa = "example.org. 5 IN SOA ns1.dns.example.org. hostmaster.dns.example.org. 7 7200 1800 86400 5"

func TestServeDNS(t *testing.T) {
	const (
		plain    = "k8s_external example.org 192.in-addr.arpa"
		headless = plain + " {\nheadless\n}"
		options  = plain + " {\nheadless\nttl 60\napex Edge\n}"
	)
	edge := strings.NewReplacer(" 5 ", " 60 ", " 5", " 60", ".dns.", ".edge.").Replace(soa)
	for _, tc := range []struct {
		name, block, ask  string
		rcode             int
		answer, ns, extra []string
	}{
		{name: "addresses, each once", block: plain, ask: "web.shop.example.org A", answer: []string{"web.shop.example.org. 5 IN A 192.0.2.1"}},
		{name: "IPv6", block: plain, ask: "web.shop.example.org AAAA", answer: []string{"web.shop.example.org. 5 IN AAAA 2001:db8::1"}},
		{name: "the letters of the query", block: plain, ask: "Web.SHOP.example.org A", answer: []string{"Web.SHOP.example.org. 5 IN A 192.0.2.1"}},
		{name: "SRV", block: plain, ask: "web.shop.example.org SRV",
			answer: []string{"web.shop.example.org. 5 IN SRV 0 25 443 web.shop.example.org.", "web.shop.example.org. 5 IN SRV 0 25 80 web.shop.example.org."},
			extra:  []string{"web.shop.example.org. 5 IN A 192.0.2.1", "web.shop.example.org. 5 IN AAAA 2001:db8::1"}},
		{name: "SRV of a port", block: plain, ask: "_http._tcp.web.shop.example.org SRV",
			answer: []string{"_http._tcp.web.shop.example.org. 5 IN SRV 0 50 80 web.shop.example.org."},
			extra:  []string{"web.shop.example.org. 5 IN A 192.0.2.1", "web.shop.example.org. 5 IN AAAA 2001:db8::1"}},
		{name: "a label before the Service", block: plain, ask: "a.web.shop.example.org A", answer: []string{"a.web.shop.example.org. 5 IN A 192.0.2.1"}},
		{name: "three labels before the Service", block: plain, ask: "a._http._tcp.web.shop.example.org A", rcode: dns.RcodeNameError, ns: []string{soa}},
		{name: "no such port", block: plain, ask: "_ftp._tcp.web.shop.example.org SRV", rcode: dns.RcodeNameError, ns: []string{soa}},
		{name: "no records of the type", block: plain, ask: "web.shop.example.org TXT", ns: []string{soa}},
		{name: "SRV without a port", block: plain, ask: "portly.shop.example.org SRV", ns: []string{soa}},
		{name: "a namespace", block: plain, ask: "shop.example.org A", ns: []string{soa}},
		{name: "no such namespace", block: plain, ask: "none.example.org A", rcode: dns.RcodeNameError, ns: []string{soa}},
		{name: "no such Service", block: plain, ask: "none.shop.example.org A", rcode: dns.RcodeNameError, ns: []string{soa}},

		{name: "a host", block: plain, ask: "host.shop.example.org A",
			answer: []string{"host.shop.example.org. 5 IN CNAME lb.example.net.", "lb.example.net. 60 IN A 198.51.100.1"}},
		{name: "a host without an address of the type", block: plain, ask: "host.shop.example.org AAAA", answer: []string{"host.shop.example.org. 5 IN CNAME lb.example.net."}},
		{name: "the CNAME of a host", block: plain, ask: "host.shop.example.org CNAME", answer: []string{"host.shop.example.org. 5 IN CNAME lb.example.net."}},
		{name: "SRV of a host", block: plain, ask: "_http._tcp.host.shop.example.org SRV",
			answer: []string{"_http._tcp.host.shop.example.org. 5 IN SRV 0 100 80 lb.example.net."}, extra: []string{"lb.example.net. 60 IN A 198.51.100.1"}},

		{name: "headless is off", block: plain, ask: "db.shop.example.org A", rcode: dns.RcodeNameError, ns: []string{soa}},
		{name: "headless", block: headless, ask: "db.shop.example.org A", answer: []string{"db.shop.example.org. 5 IN A 10.1.0.1", "db.shop.example.org. 5 IN A 10.1.0.2"}},
		{name: "an endpoint", block: headless, ask: "db-0.db.shop.example.org A", answer: []string{"db-0.db.shop.example.org. 5 IN A 10.1.0.1"}},
		{name: "an endpoint with an underscore", block: headless, ask: "_db-0.db.shop.example.org A", answer: []string{"_db-0.db.shop.example.org. 5 IN A 10.1.0.1"}},
		{name: "no such endpoint", block: headless, ask: "db-9.db.shop.example.org A", rcode: dns.RcodeNameError, ns: []string{soa}},
		{name: "SRV of endpoints", block: headless, ask: "_sql._tcp.db.shop.example.org SRV",
			answer: []string{"_sql._tcp.db.shop.example.org. 5 IN SRV 0 50 5432 10-1-0-2.db.shop.example.org.", "_sql._tcp.db.shop.example.org. 5 IN SRV 0 50 5432 db-0.db.shop.example.org."},
			extra:  []string{"10-1-0-2.db.shop.example.org. 5 IN A 10.1.0.2", "db-0.db.shop.example.org. 5 IN A 10.1.0.1"}},

		{name: "SOA", block: plain, ask: "example.org SOA", answer: []string{soa}},
		{name: "NS", block: plain, ask: "example.org NS", answer: []string{"example.org. 5 IN NS ns1.dns.example.org."},
			extra: []string{"ns1.dns.example.org. 5 IN A 192.0.2.53", "ns1.dns.example.org. 5 IN AAAA 2001:db8::53"}},
		{name: "other types at the apex", block: plain, ask: "example.org A", ns: []string{soa}},
		{name: "the server", block: plain, ask: "ns1.dns.example.org A", answer: []string{"ns1.dns.example.org. 5 IN A 192.0.2.53"}},
		{name: "other types of the server", block: plain, ask: "ns1.dns.example.org MX", ns: []string{soa}},
		{name: "the parent of the server", block: plain, ask: "dns.example.org A", ns: []string{soa}},
		{name: "no such server", block: plain, ask: "ns2.dns.example.org A", rcode: dns.RcodeNameError, ns: []string{soa}},
		{name: "below the server", block: plain, ask: "a.ns1.dns.example.org A", rcode: dns.RcodeNameError, ns: []string{soa}},
		{name: "a Service in the namespace of the apex name", block: plain, ask: "hidden.dns.example.org A", rcode: dns.RcodeNameError, ns: []string{soa}},
		{name: "another apex name and TTL", block: options, ask: "example.org SOA", answer: []string{edge}},
		{name: "the server at another apex name", block: options, ask: "ns1.edge.example.org A", answer: []string{"ns1.edge.example.org. 60 IN A 192.0.2.53"}},
		{name: "the TTL of SRV", block: options, ask: "_sql._tcp.db.shop.example.org SRV",
			answer: []string{"_sql._tcp.db.shop.example.org. 60 IN SRV 0 50 5432 10-1-0-2.db.shop.example.org.", "_sql._tcp.db.shop.example.org. 60 IN SRV 0 50 5432 db-0.db.shop.example.org."},
			extra:  []string{"10-1-0-2.db.shop.example.org. 60 IN A 10.1.0.2", "db-0.db.shop.example.org. 60 IN A 10.1.0.1"}},
		{name: "the TTL of denials", block: options, ask: "none.shop.example.org A", rcode: dns.RcodeNameError, ns: []string{edge}},
		{name: "the TTL of CNAME", block: options, ask: "host.shop.example.org CNAME", answer: []string{"host.shop.example.org. 60 IN CNAME lb.example.net."}},

		{name: "PTR", block: plain, ask: "9.2.0.192.in-addr.arpa PTR", answer: []string{"9.2.0.192.in-addr.arpa. 5 IN PTR portly.shop.example.org."}},
		{name: "other types of an address", block: plain, ask: "9.2.0.192.in-addr.arpa A",
			ns: []string{"192.in-addr.arpa. 5 IN SOA ns1.dns.192.in-addr.arpa. hostmaster.dns.192.in-addr.arpa. 7 7200 1800 86400 5"}},
		{name: "no such address", block: plain, ask: "8.2.0.192.in-addr.arpa PTR", rcode: dns.RcodeNameError,
			ns: []string{"192.in-addr.arpa. 5 IN SOA ns1.dns.192.in-addr.arpa. hostmaster.dns.192.in-addr.arpa. 7 7200 1800 86400 5"}},
		{name: "a Service in a reverse zone", block: plain, ask: "web.shop.192.in-addr.arpa A", rcode: dns.RcodeNameError,
			ns: []string{"192.in-addr.arpa. 5 IN SOA ns1.dns.192.in-addr.arpa. hostmaster.dns.192.in-addr.arpa. 7 7200 1800 86400 5"}},
		{name: "the root zone", block: "k8s_external .", ask: "web.shop A", answer: []string{"web.shop. 5 IN A 192.0.2.1"}},
		{name: "the root", block: "k8s_external .", ask: ". NS", answer: []string{". 5 IN NS ns1.dns."}, extra: []string{"ns1.dns. 5 IN A 192.0.2.53", "ns1.dns. 5 IN AAAA 2001:db8::53"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, _ := serving(t, tc.block)
			m := ask(t, context.Background(), e, tc.ask)
			if m.Rcode != tc.rcode || !m.Authoritative {
				t.Errorf("rcode %s, authoritative %t, want %s", dns.RcodeToString[m.Rcode], m.Authoritative, dns.RcodeToString[tc.rcode])
			}
			for _, s := range []struct {
				section   string
				got, want []string
			}{{"answer", texts(m.Answer), tc.answer}, {"authority", texts(m.Ns), tc.ns}, {"additional", texts(m.Extra), tc.extra}} {
				if !slices.Equal(s.got, s.want) {
					t.Errorf("%s section\n%s\nwant\n%s", s.section, strings.Join(s.got, "\n"), strings.Join(s.want, "\n"))
				}
			}
		})
	}
}

func TestPassedOn(t *testing.T) {
	for _, tc := range []struct {
		name, block, ask string
		passed           bool
	}{
		{"another zone", "k8s_external example.org", "web.shop.example.com A", true},
		{"no such name", "k8s_external example.org", "none.shop.example.org A", false},
		{"no such name, with fallthrough", "k8s_external example.org {\nfallthrough\n}", "none.shop.example.org A", true},
		{"no such name, with fallthrough of another zone", "k8s_external example.org example.net {\nfallthrough example.net\n}", "none.shop.example.org A", false},
		{"a name without records of the type", "k8s_external example.org {\nfallthrough\n}", "web.shop.example.org TXT", false},
		{"a name of the server", "k8s_external example.org {\nfallthrough\n}", "ns2.dns.example.org A", false},
		{"no such address, with fallthrough", "k8s_external example.org in-addr.arpa {\nfallthrough\n}", "8.2.0.192.in-addr.arpa PTR", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, _ := serving(t, tc.block)
			if m := ask(t, context.Background(), e, tc.ask); (m.Rcode == dns.RcodeRefused) != tc.passed {
				t.Errorf("reply %v, want one of the next plugin: %t", m, tc.passed)
			}
		})
	}
}

func TestNotSynced(t *testing.T) {
	for _, tc := range []struct {
		name, block, ask string
		rcode            int
	}{
		{"a Service", "k8s_external example.org", "web.shop.example.org A", dns.RcodeServerFailure},
		{"a Service that is not known yet", "k8s_external example.org", "none.shop.example.org A", dns.RcodeServerFailure},
		{"with fallthrough", "k8s_external example.org {\nfallthrough\n}", "none.shop.example.org A", dns.RcodeRefused},
		{"an address", "k8s_external example.org in-addr.arpa", "1.2.0.192.in-addr.arpa PTR", dns.RcodeServerFailure},
		{"NS", "k8s_external example.org", "example.org NS", dns.RcodeServerFailure},
		{"the server", "k8s_external example.org", "ns1.dns.example.org A", dns.RcodeServerFailure},
		{"SOA", "k8s_external example.org", "example.org SOA", dns.RcodeSuccess},
		{"the parent of the server", "k8s_external example.org", "dns.example.org A", dns.RcodeSuccess},
		{"no such server", "k8s_external example.org", "ns2.dns.example.org A", dns.RcodeNameError},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, c := serving(t, tc.block)
			c.unsynced = true
			m := ask(t, context.Background(), e, tc.ask)
			if m.Rcode != tc.rcode {
				t.Errorf("rcode %s, want %s", dns.RcodeToString[m.Rcode], dns.RcodeToString[tc.rcode])
			}
			if m.Rcode == dns.RcodeServerFailure && len(m.Answer)+len(m.Extra) > 0 {
				t.Errorf("SERVFAIL with records: %v", m)
			}
		})
	}
}

// TestHostsInALoop has Services whose load balancers' hosts are the names of each other: the queries end, and another name is
// answered.
func TestHostsInALoop(t *testing.T) {
	e, c := serving(t, "k8s_external example.org")
	for service, host := range map[string]string{"web": "host", "host": "web"} {
		c.targets[exposed.Name{Namespace: "shop", Service: service}] = []exposed.Target{
			tcp(exposed.Target{Host: host + ".shop.example.org."}, "http", 80), tcp(exposed.Target{Host: service + ".shop.example.org."}, "http", 80),
		}
	}
	through := &itself{t: t, handler: e}
	e.upstream = through
	m := ask(t, context.Background(), e, "host.shop.example.org A")
	if len(m.Answer) == 0 || through.queries != 3 {
		t.Errorf("%d queries, want one for the name at each of three levels; reply %v", through.queries, m)
	}
	if m := ask(t, context.Background(), e, "portly.shop.example.org A"); len(m.Answer) != 1 {
		t.Errorf("another name: %v", m)
	}
}

func FuzzServeDNS(f *testing.F) {
	for _, name := range []string{"example.org", "web.shop.example.org", "_http._tcp.web.shop.example.org", "_._.web.shop.example.org", `a\.b.shop.example.org`, "ns1.dns.example.org", "1.2.0.192.in-addr.arpa", "1.192.in-addr.arpa"} {
		f.Add(name, dns.TypeA)
		f.Add(name, dns.TypeSRV)
		f.Add(name, dns.TypePTR)
	}
	f.Fuzz(func(t *testing.T, name string, qtype uint16) {
		// Unpacked names have this form.
		wire := make([]byte, 300)
		n, err := dns.PackDomainName(dns.Fqdn(name), wire, 0, nil, false)
		if err != nil {
			t.Skip()
		}
		if name, _, err = dns.UnpackDomainName(wire[:n], 0); err != nil {
			t.Skip()
		}
		if qtype == dns.TypeAXFR || qtype == dns.TypeIXFR {
			t.Skip()
		}
		e, _ := serving(t, "k8s_external example.org in-addr.arpa {\nheadless\n}")
		m := exchange(t, context.Background(), e, new(dns.Msg).SetQuestion(name, qtype))
		if _, err := m.Pack(); err != nil {
			t.Fatalf("the reply does not pack: %v\n%v", err, m)
		}
		if m.Rcode != dns.RcodeRefused && len(m.Answer) == 0 && len(m.Ns) != 1 {
			t.Errorf("denial without a SOA record: %v", m)
		}
	})
}

// TestCNAMEIsAlone: resolvers differ in their use of an answer with a CNAME beside other records. A load balancer with addresses has those, one
// with several hosts has the first of them as CNAME; SRV has all.
func TestCNAMEIsAlone(t *testing.T) {
	e, c := serving(t, "k8s_external example.org")
	first, second := exposed.Target{Host: "lb.example.net."}, exposed.Target{Host: "lb2.example.net."}
	in := func(service string, targets ...exposed.Target) {
		for i, target := range targets {
			targets[i] = tcp(target, "http", 80)
		}
		c.targets[exposed.Name{Namespace: "shop", Service: service}] = targets
	}
	in("both", exposed.Target{Addr: addr("192.0.2.1")}, first)
	in("hosts", first, second, first)
	for _, tc := range []struct {
		ask  string
		want []string
	}{
		{"both.shop.example.org. A", []string{"both.shop.example.org. 5 IN A 192.0.2.1"}},
		{"both.shop.example.org. AAAA", nil},
		{"both.shop.example.org. CNAME", nil},
		{"_http._tcp.both.shop.example.org. A", []string{"_http._tcp.both.shop.example.org. 5 IN A 192.0.2.1"}},
		{"both.shop.example.org. SRV", []string{"both.shop.example.org. 5 IN SRV 0 50 80 both.shop.example.org.", "both.shop.example.org. 5 IN SRV 0 50 80 lb.example.net."}},
		{"hosts.shop.example.org. A", []string{"hosts.shop.example.org. 5 IN CNAME lb.example.net.", "lb.example.net. 60 IN A 198.51.100.1"}},
		{"hosts.shop.example.org. AAAA", []string{"hosts.shop.example.org. 5 IN CNAME lb.example.net."}},
		{"hosts.shop.example.org. CNAME", []string{"hosts.shop.example.org. 5 IN CNAME lb.example.net."}},
		{"hosts.shop.example.org. SRV", []string{"hosts.shop.example.org. 5 IN SRV 0 33 80 lb.example.net.", "hosts.shop.example.org. 5 IN SRV 0 33 80 lb2.example.net."}},
		{"host.shop.example.org. A", []string{"host.shop.example.org. 5 IN CNAME lb.example.net.", "lb.example.net. 60 IN A 198.51.100.1"}},
	} {
		t.Run(tc.ask, func(t *testing.T) {
			m := ask(t, t.Context(), e, tc.ask)
			if got := texts(m.Answer); !slices.Equal(got, tc.want) || m.Rcode != dns.RcodeSuccess {
				t.Errorf("%s, answer %q, want %q", dns.RcodeToString[m.Rcode], got, tc.want)
			}
		})
	}
	cnames := 0
	for _, r := range transferred(t, e, "example.org.", 0) {
		switch owner := r.Header().Name; {
		case r.Header().Rrtype == dns.TypeCNAME && owner == "both.shop.example.org.":
			t.Errorf("transferred %v beside an address", r)
		case r.Header().Rrtype == dns.TypeCNAME && owner == "hosts.shop.example.org.":
			cnames++
		}
	}
	if cnames != 1 {
		t.Errorf("%d CNAMEs of one name are transferred, want 1", cnames)
	}
}

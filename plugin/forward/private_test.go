package forward

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/test/kit"
)

// summary returns response code, flags and records of a reply.
func summary(m *dns.Msg) string {
	s := dns.RcodeToString[m.Rcode]
	if m.Authoritative {
		s += " aa"
	}
	if m.RecursionAvailable {
		s += " ra"
	}
	for _, rr := range m.Answer {
		s += " | " + strings.ReplaceAll(rr.String(), "\t", " ")
	}
	for _, rr := range m.Ns {
		s += " | authority " + strings.ReplaceAll(rr.String(), "\t", " ")
	}
	return s
}

func soaOf(zone string) string {
	return fmt.Sprintf("%s 10800 IN SOA %s nobody.invalid. 1 3600 1200 604800 10800", zone, zone)
}

// TestPrivateNames_Reply has the replies to private names.
func TestPrivateNames_Reply(t *testing.T) {
	for _, tt := range []struct {
		options, name string
		qtype, class  uint16
		want          string
	}{
		{"nxdomain", "5.0.0.10.in-addr.arpa.", dns.TypePTR, dns.ClassINET, "NXDOMAIN aa ra | authority " + soaOf("10.in-addr.arpa.")},
		{"nxdomain", "10.in-addr.arpa.", dns.TypePTR, dns.ClassINET, "NOERROR aa ra | authority " + soaOf("10.in-addr.arpa.")},
		{"nxdomain", "10.IN-ADDR.arpa.", dns.TypeSOA, dns.ClassINET, "NOERROR aa ra | " + soaOf("10.in-addr.arpa.")},
		{"nxdomain", "10.in-addr.arpa.", dns.TypeNS, dns.ClassINET, "NOERROR aa ra | 10.in-addr.arpa. 10800 IN NS 10.in-addr.arpa."},
		{"nxdomain", "test.", dns.TypeANY, dns.ClassINET, "NOERROR aa ra | " + soaOf("test.") + " | test. 10800 IN NS test."},
		{"nxdomain", "a.b.test.", dns.TypeNS, dns.ClassINET, "NXDOMAIN aa ra | authority " + soaOf("test.")},
		{"nxdomain", "a.test.", dns.TypeDS, dns.ClassINET, "NXDOMAIN aa ra | authority " + soaOf("test.")},
		{"nxdomain", "abc.onion.", dns.TypeA, dns.ClassINET, "NXDOMAIN aa ra | authority " + soaOf("onion.")},
		{"nxdomain", "localhost.", dns.TypeA, dns.ClassINET, "NOERROR aa ra | localhost. 10800 IN A 127.0.0.1"},
		{"nxdomain", "A.localhost.", dns.TypeAAAA, dns.ClassINET, "NOERROR aa ra | A.localhost. 10800 IN AAAA ::1"},
		{"nxdomain", "a.localhost.", dns.TypeMX, dns.ClassINET, "NOERROR aa ra | authority " + soaOf("localhost.")},
		{"nxdomain", "_dns.resolver.arpa.", dns.TypeSVCB, dns.ClassINET, "NOERROR aa ra | authority " + soaOf("resolver.arpa.")},
		{"nxdomain", "test.", dns.TypeAXFR, dns.ClassINET, "REFUSED ra"},
		{"nxdomain", "a.test.", dns.TypeA, dns.ClassCHAOS, "REFUSED ra"},
		{"refuse", "5.0.0.10.in-addr.arpa.", dns.TypePTR, dns.ClassINET, "REFUSED ra"},
		{"refuse", "localhost.", dns.TypeA, dns.ClassINET, "REFUSED ra"},
		{"refuse", "10.in-addr.arpa.", dns.TypeSOA, dns.ClassINET, "REFUSED ra"},
	} {
		t.Run(fmt.Sprint(tt.options, " ", tt.name, " ", dns.TypeToString[tt.qtype], " ", dns.ClassToString[tt.class]), func(t *testing.T) {
			f := chainOf(t, stanzaOf("private_names "+tt.options, "127.0.0.1:1"))
			m := new(dns.Msg).SetQuestion(tt.name, tt.qtype)
			m.Question[0].Qclass = tt.class
			m.SetEdns0(1232, true)
			a := queryWith(context.Background(), f, m, false)
			if a.err != nil || a.Msg == nil {
				t.Fatalf("code %d, error %v", a.code, a.err)
			}
			if got := summary(a.Msg); got != tt.want {
				t.Errorf("\n got %s\nwant %s", got, tt.want)
			}
			if a.Id != m.Id || !a.Response || a.AuthenticatedData || len(a.Question) != 1 || a.Question[0] != m.Question[0] {
				t.Errorf("header or question: %v", a.Msg)
			}
		})
	}
}

// leakCounts returns the series of leaks_total with a value.
func leakCounts(t *testing.T) map[string]float64 {
	t.Helper()
	all := map[string]float64{}
	for _, m := range seriesOf(t, prometheus.Collector(leaks)) {
		all[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
	}
	return all
}

// increases returns the series that have increased, sorted.
func increases(before, now map[string]float64) string {
	var all []string
	for series, n := range now {
		if n > before[series] {
			all = append(all, fmt.Sprintf("%s %v", series, n-before[series]))
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// private and public are names with and without a private zone.
var private = []string{"5.0.0.10.in-addr.arpa.", "A.Test.", "printer.local.", "localhost.", "x.10.in-addr.arpa.", "10.in-addr.arpa."}

var public = []string{"www.example.com.", "8.8.8.8.in-addr.arpa.", "web.", "com."}

// TestPrivateNames_Upstream counts the leaks of each way of a query, and the queries that arrive at the upstream. It does not run
// in parallel: the series are of the process.
func TestPrivateNames_Upstream(t *testing.T) {
	leaked := "private_reverse 10.in-addr.arpa. 3, single_label . 2, special_use local. 1, special_use localhost. 1, special_use test. 1"
	for name, tt := range map[string]struct {
		stanzas  string // with the upstream for X
		wire     bool
		upstream int
		leaks    string
	}{
		"forward":                    {"forward . X", false, len(private) + len(public), leaked},
		"forward, wire":              {"forward . X", true, len(private) + len(public), leaked},
		"refuse":                     {"forward . X {\nprivate_names refuse\n}", false, len(public), "single_label . 2"},
		"refuse, wire":               {"forward . X {\nprivate_names refuse\n}", true, len(public), "single_label . 2"},
		"nxdomain":                   {"forward . X {\nprivate_names nxdomain\n}", false, len(public), "single_label . 2"},
		"nxdomain, wire":             {"forward . X {\nprivate_names nxdomain\n}", true, len(public), "single_label . 2"},
		"cluster DNS":                {"forward . X {\ncaller a\n}", true, len(private) + len(public), ""},
		"private zones of their own": {"forward 10.in-addr.arpa X\nforward . X {\nprivate_names nxdomain\n}", true, len(public) + 3, "single_label . 2"},
		"by the second stanza":       {"forward . X {\nnext NOERROR\n}\nforward . X {\nprivate_names nxdomain\n}", true, len(private) + 2*len(public), strings.Replace(leaked, ". 2", ". 4", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			seen := new(sight)
			at := script{udp: func(w dns.ResponseWriter, r *dns.Msg) {
				seen.add(r)
				_ = w.WriteMsg(new(dns.Msg).SetReply(r)) // the client may be gone
			}, host: nextHost()}.address(t)
			f := chainOf(t, strings.ReplaceAll(tt.stanzas, "X", at))
			before := leakCounts(t)
			for _, name := range slices.Concat(private, public) {
				m := question(name)
				a, ok := answer{}, false
				if tt.wire {
					a, ok = exchangeOver(f, m, false)
				}
				if !ok { // as the server does for a query in wire form that the plugin chain has to handle
					a = queryWith(context.Background(), f, m, false)
				}
				if a.err != nil || a.Msg == nil {
					t.Errorf("%s: code %d, error %v", name, a.code, a.err)
				}
			}
			if got := len(seen.all()); got != tt.upstream {
				t.Errorf("%d queries at the upstream, want %d: %v", got, tt.upstream, seen.all())
			}
			if got := increases(before, leakCounts(t)); got != tt.leaks {
				t.Errorf("leaks %q, want %q", got, tt.leaks)
			}
		})
	}
}

// TestPrivateNames_Served has a client that floods an upstream with a limit of queries with private names: they do not count
// towards it, and another client is served.
func TestPrivateNames_Served(t *testing.T) {
	release := make(chan struct{})
	at := script{udp: func(w dns.ResponseWriter, r *dns.Msg) {
		if strings.HasPrefix(r.Question[0].Name, "slow.") {
			<-release
		}
		_ = w.WriteMsg(addressReply(r)) // the client may be gone
	}, host: nextHost()}.address(t)
	f := chainOf(t, stanzaOf("private_names nxdomain\nmax_concurrent 1", at))
	done := make(chan answer)
	go func() { done <- queryWith(context.Background(), f, question("slow.example."), false) }()
	kit.Eventually(t, "a query is in progress", func() bool { return f.concurrent.Load() == 1 })
	for range 1000 {
		if a := queryWith(context.Background(), f, question("x.local."), false); a.Msg == nil || a.Rcode != dns.RcodeNameError {
			t.Fatalf("code %d, error %v", a.code, a.err)
		}
	}
	close(release)
	m := question("slow.example.")
	if a := <-done; a.Msg == nil || len(a.Answer) != 1 {
		t.Errorf("the other client: code %d, error %v", a.code, a.err)
	}
	wantRight(t, f, false, m.Question[0].Name)
}

// TestLocalZones: the zones are valid, and none is in another one, so that each name has one.
func TestLocalZones(t *testing.T) {
	for i, z := range localZones {
		if newZone(z.name) == nil || z.name != strings.ToLower(z.name) {
			t.Errorf("invalid zone %q", z.name)
		}
		for j, other := range localZones {
			if i != j && dns.IsSubDomain(other.name, z.name) {
				t.Errorf("%s is in %s", z.name, other.name)
			}
		}
	}
	for _, network := range []string{
		"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8", "0.0.0.0/8", "192.0.2.0/24", "198.51.100.0/24",
		"203.0.113.0/24", "255.255.255.255/32", "fd00::/8", "fe80::/10", "2001:db8::/32", "::1/128", "::/128",
	} {
		_, n, err := net.ParseCIDR(network)
		kit.Must(t, err)
		last := slices.Clone(n.IP)
		for i := range last {
			last[i] |= ^n.Mask[i]
		}
		for _, ip := range []net.IP{n.IP, last} {
			name := dnsReverse(t, ip.String())
			if !slices.ContainsFunc(localZones, func(z localZone) bool { return dns.IsSubDomain(z.name, name) }) {
				t.Errorf("%s is in no zone", ip)
			}
		}
	}
}

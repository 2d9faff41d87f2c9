//go:build linux

package forward

import (
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

const leaks = "nearside_forward_leaks_total"

// outside is a resolver outside of the cluster, which records the questions that it receives.
type outside struct {
	address string
	mu      sync.Mutex
	names   []string
}

// newOutside starts a resolver that answers every name with an address, or with the records of types that have none.
func newOutside(t *testing.T) *outside {
	t.Helper()
	o := &outside{}
	o.address = kit.Serve(t, net.JoinHostPort(rogueHost, "0"), o.ServeDNS)
	return o
}

// ServeDNS implements dns.Handler.
func (o *outside) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	q := r.Question[0]
	if q.Name != "." { // daemon.Start and checks
		o.mu.Lock()
		o.names = append(o.names, strings.ToLower(q.Name)+" "+dns.TypeToString[q.Qtype])
		o.mu.Unlock()
	}
	m := new(dns.Msg).SetReply(r)
	if q.Qtype == dns.TypeA {
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: net.IPv4(192, 0, 2, 1)}}
	}
	_ = w.WriteMsg(m) // the client may be gone
}

// received returns the questions, sorted.
func (o *outside) received() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Sorted(slices.Values(o.names))
}

// ask queries a server, and fails the test without a reply.
func ask(t *testing.T, network, address, name string, qtype uint16, change ...func(*dns.Msg)) *dns.Msg {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, qtype)
	for _, f := range change {
		f(m)
	}
	reply, err := exchange(network, address, m, time.Now().Add(bounded))
	if err != nil {
		t.Fatalf("%s %s: %v", name, dns.TypeToString[qtype], err)
	}
	return reply
}

// rootBlock returns a server block for the root.
func rootBlock(lines ...string) string {
	return ".:PORT {\n    prometheus METRICS\n    errors\n    " + strings.Join(lines, "\n    ") + "\n}\n"
}

// leakingNames have private zones, publicNames do not.
var (
	leakingNames = []string{"5.0.0.10.in-addr.arpa.", "a.test.", "Printer.Local.", "b.home.arpa.", "1.1.168.192.in-addr.arpa."}
	publicNames  = []string{"www.example.com.", "8.8.8.8.in-addr.arpa.", "www.example.com.corp.example."}
)

// TestPrivateNames counts exactly the queries that reach a resolver, and none reaches it with the option, with and without a
// cache, over both protocols, with the flags DO and CD. Names of servers for a zone are not affected.
func TestPrivateNames(t *testing.T) {
	t.Parallel()
	plain := func(*dns.Msg) {}
	flagged := map[string]func(*dns.Msg){
		"": plain, "EDNS": func(m *dns.Msg) { m.SetEdns0(1232, false) }, "DO": func(m *dns.Msg) { m.SetEdns0(1232, true) },
		"CD": func(m *dns.Msg) { m.CheckingDisabled = true }, "no RD": func(m *dns.Msg) { m.RecursionDesired = false },
	}
	for option, rcode := range map[string]int{"forward": dns.RcodeSuccess, "refuse": dns.RcodeRefused, "nxdomain": dns.RcodeNameError} {
		for _, cache := range []string{"", "cache 30"} {
			t.Run(option+" "+cache, func(t *testing.T) {
				t.Parallel()
				o, own := newOutside(t), newOutside(t)
				conf := kit.File(t, "resolv.conf", "search corp.example\nnameserver 192.0.2.1\n")
				s := startProgram(t, "clusterdns", rootBlock(cache, "forward . "+o.address+" "+conf+" {", "    policy sequential", "    private_names "+option, "}"),
					"lab.test:PORT {\n    "+cache+"\n    forward . "+own.address+"\n}\n")
				queries := 0
				for _, network := range []string{"udp", "tcp"} {
					for what, change := range flagged {
						for _, name := range leakingNames {
							queries++
							if m := ask(t, network, s.Addr, name, dns.TypeA, change); m.Rcode != rcode || m.AuthenticatedData || (m.IsEdns0() != nil) != (what == "EDNS" || what == "DO") {
								t.Errorf("%s %s %s: %v", network, name, what, m)
							}
						}
						for _, name := range publicNames {
							if m := ask(t, network, s.Addr, name, dns.TypeA, change); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
								t.Errorf("%s %s %s: %v", network, name, what, m)
							}
						}
					}
				}
				if m := ask(t, "udp", s.Addr, "a.lab.test.", dns.TypeA); m.Rcode != dns.RcodeSuccess || len(own.received()) != 1 {
					t.Errorf("the server for the zone: %v, %v", m, own.received())
				}
				leaked := 0
				for _, question := range o.received() {
					for _, name := range leakingNames {
						if strings.HasPrefix(question, strings.ToLower(name)) {
							leaked++
						}
					}
				}
				all := s.scrape(t)
				counted := all.Sum(leaks, "type", "special_use") + all.Sum(leaks, "type", "private_reverse")
				if float64(leaked) != counted || (option != "forward") != (leaked == 0) {
					t.Errorf("%d private names at the resolver, counted were %v: %q\n%s", leaked, counted, o.received(), like(all, leaks))
				}
				searched := strings.Count(strings.Join(o.received(), "\n"), "corp.example.")
				if got := all.Sum(leaks, "type", "search", "zone", "corp.example."); got != float64(searched) || searched == 0 {
					t.Errorf("%d names of the search domain at the resolver, counted were %v", searched, got)
				}
				if cache != "" && option == "nxdomain" && all.Sum("coredns_cache_hits_total", "type", "denial") < float64(queries)/2 {
					t.Errorf("denials are not cached:\n%s", like(all, "coredns_cache_"))
				}
			})
		}
	}
}

// TestPrivateNames_TTL: a denial of a private zone is cached like any other: its TTL ends, and so does the SOA record's.
func TestPrivateNames_TTL(t *testing.T) {
	t.Parallel()
	o := newOutside(t)
	s := startProgram(t, "nodecache", rootBlock("cache 20", forward(o.address, "private_names nxdomain")))
	ttl := func() uint32 {
		m := ask(t, "udp", s.Addr, "a.test.", dns.TypeA)
		if m.Rcode != dns.RcodeNameError || len(m.Ns) != 1 || m.Ns[0].Header().Name != "test." || m.Ns[0].Header().Rrtype != dns.TypeSOA {
			t.Fatalf("reply %v", m)
		}
		return m.Ns[0].Header().Ttl
	}
	first := ttl()
	if first > 20 || first < 19 {
		t.Errorf("TTL %d, want that of the cache, 20", first)
	}
	kit.Within(t, bounded, "a lower TTL", func() bool { return ttl() < first })
	if got := s.scrape(t).Sum("coredns_cache_misses_total"); got != 2 { // with that of daemon.Start
		t.Errorf("%v misses, want 1 for the name", got)
	}
}

// TestPrivateNames_Kubernetes has names that kubernetes passes on: those of the cluster are still answered.
func TestPrivateNames_Kubernetes(t *testing.T) {
	t.Parallel()
	demo, err := filepath.Abs("../../deploy/demo")
	kit.Must(t, err)
	for option, want := range map[string]struct {
		rcode int
		leaks string
	}{
		"forward":  {dns.RcodeSuccess, "10.in-addr.arpa. PTR, cluster.local. A, d.f.ip6.arpa. PTR"},
		"nxdomain": {dns.RcodeNameError, ""},
		"refuse":   {dns.RcodeRefused, ""},
	} {
		t.Run(option, func(t *testing.T) {
			t.Parallel()
			o := newOutside(t)
			s := startProgram(t, "clusterdns", rootBlock("kubernetes cluster.local k8s.example in-addr.arpa ip6.arpa {", "    manifests "+demo, "    pods verified", "    fallthrough", "}",
				"cache 30", forward(o.address, "private_names "+option)))
			kit.Within(t, bounded, "the cluster is known", func() bool {
				return len(ask(t, "udp", s.Addr, "kubernetes.default.svc.cluster.local.", dns.TypeA).Answer) == 1
			})
			if m := ask(t, "udp", s.Addr, "1.0.96.10.in-addr.arpa.", dns.TypePTR); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
				t.Errorf("address of a Service: %v", m)
			}
			before := s.scrape(t).Sum(leaks)
			unknown, err := dns.ReverseAddr("fd00:244::77")
			kit.Must(t, err)
			for name, qtype := range map[string]uint16{"77.77.77.10.in-addr.arpa.": dns.TypePTR, unknown: dns.TypePTR, "missing.default.svc.cluster.local.": dns.TypeA} {
				if m := ask(t, "udp", s.Addr, name, qtype); m.Rcode != want.rcode {
					t.Errorf("%s: %v", name, m)
				}
			}
			var zones []string
			for _, question := range o.received() {
				for _, zone := range []string{"10.in-addr.arpa.", "d.f.ip6.arpa.", "cluster.local."} {
					if name, qtype, _ := strings.Cut(question, " "); dns.IsSubDomain(zone, name) && !strings.HasPrefix(name, "kubernetes.") {
						zones = append(zones, zone+" "+qtype)
					}
				}
			}
			slices.Sort(zones)
			all := s.scrape(t)
			if got := strings.Join(zones, ", "); got != want.leaks || all.Sum(leaks)-before != float64(len(zones)) {
				t.Errorf("at the resolver %q, want %q; %v leaks\n%s", got, want.leaks, all.Sum(leaks)-before, like(all, leaks))
			}
			if option == "forward" && all.Sum(leaks, "type", "cluster", "zone", "cluster.local.") == 0 {
				t.Errorf("no leak of the cluster zone:\n%s", like(all, leaks))
			}
			// A zone of kubernetes that is no special-use name is forwarded, and counted.
			ask(t, "udp", s.Addr, "missing.default.svc.k8s.example.", dns.TypeA)
			if got := s.scrape(t).Sum(leaks, "type", "cluster", "zone", "k8s.example."); got != 1 {
				t.Errorf("%v leaks of the zone of kubernetes, want 1", got)
			}
		})
	}
}

// TestPrivateNames_Unbound compares the replies with those of Unbound's local zones, which follow the same RFCs. Its zone for test
// has records here, and it has none for local and resolver.arpa. Below localhost it also redirects queries for SOA and NS.
func TestPrivateNames_Unbound(t *testing.T) {
	t.Parallel()
	r, o := startReal(t, "unbound"), newOutside(t)
	s := startProgram(t, "nodecache", rootBlock(forward(o.address, "private_names nxdomain")))
	var names []string
	for _, zone := range []string{
		"invalid.", "onion.", "home.arpa.", "localhost.", "10.in-addr.arpa.", "16.172.in-addr.arpa.", "31.172.in-addr.arpa.", "168.192.in-addr.arpa.",
		"64.100.in-addr.arpa.", "127.100.in-addr.arpa.", "127.in-addr.arpa.", "0.in-addr.arpa.", "254.169.in-addr.arpa.", "2.0.192.in-addr.arpa.",
		"100.51.198.in-addr.arpa.", "113.0.203.in-addr.arpa.", "255.255.255.255.in-addr.arpa.", "d.f.ip6.arpa.", "8.e.f.ip6.arpa.", "b.e.f.ip6.arpa.",
		"8.b.d.0.1.0.0.2.ip6.arpa.", strings.Repeat("0.", 32) + "ip6.arpa.",
	} {
		names = append(names, zone, "7."+zone, "a.7."+zone)
	}
	for _, name := range names {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypePTR, dns.TypeSOA, dns.TypeNS, dns.TypeMX} {
			if strings.HasSuffix(name, ".localhost.") && (qtype == dns.TypeSOA || qtype == dns.TypeNS) {
				continue
			}
			ours, theirs := facts(ask(t, "udp", s.Addr, name, qtype)), facts(ask(t, "udp", r.address(r.port), name, qtype))
			if ours != theirs {
				t.Errorf("%s %s: %s, Unbound %s", name, dns.TypeToString[qtype], ours, theirs)
			}
		}
	}
	if got := o.received(); len(got) > 0 {
		t.Errorf("queries at the resolver: %q", got)
	}
}

// facts returns the response code, the answers without the data of SOA and NS records, which differ, and the zone of a denial.
func facts(m *dns.Msg) string {
	s := fmt.Sprintf("%s, authoritative: %t", dns.RcodeToString[m.Rcode], m.Authoritative)
	for _, rr := range m.Answer {
		s += ", " + rr.Header().Name + " " + dns.TypeToString[rr.Header().Rrtype]
		if a, ok := rr.(*dns.A); ok {
			s += " " + a.A.String()
		}
		if a, ok := rr.(*dns.AAAA); ok {
			s += " " + a.AAAA.String()
		}
	}
	if len(m.Answer) == 0 {
		for _, rr := range m.Ns {
			s += ", denied by " + rr.Header().Name + " " + dns.TypeToString[rr.Header().Rrtype]
		}
	}
	return s
}

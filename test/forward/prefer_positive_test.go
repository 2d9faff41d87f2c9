//go:build linux

package forward

import (
	"net"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// changing is a resolver whose answer to each name changes.
type changing struct {
	mu      sync.Mutex
	address net.IP // of all names; nil is a denial
	rcode   int    // of a denial
	queries int
}

func (c *changing) set(address net.IP, rcode int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.address, c.rcode = address, rcode
}

func (c *changing) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queries
}

// ServeDNS implements dns.Handler.
func (c *changing) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := r.Question[0].Name
	m := new(dns.Msg).SetReply(r)
	if name != "." {
		c.queries++
	}
	if c.address != nil && !strings.HasPrefix(name, "missing.") {
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: c.address}}
	} else {
		m.Rcode = c.rcode
		m.Ns = []dns.RR{&dns.SOA{
			Hdr: dns.RR_Header{Name: "example.org.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 1}, Ns: "ns.example.org.", Mbox: "root.example.org.", Minttl: 1,
		}}
	}
	_ = w.WriteMsg(m) // the client may be gone
}

// preferring returns the example of cache's README with prefer_positive. The resolver's TTL is the minimum, so that answers expire
// within the test.
func preferring(t *testing.T, upstream string) string {
	t.Helper()
	text := kit.Read(t, "../../plugin/cache/README.md")
	for _, block := range regexp.MustCompile("(?s)~~~ corefile\n(.*?)~~~").FindAllStringSubmatch(text, -1) {
		if strings.Contains(block[1], "prefer_positive") {
			return strings.NewReplacer(":53", ":PORT", "192.0.2.53", upstream, "cache 30 {", "cache 30 {\n        success 1024 30 1\n        denial 1024 30 1", "cache 30\n", "prometheus METRICS\n    cache 30 {\n        success 1024 30 1\n        denial 1024 30 1\n    }\n").Replace(block[1])
		}
	}
	t.Fatal("no example with prefer_positive")
	return ""
}

// TestPreferPositive runs the example of cache's README: each sentence about it there is a step.
func TestPreferPositive(t *testing.T) {
	t.Parallel()
	for what, rcode := range map[string]int{"NXDOMAIN": dns.RcodeNameError, "empty answer": dns.RcodeSuccess} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			first, second := net.IPv4(192, 0, 2, 1), net.IPv4(192, 0, 2, 2)
			c := &changing{address: first, rcode: rcode}
			s := startProgram(t, "nodecache", preferring(t, kit.Serve(t, net.JoinHostPort(rogueHost, "0"), c.ServeDNS)))
			const preferred, other = "www.example.org.", "www.example.com."
			answer := func(name string) string {
				m := ask(t, "udp", s.Addr, name, dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, false) })
				if opt := m.IsEdns0(); opt == nil || len(opt.Option) > 0 {
					t.Errorf("options %v", opt)
				}
				if len(m.Answer) == 0 {
					return dns.RcodeToString[m.Rcode] + " without data"
				}
				return m.Answer[0].(*dns.A).A.String() + map[bool]string{true: ", stale"}[m.Answer[0].Header().Ttl == 30]
			}
			for _, name := range []string{preferred, other} {
				if got := answer(name); got != first.String() {
					t.Fatalf("%s: %s, want %s", name, got, first)
				}
			}
			c.set(nil, rcode)
			denied := dns.RcodeToString[rcode] + " without data"
			kit.Within(t, bounded, "the other name is denied", func() bool { return answer(other) == denied })
			kit.Within(t, bounded, "the answer is stale", func() bool { return answer(preferred) == first.String()+", stale" })
			before := c.count()
			for range 3 {
				if got := answer(preferred); got != first.String()+", stale" {
					t.Fatalf("%s, want the stale answer", got)
				}
			}
			if got := c.count(); got != before {
				t.Errorf("%d queries to the resolver, want none within FAILURE_RECHECK", got-before)
			}
			if got := answer("missing.example.org."); got != denied {
				t.Errorf("a name without an answer: %s, want %s", got, denied)
			}
			if got := s.scrape(t).Sum("coredns_cache_served_stale_total"); got < 4 {
				t.Errorf("%v stale answers counted", got)
			}
			if strings.Contains(s.Output(), "stale") {
				t.Errorf("logged: %s", s.Output())
			}
			c.set(second, 0)
			kit.Within(t, 3*bounded, "the new answer", func() bool { return answer(preferred) == second.String() })
		})
	}
}

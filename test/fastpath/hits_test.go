//go:build linux

package fastpath

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// TestHits asks in different forms for what has been asked before, and looks who answers.
func TestHits(t *testing.T) {
	u := startUpstream(t, answerScript(t))
	for _, kind := range []struct {
		program, corefile, name string
	}{
		{"clusterdns", clusterBlock(newCluster(t)), "web.shop.svc.cluster.local."},
		{"nodecache", cacheBlock(u, "cache"), "a.test."},
	} {
		s := start(t, kind.program, strings.ReplaceAll(kind.corefile, "FASTPATH", ""))
		for _, tc := range []struct {
			name   string
			change func(*dns.Msg)
			hit    bool
		}{
			{"plain", func(*dns.Msg) {}, true},
			{"upper case", func(m *dns.Msg) { m.Question[0].Name = strings.ToUpper(kind.name) }, true},
			{"without RD", func(m *dns.Msg) { m.RecursionDesired = false }, true},
			{"AD", func(m *dns.Msg) { m.AuthenticatedData = true }, true},
			{"CD", func(m *dns.Msg) { m.CheckingDisabled = true }, true},
			{"EDNS", func(m *dns.Msg) { m.SetEdns0(1232, false) }, true},
			{"EDNS without a size", func(m *dns.Msg) { m.SetEdns0(0, false) }, true},
			{"DO", func(m *dns.Msg) { m.SetEdns0(1232, true) }, true},
			{"CD and DO", func(m *dns.Msg) { m.SetEdns0(1232, true); m.CheckingDisabled = true }, true},
			{"name error", func(m *dns.Msg) { m.Question[0].Name = "none." + kind.name }, true},
			{"no data", func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeMX }, true},
			{"option", func(m *dns.Msg) {
				m.SetEdns0(1232, false)
				m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65001}}
			}, false},
			{"class CH", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, false},
			{"opcode NOTIFY", func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }, false},
		} {
			t.Run(kind.program+"/"+tc.name, func(t *testing.T) {
				m := newQuery(kind.name, dns.TypeA)
				udp := dial(t, "udp", "127.0.0.1", s)
				udp.ask(t, pack(t, m))
				tc.change(m)
				packet := pack(t, m)
				first := udp.ask(t, packet)
				before := s.scrape(t)
				const times = 3
				for range times {
					if again := udp.ask(t, packet); brief(t, again) != brief(t, first) {
						t.Errorf("%s, and %s before", brief(t, again), brief(t, first))
					}
				}
				var hits, rest float64
				within(t, "the queries are counted", func() bool {
					now := s.scrape(t).Since(before)
					hits, rest = now.Sum(answeredTotal), now.Sum(handedOverTotal)
					return hits+rest >= times
				})
				if want := map[bool]float64{true: times}[tc.hit]; hits != want {
					t.Errorf("%v queries were answered by the fast path and %v handed over, want %v answered", hits, rest, want)
				}
			})
		}
	}
}

// TestLongQueries asks with padding. CoreDNS alone reads no more of a datagram than 512 bytes.
func TestLongQueries(t *testing.T) {
	s := start(t, "clusterdns", strings.ReplaceAll(clusterBlock(newCluster(t)), "FASTPATH", ""))
	udp := dial(t, "udp", "127.0.0.1", s)
	for _, tc := range []struct {
		length int // of the query in bytes
		want   string
	}{
		{512, "NOERROR 10.96.12.34"}, {513, "NOERROR 10.96.12.34"}, {1232, "NOERROR 10.96.12.34"}, {1536, "NOERROR 10.96.12.34"},
		{1537, "FORMERR"}, {65000, "FORMERR"},
	} {
		t.Run(fmt.Sprint(tc.length), func(t *testing.T) {
			m := newQuery("web.shop.svc.cluster.local.", dns.TypeA)
			m.SetEdns0(1232, false)
			const optionHead = 4
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, tc.length-len(pack(t, m))-optionHead)}}
			if got := brief(t, udp.ask(t, pack(t, m))); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// inOrder returns a message as text with the records of each section in order, and the last answer as it came.
func inOrder(t *testing.T, packet []byte) (text, last string) {
	t.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(packet); err != nil {
		t.Fatal(err)
	}
	if len(m.Answer) > 0 {
		last = m.Answer[len(m.Answer)-1].String()
	}
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		slices.SortFunc(section, func(a, b dns.RR) int { return strings.Compare(a.String(), b.String()) })
	}
	return fmt.Sprintf("%d bytes\n%v", len(packet), m), last
}

// TestLoadbalance compares answers whose records change places.
func TestLoadbalance(t *testing.T) {
	u := startUpstream(t, answerScript(t))
	for _, kind := range []struct {
		program, corefile string
		questions         []dns.Question
	}{
		{"clusterdns", clusterBlock(newCluster(t), "loadbalance"), []dns.Question{
			{Name: "db.shop.svc.cluster.local.", Qtype: dns.TypeA},
			{Name: "db.shop.svc.cluster.local.", Qtype: dns.TypeAAAA},
			{Name: "many12.shop.svc.cluster.local.", Qtype: dns.TypeA}, // compressed
		}},
		{"nodecache", cacheBlock(u, "cache 300", "loadbalance"), []dns.Question{
			{Name: "many.test.", Qtype: dns.TypeA},
			{Name: "chain.test.", Qtype: dns.TypeA},
			{Name: "mx.test.", Qtype: dns.TypeMX},
		}},
	} {
		p := startPair(t, kind.program, kind.corefile)
		w := p.dial(t, "udp", "127.0.0.1")
		for _, question := range kind.questions {
			t.Run(question.Name+dns.Type(question.Qtype).String(), func(t *testing.T) {
				packet := pack(t, newQuery(question.Name, question.Qtype))
				before := p.on.scrape(t).Sum(answeredTotal)
				lasts := map[string]bool{}
				for range 100 { // two records in one order all the time: once in 2^99
					on, off := w.ask(t, packet)
					matchTTLs(off, on, 1)
					with, last := inOrder(t, on)
					without, _ := inOrder(t, off)
					if with != without {
						t.Fatalf("with the fast path\n%s\nwithout\n%s", with, without)
					}
					lasts[last] = true
				}
				if len(lasts) < 2 {
					t.Error("no record changes its place")
				}
				if hits := p.on.scrape(t).Sum(answeredTotal) - before; hits == 0 && question.Qtype != dns.TypeMX {
					t.Error("no query was answered by the fast path")
				}
			})
		}
	}
}

//go:build linux

package fastpath

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"
)

// TestHits sends queries in different forms for a stored answer, and checks whether the fast path or the chain answers.
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
				start := s.scrape(t)
				m := newQuery(kind.name, dns.TypeA)
				udp := dial(t, "udp", "127.0.0.1", s)
				udp.ask(t, pack(t, m))
				tc.change(m)
				packet := pack(t, m)
				first := udp.ask(t, packet)
				before := s.counted(t, start, 2)
				const times = 3
				for range times {
					if again := udp.ask(t, packet); brief(t, again) != brief(t, first) {
						t.Errorf("%s, and %s before", brief(t, again), brief(t, first))
					}
				}
				now := s.counted(t, before, times).Since(before)
				hits, rest := now.Sum(answeredTotal), now.Sum(handedOverTotal)
				if want := map[bool]float64{true: times}[tc.hit]; hits != want {
					t.Errorf("%v queries were answered by the fast path and %v handed over, want %v answered", hits, rest, want)
				}
			})
		}
	}
}

// TestLongQueries sends queries with padding. CoreDNS alone reads only 512 bytes of a datagram.
func TestLongQueries(t *testing.T) {
	s := start(t, "clusterdns", strings.ReplaceAll(clusterBlock(newCluster(t)), "FASTPATH", ""))
	udp := dial(t, "udp", "127.0.0.1", s)
	for _, tc := range []struct {
		length int // size of the query in bytes
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

// sorted returns a message as text with the records of each section sorted and the place of the OPT record, and the
// records of each section in their original order.
func sorted(t *testing.T, packet []byte) (text string, sections [3]string) {
	t.Helper()
	m := new(dns.Msg)
	kit.Must(t, m.Unpack(packet))
	opt := slices.IndexFunc(m.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
	for i, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		sections[i] = fmt.Sprint(section)
		slices.SortFunc(section, func(a, b dns.RR) int { return strings.Compare(a.String(), b.String()) })
	}
	return fmt.Sprintf("%d bytes, OPT %d\n%v", len(packet), opt, m), sections
}

// orders are the orders of the records of each section.
type orders [3]map[string]bool

func newOrders() orders { return orders{{}, {}, {}} }

func (o orders) add(sections [3]string) {
	for i, s := range sections {
		o[i][s] = true
	}
}

// change reports for each section whether the order of its records changes.
func (o orders) change() (sections [3]bool) {
	for i, seen := range o {
		sections[i] = len(seen) > 1
	}
	return sections
}

// leftToTheChain are names whose records get an order that the fast path does not produce.
var leftToTheChain = map[string]bool{"mx.test.": true, "behind.test.": true}

// TestLoadbalance compares answers with a changing order of records: the order in each section changes with the fast
// path if it does without it.
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
			{Name: "_postgres._tcp.db.shop.svc.cluster.local.", Qtype: dns.TypeSRV},
			{Name: "_http._tcp.many12.shop.svc.cluster.local.", Qtype: dns.TypeSRV},
		}},
		{"nodecache", cacheBlock(u, "cache 300", "loadbalance"), []dns.Question{
			{Name: "many.test.", Qtype: dns.TypeA},
			{Name: "chain.test.", Qtype: dns.TypeA},
			{Name: "behind.test.", Qtype: dns.TypeA},
			{Name: "mx.test.", Qtype: dns.TypeMX},
			{Name: "srv.test.", Qtype: dns.TypeSRV},
			{Name: "glue.test.", Qtype: dns.TypeSRV},
			{Name: "mixed.test.", Qtype: dns.TypeA},
			{Name: "refer.test.", Qtype: dns.TypeA},
			{Name: "denied.test.", Qtype: dns.TypeA},
		}},
	} {
		p := startPair(t, kind.program, kind.corefile)
		w := p.dial(t, "udp", "127.0.0.1")
		for _, question := range kind.questions {
			for _, size := range []uint16{0, 1232, 4096} {
				t.Run(fmt.Sprintf("%s%s, EDNS %d", question.Name, dns.Type(question.Qtype), size), func(t *testing.T) {
					m := newQuery(question.Name, question.Qtype)
					if size > 0 {
						m.SetEdns0(size, false)
					}
					packet := pack(t, m)
					before := p.on.scrape(t).Sum(answeredTotal)
					with, without := newOrders(), newOrders()
					for range 100 { // probability of two records in one constant order: 1 in 2^99
						on, off := w.ask(t, packet)
						maskSerials(on)
						maskSerials(off)
						matchTTLs(off, on, 1)
						textOn, sectionsOn := sorted(t, on)
						textOff, sectionsOff := sorted(t, off)
						if textOn != textOff {
							t.Fatalf("with the fast path\n%s\nwithout\n%s", textOn, textOff)
						}
						if on[2]&2 != 0 {
							return // which records remain depends on their order
						}
						with.add(sectionsOn)
						without.add(sectionsOff)
					}
					if with.change() != without.change() {
						t.Errorf("records of the sections change places with the fast path: %v, without: %v", with.change(), without.change())
					}
					for i := range without { // without changes there is one order
						if !without.change()[i] && !maps.Equal(with[i], without[i]) {
							t.Errorf("section %d: order with the fast path %v, without %v", i, with[i], without[i])
						}
					}
					if hits := p.on.scrape(t).Sum(answeredTotal) - before; (hits == 0) != leftToTheChain[question.Name] {
						t.Errorf("%v of 100 queries were answered by the fast path", hits)
					}
				})
			}
		}
	}
}

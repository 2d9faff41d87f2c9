//go:build linux

package coherence

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// TestMemo checks that equal answers have equal numbers whatever their TTL and serial is, that the TTL has a limit, and that
// a reply which is neither an answer nor SERVFAIL has the number of a text that no right answer has.
func TestMemo(t *testing.T) {
	build := func(name string, id uint16, rcode int, records ...string) *dns.Msg {
		m := new(dns.Msg)
		m.SetQuestion(name, dns.TypeA)
		m.Id, m.Rcode, m.Response = id, rcode, true
		for _, text := range records {
			rr, err := dns.NewRR(text)
			kit.Must(t, err)
			if rr.Header().Rrtype == dns.TypeSOA {
				m.Ns = append(m.Ns, rr)
			} else {
				m.Answer = append(m.Answer, rr)
			}
		}
		return m
	}
	wire := func(m *dns.Msg) []byte {
		b, err := m.Pack()
		kit.Must(t, err)
		return b
	}
	pack := func(id uint16, rcode int, records ...string) []byte {
		return wire(build(webName, id, rcode, records...))
	}
	changed := func(change func(m *dns.Msg)) []byte {
		m := build(webName, 1, dns.RcodeSuccess, webName+" 2 IN A 10.96.0.1")
		change(m)
		return wire(m)
	}
	query := wire(new(dns.Msg).SetQuestion(webName, dns.TypeA))
	const soa = "cluster.local. 2 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. "
	x := &memo{ttl: 2, texts: newTexts(), known: map[string]int32{}}
	first := x.numberOf(pack(1, dns.RcodeSuccess, webName+" 2 IN A 10.96.0.1", webName+" 2 IN A 10.96.0.2"), query)
	denied := x.numberOf(pack(1, dns.RcodeNameError, soa+"1 7200 1800 86400 2"), query)
	for _, tc := range []struct {
		what  string
		reply []byte
		want  int32
	}{
		{"other TTL", pack(2, dns.RcodeSuccess, webName+" 1 IN A 10.96.0.1", webName+" 1 IN A 10.96.0.2"), first},
		{"other order", pack(2, dns.RcodeSuccess, webName+" 1 IN A 10.96.0.2", webName+" 1 IN A 10.96.0.1"), first},
		{"other serial", pack(3, dns.RcodeNameError, soa+"2 7200 1800 86400 2"), denied},
		{"SERVFAIL", pack(2, dns.RcodeServerFailure), failure},
	} {
		if got := x.numberOf(tc.reply, query); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.what, got, tc.want)
		}
	}
	if x.texts.all[denied] != nameError || x.texts.all[first] != one+"\n"+two {
		t.Errorf("texts: %q", x.texts.all)
	}
	long := pack(2, dns.RcodeSuccess, webName+" 3 IN A 10.96.0.1")
	longDenial := pack(2, dns.RcodeNameError, "cluster.local. 3 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 2")
	for _, tc := range []struct {
		want  string
		reply []byte
	}{
		{"malformed", pack(1, dns.RcodeSuccess, webName+" 2 IN A 10.96.0.1")[:60]},
		{"malformed", append(pack(1, dns.RcodeSuccess, webName+" 2 IN A 10.96.0.1"), 0)},
		{fmt.Sprintf("with a TTL of 3: %x", long), long},
		{fmt.Sprintf("with a TTL of 3: %x", longDenial), longDenial},
		{"REFUSED", pack(1, dns.RcodeRefused)},
		{"FORMERR", pack(1, dns.RcodeFormatError)},
		{"NOTIMP", pack(1, dns.RcodeNotImplemented)},
		{dns.RcodeToString[dns.RcodeBadVers], changed(func(m *dns.Msg) { m.SetEdns0(1232, false).Rcode = dns.RcodeBadVers })},
		{"for another question", wire(build(bankName, 1, dns.RcodeServerFailure))},
		{"for another question", wire(build(strings.ToUpper(webName), 1, dns.RcodeSuccess, webName+" 2 IN A 10.96.0.1"))},
		{"for another question", changed(func(m *dns.Msg) { m.Question = nil })},
		{"truncated", changed(func(m *dns.Msg) { m.Truncated = true })},
		{"no response", changed(func(m *dns.Msg) { m.Response = false })},
		{"of another opcode", changed(func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify })},
		{"a denial with records, or without SOA record", pack(1, dns.RcodeNameError)},
		{"a denial with records, or without SOA record", pack(1, dns.RcodeSuccess)},
		{"a denial with records, or without SOA record", pack(1, dns.RcodeNameError, soa+"1 7200 1800 86400 2", webName+" 2 IN A 10.96.0.1")},
	} {
		if n := x.numberOf(tc.reply, query); n < 0 || x.texts.all[n] != "reply that is "+tc.want {
			t.Errorf("%s: number %d", tc.want, n)
		}
	}
}

// TestLost checks that queries without a reply are recorded.
func TestLost(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0") // it never replies
	kit.Must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	u := newUniverse()
	c := &client{Rand: rand.New(rand.NewPCG(1, 1)), source: source{network: "udp", address: server.LocalAddr().String()}, packed: packQueries(u)}
	if !c.connect() {
		t.Fatal("no socket")
	}
	c.sendBatch()
	c.next -= batch / 2
	c.sendBatch() // half of it with IDs of queries that wait
	c.abandon()
	for _, r := range c.replies {
		if r.answer != noReply || r.sent == 0 {
			t.Fatalf("%+v", r)
		}
	}
	if len(c.replies) != 2*batch {
		t.Errorf("%d queries without a reply, want %d", len(c.replies), 2*batch)
	}
}

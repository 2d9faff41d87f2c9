//go:build linux

package fastpath

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"
)

// keepAliveQuery is the name of the query with edns-tcp-keepalive.
const keepAliveQuery = "keepalive"

// query is a packet with a description.
type query struct {
	name   string
	packet []byte
}

// clusterNames are names that clients of a cluster query, and their expansions by search lists.
var clusterNames = []string{
	"kubernetes.default.svc.cluster.local.",
	"web.shop.svc.cluster.local.",
	"_http._tcp.web.shop.svc.cluster.local.",
	"_http._udp.web.shop.svc.cluster.local.",
	"db.shop.svc.cluster.local.",
	"db-0.db.shop.svc.cluster.local.",
	"db-3.db.shop.svc.cluster.local.",
	"_postgres._tcp.db.shop.svc.cluster.local.",
	"zone-a.pin._zone.db.shop.svc.cluster.local.",
	"zone-c.prefer._zone.db.shop.svc.cluster.local.",
	"many12.shop.svc.cluster.local.",
	"many60.shop.svc.cluster.local.",
	"many120.shop.svc.cluster.local.",
	"_http._tcp.many12.shop.svc.cluster.local.",
	"_http._tcp.many120.shop.svc.cluster.local.",
	"ep-2.many12.shop.svc.cluster.local.",
	"payments.shop.svc.cluster.local.",
	"database.shop.svc.cluster.local.",
	"10-244-1-20.shop.pod.cluster.local.",
	"10-244-9-99.shop.pod.cluster.local.",
	"fd00-244-0-1--20.shop.pod.cluster.local.",
	"34.12.96.10.in-addr.arpa.",
	"20.1.244.10.in-addr.arpa.",
	"9.9.9.9.in-addr.arpa.",
	"4.3.2.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.0.d.f.ip6.arpa.",
	"0.2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.0.0.0.0.4.4.2.0.0.0.d.f.ip6.arpa.",
	"cluster.local.",
	"svc.cluster.local.",
	"pod.cluster.local.",
	"shop.svc.cluster.local.",
	"ns.dns.cluster.local.",
	"dns-version.cluster.local.",
	"no.shop.svc.cluster.local.",
	"web.nowhere.svc.cluster.local.",
	"www.example.org.shop.svc.cluster.local.",
	"www.example.org.svc.cluster.local.",
	"www.example.org.cluster.local.",
	"*.shop.svc.cluster.local.",
	`a\.b.shop.svc.cluster.local.`,
	`\000\255.shop.svc.cluster.local.`,
	strings.Repeat("a23456789.", 20) + "svc.cluster.local.",
	"www.example.org.",
	".",
}

var commonTypes = []uint16{
	dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeTXT, dns.TypeSOA, dns.TypeNS, dns.TypeCNAME,
	dns.TypeMX, dns.TypeHTTPS, dns.TypeANY, dns.TypeDS,
	dns.TypeAXFR, dns.TypeIXFR, dns.TypeOPT, 65280,
}

// newQuery returns a query as a stub resolver sends it: RD and nothing else.
func newQuery(name string, qtype uint16) *dns.Msg {
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.Id = uint16(rand.Uint32())
	return m
}

func pack(t *testing.T, m *dns.Msg) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatalf("pack %v: %v", m, err)
	}
	return b
}

// plain returns every name with every type, without EDNS.
func plain(t *testing.T, names []string) (all []query) {
	t.Helper()
	for _, name := range names {
		for _, qtype := range commonTypes {
			text := name + " " + dns.Type(qtype).String()
			all = append(all, query{text, pack(t, newQuery(name, qtype))})
		}
	}
	return all
}

// variants returns a question in the queries of different clients.
func variants(t *testing.T, name string, qtype uint16) (all []query) {
	t.Helper()
	for bits := range 1 << 5 {
		do, cd, ad, rd, mixed := bits&1 != 0, bits&2 != 0, bits&4 != 0, bits&8 != 0, bits&16 != 0
		for _, size := range []int{-1, 0, 512, 1232, 4096, 65535} {
			if size < 0 && do {
				continue // it needs an OPT record
			}
			m := newQuery(name, qtype)
			if mixed {
				m.Question[0].Name = mixCase(name)
			}
			m.CheckingDisabled, m.AuthenticatedData, m.RecursionDesired = cd, ad, rd
			if size >= 0 {
				m.SetEdns0(uint16(size), do)
			}
			text := fmt.Sprintf("%s %s size %d do %v cd %v ad %v rd %v", m.Question[0].Name, dns.Type(qtype), size, do, cd, ad, rd)
			all = append(all, query{text, pack(t, m)})
		}
	}
	return all
}

// mixCase makes every second letter upper-case, as resolvers do against forged answers.
func mixCase(name string) string {
	b := []byte(name)
	for i := range b {
		if i%2 == 0 && b[i] >= 'a' && b[i] <= 'z' {
			b[i] -= 'a' - 'A'
		}
	}
	return string(b)
}

// odd returns unusual queries for an existing name: the fast path must leave them to the chain.
func odd(t *testing.T, name string) (all []query) {
	t.Helper()
	add := func(text string, change func(*dns.Msg)) {
		m := newQuery(name, dns.TypeA)
		change(m)
		all = append(all, query{text, pack(t, m)})
	}
	option := func(text string, o dns.EDNS0) {
		add(text, func(m *dns.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = []dns.EDNS0{o}
		})
	}
	option("unknown option", &dns.EDNS0_LOCAL{Code: 65001, Data: []byte{1, 2, 3}})
	option("cookie", &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"})
	option("padding", &dns.EDNS0_PADDING{Padding: make([]byte, 64)})
	option("padding that makes the query longer than answers without EDNS", &dns.EDNS0_PADDING{Padding: make([]byte, 400)})
	option("client subnet", &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{192, 0, 2, 0}})
	option("NSID", &dns.EDNS0_NSID{Code: dns.EDNS0NSID})
	option(keepAliveQuery, &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE})
	for _, version := range []uint8{1, 255} {
		add(fmt.Sprintf("EDNS version %d", version), func(m *dns.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().SetVersion(version)
		})
	}
	for _, class := range []uint16{dns.ClassCHAOS, dns.ClassHESIOD, dns.ClassANY, dns.ClassNONE, 0} {
		add("class "+dns.Class(class).String(), func(m *dns.Msg) { m.Question[0].Qclass = class })
	}
	for opcode := 1; opcode < 16; opcode++ {
		add(fmt.Sprintf("opcode %d", opcode), func(m *dns.Msg) { m.Opcode = opcode })
	}
	for _, rcode := range []int{dns.RcodeServerFailure, dns.RcodeRefused} {
		add("rcode "+dns.RcodeToString[rcode], func(m *dns.Msg) { m.Rcode = rcode })
	}
	add("AA", func(m *dns.Msg) { m.Authoritative = true })
	add("TC", func(m *dns.Msg) { m.Truncated = true })
	add("RA", func(m *dns.Msg) { m.RecursionAvailable = true })
	add("Z", func(m *dns.Msg) { m.Zero = true })
	add("response", func(m *dns.Msg) { m.Response = true })
	add("no question", func(m *dns.Msg) { m.Question = nil })
	add("two questions", func(m *dns.Msg) {
		m.Question = append(m.Question, dns.Question{Name: "db.shop.svc.cluster.local.", Qtype: dns.TypeA, Qclass: dns.ClassINET})
	})
	address := &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: []byte{192, 0, 2, 1}}
	add("record in the answer section", func(m *dns.Msg) { m.Answer = []dns.RR{address} })
	add("record in the authority section", func(m *dns.Msg) { m.Ns = []dns.RR{address} })
	add("record in the additional section", func(m *dns.Msg) { m.Extra = []dns.RR{address} })
	all = append(all, query{"byte behind the end", append(pack(t, newQuery(name, dns.TypeA)), 0)})
	return all
}

const malformedFolder = "../../plugin/internal/wire/testdata/malformed"

// malformed returns the packets of the files, which are named after their errors.
func malformed(t *testing.T) (all []query) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(malformedFolder, "*.bin"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no packets in %s: %v", malformedFolder, err)
	}
	for _, path := range files {
		packet, err := os.ReadFile(path)
		kit.Must(t, err)
		all = append(all, query{"file " + filepath.Base(path), packet})
	}
	return all
}

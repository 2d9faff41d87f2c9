package store

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/property"
)

// slowReply is the oracle of AppendReply without a shuffle: it changes a copy of the message record by record.
func slowReply(t testing.TB, answer, query *dns.Msg, p *Patch) *dns.Msg {
	t.Helper()
	reply := answer.Copy()
	reply.Id, reply.Response, reply.Opcode = query.Id, true, dns.OpcodeQuery
	reply.RecursionDesired, reply.CheckingDisabled = query.RecursionDesired, query.CheckingDisabled
	reply.Truncated, reply.Zero = false, false
	opt := query.IsEdns0()
	if !query.AuthenticatedData && (opt == nil || !opt.Do()) {
		reply.AuthenticatedData = false
	}
	reply.Question = query.Question
	name := query.Question[0].Name
	for _, section := range [][]dns.RR{reply.Answer, reply.Ns, reply.Extra} {
		for _, rr := range section {
			h := rr.Header()
			if strings.EqualFold(h.Name, name) && name != strings.ToLower(name) {
				h.Name = name
			}
			switch {
			case p.FixedTTL:
				h.Ttl = p.TTL
			case h.Ttl < p.Age:
				h.Ttl = 0
			default:
				h.Ttl -= p.Age
			}
		}
	}
	if p.SetSerial {
		for _, rr := range reply.Ns[max(0, lastSOA(reply.Ns)):] {
			if soa, ok := rr.(*dns.SOA); ok {
				soa.Serial = p.Serial
			}
		}
	}
	if opt == nil {
		return reply
	}
	reply.SetEdns0(opt.UDPSize(), opt.Do())
	for b := p.Options; len(b) > 0; {
		n := int(b[2])<<8 | int(b[3])
		reply.IsEdns0().Option = append(reply.IsEdns0().Option, &dns.EDNS0_LOCAL{
			Code: uint16(b[0])<<8 | uint16(b[1]), Data: b[4 : 4+n],
		})
		b = b[4+n:]
	}
	return reply
}

func lastSOA(rrs []dns.RR) int {
	for i := len(rrs) - 1; i >= 0; i-- {
		if _, ok := rrs[i].(*dns.SOA); ok {
			return i
		}
	}
	return -1
}

// checkReply asserts that the reply to a query has the bytes of the slow one.
func checkReply(t *testing.T, answer, query *dns.Msg, p *Patch) {
	t.Helper()
	packed := packMsg(t, answer)
	a, err := readAnswer(append(make([]byte, 0, len(packed)), packed...))
	if len(packed) > dns.MaxMsgSize-wire.OPTLen {
		if err == nil {
			t.Fatalf("accepted an answer of %d bytes", len(packed))
		}
		return
	}
	if err != nil {
		t.Fatalf("%v: %v", answer, err)
	}
	if a.Len() != len(packed) || a.Rcode() != answer.Rcode || (a.serial != 0) != (lastSOA(answer.Ns) >= 0) || a.Size() < len(packed) {
		t.Fatalf("%v: length %d, rcode %d, serial %v, size %d", answer, a.Len(), a.Rcode(), a.serial != 0, a.Size())
	}
	packedQuery, q := queryOf(t, query)
	slow := slowReply(t, answer, query, p)
	slow.Compress = answer.Compress
	want := packMsg(t, slow)
	got := a.AppendReply([]byte("in front"), packedQuery, &q, p)
	if !bytes.HasPrefix(got, []byte("in front")) {
		t.Fatal("the prefix has changed")
	}
	got = got[len("in front"):]
	if len(got) != a.ReplyLen(&q, p) {
		t.Fatalf("length %d, ReplyLen %d", len(got), a.ReplyLen(&q, p))
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("query\n%v\nanswer\n%v\n%+v\ngot\n%s\nwant\n%v\n%x\n%x", query, answer, p, text(got), slow, got, want)
	}
	if again, err := answer.Pack(); err != nil || !bytes.Equal(again, a.packed) {
		t.Fatalf("the stored answer was changed: %x, was %x (%v)", a.packed, again, err)
	}
}

func text(b []byte) string {
	m := new(dns.Msg)
	err := m.Unpack(b)
	return fmt.Sprint(m, err)
}

// mixCase returns a name with some letters in upper case.
func mixCase(r *rand.Rand, name string) string {
	b := []byte(name)
	for i, c := range b {
		if c >= 'a' && c <= 'z' && r.IntN(3) == 0 {
			b[i] = c - 32
		}
	}
	return string(b)
}

// randomNames are names of which some end with others, for compression.
var randomNames = []string{
	".", "org.", "example.org.", "a.example.org.", "svc.cluster.local.", "web.default.svc.cluster.local.",
	"_http._tcp.web.default.svc.cluster.local.", "10-0-0-1.web.default.svc.cluster.local.", "1.0.0.10.in-addr.arpa.",
	`with\.dot.example.org.`, `\000\255.example.org.`, longest,
}

func randomName(r *rand.Rand) string { return randomNames[r.IntN(len(randomNames))] }

// randomRecord returns a record of one of the usual types.
func randomRecord(r *rand.Rand, owner string) dns.RR {
	h := dns.RR_Header{Name: owner, Class: dns.ClassINET, Ttl: r.Uint32N(60)}
	if r.IntN(20) == 0 {
		h.Ttl = r.Uint32()
	}
	switch r.IntN(13) {
	case 0, 1:
		h.Rrtype = dns.TypeA
		return &dns.A{Hdr: h, A: net.IPv4(192, 0, 2, byte(r.Uint32())).To4()}
	case 2:
		h.Rrtype = dns.TypeAAAA
		return &dns.AAAA{Hdr: h, AAAA: net.IP{0x20, 1, 0xd, 0xb8, 15: byte(r.Uint32())}}
	case 3:
		h.Rrtype = dns.TypeCNAME
		return &dns.CNAME{Hdr: h, Target: randomName(r)}
	case 4:
		h.Rrtype = dns.TypeSRV
		return &dns.SRV{Hdr: h, Priority: 1, Weight: uint16(r.Uint32()), Port: 53, Target: randomName(r)}
	case 5:
		h.Rrtype = dns.TypeMX
		return &dns.MX{Hdr: h, Preference: 10, Mx: randomName(r)}
	case 6:
		h.Rrtype = dns.TypeTXT
		return &dns.TXT{Hdr: h, Txt: []string{"", strings.Repeat("x", r.IntN(256)), "\\\"\\000"}}
	case 7:
		h.Rrtype = dns.TypeSOA
		return &dns.SOA{
			Hdr: h, Ns: randomName(r), Mbox: randomName(r), Serial: r.Uint32(),
			Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: 30,
		}
	case 8:
		h.Rrtype = dns.TypeNS
		return &dns.NS{Hdr: h, Ns: randomName(r)}
	case 9:
		h.Rrtype = dns.TypePTR
		return &dns.PTR{Hdr: h, Ptr: randomName(r)}
	case 10:
		h.Rrtype = dns.TypeNSEC
		return &dns.NSEC{Hdr: h, NextDomain: randomName(r), TypeBitMap: []uint16{1, 28, 46, 257}}
	case 11:
		h.Rrtype = dns.TypeRRSIG
		return &dns.RRSIG{
			Hdr: h, TypeCovered: dns.TypeA, Algorithm: 13, Labels: 2, OrigTtl: 30, Expiration: 1 << 31, Inception: 1 << 30,
			KeyTag: 7, SignerName: randomName(r), Signature: "AAECAwQFBgc=",
		}
	default:
		h.Rrtype = 65280
		return &dns.RFC3597{Hdr: h, Rdata: strings.Repeat("c0", r.IntN(40))}
	}
}

// randomAnswer returns an answer to a question in lower case. Some of its records have the question's name.
func randomAnswer(r *rand.Rand, records int) *dns.Msg {
	m := new(dns.Msg)
	m.Id, m.Response = uint16(r.Uint32()), true
	m.Authoritative, m.Truncated, m.RecursionDesired = r.IntN(2) == 0, r.IntN(8) == 0, r.IntN(2) == 0
	m.RecursionAvailable, m.AuthenticatedData, m.CheckingDisabled = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
	m.Zero, m.Rcode = r.IntN(8) == 0, r.IntN(16)
	name := randomName(r)
	m.Question = []dns.Question{{Name: name, Qtype: uint16(r.Uint32()), Qclass: dns.ClassINET}}
	for range r.IntN(records + 1) {
		owner := name
		if r.IntN(2) == 0 {
			owner = randomName(r)
		}
		if r.IntN(10) == 0 {
			owner = mixCase(r, owner)
		}
		section := []*[]dns.RR{&m.Answer, &m.Answer, &m.Ns, &m.Extra}[r.IntN(4)]
		*section = append(*section, randomRecord(r, owner))
	}
	return m
}

// randomQueryFor returns a query with the question of an answer.
func randomQueryFor(r *rand.Rand, answer *dns.Msg, upper bool) *dns.Msg {
	m := new(dns.Msg)
	m.Id = uint16(r.Uint32())
	m.RecursionDesired, m.AuthenticatedData, m.CheckingDisabled = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
	m.Question = append(m.Question, answer.Question...)
	if upper {
		m.Question[0].Name = mixCase(r, m.Question[0].Name)
	}
	if r.IntN(3) > 0 {
		m.SetEdns0(uint16(r.Uint32()), r.IntN(2) == 0)
	}
	return m
}

func randomPatch(r *rand.Rand) *Patch {
	p := &Patch{Age: r.Uint32N(40)}
	switch r.IntN(8) {
	case 0:
		p.Age = 0
	case 1:
		p.Age = r.Uint32()
	case 2:
		p.FixedTTL, p.TTL = true, r.Uint32()
	case 3:
		p.SetSerial, p.Serial = true, r.Uint32()
	case 4:
		p.Options = []byte{0, 15, 0, 2, 0, 3}
	case 5:
		p.Options = []byte{0, 15, 0, 6, 0, 22, 'd', 'o', 'w', 'n', 0xff, 0xe3, 0, 0}
	}
	return p
}

func TestAppendReply(t *testing.T) {
	for name, tt := range map[string]struct {
		messages, records int
		compress, upper   bool
	}{
		"uncompressed":             {4000, 12, false, false},
		"uncompressed, mixed case": {4000, 12, false, true},
		"compressed":               {4000, 12, true, false},
		"long":                     {60, 700, false, true},
		"long and compressed":      {60, 1300, true, false},
		"over 64 KiB":              {20, 4000, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			property.Seeds(t, 4, 1, func(t *testing.T, seed uint64) {
				r := rand.New(rand.NewPCG(seed, uint64(len(name))))
				longest := 0
				for range tt.messages {
					answer := randomAnswer(r, tt.records)
					answer.Compress = tt.compress
					query := randomQueryFor(r, answer, tt.upper)
					checkReply(t, answer, query, randomPatch(r))
					longest = max(longest, answer.Len())
				}
				if tt.records > 12 && longest < 60000 && property.Fixed() {
					t.Errorf("the longest answer has only %d bytes", longest)
				}
			})
		})
	}
}

// packedAnswer returns the packed form of a message.
func packedAnswer(t testing.TB, m *dns.Msg) Answer {
	t.Helper()
	a, err := readAnswer(packMsg(t, m))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// reply returns the reply to a plain query, unpacked.
func reply(t testing.TB, m *dns.Msg, p *Patch) *dns.Msg {
	t.Helper()
	a := packedAnswer(t, m)
	query, q := queryOf(t, m)
	return unpackMsg(t, a.AppendReply(nil, query, &q, p))
}

func TestNewAnswerRefuses(t *testing.T) {
	pack := func(change func(*dns.Msg)) []byte {
		m := message(t, "a.org.", dns.TypeA, "a.org. 30 IN A 192.0.2.1")
		change(m)
		return packMsg(t, m)
	}
	whole := pack(func(*dns.Msg) {})
	tests := map[string]struct {
		packed []byte
		err    error
	}{
		"no question":         {pack(func(m *dns.Msg) { m.Question = nil }), errMalformed},
		"two questions":       {pack(func(m *dns.Msg) { m.Question = append(m.Question, m.Question...) }), errMalformed},
		"OPT":                 {pack(func(m *dns.Msg) { m.SetEdns0(1232, false) }), errUnstorable},
		"TSIG":                {pack(func(m *dns.Msg) { m.SetTsig("k.", dns.HmacSHA256, 300, 1) }), errUnstorable},
		"trailing byte":       {append(bytes.Clone(whole), 0), errMalformed},
		"pointer in question": {append(append(bytes.Clone(whole[:wire.HeaderLen]), 1, 'a', 0xc0, 20, 0, 1, 0, 1), make([]byte, 8)...), errMalformed},
		"name of 256 bytes":   {pack(func(m *dns.Msg) { m.Question[0].Name = tooLong; m.Answer = nil }), errMalformed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := readAnswer(tt.packed); !errors.Is(err, tt.err) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
		})
	}
	for n := range whole {
		if _, err := readAnswer(whole[:n:n]); err == nil {
			t.Errorf("accepted the first %d bytes of %d", n, len(whole))
		}
	}
}

// FuzzNewAnswer asserts that the reply from any accepted bytes has the length that ReplyLen returns, and that the reply
// from a message that package dns packs is the slow one.
func FuzzNewAnswer(f *testing.F) {
	r := rand.New(rand.NewPCG(4, 5))
	for i := range 30 {
		answer := randomAnswer(r, 8)
		answer.Compress = i%2 == 0
		f.Add(packMsg(f, answer), uint64(i))
	}
	for _, b := range malformedFiles(f) {
		f.Add(b, uint64(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		checkAnyAnswer(t, b, r)
		m := new(dns.Msg)
		if m.Unpack(b) != nil || len(m.Question) != 1 || m.IsEdns0() != nil || m.Rcode > 0xf {
			return
		}
		m.Question[0].Name = strings.ToLower(m.Question[0].Name)
		for _, m.Compress = range []bool{false, true} {
			packed, err := m.Pack()
			if err != nil {
				return
			}
			if _, err := readAnswer(packed); err != nil {
				if new(dns.Msg).Unpack(packed) == nil && !errors.Is(err, errUnstorable) && len(packed) <= dns.MaxMsgSize-wire.OPTLen {
					t.Fatalf("%v: %v", m, err)
				}
				return
			}
			query := randomQueryFor(r, m, !m.Compress)
			p := randomPatch(r)
			p.SetSerial = false // the SOA record may have no data
			checkReply(t, m, query, p)
		}
	})
}

// checkAnyAnswer asserts that replies from arbitrary accepted bytes have the right length and do not change the bytes.
func checkAnyAnswer(t *testing.T, b []byte, r *rand.Rand) {
	t.Helper()
	a, err := readAnswer(b[:len(b):len(b)])
	if err != nil {
		return
	}
	before := bytes.Clone(b)
	var q wire.Query
	if !q.ParseQuestion(b) {
		t.Fatalf("accepted %x with a compressed question", b)
	}
	for range 4 {
		q.EDNS, q.DO, q.RD, q.CD, q.AD = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
		p := randomPatch(r)
		p.Shuffle = r.Uint64()
		query := append(make([]byte, wire.HeaderLen), b[wire.HeaderLen:wire.HeaderLen+q.NameLen]...)
		got := a.AppendReply(make([]byte, 0, r.IntN(2*len(b))), query, &q, p)
		if len(got) != a.ReplyLen(&q, p) {
			t.Fatalf("length %d, ReplyLen %d", len(got), a.ReplyLen(&q, p))
		}
		if !bytes.Equal(b, before) {
			t.Fatalf("the answer was changed: %x, was %x", b, before)
		}
	}
}

func TestAppendReplyAllocatesNothing(t *testing.T) {
	m := message(t, "a.org.", dns.TypeA, append([]string{"a.org. 30 IN CNAME b.org."}, addressRecords("b.org.", 1, 20)...)...)
	m.Extra = message(t, "a.org.", dns.TypeA, addressRecords("c.org.", 1, 20)...).Answer
	a := packedAnswer(t, m)
	query := newQuery(t, "A.org.", dns.TypeA, edns(1232, true))
	buf := make([]byte, 0, dns.MaxMsgSize)
	p := Patch{Age: 3, Serial: 4, SetSerial: true, Options: []byte{0, 15, 0, 2, 0, 3}, Shuffle: 12345}
	if n := testing.AllocsPerRun(1000, func() {
		var q wire.Query
		if !q.Parse(query) {
			t.Error("refused")
		}
		if a.ReplyLen(&q, &p) != len(a.AppendReply(buf, query, &q, &p)) {
			t.Error("length")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

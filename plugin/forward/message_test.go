package forward

import (
	"bytes"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
)

// replySeeds are replies with common and unusual contents, and some malformed ones.
func replySeeds(t testing.TB) (all [][]byte) {
	t.Helper()
	add := func(compress bool, change func(m *dns.Msg), records ...string) {
		m := new(dns.Msg).SetReply(question("www.Example.org."))
		for _, text := range records {
			rr, err := dns.NewRR(text)
			if err != nil {
				t.Fatal(err)
			}
			m.Answer, m.Ns, m.Extra = append(m.Answer, rr), append(m.Ns, rr), append(m.Extra, rr)
		}
		m.Compress = compress
		if change != nil {
			change(m)
		}
		b, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	for _, compress := range []bool{false, true} {
		add(compress, nil)
		for _, data := range []string{"A 192.0.2.1", "AAAA 2001:db8::1", "CNAME a.example.org.", "NS ns.example.org.", "PTR b.example.", "MX 10 mx.example.org.",
			"SRV 1 2 3 srv.example.org.", "SOA ns.example.org. mail.example.org. 1 2 3 4 5", `TXT "one" "" "two"`, "DS 1 8 2 00ff", "HTTPS 1 . alpn=h2",
			"RRSIG A 8 2 300 20300101000000 20200101000000 1 example.org. AAAA", "DNSKEY 257 3 8 AAAA", "CAA 0 issue \"x\"", "DNAME d.example.org."} {
			add(compress, nil, "www.example.org. 300 IN "+data)
			add(compress, func(m *dns.Msg) { m.Extra = append(m.Extra, optOf(cookie(), spoof(), list())) }, "x.www.example.org. 300 IN "+data)
		}
		add(compress, func(m *dns.Msg) { m.Extra = []dns.RR{optOf(&dns.EDNS0_TCP_KEEPALIVE{Timeout: 3}), optOf(spoof())} })
		add(compress, func(m *dns.Msg) { m.Rcode = dns.RcodeBadVers; m.Extra = []dns.RR{optOf(&dns.EDNS0_EDE{InfoCode: 3})} })
		add(compress, func(m *dns.Msg) {
			m.Extra = []dns.RR{optOf(&dns.EDNS0_SUBNET{Family: 1, SourceNetmask: 8, Address: []byte{10, 0, 0, 0}})}
		})
	}
	for _, b := range all[:8] {
		all = append(all, b[:len(b)-1], append(bytes.Clone(b), 0))
	}
	return append(all, []byte("\x00\x00\x80\x05\x00\x00\x00\x00\x00\x00\x00\x00"))
}

// FuzzMessage asserts that package dns accepts the messages that parse accepts, and reads them in the same way, also after
// options were removed.
func FuzzMessage(f *testing.F) {
	for _, b := range replySeeds(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headerLen {
			return
		}
		var m message
		if !m.parse(b, false) {
			return
		}
		if len(compareMessage(t, &m).Question) != 1 {
			t.Errorf("%x is accepted without a question", b)
		}
		if !m.simple {
			t.Errorf("%x has several OPT records", b)
			return
		}
		if m.opt == 0 {
			return
		}
		without := message{b: bytes.Clone(b)}
		if !without.parse(without.b, false) {
			t.Fatalf("%x is refused the second time", b)
		}
		without.removeOptions(isHop)
		if opt := compareMessage(t, &without).IsEdns0(); opt == nil || hasOption(opt, isHop) || without.hasOption(isHop) {
			t.Errorf("%x without options has %v", b, opt)
		}
		without.removeOPT()
		if opt := compareMessage(t, &without).IsEdns0(); opt != nil {
			t.Errorf("%x without an OPT record has %v", b, opt)
		}
	})
}

// compareMessage returns the unpacked message, which must be complete and have the same fields.
func compareMessage(t *testing.T, m *message) *dns.Msg {
	t.Helper()
	want := new(dns.Msg)
	if err := want.Unpack(m.b); err != nil {
		t.Fatalf("%x is accepted, but not by package dns: %v", m.b, err)
	}
	if m.rcode != want.Rcode || m.truncated() != want.Truncated || (m.opt > 0) != (want.IsEdns0() != nil) {
		t.Errorf("%x: code %d, truncated %t, OPT at %d; want %v", m.b, m.rcode, m.truncated(), m.opt, want)
	}
	if got := m.count(ancountAt) + m.count(nscountAt) + m.count(arcountAt); got != len(want.Answer)+len(want.Ns)+len(want.Extra) {
		t.Errorf("%x: %d records are announced, want %v", m.b, got, want)
	}
	return want
}

// TestUnpackReply: replies of unusual forms are accepted if package dns accepts them, and are complete messages then, with at
// most one OPT record.
func TestUnpackReply(t *testing.T) {
	t.Parallel()
	x := new(exchange)
	packed, err := question("www.Example.org.").Pack()
	if err != nil {
		t.Fatal(err)
	}
	x.plain = packed
	upstream := &upstream{endpoint: plain("192.0.2.255:53")}
	parsed, unpacked, refused := 0, 0, 0
	for _, b := range replySeeds(t) {
		want := new(dns.Msg)
		accepted := want.Unpack(b) == nil
		quick := new(message).parse(bytes.Clone(b), false)
		var m message
		err := x.readReply(&m, &transport.Call{Reply: bytes.Clone(b)}, upstream, false)
		if (err == nil) != accepted {
			t.Errorf("%x: %v, accepted by package dns: %t", b, err, accepted)
		}
		switch {
		case err != nil:
			refused++
			continue
		case quick:
			parsed++
		default:
			unpacked++
		}
		got := compareMessage(t, &m)
		if len(want.Question) == 0 {
			want.Question = question("www.Example.org.").Question
		}
		dropMisplacedOPT(want) // see TestRepliesWithMisplacedOPT
		if got.String() != want.String() {
			t.Errorf("%x is\n%v\nwant\n%v", b, got, want)
		}
	}
	if parsed < 40 || unpacked < 10 || refused < 4 {
		t.Errorf("%d messages were parsed, %d unpacked, %d refused", parsed, unpacked, refused)
	}
}

// TestMessage_Allocs: an ordinary reply is parsed and cleaned without allocations.
func TestMessage_Allocs(t *testing.T) {
	x := &exchange{}
	x.addedOPT = true
	reply := addressReply(question("www.example.org."))
	reply.Extra = []dns.RR{optOf(spoof(), cookie())}
	packed, err := reply.Pack()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(packed))
	if n := testing.AllocsPerRun(100, func() {
		var m message
		copy(b, packed)
		if !m.parse(b, false) || x.clean(&m, false) != nil || m.opt != 0 {
			t.Error("not cleaned")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestRepliesWithMisplacedOPT has an upstream whose replies have OPT records where RFC 6891 section 6.1.1 forbids them, so that
// some clients (dnspython) refuse the whole message: the client gets the answer without them.
func TestRepliesWithMisplacedOPT(t *testing.T) {
	t.Parallel()
	opt := func(name string) dns.RR {
		return &dns.OPT{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeOPT, Class: 1232}}
	}
	places := map[string]func(reply *dns.Msg){
		"answer.":    func(reply *dns.Msg) { reply.Answer = append(reply.Answer, opt(".")) },
		"authority.": func(reply *dns.Msg) { reply.Ns = append(reply.Ns, opt(".")) },
		"twice.":     func(reply *dns.Msg) { reply.Extra = append(reply.Extra, opt("."), opt(".")) },
		"with.name.": func(reply *dns.Msg) { reply.Extra = append(reply.Extra, opt("example.")) },
		"everywhere.": func(reply *dns.Msg) {
			reply.Answer, reply.Ns, reply.Extra = append(reply.Answer, opt(".")), []dns.RR{opt(".")}, []dns.RR{opt(".")}
		},
	}
	f := chainOf(t, stanzaOf("", script{tcp: replies(func(r *dns.Msg) *dns.Msg {
		reply := addressReply(r)
		if change := places[r.Question[0].Name]; change != nil {
			change(reply)
		}
		return reply
	})}.address(t)))
	for name := range places {
		m := question(name)
		a := queryOver(f, m, false)
		if wrong := a.wrong(m); wrong != "" {
			t.Errorf("%s: %s", name, wrong)
			continue
		}
		if len(a.Ns) > 0 || len(a.Extra) > 1 || len(a.Extra) == 1 && a.Extra[0].Header().Name != "." {
			t.Errorf("%s: the reply is %v", name, a.Msg)
		}
	}
	wantRight(t, f, false, "ordinary.")
}

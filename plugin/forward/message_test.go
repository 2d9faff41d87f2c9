package forward

import (
	"bytes"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/forward/transport"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// replySeeds are replies with common and unusual contents, and some malformed ones.
func replySeeds(t testing.TB) (all [][]byte) {
	t.Helper()
	add := func(compress bool, change func(m *dns.Msg), records ...string) {
		m := new(dns.Msg).SetReply(question("www.Example.org."))
		for _, text := range records {
			rr, err := dns.NewRR(text)
			kit.Must(t, err)
			m.Answer, m.Ns, m.Extra = append(m.Answer, rr), append(m.Ns, rr), append(m.Extra, rr)
		}
		m.Compress = compress
		if change != nil {
			change(m)
		}
		all = append(all, kit.Pack(t, m))
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

// compareMessage returns the unpacked message, which must be complete and have the same fields.
func compareMessage(t *testing.T, m *message) *dns.Msg {
	t.Helper()
	want := new(dns.Msg)
	if err := want.Unpack(m.Message); err != nil {
		t.Fatalf("%x is accepted, but not by package dns: %v", m.Message, err)
	}
	if m.Rcode != want.Rcode || m.Truncated() != want.Truncated || m.OPT.IsPresent() != (want.IsEdns0() != nil) {
		t.Errorf("%x: code %d, truncated %t, OPT %+v; want %v", m.Message, m.Rcode, m.Truncated(), m.OPT, want)
	}
	got := 0
	for section := range wire.Sections {
		got += wire.Count(m.Message, section.CountAt())
	}
	if got != len(want.Answer)+len(want.Ns)+len(want.Extra) {
		t.Errorf("%x: %d records are announced, want %v", m.Message, got, want)
	}
	return want
}

// TestUnpackReply: replies of unusual forms are accepted if package dns accepts them, and are complete messages then, with at
// most one OPT record.
func TestUnpackReply(t *testing.T) {
	t.Parallel()
	x := new(exchange)
	packed := kit.Pack(t, question("www.Example.org."))
	x.plain = packed
	upstream := &upstream{endpoint: plain("192.0.2.255:53")}
	parsed, unpacked, refused := 0, 0, 0
	for _, b := range replySeeds(t) {
		want := new(dns.Msg)
		accepted := want.Unpack(b) == nil
		ordinary := new(wire.Reply).Parse(b)
		var m message
		err := x.readReply(&m, &transport.Call{Reply: bytes.Clone(b)}, upstream, false)
		if (err == nil) != accepted {
			t.Errorf("%x: %v, accepted by package dns: %t", b, err, accepted)
		}
		switch {
		case err != nil:
			refused++
			continue
		case ordinary:
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

// TestClean_Allocs: an ordinary reply is parsed and cleaned without allocations.
func TestClean_Allocs(t *testing.T) {
	x := &exchange{}
	x.addedOPT = true
	reply := addressReply(question("www.example.org."))
	reply.Extra = []dns.RR{optOf(spoof(), cookie())}
	packed := kit.Pack(t, reply)
	b, m := make([]byte, len(packed)), message{Reply: new(wire.Reply)}
	if n := testing.AllocsPerRun(100, func() {
		copy(b, packed)
		if !m.Parse(b) || x.clean(&m, false) != nil || m.OPT.IsPresent() {
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

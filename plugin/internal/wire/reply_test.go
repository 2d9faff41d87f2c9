package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"
)

// replyData are data of records: of each type with a layout, of types that package dns knows, and of unknown ones. %s are names.
var replyData = []string{
	"A 192.0.2.1", "AAAA 2001:db8::1", "CNAME %s", "NS %s", "PTR %s", "DNAME %s", "MX 10 %s", "SRV 1 2 3 %s", "SOA %s %s 1 2 3 4 5",
	`TXT "one" "" "two"`, `TXT "\"\\ \000\255"`, `CAA 0 issue "ca.example"`, `CAA 0 issue "a\\b"`,
	`HTTPS 1 . alpn="h2,h3" port=8443 ipv4hint=192.0.2.1 ech="YWJj" ipv6hint=2001:db8::1`, "HTTPS 0 %s", `SVCB 2 %s alpn="dot" dohpath="/q{?dns}"`,
	"SVCB 1 . key65400=x", "DS 1 8 2 00ff", "RRSIG A 8 2 300 20300101000000 20200101000000 1 %s YWI=", "RRSIG MX 8 2 300 20300101000000 20200101000000 1 %s YWJj",
	"TYPE65280 \\# 2 abcd", "TYPE66 \\# 0", "DNSKEY 257 3 8 YWJj", "TLSA 3 1 1 00ff", "SSHFP 4 2 00ff", "RP %s %s", `HINFO "a" "b"`, "NSEC %s A RRSIG",
}

// replyNames are names of records.
var replyNames = []string{"www.example.org.", "WWW.Example.org.", "a.www.example.org.", "Other.example.", ".", `a\.b.example.`, `\000.example.`}

// replyOptions are EDNS options.
var replyOptions = []dns.EDNS0{
	&dns.EDNS0_NSID{Nsid: "6e73"}, &dns.EDNS0_COOKIE{Cookie: "0123456789abcdef"}, &dns.EDNS0_PADDING{Padding: make([]byte, 5)},
	&dns.EDNS0_TCP_KEEPALIVE{Timeout: 3}, &dns.EDNS0_EDE{InfoCode: 22, ExtraText: "text"}, &dns.EDNS0_LOCAL{Code: 65314, Data: []byte{1, 'a', 0}},
	&dns.EDNS0_SUBNET{Family: 1, SourceNetmask: 8, Address: []byte{10, 0, 0, 0}},
}

// randomReply returns a packed reply, with an OPT record in two of three.
func randomReply(t testing.TB, r *rand.Rand) []byte {
	t.Helper()
	pick := func() string { return replyNames[r.IntN(len(replyNames))] }
	m := new(dns.Msg).SetQuestion(pick(), dns.TypeA)
	m.Response, m.Authoritative, m.Compress = true, r.IntN(2) == 0, r.IntN(3) > 0
	m.Truncated, m.Rcode = r.IntN(9) == 0, r.IntN(5)*r.IntN(2)
	for _, section := range []*[]dns.RR{&m.Answer, &m.Ns, &m.Extra} {
		for range r.IntN(4) {
			text := replyData[r.IntN(len(replyData))]
			for strings.Contains(text, "%s") {
				text = strings.Replace(text, "%s", pick(), 1)
			}
			rr, err := dns.NewRR(pick() + " 300 IN " + text)
			kit.Must(t, err)
			*section = append(*section, rr)
		}
	}
	if r.IntN(3) > 0 {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT, Class: 1232}}
		for range r.IntN(3) {
			opt.Option = append(opt.Option, replyOptions[r.IntN(len(replyOptions))])
		}
		if m.Extra = slices.Insert(m.Extra, r.IntN(len(m.Extra)+1), dns.RR(opt)); r.IntN(9) == 0 {
			m.Rcode = dns.RcodeBadVers
		}
	}
	b, err := m.Pack()
	kit.Must(t, err)
	return b
}

// slowPlain returns a message as package dns packs it, with the question's name in lower case and without an OPT record.
func slowPlain(t testing.TB, b []byte, compress bool) (packed []byte, m *dns.Msg) {
	t.Helper()
	m = new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		t.Fatalf("accepted %x: %v", b, err)
	}
	m.Extra = slices.DeleteFunc(m.Extra, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeOPT })
	question := m.Question[0].Name
	for i, c := range []byte(question) {
		if 'A' <= c && c <= 'Z' {
			question = question[:i] + string(c+'a'-'A') + question[i+1:]
		}
	}
	m.Question[0].Name = question
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if strings.EqualFold(rr.Header().Name, question) {
				rr.Header().Name = question
			}
		}
	}
	m.Rcode &= RcodeMask
	m.Compress = compress
	packed, err := m.Pack()
	if err != nil {
		t.Fatalf("%v: %v", m, err)
	}
	return packed, m
}

// checkReply asserts that Parse refuses a message, or returns the facts and the form that package dns returns. It reports whether
// the message was accepted.
func checkReply(t testing.TB, r *Reply, b []byte) bool {
	t.Helper()
	before := bytes.Clone(b)
	ok := r.Parse(b)
	if !bytes.Equal(b, before) {
		t.Fatalf("%x was changed to %x", before, b)
	}
	if !ok {
		return false
	}
	want := new(dns.Msg)
	if err := want.Unpack(b); err != nil {
		t.Fatalf("accepted %x: %v", b, err)
	}
	opt := want.IsEdns0()
	if r.Rcode != want.Rcode || r.Truncated() != want.Truncated || r.OPT.IsPresent() != (opt != nil) {
		t.Fatalf("%x: code %d, truncated %t, OPT record at %d, want %v", b, r.Rcode, r.Truncated(), r.OPT.Owner, want)
	}
	if opt != nil {
		last := len(want.Extra) > 0 && want.Extra[len(want.Extra)-1] == dns.RR(opt)
		if r.OPT.Last != last || len(opt.Option) != optionsIn(r.Options()) {
			t.Fatalf("%x: %+v, options %x, want %v", b, r.OPT, r.Options(), opt)
		}
	}
	plain, m := slowPlain(t, b, false)
	checkBody(t, r.Plain(), plain, m)
	if escapes := strings.Contains(namesOf(m), `\`); r.Escapes != escapes {
		t.Fatalf("%x: escapes: %t, want %t", b, r.Escapes, escapes)
	}
	if r.Escapes {
		return true
	}
	if excess := m.Len() - len(plain); r.Excess() != excess {
		t.Fatalf("%v\nthe length is overestimated by %d, want %d", m, r.Excess(), excess)
	}
	if body, ok := r.Compressed(); ok {
		packed, m := slowPlain(t, b, true)
		checkBody(t, body, packed, m)
	}
	return true
}

// checkBody asserts the bytes of a message and the places of its records.
func checkBody(t testing.TB, got Body, packed []byte, m *dns.Msg) {
	t.Helper()
	if !bytes.Equal(got.Bytes, packed) {
		t.Fatalf("%v\ngot  %x\nwant %x", m, got.Bytes, packed)
	}
	want, ok := ReadBody(nil, packed)
	if !ok || !slices.Equal(got.Records, want.Records) || got.First != want.First {
		t.Fatalf("%v\ngot  %+v\nwant %+v", m, got, want)
	}
	if counts := [...]int{0, len(m.Answer), len(m.Answer) + len(m.Ns), len(m.Answer) + len(m.Ns) + len(m.Extra)}; want.First != counts {
		t.Fatalf("%v\nsections begin at %v, want %v", m, want.First, counts)
	}
	for i, rr := range slices.Concat(m.Answer, m.Ns, m.Extra) {
		if h := rr.Header(); want.Records[i].Type != h.Rrtype {
			t.Fatalf("%v\nrecord %d has type %d", m, i, want.Records[i].Type)
		}
	}
}

// namesOf returns the names in a message.
func namesOf(m *dns.Msg) string {
	names := m.Question[0].Name
	for _, rr := range slices.Concat(m.Answer, m.Ns, m.Extra) {
		names += " " + rr.Header().Name
		switch rr := rr.(type) {
		case *dns.TXT, *dns.CAA, *dns.SVCB, *dns.HTTPS, *dns.RFC3597:
			switch rr := rr.(type) {
			case *dns.SVCB:
				names += " " + rr.Target
			case *dns.HTTPS:
				names += " " + rr.Target
			}
		default:
			names += " " + strings.TrimPrefix(rr.String(), rr.Header().String())
		}
	}
	return names
}

func optionsIn(options []byte) (n int) {
	for len(options) > 0 {
		_, _, options, _ = CutOption(options)
		n++
	}
	return n
}

// TestReply compares the parser with package dns for random replies.
func TestReply(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8)) // #nosec G404 -- no need for secrecy
	parsed, accepted, escapes := new(Reply), 0, 0
	const n = 20000
	for range n {
		if checkReply(t, parsed, randomReply(t, r)) {
			accepted++
			if parsed.Escapes {
				escapes++
			}
		}
	}
	t.Logf("%d of %d accepted, %d of them with escapes", accepted, n, escapes)
	if accepted < n/5 || escapes < n/50 {
		t.Errorf("%d of %d accepted, %d of them with escapes", accepted, n, escapes)
	}
}

// TestLayouts: a type without a layout is one that package dns knows, and whose data may have names.
func TestLayouts(t *testing.T) {
	for rrtype := range 1 << 16 {
		_, known := dns.TypeToRR[uint16(rrtype)]
		if layoutOf(uint16(rrtype)).opaque && known {
			t.Errorf("%s is opaque", dns.TypeToString[uint16(rrtype)])
		}
	}
	for _, text := range replyData {
		rr, err := dns.NewRR("www.example.org. 300 IN " + strings.ReplaceAll(text, "%s", "a.example."))
		kit.Must(t, err)
		m := new(dns.Msg).SetQuestion("www.example.org.", dns.TypeA)
		m.Response, m.Answer = true, []dns.RR{rr}
		b, err := m.Pack()
		kit.Must(t, err)
		want := true
		switch rr.Header().Rrtype {
		case dns.TypeRP, dns.TypeHINFO, dns.TypeNSEC:
			want = false
		}
		if strings.Contains(text, "key65400") || strings.Contains(text, `a\\b`) { // which package dns packs in another form
			want = false
		}
		if got := checkReply(t, new(Reply), b); got != want {
			t.Errorf("%s is accepted: %t", text, got)
		}
	}
}

// TestData has data of records that are a byte too short, too long, or malformed. Package dns accepts some of them.
func TestData(t *testing.T) {
	const name = "\x01a\x00"
	for _, tt := range []struct {
		rrtype uint16
		data   string
		ok     bool
	}{
		{dns.TypeA, "\xc0\x00\x02\x01", true}, {dns.TypeA, "\xc0\x00\x02", false}, {dns.TypeA, "\xc0\x00\x02\x01\x00", false}, {dns.TypeA, "", false},
		{dns.TypeAAAA, strings.Repeat("x", 16), true}, {dns.TypeAAAA, strings.Repeat("x", 15), false}, {dns.TypeAAAA, strings.Repeat("x", 17), false},
		{dns.TypeCNAME, name, true}, {dns.TypeCNAME, name + "x", false}, {dns.TypeCNAME, "\x01a", false}, {dns.TypeCNAME, "", false},
		{dns.TypeDNAME, name, true}, {dns.TypeDNAME, name + name, false},
		{dns.TypeMX, "\x00\x0a" + name, true}, {dns.TypeMX, "\x00\x0a", false}, {dns.TypeMX, "\x00", false},
		{dns.TypeSRV, "\x00\x01\x00\x02\x00\x03" + name, true}, {dns.TypeSRV, "\x00\x01\x00\x02\x00\x03", false}, {dns.TypeSRV, "\x00\x01\x00\x02\x00", false},
		{dns.TypeSOA, name + name + strings.Repeat("x", 20), true}, {dns.TypeSOA, name + name + strings.Repeat("x", 19), false}, {dns.TypeSOA, name + strings.Repeat("x", 20), false},
		{dns.TypeTXT, "\x01a\x00", true}, {dns.TypeTXT, "", false}, {dns.TypeTXT, "\x02a", false},
		{dns.TypeCAA, "\x00\x05issuex", true}, {dns.TypeCAA, "\x00\x05issue", false}, {dns.TypeCAA, "\x00\x00x", false}, {dns.TypeCAA, "\x00\x01-x", false}, {dns.TypeCAA, "\x00", false},
		{dns.TypeHTTPS, "\x00\x01\x00", true}, {dns.TypeHTTPS, "\x00\x01", false}, {dns.TypeHTTPS, "\x00\x01\x00\x00\x03\x00\x02\x01\xbb", true},
		{dns.TypeHTTPS, "\x00\x01\x00\x00\x03\x00\x01\xbb", false}, {dns.TypeSVCB, "\x00\x01\x00\x00\x04\x00\x03abc", false},
		{dns.TypeSVCB, "\x00\x01\x00\x00\x03\x00\x02\x01\xbb\x00\x03\x00\x02\x01\xbb", false}, {dns.TypeSVCB, "\x00\x01\x00\x00\x01\x00\x03\x02h2", true},
		{dns.TypeDS, "\x00\x01\x08\x02x", true}, {dns.TypeDS, "\x00\x01\x08\x02", false},
		{dns.TypeRRSIG, strings.Repeat("\x01", 18) + name + "x", true}, {dns.TypeRRSIG, strings.Repeat("\x01", 18) + name, false}, {dns.TypeRRSIG, strings.Repeat("\x01", 18), false},
		{dns.TypeDNSKEY, "\x01\x01\x03\x08x", true}, {dns.TypeDNSKEY, "\x01\x01\x03\x08", false}, {dns.TypeTLSA, "\x03\x01\x01x", true}, {dns.TypeTLSA, "\x03\x01\x01", false},
		{dns.TypeSSHFP, "\x04\x02x", true}, {dns.TypeSSHFP, "\x04\x02", false},
		{66, "", true}, {65280, "any", true}, {dns.TypeNAPTR, "any", false}, {dns.TypeTSIG, "any", false}, {dns.TypeANY, "any", false},
	} {
		b := []byte("\x00\x01\x80\x00\x00\x01\x00\x01\x00\x00\x00\x00\x01b\x00\x00\x01\x00\x01\xc0\x0c")
		b = append(binary.BigEndian.AppendUint16(b, tt.rrtype), 0, 1, 0, 0, 0, 60)
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(tt.data))), tt.data...) // #nosec G115 -- short
		if ok := checkReply(t, new(Reply), b); ok != tt.ok {
			t.Errorf("%s with data %q is accepted: %t", dns.Type(tt.rrtype), tt.data, ok)
		}
	}
}

// TestReplyNames asserts which names Parse accepts: package dns accepts pointers to any place.
func TestReplyNames(t *testing.T) {
	owner := func(owner string, before ...byte) []byte { // a reply for a.b. with an A record
		b := append([]byte{0, 1, 0x80, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 'a', 1, 'b', 0, 0, 1, 0, 1}, before...)
		return append(append(b, owner...), 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1)
	}
	label := "\x3f" + strings.Repeat("x", 63)
	chain := func(pointers int) []byte { // an HTTPS record with pointers to pointers in ECH, and an owner that follows all
		const head = 21 + 11 + 3 + 4
		at, ech := 12, []byte(nil)
		for range pointers - 1 {
			ech = append(ech, 0xc0|byte(at>>8), byte(at)) // #nosec G115
			at = head + len(ech) - 2
		}
		n := len(ech)
		record := append([]byte{0, 0, 65, 0, 1, 0, 0, 0, 60, byte((n + 7) >> 8), byte(n + 7), 0, 1, 0, 0, 5, byte(n >> 8), byte(n)}, ech...) // #nosec G115
		b := owner(string([]byte{0xc0 | byte(at>>8), byte(at)}), record...)                                                                  // #nosec G115
		b[7] = 2
		return b
	}
	for _, tt := range []struct {
		name  string
		reply []byte
		ok    bool
	}{
		{"pointer to the question", owner("\xc0\x0c"), true},
		{"pointer to a suffix", owner("\x01c\xc0\x0e"), true},
		{"pointer to a root label", owner("\x01c\xc0\x10"), true},
		{"other case", owner("\x01A\x01B\x00"), true},
		{"name of 255 bytes", owner(label + label + label + "\x3d" + label[1:62] + "\x00"), true},
		{"name of 255 bytes with a pointer", owner(label + label + label + "\x39" + label[1:58] + "\xc0\x0c"), true},
		{"name of 256 bytes", owner(label + label + label + "\x3e" + label[1:63] + "\x00"), false},
		{"name of 256 bytes with a pointer", owner(label + label + label + "\x3a" + label[1:59] + "\xc0\x0c"), false},
		{"as many pointers as package dns follows", chain(126), true},
		{"more pointers", chain(127), false},
		{"pointer to itself", owner("\xc0\x15"), false},
		{"pointer forwards", owner("\xc0\x17"), false},
		{"pointer to the header", owner("\xc0\x00"), false},
		{"pointer to its own label", owner("\x01c\xc0\x15"), false},
		{"reserved label type", owner("\x81x\x00"), false},
		{"label too long", owner("\x40" + strings.Repeat("x", 64) + "\x00"), false},
		{"escaped character", owner("\x03a.b\x00"), true},
		{"control character", owner("\x01\x07\x00"), true},
		{"non-ASCII character", owner("\x01\xe4\x00"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if ok := checkReply(t, new(Reply), tt.reply); ok != tt.ok {
				t.Errorf("accepted: %v, want %v", ok, tt.ok)
			}
		})
	}
}

// TestReplyIsReused asserts that nothing of a reply remains in the next one.
func TestReplyIsReused(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9)) // #nosec G404
	used := new(Reply)
	facts := func(r *Reply) string {
		return fmt.Sprint(r.Message, r.Rcode, r.OPT, r.Ordinary, r.Escapes, r.AnyCase, r.Plain(), r.Excess(), r.Name(), r.Type(), r.Options())
	}
	for range 500 {
		b := randomReply(t, r)
		fresh := new(Reply)
		if ok := used.Parse(b); ok != fresh.Parse(b) || ok && facts(used) != facts(fresh) {
			t.Fatalf("%x\n%s\nin a fresh Reply %s", b, facts(used), facts(fresh))
		}
	}
}

// TestRead compares the facts of any reply of package dns with its own.
func TestRead(t *testing.T) {
	r := rand.New(rand.NewPCG(10, 11)) // #nosec G404
	for range 2000 {
		b := randomReply(t, r)
		m, read := new(dns.Msg), new(Reply)
		if err := m.Unpack(b); err != nil || !read.Read(b) {
			t.Fatalf("%x is refused: %v", b, err)
		}
		checkRead(t, read, m)
		if read.Read(append(bytes.Clone(b), 0)) || read.Read(b[:len(b)-1]) {
			t.Fatalf("%x is accepted with a byte more or less", b)
		}
	}
}

// checkRead asserts the facts of a message that package dns has unpacked.
func checkRead(t testing.TB, read *Reply, m *dns.Msg) {
	t.Helper()
	if read.Rcode != m.Rcode || read.Truncated() != m.Truncated || read.OPT.IsPresent() != (m.IsEdns0() != nil) {
		t.Fatalf("%x: %+v, want %v", read.Message, read, m)
	}
}

// TestRemove: a reply without options or without its OPT record is the one that package dns packs, parsed again.
func TestRemove(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 13)) // #nosec G404
	isLocal := func(code uint16) bool { return code >= dns.EDNS0LOCALSTART || code == dns.EDNS0COOKIE }
	removed := 0
	for range 3000 {
		b := randomReply(t, r)
		var got Reply
		if !got.Parse(b) || !got.OPT.Last {
			continue
		}
		want := new(dns.Msg)
		kit.Must(t, want.Unpack(b))
		opt := want.IsEdns0()
		opt.Option = slices.DeleteFunc(opt.Option, func(o dns.EDNS0) bool { return isLocal(o.Option()) })
		has := got.HasOption(isLocal)
		if got.RemoveOptions(isLocal); got.HasOption(isLocal) {
			t.Fatalf("options %x", got.Options())
		}
		same := func() {
			t.Helper()
			again, m := new(Reply), new(dns.Msg)
			if err := m.Unpack(got.Message); err != nil || m.String() != want.String() {
				t.Fatalf("%v: %v\nwant %v", err, m, want)
			}
			if !again.Parse(got.Message) || again.Rcode != got.Rcode || again.OPT != got.OPT || !bytes.Equal(again.Plain().Bytes, got.Plain().Bytes) {
				t.Fatalf("%v\n%+v\nand parsed again %+v", m, got, again)
			}
		}
		same()
		if has {
			removed++
		}
		got.RemoveOPT()
		want.Extra = want.Extra[:len(want.Extra)-1]
		if want.Rcode > MaxRcode {
			want.Rcode = dns.RcodeServerFailure
		}
		same()
	}
	if removed < 20 {
		t.Errorf("%d replies had options", removed)
	}
}

// TestReplyAllocs: an ordinary reply is parsed, compressed and changed without allocations.
func TestReplyAllocs(t *testing.T) {
	m := new(dns.Msg).SetQuestion("www.example.org.", dns.TypeHTTPS)
	m.Response = true
	for _, text := range []string{"HTTPS 1 . alpn=h2", "RRSIG HTTPS 8 2 300 20300101000000 20200101000000 1 example.org. YWI="} {
		rr, err := dns.NewRR("www.example.org. 300 IN " + text)
		if err != nil {
			t.Fatal(err)
		}
		m.Answer = append(m.Answer, rr)
	}
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = replyOptions[:3]
	packed, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	var r Reply
	b := make([]byte, len(packed))
	if n := testing.AllocsPerRun(100, func() {
		copy(b, packed)
		if !r.Parse(b) {
			t.Fatal("refused")
		}
		_, _ = r.Compressed()
		r.RemoveOptions(func(code uint16) bool { return code == dns.EDNS0COOKIE })
		r.RemoveOPT()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzReply compares the parser with package dns for any bytes.
func FuzzReply(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2)) // #nosec G404
	for range 100 {
		b := randomReply(f, r)
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	head := []byte{0, 1, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 'a', 0, 0, 1, 0, 1, 0, 0, 41, 4, 208, 0, 0, 0, 0, 0}
	for _, options := range []string{
		"", "\x00\x0f\x00\x02\x00\x16", "\x00\x0f\x00\x01\x00", "\x00\x0a\x00\x08cookie12", "\x00\x0a\x00\x08cookie1", "\x00\x08\x00\x04\x00\x01\x00\x00",
		"\x00\x0c\x00\x00", "\xff\x22\x00\x03\x01a\x00", "\x00\x0b\x00\x01\x00", "\x00\x00\x00",
	} {
		f.Add(append(append(head[:len(head):len(head)], byte(len(options))), options...))
	}
	parsed := new(Reply)
	f.Fuzz(func(t *testing.T, b []byte) {
		checkReply(t, parsed, b)
		m, read := new(dns.Msg), new(Reply)
		if m.Unpack(b) == nil && read.Read(b) {
			checkRead(t, read, m)
		}
	})
}

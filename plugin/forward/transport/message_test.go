package transport

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// slowCheck is check in simple steps.
func slowCheck(query, reply []byte) string {
	end := wire.QuestionEnd(query)
	if len(reply) < 12 {
		return Malformed
	}
	sent := dns.Question{Qtype: binary.BigEndian.Uint16(query[end-4:]), Qclass: binary.BigEndian.Uint16(query[end-2:])}
	sent.Name, _, _ = dns.UnpackDomainName(query, 12)
	isResponse, opcode, rcode := reply[2]&0x80 != 0, reply[2]>>3&15, int(reply[3]&15)
	if !isResponse || opcode != query[2]>>3&15 {
		return Malformed
	}
	refuses := rcode == dns.RcodeFormatError || rcode == dns.RcodeServerFailure || rcode == dns.RcodeNotImplemented || rcode == dns.RcodeRefused
	if binary.BigEndian.Uint16(reply[4:]) == 0 && refuses {
		return ""
	}
	at := wire.QuestionEnd(reply)
	if at == 0 {
		return WrongQuestion
	}
	got := dns.Question{Qtype: binary.BigEndian.Uint16(reply[at-4:]), Qclass: binary.BigEndian.Uint16(reply[at-2:])}
	got.Name, _, _ = dns.UnpackDomainName(reply, 12)
	switch {
	case got == sent:
		return ""
	case got.Qtype == sent.Qtype && got.Qclass == sent.Qclass && strings.EqualFold(got.Name, sent.Name):
		return WrongCase
	}
	return WrongQuestion
}

// edit returns a changed copy.
func edit(b []byte, change func([]byte)) []byte {
	b = slices.Clone(b)
	change(b)
	return b
}

func rcodeOnly(rcode byte) []byte { return []byte{0, 0, 0x80, rcode, 0, 0, 0, 0, 0, 0, 0, 0} }

func TestCheck(t *testing.T) {
	query := question(t, "wWw.Example.")
	for _, c := range []struct {
		name  string
		reply []byte
		want  string
	}{
		{"its answer", answer(query), ""},
		{"with more behind the question", append(answer(query), 1, 2, 3), ""},
		{"no response", query, Malformed},
		{"another opcode", edit(answer(query), func(b []byte) { b[2] |= 4 << 3 }), Malformed},
		{"another name", answer(question(t, "wWw.Examplf.")), WrongQuestion},
		{"a longer name", answer(question(t, "a.wWw.Example.")), WrongQuestion},
		{"a shorter name", answer(question(t, "Example.")), WrongQuestion},
		{"another case", answer(question(t, "www.example.")), WrongCase},
		{"another case of one letter", answer(question(t, "wWw.ExamplE.")), WrongCase},
		{"another type", edit(answer(query), func(b []byte) { b[len(b)-3] = 28 }), WrongQuestion},
		{"another class", edit(answer(query), func(b []byte) { b[len(b)-1] = 3 }), WrongQuestion},
		{"another case and type", edit(answer(question(t, "www.example.")), func(b []byte) { b[len(b)-3] = 28 }), WrongQuestion},
		{"two questions", edit(answer(query), func(b []byte) { b[5] = 2 }), WrongQuestion},
		{"no question, NOERROR", rcodeOnly(0), WrongQuestion},
		{"no question, FORMERR", rcodeOnly(1), ""},
		{"no question, SERVFAIL", rcodeOnly(2), ""},
		{"no question, NXDOMAIN", rcodeOnly(3), WrongQuestion},
		{"no question, NOTIMP", rcodeOnly(4), ""},
		{"no question, REFUSED", rcodeOnly(5), ""},
		{"no question, YXDOMAIN", rcodeOnly(6), WrongQuestion},
		{"no question, BADVERS", append(edit(rcodeOnly(0), func(b []byte) { b[11] = 1 }), 0, 0, 41, 4, 0, 1, 0, 0, 0, 0, 0), WrongQuestion},
		{"a question cut off", answer(query)[:len(query)-1], WrongQuestion},
		{"a header", answer(query)[:12], WrongQuestion},
		{"a short header", answer(query)[:11], Malformed},
		{"nothing", nil, Malformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := check(query, c.reply); got != c.want {
				t.Errorf("check: %v, want %v", got, c.want)
			}
			if got := slowCheck(query, c.reply); got != c.want {
				t.Errorf("the slow version: %v, want %v", got, c.want)
			}
		})
	}
}

func FuzzCheck(f *testing.F) {
	query := question(f, "wWw.Example.")
	f.Add(query, answer(query))
	f.Add(query, answer(question(f, "www.example.")))
	f.Add(query, rcodeOnly(3))
	f.Add(query, rcodeOnly(5))
	f.Add(question(f, "."), answer(question(f, ".")))
	f.Add(question(f, "\\000\\@\\255A[.x."), answer(question(f, "\\000`\\255a{.x.")))
	f.Fuzz(func(t *testing.T, query, reply []byte) {
		end := wire.QuestionEnd(query)
		if end == 0 {
			return
		}
		if got, want := check(query[:end], reply), slowCheck(query, reply); got != want {
			t.Errorf("%v, the slow version returns %v\nquery %x\nreply %x", got, want, query, reply)
		}
	})
}

// TestIsCut has each beginning of a reply, with and without compression of names.
func TestIsCut(t *testing.T) {
	m := new(dns.Msg).SetQuestion("www.example.", dns.TypeA)
	for _, text := range []string{"www.example. CNAME a.example.", "a.example. A 192.0.2.1", "a.example. TXT one two"} {
		rr, err := dns.NewRR(text)
		kit.Must(t, err)
		m.Answer, m.Ns = append(m.Answer, rr), append(m.Ns, rr)
	}
	m.SetEdns0(1232, true)
	for _, m.Compress = range []bool{false, true} {
		b := kit.Pack(t, m)
		for end := wire.QuestionEnd(b); end <= len(b); end++ {
			if got, want := isCut(slices.Clip(b[:end])), end < len(b); got != want {
				t.Errorf("%d of %d bytes: %t", end, len(b), got)
			}
		}
	}
	if isCut(edit(rcodeOnly(dns.RcodeRefused), func(b []byte) { b[wire.ANCountAt+1] = 9 })) {
		t.Error("a header without a question")
	}
}

func withOPT(t testing.TB, options ...dns.EDNS0) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion("www.example.", dns.TypeA)
	m.SetEdns0(1232, true)
	m.Extra[0].(*dns.OPT).Option = options
	return kit.Pack(t, m)
}

func TestAppendKeepAlive(t *testing.T) {
	cookie := &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"}
	padding := func(n int) dns.EDNS0 { return &dns.EDNS0_PADDING{Padding: make([]byte, n)} }
	plain := withOPT(t)
	room := maxMessage - len(withOPT(t, padding(0)))
	for _, c := range []struct {
		name  string
		query []byte
		added bool
	}{
		{"an OPT record", plain, true},
		{"an OPT record with an option", withOPT(t, cookie), true},
		{"no OPT record", question(t, "www.example."), false},
		{"no room for an option", withOPT(t, padding(room)), false},
		{"room for an option but one byte", withOPT(t, padding(room-3)), false},
		{"just room for an option", withOPT(t, padding(room-4)), true},
		{"a record that is no OPT", edit(plain, func(b []byte) { b[len(b)-9] = 42 }), false},
		{"an OPT record with a name", edit(plain, func(b []byte) { b[len(b)-11] = 1 }), false},
		{"an OPT record that is longer than the message", edit(plain, func(b []byte) { b[len(b)-1] = 1 }), false},
		{"bytes behind the OPT record", append(slices.Clone(plain), 0), false},
		{"an OPT record that is cut off", plain[:len(plain)-1], false},
		{"an answer", edit(plain, func(b []byte) { b[7] = 1 }), false},
		{"two additional records", edit(plain, func(b []byte) { b[11] = 2 }), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.query)
			got := appendKeepAlive([]byte("before"), c.query, wire.QuestionEnd(c.query))
			if !bytes.Equal(c.query, before) {
				t.Error("the query was changed")
			}
			if string(got[:6]) != "before" {
				t.Errorf("the result begins with %q", got[:6])
			}
			got = got[6:]
			if !c.added {
				if !bytes.Equal(got, c.query) {
					t.Errorf("the query was changed to %x", got)
				}
				return
			}
			if len(got) != len(c.query)+4 || !bytes.HasSuffix(got, []byte{0, 11, 0, 0}) {
				t.Errorf("no option was added to %x: %x", c.query, got)
			}
			sameButKeepAlive(t, c.query, got)
		})
	}
}

// sameButKeepAlive fails the test unless an extended query is the query, or the query with edns-tcp-keepalive.
func sameButKeepAlive(t *testing.T, query, extended []byte) {
	t.Helper()
	if bytes.Equal(query, extended) {
		return
	}
	was, is := new(dns.Msg), new(dns.Msg)
	if was.Unpack(query) != nil {
		return // nothing to compare
	}
	if err := is.Unpack(extended); err != nil {
		t.Fatalf("the extended query is malformed: %v\n%x\n%x", err, query, extended)
	}
	o := is.IsEdns0()
	if o == nil || len(o.Option) == 0 {
		t.Fatalf("no option in %x", extended)
	}
	last := len(o.Option) - 1
	k, ok := o.Option[last].(*dns.EDNS0_TCP_KEEPALIVE)
	if !ok || k.Timeout != 0 {
		t.Fatalf("the last option is %v", o.Option[last])
	}
	o.Option = o.Option[:last]
	a, err := was.Pack()
	if err != nil {
		return // package dns reads some messages that it does not write
	}
	b, err := is.Pack()
	if err != nil || !bytes.Equal(a, b) {
		t.Fatalf("the query differs without the option (%v):\n%v\n%v", err, was, is)
	}
}

func FuzzAppendKeepAlive(f *testing.F) {
	f.Add(question(f, "www.example."))
	f.Add(withOPT(f))
	f.Add(withOPT(f, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"}))
	f.Add(withOPT(f, &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, Address: []byte{0, 0, 0, 0}}))
	f.Fuzz(func(t *testing.T, query []byte) {
		end := wire.QuestionEnd(query)
		if end == 0 || len(query) > maxMessage {
			return
		}
		got := appendKeepAlive(nil, query, end)
		if len(got) > maxMessage || wire.QuestionEnd(got) != end {
			t.Fatalf("%d bytes, the question ends at %d", len(got), wire.QuestionEnd(got))
		}
		sameButKeepAlive(t, query, got)
	})
}

// messages splits a stream of frames that is read in pieces of these sizes.
func messages(stream []byte, sizes []byte) (got [][]byte, left int) {
	buf := make([]byte, minRead)
	have := 0
	for i := 0; len(stream) > 0; i++ {
		n := len(stream)
		if len(sizes) > 0 {
			n = min(n, int(sizes[i%len(sizes)])*(1+i%37)+1)
		}
		n = copy(buf[have:], stream[:n])
		if n == 0 {
			return got, -1 // no room for reading
		}
		stream = stream[n:]
		have += n
		rest := buf[:have]
		for {
			var m []byte
			if m, rest = nextMessage(rest); m == nil {
				break
			}
			got = append(got, slices.Clone(m))
		}
		have = copy(buf, rest)
		if need := readSize(buf[:have], n); need > len(buf) {
			buf = append(make([]byte, 0, need), buf[:have]...)[:need]
		}
	}
	return got, have
}

// slowMessages splits a whole stream of frames.
func slowMessages(stream []byte) (all [][]byte, left int) {
	for len(stream) >= 2 {
		n := int(stream[0])<<8 | int(stream[1])
		if len(stream) < 2+n {
			break
		}
		all = append(all, stream[2:2+n])
		stream = stream[2+n:]
	}
	return all, len(stream)
}

func FuzzFrames(f *testing.F) {
	three := slices.Concat(frame([]byte("one")), frame(nil), frame(bytes.Repeat([]byte{7}, 300)))
	f.Add(three, []byte{0})
	f.Add(three, []byte{1, 0, 2})
	f.Add(three[:len(three)-1], []byte{})
	f.Add(frame(make([]byte, 65535)), []byte{255, 0})
	f.Add(slices.Concat(frame(make([]byte, 4093)), frame(make([]byte, 5)), frame(make([]byte, 40000))), []byte{255})
	f.Fuzz(func(t *testing.T, stream, sizes []byte) {
		want, wantLeft := slowMessages(stream)
		got, left := messages(stream, sizes)
		if left != wantLeft || !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%d messages and %d bytes left, want %d and %d", len(got), left, len(want), wantLeft)
		}
	})
}

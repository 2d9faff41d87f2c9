package wire

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// newQuery returns a packed query, changed by the caller first.
func newQuery(t testing.TB, name string, rrtype uint16, change func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, rrtype)
	if change != nil {
		change(m)
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func edns(size uint16, do bool) func(*dns.Msg) {
	return func(m *dns.Msg) { m.SetEdns0(size, do) }
}

// longest is a name of 255 bytes in wire form, tooLong one of 256.
var (
	longest = strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("b", 61) + "."
	tooLong = strings.Repeat(strings.Repeat("a", 63)+".", 3) + strings.Repeat("b", 62) + "."
)

func TestParse(t *testing.T) {
	tests := map[string]struct {
		query []byte
		want  Query
	}{
		"plain":     {newQuery(t, "svc.example.", dns.TypeA, nil), Query{NameLen: 13, Type: 1, Class: 1, RD: true}},
		"root":      {newQuery(t, ".", dns.TypeNS, nil), Query{NameLen: 1, Type: 2, Class: 1, RD: true}},
		"longest":   {newQuery(t, longest, dns.TypeTXT, nil), Query{NameLen: 255, Type: 16, Class: 1, RD: true}},
		"label":     {newQuery(t, strings.Repeat("a", 63)+".", dns.TypeA, nil), Query{NameLen: 65, Type: 1, Class: 1, RD: true}},
		"upper":     {newQuery(t, "svc.Example.", dns.TypeA, nil), Query{NameLen: 13, Type: 1, Class: 1, RD: true, Upper: true}},
		"A and Z":   {newQuery(t, "A.", dns.TypeA, nil), Query{NameLen: 3, Type: 1, Class: 1, RD: true, Upper: true}},
		"Z":         {newQuery(t, "Z.", dns.TypeA, nil), Query{NameLen: 3, Type: 1, Class: 1, RD: true, Upper: true}},
		"not upper": {newQuery(t, `@[\193\218\000.`, dns.TypeA, nil), Query{NameLen: 7, Type: 1, Class: 1, RD: true}},
		"type 65535": {
			newQuery(t, "a.", 65535, func(m *dns.Msg) { m.RecursionDesired = false }),
			Query{NameLen: 3, Type: 65535, Class: 1},
		},
		"flags": {
			newQuery(t, "a.", dns.TypeA, func(m *dns.Msg) { m.CheckingDisabled, m.AuthenticatedData = true, true }),
			Query{NameLen: 3, Type: 1, Class: 1, RD: true, CD: true, AD: true},
		},
		"EDNS":      {newQuery(t, "a.", 1, edns(1232, false)), Query{NameLen: 3, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 1232}},
		"DO":        {newQuery(t, "a.", 1, edns(4096, true)), Query{NameLen: 3, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 4096, DO: true}},
		"size 0":    {newQuery(t, "a.", 1, edns(0, false)), Query{NameLen: 3, Type: 1, Class: 1, RD: true, EDNS: true}},
		"all there": {newQuery(t, longest, 1, edns(65535, true)), Query{NameLen: 255, Type: 1, Class: 1, RD: true, EDNS: true, UDPSize: 65535, DO: true}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			q := Query{NameLen: 77, Type: 77, UDPSize: 77, EDNS: true, DO: true, RD: true, CD: true, AD: true, Upper: true} // of the query before
			if !q.Parse(tt.query) {
				t.Fatal("refused")
			}
			if q != tt.want {
				t.Errorf("got %+v, want %+v", q, tt.want)
			}
			checkParse(t, tt.query)
			for n := range tt.query {
				if q.Parse(tt.query[:n:n]) {
					t.Errorf("accepted the first %d bytes of %d", n, len(tt.query))
				}
			}
		})
	}
}

func TestLimit(t *testing.T) {
	for size, want := range map[uint16]int{0: 512, 511: 512, 512: 512, 513: 513, 1232: 1232, 65535: 65535} {
		if got := (&Query{UDPSize: size}).Limit(); got != want {
			t.Errorf("size %d: limit %d, want %d", size, got, want)
		}
	}
}

// checkParse asserts that what Parse takes is what package dns has read, and that it reads nothing
// behind the end.
func checkParse(t *testing.T, b []byte) (accepted bool) {
	t.Helper()
	var q Query
	accepted = q.Parse(append(make([]byte, 0, len(b)), b...))
	for _, garbage := range [][]byte{make([]byte, 300), bytes.Repeat([]byte{0xff}, 300), b} {
		var other Query
		if got := other.Parse(append(b[:len(b):len(b)], garbage...)[:len(b)]); got != accepted || accepted && other != q {
			t.Fatalf("%x with other bytes behind it: %v %+v, without: %v %+v", b, got, other, accepted, q)
		}
	}
	if !accepted {
		return false
	}
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		t.Fatalf("accepted %x, which package dns rejects: %v", b, err)
	}
	if want := facts(t, m); q != want {
		t.Fatalf("%x: got %+v, want %+v", b, q, want)
	}
	packed, err := m.Pack()
	if err != nil || !bytes.Equal(packed, b) {
		t.Fatalf("%x is not what package dns makes of it: %x %v", b, packed, err)
	}
	if act := dns.DefaultMsgAcceptFunc(dns.Header{
		Bits: binary.BigEndian.Uint16(b[2:]), Qdcount: binary.BigEndian.Uint16(b[4:]), Ancount: binary.BigEndian.Uint16(b[6:]),
		Nscount: binary.BigEndian.Uint16(b[8:]), Arcount: binary.BigEndian.Uint16(b[10:]),
	}); act != dns.MsgAccept {
		t.Fatalf("accepted %x, which a server of package dns does not: %v", b, act)
	}
	return true
}

// facts is the slow reading of a query, of which Parse is the fast one.
func facts(t *testing.T, m *dns.Msg) Query {
	t.Helper()
	if m.Response || m.Opcode != dns.OpcodeQuery || m.Authoritative || m.Truncated || m.RecursionAvailable || m.Zero || m.Rcode != 0 ||
		len(m.Question) != 1 || len(m.Answer) != 0 || len(m.Ns) != 0 || len(m.Extra) > 1 {
		t.Fatalf("accepted %v", m)
	}
	question := m.Question[0]
	if question.Qclass != dns.ClassINET {
		t.Fatalf("accepted class %d", question.Qclass)
	}
	var wire [MaxNameLen]byte
	n, err := dns.PackDomainName(question.Name, wire[:], 0, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	q := Query{
		NameLen: n, Type: question.Qtype, Class: question.Qclass,
		RD: m.RecursionDesired, CD: m.CheckingDisabled, AD: m.AuthenticatedData,
		Upper: strings.ContainsAny(question.Name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
	}
	if len(m.Extra) == 0 {
		return q
	}
	opt := m.IsEdns0()
	if opt == nil || opt.Hdr.Name != "." || opt.Version() != 0 || opt.ExtendedRcode() != 0 || opt.Hdr.Ttl&^0x8000 != 0 || len(opt.Option) != 0 {
		t.Fatalf("accepted the additional record %v", m.Extra[0])
	}
	q.EDNS, q.UDPSize, q.DO = true, opt.UDPSize(), opt.Do()
	return q
}

// malformed says of each file whether package dns rejects it as well; what it takes is for the chain to
// answer. What is wrong with a packet is its name.
var malformed = map[string]bool{
	"empty": true, "truncated-header": true, "header-alone": false,
	"label-too-long": true, "label-type-reserved": true, "label-past-the-end": true,
	"name-too-long": true, "name-one-byte-too-long": true, "name-without-end": true,
	"pointer-to-itself": true, "pointer-in-question": false, "pointer-past-the-end": true, "pointer-cut-off": true,
	"question-without-type": false, "question-without-class": false,
	"no-question": false, "question-not-counted": false, "two-questions": false, "257-questions-counted": true,
	"answer-in-query": false, "authority-in-query": false, "additional-not-opt": false, "additional-missing": false,
	"opt-not-counted": false, "opt-version-1": false, "opt-extended-rcode": false, "opt-unknown-flag": false,
	"opt-with-option": false, "opt-option-past-the-end": true, "opt-data-missing": true, "opt-cut-off": true,
	"opt-not-root": false, "opt-owner-pointer": false, "opt-owner-a-label": true, "opt-twice": false, "opt-and-a-byte": false,
	"qr-set": false, "opcode-status": false, "opcode-update": false, "aa-set": false, "tc-set": false,
	"ra-set": false, "z-bit-set": false, "rcode-set": false,
	"trailing-byte": false, "longer-than-any-query": false, "class-chaos": false, "class-any": false,
}

func malformedFiles(t testing.TB) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/malformed/*.bin")
	if err != nil || len(names) == 0 {
		t.Fatal("no files", err)
	}
	files := map[string][]byte{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimSuffix(filepath.Base(name), ".bin")] = b
	}
	return files
}

func TestMalformed(t *testing.T) {
	files := malformedFiles(t)
	for name, rejected := range malformed {
		t.Run(name, func(t *testing.T) {
			b, ok := files[name]
			if !ok {
				t.Fatal("no such file")
			}
			if checkParse(t, b) {
				t.Error("accepted")
			}
			if err := new(dns.Msg).Unpack(b); (err != nil) != rejected {
				t.Errorf("package dns says %v", err)
			}
		})
	}
	for name := range files {
		if _, ok := malformed[name]; !ok {
			t.Errorf("%s.bin is not in the table", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, b := range malformedFiles(f) {
		f.Add(b)
	}
	f.Add(newQuery(f, "svc.Example.", dns.TypeA, nil))
	f.Add(newQuery(f, longest, dns.TypeSRV, edns(1232, true)))
	f.Fuzz(func(t *testing.T, b []byte) { checkParse(t, b) })
}

// FuzzFromMsg asserts that the facts taken from a message are those that Parse reads in its bytes.
func FuzzFromMsg(f *testing.F) {
	for _, b := range malformedFiles(f) {
		f.Add(b)
	}
	f.Add(newQuery(f, "svc.Example.", dns.TypeA, nil))
	f.Add(newQuery(f, longest, dns.TypeSRV, edns(1232, true)))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(dns.Msg)
		if m.Unpack(b) != nil {
			return
		}
		checkFromMsg(t, m)
		var parsed, made Query
		if !parsed.Parse(b) {
			return
		}
		query, ok := made.FromMsg(make([]byte, 0, MaxQuery), m)
		if !ok || made != parsed {
			t.Fatalf("%x: from the message %v %+v, parsed %+v", b, ok, made, parsed)
		}
		want := bytes.Clone(b[:HeaderLen+parsed.NameLen+4])
		want[11] = 0 // the OPT record is left out
		if !bytes.Equal(query, want) {
			t.Fatalf("got %x, want %x", query, want)
		}
	})
}

func checkFromMsg(t *testing.T, m *dns.Msg) {
	t.Helper()
	var made, parsed Query
	query, ok := made.FromMsg(bytes.Repeat([]byte{0xff}, MaxQuery)[:0], m)
	if !ok {
		if len(m.Question) == 1 {
			t.Fatalf("no query from %v", m)
		}
		return
	}
	if made.Class != dns.ClassINET {
		query[len(query)-1], query[len(query)-2] = dns.ClassINET, 0
		made.Class = dns.ClassINET
	}
	without := made
	without.EDNS, without.UDPSize, without.DO = false, 0, false
	if !parsed.Parse(query) || parsed != without {
		t.Fatalf("from %v: %+v, parsed %+v", m, without, parsed)
	}
	if opt := m.IsEdns0(); made.EDNS != (opt != nil) || opt != nil && (made.DO != opt.Do() || made.UDPSize != opt.UDPSize()) {
		t.Fatalf("from %v: %+v", m, made)
	}
	if id := binary.BigEndian.Uint16(query); id != m.Id {
		t.Fatalf("id %d, want %d", id, m.Id)
	}
}

func TestFromMsgRefuses(t *testing.T) {
	question := func(names ...string) *dns.Msg {
		m := new(dns.Msg)
		for _, name := range names {
			m.Question = append(m.Question, dns.Question{Name: name, Qtype: dns.TypeA, Qclass: dns.ClassINET})
		}
		return m
	}
	for name, m := range map[string]*dns.Msg{
		"no question":     question(),
		"two questions":   question("a.", "b."),
		"empty name":      question(""),
		"no final dot":    question("a.b"),
		"two dots":        question("a..b."),
		"label too long":  question(strings.Repeat("a", 64) + "."),
		"name too long":   question(tooLong),
		"far too long":    question(longest + longest + longest),
		"a dot in front":  question(".a."),
		"escape cut off":  question(`a\`),
		"escape and less": question(`a\.`),
	} {
		t.Run(name, func(t *testing.T) {
			var q Query
			if got, ok := q.FromMsg(make([]byte, 0, MaxQuery), m); ok {
				t.Errorf("got %x", got)
			}
		})
	}
	t.Run("buffer too small", func(t *testing.T) {
		var q Query
		if _, ok := q.FromMsg(make([]byte, 0, MaxQuery-1), question("a.")); ok {
			t.Error("taken")
		}
	})
	t.Run("escaped upper-case letter", func(t *testing.T) {
		var q Query
		if _, ok := q.FromMsg(make([]byte, 0, MaxQuery), question(`\065.`)); !ok || !q.Upper {
			t.Errorf("%v %+v", ok, q)
		}
	})
}

// randomQuery returns a message of few names, types, classes and flags, so that many are alike.
func randomQuery(r *rand.Rand) *dns.Msg {
	names := []string{".", "a.", "A.", "b.a.", "B.a.", "b.A.", `b\.a.`, "ba.", `\001a.`, `\@.`, "`.", "[.", "{."}
	m := new(dns.Msg)
	m.Id = uint16(r.Uint32())
	m.Question = []dns.Question{{
		Name:   names[r.IntN(len(names))],
		Qtype:  []uint16{1, 28, 256, 0}[r.IntN(4)],
		Qclass: []uint16{1, 3}[r.IntN(2)],
	}}
	m.RecursionDesired, m.AuthenticatedData, m.CheckingDisabled = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
	if r.IntN(2) == 0 {
		m.SetEdns0(uint16(r.Uint32()), r.IntN(2) == 0)
	}
	return m
}

func TestAppendKey(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	type slowKey struct {
		space         uint32
		name          string
		rrtype, class uint16
		do, cd        bool
	}
	known, back := map[string]slowKey{}, map[slowKey]string{}
	for range 20000 {
		m := randomQuery(r)
		checkFromMsg(t, m)
		var q Query
		query, ok := q.FromMsg(make([]byte, 0, MaxQuery), m)
		if !ok {
			t.Fatalf("refused %v", m)
		}
		space := r.Uint32N(3) * 0x01010101
		key := q.AppendKey([]byte("in front"), space, query)
		if !bytes.HasPrefix(key, []byte("in front")) {
			t.Fatal("what was there is gone")
		}
		key = key[len("in front"):]
		question := m.Question[0]
		slow := slowKey{space, strings.ToLower(question.Name), question.Qtype, question.Qclass, q.DO, m.CheckingDisabled}
		if before, there := known[string(key)]; there && before != slow {
			t.Fatalf("one key for %+v and %+v", before, slow)
		}
		if before, there := back[slow]; there && before != string(key) {
			t.Fatalf("two keys for %+v: %x and %x", slow, before, key)
		}
		known[string(key)], back[slow] = slow, string(key)
		if name, _, err := dns.UnpackDomainName(KeyName(key), 0); err != nil || name != slow.name {
			t.Fatalf("name %q in the key, want %q (%v)", name, slow.name, err)
		}
		other := bytes.Clone(key)
		SetKeySpace(other, space+1)
		if want := q.AppendKey(nil, space+1, query); !bytes.Equal(other, want) {
			t.Fatalf("moved to another space %x, want %x", other, want)
		}
	}
	if len(known) < 900 {
		t.Errorf("only %d keys", len(known))
	}
	t.Run("longest", func(t *testing.T) {
		var q Query
		b := newQuery(t, longest, dns.TypeA, nil)
		if !q.Parse(b) || len(q.AppendKey(nil, 1, b)) != MaxKey {
			t.Errorf("length %d", len(q.AppendKey(nil, 1, b)))
		}
	})
}

func TestParseAllocatesNothing(t *testing.T) {
	var key [MaxKey]byte
	buf := make([]byte, 0, MaxQuery)
	for name, b := range map[string][]byte{
		"plain": newQuery(t, "svc.example.", dns.TypeA, nil),
		"upper": newQuery(t, "Svc.Example.", dns.TypeA, edns(1232, true)),
		"long":  newQuery(t, longest, dns.TypeA, edns(1232, true)),
	} {
		t.Run(name, func(t *testing.T) {
			var q Query
			if n := testing.AllocsPerRun(1000, func() {
				if !q.Parse(b) {
					t.Error("refused")
				}
				q.AppendKey(key[:0], 7, b)
			}); n != 0 {
				t.Errorf("%v allocations", n)
			}
			m := new(dns.Msg)
			if err := m.Unpack(b); err != nil {
				t.Fatal(err)
			}
			if n := testing.AllocsPerRun(1000, func() {
				if _, ok := q.FromMsg(buf, m); !ok {
					t.Error("refused")
				}
			}); n != 0 {
				t.Errorf("%v allocations from a message", n)
			}
		})
	}
}

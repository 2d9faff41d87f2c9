package answers

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// slowEntry returns the entry for a reply as package dns packs it: without its OPT record, and with the question's name in
// lower case.
func slowEntry(t testing.TB, b, options []byte) (*Entry, *dns.Msg) {
	t.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		t.Fatalf("accepted %x: %v", b, err)
	}
	if opt := m.IsEdns0(); opt != nil {
		rest := m.Extra[:0]
		for _, rr := range m.Extra {
			if rr != dns.RR(opt) {
				rest = append(rest, rr)
			}
		}
		m.Extra = rest
	}
	name := strings.ToLower(m.Question[0].Name)
	m.Question[0].Name = name
	for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
		for _, rr := range section {
			if strings.EqualFold(rr.Header().Name, name) {
				rr.Header().Name = name
			}
		}
	}
	e := &Entry{Options: options}
	if err := e.Fill(m); err != nil {
		t.Fatalf("%v: %v", m, err)
	}
	return e, m
}

// checkFill asserts that Parse refuses a message, or that FillReply makes the entry that Fill makes. It reports whether the
// message was accepted.
func checkFill(t testing.TB, r *Reply, b, options []byte) bool {
	t.Helper()
	if !r.Parse(b) {
		return false
	}
	got := &Entry{Options: options}
	if !got.FillReply(r) {
		return false
	}
	want, m := slowEntry(t, b, options)
	want.AnyCase = got.AnyCase // compared in package cache
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%x\n%v\ngot  %+v\nwant %+v", b, m, got, want)
	}
	return true
}

func TestFillReply(t *testing.T) {
	r := rand.New(rand.NewPCG(7, rand.Uint64())) // #nosec G404 -- no need for secrecy
	parsed, accepted := new(Reply), 0
	const n = 5000
	for range n {
		m := randomAnswer(r, r.IntN(20))
		m.Compress = r.IntN(2) == 0
		if checkFill(t, parsed, packMsg(t, m), make([]byte, 300*r.IntN(2))) {
			accepted++
		}
	}
	t.Logf("%d of %d accepted", accepted, n)
	if accepted < n/10 {
		t.Errorf("%d of %d accepted", accepted, n)
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
		{"escaped character", owner("\x03a.b\x00"), false},
		{"control character", owner("\x01\x07\x00"), false},
		{"non-ASCII character", owner("\x01\xe4\x00"), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if ok := checkFill(t, new(Reply), tt.reply, nil); ok != tt.ok {
				t.Errorf("accepted: %v, want %v", ok, tt.ok)
			}
		})
	}
}

// TestReplyIsReused asserts that nothing of a reply remains in the next one.
func TestReplyIsReused(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9)) // #nosec G404
	used := new(Reply)
	for range 500 {
		b := packMsg(t, randomAnswer(r, r.IntN(40)))
		fresh := new(Reply)
		ok := checkFill(t, used, b, nil)
		if ok != checkFill(t, fresh, b, nil) || ok && (used.AnyCase != fresh.AnyCase || string(used.Options) != string(fresh.Options)) {
			t.Fatalf("%x: differs from a fresh buffer", b)
		}
	}
}

// FuzzFillReply compares Reply with package dns for any bytes.
func FuzzFillReply(f *testing.F) {
	for _, b := range malformedFiles(f) {
		f.Add(b)
	}
	r := rand.New(rand.NewPCG(1, 2)) // #nosec G404
	for i := range 100 {
		m := randomAnswer(r, i/5)
		m.Compress = i%2 == 0
		f.Add(packMsg(f, m))
	}
	head := []byte{0, 1, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 'a', 0, 0, 1, 0, 1, 0, 0, 41, 4, 208, 0, 0, 0, 0, 0}
	for _, options := range []string{
		"", "\x00\x0f\x00\x02\x00\x16", "\x00\x0f\x00\x01\x00", "\x00\x0a\x00\x08cookie12", "\x00\x0a\x00\x08cookie1", "\x00\x08\x00\x04\x00\x01\x00\x00",
		"\x00\x0c\x00\x00", "\xff\x22\x00\x03\x01a\x00", "\x00\x0b\x00\x01\x00", "\x00\x00\x00",
	} {
		f.Add(append(append(head[:len(head):len(head)], byte(len(options))), options...))
	}
	parsed := new(Reply)
	f.Fuzz(func(t *testing.T, b []byte) { checkFill(t, parsed, b, nil) })
}

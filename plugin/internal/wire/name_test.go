package wire

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"
)

// slowQuestionEnd is QuestionEnd by package dns.
func slowQuestionEnd(b []byte) int {
	if len(b) < 12 || binary.BigEndian.Uint16(b[4:]) != 1 {
		return 0
	}
	_, end, err := dns.UnpackDomainName(b, 12)
	if err != nil || end+4 > len(b) {
		return 0
	}
	for at := 12; at < end; at += int(b[at]) + 1 { // package dns follows pointers
		if b[at] > 63 {
			return 0
		}
	}
	return end + 4
}

func TestQuestionEnd(t *testing.T) {
	header := func(questions byte) []byte { return []byte{0, 0, 1, 0, 0, questions, 0, 0, 0, 0, 0, 0} }
	label := func(n int) []byte { return append([]byte{byte(n)}, bytes.Repeat([]byte{'a'}, n)...) }
	name := func(lengths ...int) []byte {
		b := header(1)
		for _, n := range lengths {
			b = append(b, label(n)...)
		}
		return append(b, 0, 0, 1, 0, 1)
	}
	for _, c := range []struct {
		name    string
		message []byte
		want    int
	}{
		{"the root", name(), 17},
		{"two labels", name(3, 7), 29},
		{"a label of 63", name(63), 81},
		{"a label of 64", name(64), 0},
		{"a name of 255", name(63, 63, 63, 61), 12 + 255 + 4},
		{"a name of 256", name(63, 63, 63, 62), 0},
		{"more behind it", append(name(3), 9, 9), 21},
		{"a pointer", append(header(1), 0xc0, 0, 0, 1, 0, 1), 0},
		{"a label and a pointer", append(header(1), 1, 'a', 0xc0, 12, 0, 1, 0, 1), 0},
		{"no root", append(header(1), 1, 'a'), 0},
		{"a label that is cut off", append(header(1), 9, 'a', 0, 0, 1, 0, 1), 0},
		{"a class that is cut off", name(3)[:20], 0},
		{"no question", append(header(0), name(3)[12:]...), 0},
		{"two questions", append(header(2), name(3)[12:]...), 0},
		{"a header", header(1), 0},
		{"half a header", header(1)[:6], 0},
		{"nothing", nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := QuestionEnd(c.message); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
			if got := slowQuestionEnd(c.message); got != c.want {
				t.Errorf("the slow version: %d, want %d", got, c.want)
			}
		})
	}
}

func FuzzQuestionEnd(f *testing.F) {
	f.Add(questionFor(f, "www.example."))
	f.Add(questionFor(f, "."))
	f.Add(questionFor(f, strings.Repeat(strings.Repeat("a", 63)+".", 3)+strings.Repeat("b", 61)+"."))
	f.Add([]byte("\x00\x00\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"))
	f.Fuzz(func(t *testing.T, message []byte) {
		if got, want := QuestionEnd(message), slowQuestionEnd(message); got != want {
			t.Errorf("%d, the slow version returns %d: %x", got, want, message)
		}
	})
}

// questionFor returns a packed query for a name.
func questionFor(t testing.TB, name string) []byte {
	t.Helper()
	b, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
	kit.Must(t, err)
	return b
}

// TestHasUpper tests each byte at each place of names of each length up to three words.
func TestHasUpper(t *testing.T) {
	for length := range 24 {
		for at := range length {
			for _, others := range []byte{'z', 0xff, 0} {
				for c := range 256 {
					name := bytes.Repeat([]byte{others}, length)
					name[at] = byte(c)
					if got, want := HasUpper(name), c >= 'A' && c <= 'Z'; got != want {
						t.Fatalf("%q: %t, want %t", name, got, want)
					}
				}
			}
		}
	}
}

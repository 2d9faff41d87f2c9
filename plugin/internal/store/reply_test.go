package store

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
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

// TestFillReply compares the entry for a parsed reply with the entry for the message.
func TestFillReply(t *testing.T) {
	r := rand.New(rand.NewPCG(7, rand.Uint64())) // #nosec G404 -- no need for secrecy
	var parsed wire.Reply
	filled := 0
	const n = 5000
	for range n {
		m := randomAnswer(r, r.IntN(20))
		m.Compress = r.IntN(2) == 0
		b, options := packMsg(t, m), make([]byte, 300*r.IntN(2))
		got := &Entry{Options: options}
		if !parsed.Parse(b) || parsed.Rcode > wire.MaxRcode || got.FillReply(&parsed) != nil {
			continue
		}
		filled++
		want, m := slowEntry(t, b, options)
		want.AnyCase = got.AnyCase // compared in package cache
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%x\n%v\ngot  %+v\nwant %+v", b, m, got, want)
		}
	}
	t.Logf("%d of %d filled", filled, n)
	if filled < n/10 {
		t.Errorf("%d of %d filled", filled, n)
	}
}

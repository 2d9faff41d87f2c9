package store

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// FuzzFromMsg asserts that QueryFromMsg sets the same fields from a message as Parse from its bytes.
func FuzzFromMsg(f *testing.F) {
	addQueries(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(dns.Msg)
		if m.Unpack(b) != nil {
			return
		}
		checkFromMsg(t, m)
		var parsed, made wire.Query
		if !parsed.Parse(b) {
			return
		}
		query, ok := QueryFromMsg(&made, make([]byte, 0, wire.MaxQuery), m)
		parsed.Caller = 0 // of the options, only the search list is set
		if !ok || !reflect.DeepEqual(made, parsed) {
			t.Fatalf("%x: from the message %v %+v, parsed %+v", b, ok, made, parsed)
		}
		want := bytes.Clone(b[:wire.HeaderLen+parsed.NameLen+4])
		want[11] = 0 // without the OPT record
		if !bytes.Equal(query, want) {
			t.Fatalf("got %x, want %x", query, want)
		}
	})
}

func checkFromMsg(t *testing.T, m *dns.Msg) {
	t.Helper()
	var made, parsed wire.Query
	query, ok := QueryFromMsg(&made, bytes.Repeat([]byte{0xff}, wire.MaxQuery)[:0], m)
	list, one := searchlist.OptionOf(m)
	if _, unkeyed := UnkeyedOption(m); ok != (isOrdinary(m) && !unkeyed) {
		t.Fatalf("%t for %v", ok, m)
	}
	if !ok {
		return
	}
	if !reflect.DeepEqual(made.Search, list) || one != searchlist.HasOption(m) {
		t.Fatalf("from %v: the search list %x", m, made.Search)
	}
	if made.Class != dns.ClassINET {
		query[len(query)-1], query[len(query)-2] = dns.ClassINET, 0
		made.Class = dns.ClassINET
	}
	without := made
	without.EDNS, without.UDPSize, without.DO, without.Search = false, 0, false, nil
	if !parsed.Parse(query) || !reflect.DeepEqual(parsed, without) {
		t.Fatalf("from %v: %+v, parsed %+v", m, without, parsed)
	}
	if opt := m.IsEdns0(); made.EDNS != (opt != nil) || opt != nil && (made.DO != opt.Do() || made.UDPSize != opt.UDPSize()) {
		t.Fatalf("from %v: %+v", m, made)
	}
	if id := binary.BigEndian.Uint16(query); id != m.Id {
		t.Fatalf("id %d, want %d", id, m.Id)
	}
}

// isOrdinary reports whether Parse accepts a message, whatever its class and the parts of its OPT record that QueryFromMsg
// ignores.
func isOrdinary(m *dns.Msg) bool {
	m = m.Copy()
	for i := range m.Question {
		m.Question[i].Qclass = dns.ClassINET
	}
	if opt := m.IsEdns0(); opt != nil {
		opt.Hdr.Ttl &= wire.DO
		opt.Option = slices.DeleteFunc(opt.Option, func(o dns.EDNS0) bool { return o.Option() != wire.OptionSearchList })
	}
	b, err := m.Pack()
	return err == nil && new(wire.Query).Parse(b)
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
		"no question":              question(),
		"two questions":            question("a.", "b."),
		"empty name":               question(""),
		"no final dot":             question("a.b"),
		"two dots":                 question("a..b."),
		"label too long":           question(strings.Repeat("a", 64) + "."),
		"name too long":            question(tooLong),
		"several times too long":   question(longest + longest + longest),
		"leading dot":              question(".a."),
		"incomplete escape":        question(`a\`),
		"escaped final dot":        question(`a\.`),
		"two search lists":         edited(question("a."), withOptions(searchList("\x01b\x00"), searchList("\x01b\x00"))),
		"client subnet":            edited(question("a."), withOptions(&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET})),
		"client subnet of no bits": edited(question("a."), withOptions(&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1})),
		"CHAIN":                    edited(question("a."), withOptions(&dns.EDNS0_LOCAL{Code: 13})),
		"option for local use":     edited(question("a."), withOptions(&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE}, &dns.EDNS0_LOCAL{Code: dns.EDNS0LOCALSTART})),
		"client subnet in the first of two OPT records": edited(question("a."), func(m *dns.Msg) {
			withOptions(&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET})(m)
			m.Extra = append(m.Extra, &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}})
		}),
		"search list of 256 bytes": edited(question("a."), withOptions(searchList(longestList+"s"))),
	} {
		t.Run(name, func(t *testing.T) {
			var q wire.Query
			if got, ok := QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), m); ok {
				t.Errorf("got %x", got)
			}
		})
	}
	t.Run("buffer too small", func(t *testing.T) {
		var q wire.Query
		if _, ok := QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery-1), question("a.")); ok {
			t.Error("accepted")
		}
	})
	t.Run("escaped upper-case letter", func(t *testing.T) {
		var q wire.Query
		if _, ok := QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), question(`\065.`)); !ok || !q.Upper {
			t.Errorf("%v %+v", ok, q)
		}
	})
}

func edited(m *dns.Msg, change func(*dns.Msg)) *dns.Msg {
	change(m)
	return m
}

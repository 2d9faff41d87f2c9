package fastpath

import (
	"bytes"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/explain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestFindStored compares the explained state of the store with the replies of a reader.
func TestFindStored(t *testing.T) {
	b := newBed(t, false)
	s := b.listener.server.Load()
	now := validity.Now()
	valid := validity.Validity{Expires: now + time.Hour}
	addresses := func(name string, n int) *dns.Msg {
		m := addressReply(name, 1)
		for i := range n {
			rr := dns.Copy(m.Answer[0]).(*dns.A)
			rr.A[2], rr.A[3] = byte(i>>8), byte(i)
			m.Answer = append(m.Answer, rr)
		}
		return m
	}
	popular := &store.Popularity{Amount: 2, Gap: time.Hour}
	for _, e := range []struct {
		name  string
		entry *store.Entry
		more  int
	}{
		{"hit.test.", &store.Entry{Validity: valid}, 0},
		{"expired.test.", &store.Entry{Stored: now - time.Minute, Validity: validity.Validity{Expires: now - time.Second}}, 0},
		{"waits.test.", &store.Entry{Waits: true, Validity: valid}, 0},
		{"long.test.", &store.Entry{Validity: valid}, 200},
		{"popular.test.", &store.Entry{Stored: now, Validity: valid, Popularity: popular}, 0},
	} {
		e.entry.Cached = true
		b.store(t, e.entry, addresses(e.name, e.more))
	}
	for _, tt := range []struct {
		query string
		qtype uint16
		tcp   bool
		want  string // part of the reason, "" for a reply
	}{
		{"hit.test.", dns.TypeA, false, ""},
		{"hit.test.", dns.TypeA, true, ""},
		{"Hit.test.", dns.TypeA, false, "upper case"},
		{"hit.test.", dns.TypeAAAA, false, notStored},
		{"hit.test.", dns.TypeANY, false, "queries of type ANY"},
		{"hit.test.", dns.TypeDS, false, "queries of type DS"},
		{"expired.test.", dns.TypeA, false, "its TTL ended"},
		{"waits.test.", dns.TypeA, false, "queries wait"},
		{"long.test.", dns.TypeA, false, "truncated"},
		{"long.test.", dns.TypeA, true, ""},
		{"popular.test.", dns.TypeA, false, ""},
	} {
		q := explain.Query{Name: tt.query, Type: tt.qtype, Client: netip.MustParseAddr("10.0.0.1"), TCP: tt.tcp}
		m, packet, err := packetOf(q)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 { // nothing is counted
			stored := s.findStored(packet, q)
			if (tt.want == "") != (stored.without == "") || !strings.Contains(stored.without, tt.want) {
				t.Errorf("%+v: %q, want %q", tt, stored.without, tt.want)
			}
			if stored.without != "" {
				continue
			}
			reply := stored.reply
			if !tt.tcp {
				b.query(t, m)
				if reply, err = b.receive(t).Pack(); err != nil {
					t.Fatal(err)
				}
			}
			if got := stored.compare(reply); got != "the same bytes" {
				t.Errorf("%+v: %s; %x, want that of a reader: %x", tt, got, stored.reply, reply)
			}
			if tt.query == "popular.test." {
				break // the reader has counted the query
			}
		}
	}
	q := explain.Query{Name: "popular.test.", Type: dns.TypeA, Client: netip.MustParseAddr("10.0.0.1")}
	_, packet, err := packetOf(q)
	if err != nil {
		t.Fatal(err)
	}
	stored := s.findStored(packet, q)
	if !strings.Contains(stored.without, "prefetched") {
		t.Errorf("a popular answer: %q", stored.without)
	}
	withoutTimes := func(text string) string { return regexp.MustCompile(`[0-9][0-9a-zµ.]*`).ReplaceAllString(text, "") }
	if again := s.findStored(packet, q); withoutTimes(again.without) != withoutTimes(stored.without) {
		t.Errorf("a second explanation: %q, want %q", again.without, stored.without)
	}
	rt := s.routes.find([]byte{0})
	rt.logged = block.LoggedData
	q.Name = "hit.test."
	if _, packet, err = packetOf(q); err != nil {
		t.Fatal(err)
	}
	if stored = s.findStored(packet, q); stored.without != "plugin log logs such answers" {
		t.Errorf("a logged answer: %q", stored.without)
	}
}

// TestCompare compares replies with a stored one.
func TestCompare(t *testing.T) {
	b := newBed(t, false)
	b.store(t, &store.Entry{Cached: true, Validity: validity.Validity{Expires: validity.Now() + time.Hour}}, addressReply("hit.test.", 1))
	q := explain.Query{Name: "hit.test.", Type: dns.TypeA, Client: netip.MustParseAddr("10.0.0.1")}
	_, packet, err := packetOf(q)
	if err != nil {
		t.Fatal(err)
	}
	stored := b.listener.server.Load().findStored(packet, q)
	changed := func(change func(m *dns.Msg)) []byte {
		m := kit.Unpack(t, stored.reply)
		change(m)
		return kit.Pack(t, m)
	}
	for want, reply := range map[string][]byte{
		"the same bytes": bytes.Clone(stored.reply),
		"the same records; order, TTLs or compression differ": changed(func(m *dns.Msg) { m.Answer[0].Header().Ttl += 3 }),
		"another answer": changed(func(m *dns.Msg) { m.Answer = nil }),
		"another answer: the plugins do not reply": nil,
	} {
		if got := stored.compare(reply); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	q.Type = dns.TypeAAAA
	if _, packet, err = packetOf(q); err != nil {
		t.Fatal(err)
	}
	if got := b.listener.server.Load().findStored(packet, q).compare(stored.reply); got != "not compared: no answer was stored before this query" {
		t.Errorf("nothing stored: %q", got)
	}
}

// TestCallerOption: the query has the option that nodecache sends.
func TestCallerOption(t *testing.T) {
	for _, tt := range []struct{ node, zone, want string }{
		{"", "", "[]"}, {"node-a", "", "[65313:0x01066e6f64652d61]"}, {"node-a", "z", "[65313:0x01066e6f64652d61017a]"}, {"Node", "", ""},
	} {
		m, packet, err := packetOf(explain.Query{Name: "a.test.", Type: dns.TypeA, Node: tt.node, Zone: tt.zone})
		if (err == nil) != (tt.want != "") {
			t.Errorf("%+v: %v", tt, err)
		}
		if err != nil {
			continue
		}
		sent := kit.Unpack(t, packet)
		for _, one := range []*dns.Msg{m, sent} {
			if got := fmt.Sprint(one.IsEdns0().Option); got != tt.want {
				t.Errorf("%+v: options %s, want %s", tt, got, tt.want)
			}
		}
	}
}

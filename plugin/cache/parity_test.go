package cache

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestParity compares hits of the fast path with hits of the plugin: the bytes are the same.
func TestParity(t *testing.T) {
	many := "NOERROR"
	for i := range 20 {
		many += fmt.Sprintf("; www.example. 300 IN TXT %q", strings.Repeat(string(rune('a'+i)), 20))
	}
	for name, reply := range map[string]string{ // to a query for TXT if the reply has TXT records, otherwise for A
		"address":  "NOERROR AA; www.example. 300 IN A 192.0.2.1",
		"alias":    "NOERROR AD; www.example. 300 IN CNAME a.example.; a.example. 60 IN A 192.0.2.1; a.example. 60 IN A 192.0.2.2",
		"NXDOMAIN": denial("NXDOMAIN", 300, 60),
		"SERVFAIL": "SERVFAIL; additional; OPT",
		"many":     many,
	} {
		inBubble(t, name, func(t *testing.T) { testParity(t, reply) })
	}
}

func testParity(t *testing.T, reply string) {
	b := newTestCache(t, "cache")
	b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		text, withOpt := strings.CutSuffix(reply, "; additional; OPT")
		m := replyTo(t, r, text)
		if withOpt {
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: 23, ExtraText: "no reply"}}
		}
		return 0, w.WriteMsg(m)
	})
	compared := 0
	qtype := "A"
	if strings.Contains(reply, "TXT") {
		qtype = "TXT"
	}
	for _, text := range []string{
		"www.example. A", "wWw.exAmple. A", "www.example. A +edns", "www.example. A +do", "www.example. A +cd",
		"www.example. A +ad", "www.example. A +norec +ad", "WWW.example. A +edns",
	} {
		text = strings.Replace(text, " A", " "+qtype, 1)
		b.query(strings.Replace(text, text[:12], "www.example.", 1))
		time.Sleep(time.Second)
		e, r := b.entry(text), query(text)
		if e == nil {
			t.Fatalf("%s: no entry", text)
		}
		packed := kit.Pack(t, r)
		var q wire.Query
		if !q.Parse(packed) {
			t.Fatalf("%s is refused", text)
		}
		p := e.Patch(b.now())
		form := e.Form(&q, &p, q.Limit(), 1480)
		w := new(client)
		if _, err := b.ServeDNS(context.Background(), request.NewScrubWriter(r, w), r); err != nil {
			t.Fatal(err)
		}
		if form == nil {
			continue // the answer must be truncated
		}
		want := kit.Pack(t, w.reply)
		if got := form.AppendReply(nil, packed, &q, &p); !bytes.Equal(got, want) {
			t.Errorf("%s\n fast %x\nchain %x", text, got, want)
		}
		compared++
	}
	if compared < 3 {
		t.Errorf("only %d answers were compared", compared)
	}
}

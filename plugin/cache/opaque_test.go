package cache

import (
	"context"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestHTTPSRecordWithAShortHintIsCached: a record whose data package dns cannot read is passed on and stored as bytes.
func TestHTTPSRecordWithAShortHintIsCached(t *testing.T) {
	inBubble(t, "cache", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			m := new(dns.Msg).SetReply(r)
			m.Answer = []dns.RR{&dns.RFC3597{
				Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeHTTPS, Class: dns.ClassINET, Ttl: 60}, Rdata: "00010000040003c00002",
			}}
			return dns.RcodeSuccess, w.WriteMsg(m)
		})
		for _, ttl := range []string{"60", "60", "50"} {
			if ttl == "50" {
				time.Sleep(10 * time.Second)
			}
			want := "w.\t" + ttl + "\tCLASS1\tTYPE65\t\\# 10 00010000040003c00002"
			if m := b.query("w. HTTPS"); m == nil || len(m.Answer) != 1 || m.Answer[0].String() != want {
				t.Errorf("%v, want %s", m, want)
			}
		}
		b.wantQueries(1)
	})
}

package cache

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestLongReplyRenews: a reply that is too long to be stored, above 64 KB without compression of names, replaces a stale answer.
func TestLongReplyRenews(t *testing.T) {
	inBubble(t, "addresses", func(t *testing.T) {
		const name = "headless-service-name.some-namespace.svc.cluster.local."
		b := newTestCache(t, "cache {\nsuccess 100 3600\n}")
		b.replies("NOERROR; " + name + " 60 IN A 192.0.2.1")
		b.query(name + " A +tcp")
		records := make([]string, 1500)
		for i := range records {
			records[i] = fmt.Sprintf("%s 7200 IN A 10.0.%d.%d", name, i/256, i%256)
		}
		b.replies("NOERROR; " + strings.Join(records, "; "))
		time.Sleep(2 * time.Minute)
		if m := b.query(name + " A +tcp"); len(m.Answer) != len(records) || m.Answer[0].Header().Ttl != 3600 {
			t.Errorf("%d answers, the first is %v", len(m.Answer), m.Answer[0])
		}
		if n := value(t, b.counters("").drops); n != 0 {
			t.Errorf("%v drops", n)
		}
	})
}

// TestOptionsOfPlugins: a plugin behind the cache adds options that package dns cannot pack, or with the code of extended errors.
func TestOptionsOfPlugins(t *testing.T) {
	for name, opt := range map[string]*dns.OPT{
		"NSID that is not hexadecimal": {Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}, Option: []dns.EDNS0{&dns.EDNS0_NSID{Nsid: "server-1"}}},
		"OPT record without a name":    {Hdr: dns.RR_Header{Rrtype: dns.TypeOPT}},
		"short extended error":         {Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}, Option: []dns.EDNS0{&dns.EDNS0_LOCAL{Code: dns.EDNS0EDE}}},
	} {
		chainOnly(t, name, func(t *testing.T) {
			b := newTestCache(t, "cache")
			b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				m := replyTo(t, r, "NOERROR; w. 7200 IN A 192.0.2.1")
				m.Extra = append(m.Extra, opt)
				return 0, w.WriteMsg(m)
			})
			for range 2 {
				if m := b.query("w. A +edns"); len(m.Answer) != 1 || m.Answer[0].Header().Ttl != 3600 {
					t.Errorf("the reply is %v", m)
				}
			}
			b.wantQueries(1)
		})
	}
}

// TestOptionsInTwoRecords: the extended errors of all OPT records of a plugin are stored.
func TestOptionsInTwoRecords(t *testing.T) {
	chainOnly(t, "chain", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			m := replyTo(t, r, "NOERROR; w. 300 IN A 192.0.2.1")
			for code := range 2 {
				m.Extra = append(m.Extra, optWith([]dns.EDNS0{&dns.EDNS0_EDE{InfoCode: uint16(code)}}))
			}
			return 0, w.WriteMsg(m)
		})
		for range 2 {
			m := b.query("w. A +edns")
			if opt := m.IsEdns0(); opt == nil || len(opt.Option) != 2 {
				t.Errorf("the reply is %v", m)
			}
		}
		b.wantQueries(1)
	})
}

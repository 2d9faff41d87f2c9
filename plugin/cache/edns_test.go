package cache

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// with returns a query with EDNS options.
func with(text string, options ...dns.EDNS0) *dns.Msg {
	r := query(text)
	if r.IsEdns0() == nil {
		r.SetEdns0(1232, false)
	}
	opt := r.IsEdns0()
	opt.Option = append(opt.Option, options...)
	return r
}

// subnet returns the option of a client subnet.
func subnet(prefix string, scope uint8) *dns.EDNS0_SUBNET {
	p := netip.MustParsePrefix(prefix)
	return &dns.EDNS0_SUBNET{
		Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: uint8(p.Bits()), SourceScope: scope, Address: p.Addr().AsSlice(),
	}
}

// subnetOf returns the client subnet in a message, nil if there is none.
func subnetOf(m *dns.Msg) *dns.EDNS0_SUBNET {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if s, ok := o.(*dns.EDNS0_SUBNET); ok {
				return s
			}
		}
	}
	return nil
}

// wantAddress sends a query, and compares the address in the reply.
func (b *testCache) wantAddress(r *dns.Msg, want string) {
	b.t.Helper()
	w := new(client)
	if _, err := b.ServeDNS(context.Background(), w, r); err != nil || w.reply == nil {
		b.t.Errorf("no reply: %v", err)
		return
	}
	if len(w.reply.Answer) != 1 || w.reply.Answer[0].(*dns.A).A.String() != want {
		b.t.Errorf("to a query with %v:\n%v\nwant address %s", r.IsEdns0(), w.reply, want)
	}
}

// bySubnet is an upstream whose answer depends on the client subnet.
func bySubnet(t *testing.T) plugin.HandlerFunc {
	return func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		time.Sleep(time.Second)
		m := replyTo(t, r, "NOERROR; w. 300 IN A 192.0.2.1")
		if s := subnetOf(r); s != nil {
			m.Answer[0].(*dns.A).A = s.Address
			m.SetEdns0(1232, false)
			scoped := *s
			scoped.SourceScope = s.SourceNetmask
			m.IsEdns0().Option = []dns.EDNS0{&scoped}
		}
		return 0, w.WriteMsg(m)
	}
}

// TestClientSubnet checks that no client gets the answer for the subnet of another, later or at the same time.
func TestClientSubnet(t *testing.T) {
	queries := []struct {
		r    func() *dns.Msg
		want string
	}{
		{func() *dns.Msg { return with("w. A", subnet("10.1.0.0/16", 0)) }, "10.1.0.0"},
		{func() *dns.Msg { return with("w. A", subnet("10.2.0.0/16", 0)) }, "10.2.0.0"},
		{func() *dns.Msg { return query("w. A") }, "192.0.2.1"},
		{func() *dns.Msg { return query("w. A +edns") }, "192.0.2.1"},
	}
	inBubble(t, "one after the other", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.upstream(bySubnet(t))
		for range 2 {
			for _, q := range queries {
				b.wantAddress(q.r(), q.want)
			}
		}
		b.wantQueries(5) // one of them for all queries without a subnet
		if requests, misses := value(t, b.counters("").requests), value(t, b.counters("").misses); requests != 8 || misses != 5 {
			t.Errorf("%v requests and %v misses, want 8 and 5", requests, misses)
		}
	})
	inBubble(t, "at the same time", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.upstream(bySubnet(t))
		for _, q := range queries {
			go b.wantAddress(q.r(), q.want)
		}
		time.Sleep(2 * time.Second)
		b.wantQueries(3)
	})
	inBubble(t, "after it has expired", func(t *testing.T) {
		b := newTestCache(t, "cache {\nserve_stale 1h immediate\n}")
		b.upstream(bySubnet(t))
		b.wantAddress(query("w. A"), "192.0.2.1")
		time.Sleep(400 * time.Second)
		b.wantAddress(with("w. A", subnet("10.1.0.0/16", 0)), "10.1.0.0")
		b.wantAddress(query("w. A"), "192.0.2.1")
		time.Sleep(2 * time.Second) // for the background query
	})
}

// TestClientSubnetAddedBehind has a plugin behind the cache add a client subnet; only a reply with scope 0 is for all.
func TestClientSubnetAddedBehind(t *testing.T) {
	for _, c := range []struct {
		name    string
		scope   uint8
		queries int
	}{{"for a subnet", 16, 2}, {"for all", 0, 1}} {
		inBubble(t, c.name, func(t *testing.T) {
			b := newTestCache(t, "cache")
			b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				m := replyTo(t, r, "NOERROR; w. 300 IN A 192.0.2.1")
				m.SetEdns0(1232, false)
				m.IsEdns0().Option = []dns.EDNS0{subnet("10.1.0.0/16", c.scope)}
				return 0, w.WriteMsg(m)
			})
			for range 2 {
				b.want("w. A", "NOERROR; w. 300 IN A 192.0.2.1")
			}
			b.wantQueries(c.queries)
		})
	}
}

// TestOptions checks that queries with other options that may change the answer are not answered from the cache; harmless
// options are.
func TestOptions(t *testing.T) {
	local := func(code uint16) dns.EDNS0 { return &dns.EDNS0_LOCAL{Code: code, Data: []byte{1, 2}} }
	for _, c := range []struct {
		name    string
		option  dns.EDNS0
		queries int
	}{
		{"cookie", &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0011223344556677"}, 1},
		{"NSID", &dns.EDNS0_NSID{Code: dns.EDNS0NSID}, 1},
		{"padding", &dns.EDNS0_PADDING{Padding: make([]byte, 9)}, 1},
		{"keepalive", &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE}, 1},
		{"algorithms understood", &dns.EDNS0_DAU{Code: dns.EDNS0DAU, AlgCode: []uint8{13}}, 1},
		{"caller option", local(65313), 1},
		{"chain", local(13), 4},
		{"hardware address of the client, as dnsmasq sends it", local(65001), 4},
		{"unassigned", local(9999), 4},
		{"subnet 0.0.0.0/0", subnet("0.0.0.0/0", 0), 4},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			b := newTestCache(t, "cache")
			b.replies("NOERROR; " + a("w.", 300))
			for range 3 {
				b.wantAddress(with("w. A", c.option), "192.0.2.1")
			}
			b.wantAddress(query("w. A"), "192.0.2.1")
			b.wantAddress(query("w. A"), "192.0.2.1")
			b.wantQueries(c.queries)
		})
	}
}

// TestWarningOfOption checks that an EDNS option that prevents caching is logged once per server block.
func TestWarningOfOption(t *testing.T) {
	logged := kit.Logged(t)
	b := newTestCache(t, "cache")
	b.replies("NOERROR; " + a("w.", 60))
	local := &dns.EDNS0_LOCAL{Code: 65001, Data: []byte{1}}
	for _, r := range []*dns.Msg{query("w. A"), query("w. A +edns"), with("w. A", &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"})} {
		b.wantAddress(r, "192.0.2.1")
	}
	if logged.String() != "" {
		t.Errorf("without an option that prevents caching the log is %s", logged)
	}
	for range 3 {
		b.wantAddress(with("w. A", local), "192.0.2.1")
	}
	if n := logged.Count("Queries with EDNS option 65001 are not answered from the cache"); n != 1 {
		t.Errorf("%d log lines, want 1: %s", n, logged)
	}
}

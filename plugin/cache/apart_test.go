package cache

import (
	"bytes"
	"context"
	stdlog "log"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
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
func (b *bed) wantAddress(r *dns.Msg, want string) {
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

// An answer for the subnet of one client is given to no client of another, be it later or at the same time.
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
	beds(t, "one after the other", func(t *testing.T) {
		b := newBed(t, "cache")
		b.upstream(bySubnet(t))
		for range 2 {
			for _, q := range queries {
				b.wantAddress(q.r(), q.want)
			}
		}
		b.wantQueries(5) // those without a subnet are one
		if requests, misses := value(t, b.counters("").requests), value(t, b.counters("").misses); requests != 8 || misses != 5 {
			t.Errorf("%v requests and %v misses were counted, want 8 and 5", requests, misses)
		}
	})
	beds(t, "at the same time", func(t *testing.T) {
		b := newBed(t, "cache")
		b.upstream(bySubnet(t))
		for _, q := range queries {
			go b.wantAddress(q.r(), q.want)
		}
		time.Sleep(2 * time.Second)
		b.wantQueries(3)
	})
	beds(t, "after it has expired", func(t *testing.T) {
		b := newBed(t, "cache {\nserve_stale 1h immediate\n}")
		b.upstream(bySubnet(t))
		b.wantAddress(query("w. A"), "192.0.2.1")
		time.Sleep(400 * time.Second)
		b.wantAddress(with("w. A", subnet("10.1.0.0/16", 0)), "10.1.0.0")
		b.wantAddress(query("w. A"), "192.0.2.1")
		time.Sleep(2 * time.Second) // for the reply in the background
	})
}

// A plugin behind the cache may add a client's subnet to a query. The reply says for whom it is.
func TestClientSubnetAddedBehind(t *testing.T) {
	for _, c := range []struct {
		name    string
		scope   uint8
		queries int
	}{{"for a subnet", 16, 2}, {"for all", 0, 1}} {
		beds(t, c.name, func(t *testing.T) {
			b := newBed(t, "cache")
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

// Other options that may change the answer are treated like a subnet; those that do not, cost no hits.
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
		{"the caller", local(65313), 1},
		{"chain", local(13), 4},
		{"hardware address of the client, as dnsmasq sends it", local(65001), 4},
		{"unassigned", local(9999), 4},
		{"subnet 0.0.0.0/0", subnet("0.0.0.0/0", 0), 4},
	} {
		beds(t, c.name, func(t *testing.T) {
			b := newBed(t, "cache")
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

// byRecursion is an upstream with another reply to queries without RD.
func byRecursion(t *testing.T, without string) plugin.HandlerFunc {
	return func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		text := "NOERROR; " + a("w.", 60)
		if !r.RecursionDesired {
			text = without
		}
		if text == "fail" {
			return dns.RcodeServerFailure, errUpstream
		}
		m := replyTo(t, r, text)
		return m.Rcode, w.WriteMsg(m)
	}
}

// withoutRecursion are replies of servers to queries without RD.
var withoutRecursion = []string{
	"NOERROR; authority; w. 300 IN NS ns.w.", "SERVFAIL", "REFUSED", "NOERROR", "fail",
	"NXDOMAIN; authority; example. 60 IN SOA ns.example. root.example. 1 2 3 4 60",
}

// The reply to a query without RD is not given to clients that want recursion.
func TestWithoutRecursion(t *testing.T) {
	for _, without := range withoutRecursion {
		want := without
		if without == "fail" {
			want = "nothing"
		}
		beds(t, without, func(t *testing.T) {
			b := newBed(t, "cache")
			b.upstream(byRecursion(t, without))
			if got := b.ask("w. A +norec"); brief(got) != want && len(got.Ns) == 0 {
				t.Errorf("without RD: %s, want %s", brief(got), want)
			}
			b.want("w. A", "NOERROR; "+a("w.", 60))
			b.wantQueries(2)
			b.want("w. A +norec", "NOERROR; "+a("w.", 60)) // a cached answer needs no recursion
			b.wantQueries(2)
		})
	}
}

// A query without RD leaves an answer that has expired to clients that want recursion as it is.
func TestWithoutRecursion_Expired(t *testing.T) {
	for _, without := range withoutRecursion {
		for _, option := range []string{"", "serve_stale 1h verify", "serve_stale 1h verify 1s 30s 30s"} {
			beds(t, without+" "+option, func(t *testing.T) {
				b := newBed(t, "cache {\n"+option+"\n}")
				b.upstream(byRecursion(t, without))
				b.want("w. A", "NOERROR; "+a("w.", 60))
				time.Sleep(time.Minute)
				b.ask("w. A +norec")
				b.want("w. A", "NOERROR; "+a("w.", 60))
				b.wantQueries(3)
			})
		}
	}
}

// A refresh in the background has RD set, even if a query without RD started it.
func TestWithoutRecursion_Background(t *testing.T) {
	for _, c := range []struct {
		option string
		after  time.Duration
		want   string
	}{
		{"prefetch 1 1m 50%", 59 * time.Second, "NOERROR; " + a("w.", 1)},
		{"serve_stale 1h immediate", time.Minute, "NOERROR; " + a("w.", 0)},
	} {
		beds(t, c.option, func(t *testing.T) {
			b := newBed(t, "cache {\n"+c.option+"\n}")
			b.upstream(byRecursion(t, "REFUSED"))
			b.want("w. A", "NOERROR; "+a("w.", 60))
			time.Sleep(c.after)
			b.want("w. A +norec", c.want)
			synctest.Wait()
			b.want("w. A", "NOERROR; "+a("w.", 60))
			b.wantQueries(2)
		})
	}
}

// An answer of a plugin that says until when it is valid doesn't depend on RD, and is cached for all.
func TestWithoutRecursion_Conditions(t *testing.T) {
	beds(t, "conditions", func(t *testing.T) {
		b, g := newBed(t, "cache"), new(generation)
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			answers.PropertiesOf(ctx, r).Bounds[0] = answers.Bound{Generation: g}
			return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a("w.", 60)))
		})
		for _, text := range []string{"w. A +norec", "w. A +norec", "w. A"} {
			b.want(text, "NOERROR; "+a("w.", 60))
		}
		b.wantQueries(1)
	})
}

// TestWarningOfOption has queries with an EDNS option that prevents caching: the log has one line for the server block.
func TestWarningOfOption(t *testing.T) {
	var logged bytes.Buffer
	stdlog.SetOutput(&logged)
	defer stdlog.SetOutput(os.Stderr)
	b := newBed(t, "cache")
	b.replies("NOERROR; " + a("w.", 60))
	local := &dns.EDNS0_LOCAL{Code: 65001, Data: []byte{1}}
	for _, r := range []*dns.Msg{query("w. A"), query("w. A +edns"), with("w. A", &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"})} {
		b.wantAddress(r, "192.0.2.1")
	}
	if logged.Len() > 0 {
		t.Errorf("without an option that prevents caching, the log has %s", &logged)
	}
	for range 3 {
		b.wantAddress(with("w. A", local), "192.0.2.1")
	}
	if n := strings.Count(logged.String(), "Queries with EDNS option 65001 are not answered from the cache"); n != 1 {
		t.Errorf("%d lines in the log, want 1: %s", n, &logged)
	}
}

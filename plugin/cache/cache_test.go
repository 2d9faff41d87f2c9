package cache

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

const soa = "example. %d IN SOA ns.example. root.example. 1 2 3 4 %d"

// denial is a reply without data; its SOA record has this TTL and MINIMUM.
func denial(code string, ttl, minimum int) string {
	return fmt.Sprintf("%s; authority; "+soa, code, ttl, minimum)
}

// step is a query, with the changes before it.
type step struct {
	upstream string        // reply from here on, "fail" for none; "" for no change
	after    time.Duration // waiting time before the query
	query    string
	want     string
	queries  int // to the upstream since the first step
}

func (b *testCache) steps(steps []step) {
	b.t.Helper()
	for i, s := range steps {
		switch s.upstream {
		case "":
		case "fail":
			b.fails()
		default:
			b.replies(s.upstream)
		}
		time.Sleep(s.after)
		if got := brief(b.query(s.query)); got != s.want {
			b.t.Errorf("step %d, %s\n got %s\nwant %s", i, s.query, got, s.want)
		}
		synctest.Wait() // for background queries
		if got := b.received(); got != s.queries {
			b.t.Errorf("step %d, %s: the upstream received %d queries, want %d", i, s.query, got, s.queries)
		}
	}
}

// a is an A record of a name.
func a(name string, ttl int) string { return fmt.Sprintf("%s %d IN A 192.0.2.1", name, ttl) }

func TestBehaviour(t *testing.T) {
	const sec = time.Second
	for _, c := range []struct {
		name, options string
		steps         []step
	}{
		{"the TTL is decremented in whole seconds and expires", "", []step{
			{"NOERROR; " + a("w.", 300), 0, "w. A", "NOERROR; " + a("w.", 300), 1},
			{"", 10*sec + sec/2, "w. A", "NOERROR; " + a("w.", 290), 1},
			{"", 289*sec + sec/4, "w. A", "NOERROR; " + a("w.", 1), 1},
			{"", sec / 4, "w. A", "NOERROR; " + a("w.", 300), 2},
		}},
		{"the case of the query is in the answer", "", []step{
			{"NOERROR; w.x. 300 IN CNAME y.X.; y.X. 300 IN A 192.0.2.1", 0, "w.x. A", "NOERROR; w.x. 300 IN CNAME y.X.; y.X. 300 IN A 192.0.2.1", 1},
			{"", 0, "W.x. A", "NOERROR; W.x. 300 IN CNAME y.X.; y.X. 300 IN A 192.0.2.1", 1},
		}},
		{"the case of the first query is not stored", "", []step{
			{"NOERROR; W.x. 300 IN A 192.0.2.1", 0, "W.x. A", "NOERROR; W.x. 300 IN A 192.0.2.1", 1},
			{"", 0, "w.x. A", "NOERROR; w.x. 300 IN A 192.0.2.1", 1},
		}},
		{"each RRset has its TTL, and the lowest one ends all", "", []step{
			{"NOERROR; w. 300 IN CNAME v.; v. 30 IN A 192.0.2.1; v. 20 IN A 192.0.2.2; authority; x. 7200 IN NS w.", 0, "w. A",
				"NOERROR; w. 300 IN CNAME v.; v. 20 IN A 192.0.2.1; v. 20 IN A 192.0.2.2; authority; x. 3600 IN NS w.", 1},
			{"", 15 * sec, "w. A", "NOERROR; w. 285 IN CNAME v.; v. 5 IN A 192.0.2.1; v. 5 IN A 192.0.2.2; authority; x. 3585 IN NS w.", 1},
			{"NOERROR; " + a("w.", 5), 5 * sec, "w. A", "NOERROR; " + a("w.", 5), 2},
		}},
		{"signatures have the TTL of their RRset", "", []step{
			{"NOERROR; w. 300 IN RRSIG A 8 1 300 20300101000000 19990101000000 1 . AA==; w. 60 IN RRSIG MX 8 1 60 20300101000000 19990101000000 1 . AA==", 0, "w. RRSIG",
				"NOERROR; w. 300 IN RRSIG A 8 1 300 20300101000000 19990101000000 1 . AA==; w. 60 IN RRSIG MX 8 1 60 20300101000000 19990101000000 1 . AA==", 1},
		}},
		{"default bounds of TTLs", "", []step{
			{"NOERROR; " + a("w.", 1), 0, "w. A", "NOERROR; " + a("w.", 5), 1},
			{"NOERROR; " + a("v.", 86400), 0, "v. A", "NOERROR; " + a("v.", 3600), 2},
			{denial("NXDOMAIN", 86400, 86400), 0, "u. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 1800, 86400), 3},
			{denial("NXDOMAIN", 86400, 1), 0, "s. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 5, 1), 4},
			{"", 5 * sec, "w. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 5, 1), 5},
		}},
		{"configured bounds of TTLs", "success 9984 60 10\ndenial 9984 30 7", []step{
			{"NOERROR; " + a("w.", 0), 0, "w. A", "NOERROR; " + a("w.", 10), 1},
			{"NOERROR; " + a("v.", 86400), 0, "v. A", "NOERROR; " + a("v.", 60), 2},
			{denial("NXDOMAIN", 86400, 86400), 0, "u. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 30, 86400), 3},
			{denial("NXDOMAIN", 86400, 1), 0, "s. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 7, 1), 4},
			{"fail", 6 * sec, "s. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 1, 1), 4},
			{"", 0, "w. A", "NOERROR; " + a("w.", 4), 4},
		}},
		{"the maximum TTL overrides the minimum", "success 9984 3 10", []step{
			{"NOERROR; " + a("w.", 1), 0, "w. A", "NOERROR; " + a("w.", 3), 1},
		}},
		{"a TTL of 0 is not cached", "", []step{
			{"NOERROR; " + a("w.", 0), 0, "w. A", "NOERROR; " + a("w.", 0), 1},
			{"", 0, "w. A", "NOERROR; " + a("w.", 0), 2},
			{denial("NXDOMAIN", 300, 0), 0, "u. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 0, 0), 3},
			{"", 0, "u. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 0, 0), 4},
			{"NOERROR; w. 300 IN CNAME v.; v. 0 IN A 192.0.2.1", 0, "w. A", "NOERROR; w. 300 IN CNAME v.; v. 0 IN A 192.0.2.1", 5},
			{"", 0, "w. A", "NOERROR; w. 300 IN CNAME v.; v. 0 IN A 192.0.2.1", 6},
		}},
		{"MINTTL 0 does not raise a TTL", "success 9984 3600 0", []step{
			{"NOERROR; " + a("w.", 2), 0, "w. A", "NOERROR; " + a("w.", 2), 1},
			{"", sec, "w. A", "NOERROR; " + a("w.", 1), 1},
			{"NOERROR; " + a("w.", 0), sec, "w. A", "NOERROR; " + a("w.", 0), 2},
			{"", 0, "w. A", "NOERROR; " + a("w.", 0), 3},
		}},
		{"a denial lasts for the lesser of the SOA's TTL and MINIMUM", "", []step{
			{denial("NXDOMAIN", 300, 60), 0, "w. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 60, 60), 1},
			{"", 59 * sec, "w. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 1, 60), 1},
			{denial("NOERROR", 20, 60), sec, "w. A", "NOERROR; authority; " + fmt.Sprintf(soa, 20, 60), 2},
			{"", 19 * sec, "w. A", "NOERROR; authority; " + fmt.Sprintf(soa, 1, 60), 2},
			{"", sec, "w. A", "NOERROR; authority; " + fmt.Sprintf(soa, 20, 60), 3},
		}},
		{"an alias of a name without the type is NODATA", "", []step{
			{"NOERROR; w. 3000 IN CNAME v.; authority; " + fmt.Sprintf(soa, 300, 40), 0, "w. A", "NOERROR; w. 1800 IN CNAME v.; authority; " + fmt.Sprintf(soa, 40, 40), 1},
			{"", 39 * sec, "w. A", "NOERROR; w. 1761 IN CNAME v.; authority; " + fmt.Sprintf(soa, 1, 40), 1},
		}},
		{"an empty answer lasts 5 seconds", "", []step{
			{"NOERROR", 0, "w. A", "NOERROR", 1},
			{"", 4 * sec, "w. A", "NOERROR", 1},
			{"NOERROR; " + a("w.", 9), sec, "w. A", "NOERROR; " + a("w.", 9), 2},
		}},
		{"a delegation lasts 5 seconds", "", []step{
			{"NOERROR; authority; x. 300 IN NS ns.x.; additional; ns.x. 60 IN A 192.0.2.1", 0, "w.x. A", "NOERROR; authority; x. 5 IN NS ns.x.; additional; ns.x. 5 IN A 192.0.2.1", 1},
			{"", 4 * sec, "w.x. A", "NOERROR; authority; x. 1 IN NS ns.x.; additional; ns.x. 1 IN A 192.0.2.1", 1},
			{"", sec, "w.x. A", "NOERROR; authority; x. 5 IN NS ns.x.; additional; ns.x. 5 IN A 192.0.2.1", 2},
		}},
		{"replies that are not cached", "", []step{
			{"NOERROR TC; " + a("w.", 300), 0, "w. A", "NOERROR TC; " + a("w.", 300), 1},
			{"NXDOMAIN", 0, "w. A", "NXDOMAIN", 2},
			{"REFUSED", 0, "w. A", "REFUSED", 3},
			{"NOERROR; w. 300 IN CNAME v.", 0, "w. A", "NOERROR; w. 300 IN CNAME v.", 4},
			{"NOERROR; w. 300 IN CNAME u.; w. 300 IN CNAME v.; v. 300 IN A 192.0.2.1", 0, "w. A", "NOERROR; w. 300 IN CNAME u.; w. 300 IN CNAME v.; v. 300 IN A 192.0.2.1", 5},
			{"NOERROR; w. 300 IN CNAME v.; v. 300 IN CNAME w.", 0, "w. A", "NOERROR; w. 300 IN CNAME v.; v. 300 IN CNAME w.", 6},
			{"NXDOMAIN; " + a("w.", 300), 0, "w. A", "NXDOMAIN; " + a("w.", 300), 7},
			{"NOERROR; " + a("v.", 300), 0, "w. A", "NOERROR; " + a("v.", 300), 8},
			{"NOERROR; " + a("w.", 300), 0, "w. A", "NOERROR; " + a("w.", 300), 9},
		}},
		{"an alias answers queries for CNAME and ANY", "", []step{
			{"NOERROR; w. 300 IN CNAME v.", 0, "w. CNAME", "NOERROR; w. 300 IN CNAME v.", 1},
			{"", 0, "w. CNAME", "NOERROR; w. 300 IN CNAME v.", 1},
			{"", 0, "w. ANY", "NOERROR; w. 300 IN CNAME v.", 2},
			{"", 0, "w. ANY", "NOERROR; w. 300 IN CNAME v.", 2},
		}},
		{"failures are cached for 5 seconds", "", []step{
			{"SERVFAIL", 0, "w. A", "SERVFAIL", 1},
			{"NOERROR; " + a("w.", 300), 4 * sec, "w. A", "SERVFAIL", 1},
			{"", sec, "w. A", "NOERROR; " + a("w.", 300), 2},
			{"NOTIMP", 0, "v. A", "NOTIMP", 3},
			{"fail", sec, "v. A", "NOTIMP", 3},
			{"", 0, "u. A", "nothing", 4},
			{"", sec, "u. A", "SERVFAIL", 4},
			{"", 4 * sec, "u. A", "nothing", 5},
		}},
		{"failures are cached for the configured time", "servfail 1m", []step{
			{"fail", 0, "w. A", "nothing", 1},
			{"NOERROR; " + a("w.", 300), 59 * sec, "w. A", "SERVFAIL", 1},
			{"", sec, "w. A", "NOERROR; " + a("w.", 300), 2},
		}},
		{"failures are cached for less than a second", "servfail 500ms", []step{
			{"SERVFAIL", 0, "w. A", "SERVFAIL", 1},
			{"", 499 * time.Millisecond, "w. A", "SERVFAIL", 1},
			{"", time.Millisecond, "w. A", "SERVFAIL", 2},
		}},
		{"an alias of a name that does not exist is a denial", "", []step{
			{"NXDOMAIN; w. 300 IN CNAME v.; authority; " + fmt.Sprintf(soa, 60, 60), 0, "w. A", "NXDOMAIN; w. 300 IN CNAME v.; authority; " + fmt.Sprintf(soa, 60, 60), 1},
			{"", 59 * sec, "w. A", "NXDOMAIN; w. 241 IN CNAME v.; authority; " + fmt.Sprintf(soa, 1, 60), 1},
			{"NXDOMAIN; w. 300 IN CNAME v.", sec, "w. A", "NXDOMAIN; w. 300 IN CNAME v.", 2},
			{"", 0, "w. A", "NXDOMAIN; w. 300 IN CNAME v.", 3},
		}},
		{"failures are not cached with 0", "servfail 0", []step{
			{"fail", 0, "w. A", "nothing", 1},
			{"SERVFAIL", 0, "w. A", "SERVFAIL", 2},
			{"", 0, "w. A", "SERVFAIL", 3},
		}},
		{"denials are not cached where they are disabled", "disable denial x. y.", []step{
			{denial("NXDOMAIN", 60, 60), 0, "w.x. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 60, 60), 1},
			{"", 0, "w.x. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 60, 60), 2},
			{"", 0, "w.z. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 60, 60), 3},
			{"", 0, "w.z. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 60, 60), 3},
			{"NOERROR; " + a("w.y.", 300), 0, "w.y. A", "NOERROR; " + a("w.y.", 300), 4},
			{"", 0, "w.y. A", "NOERROR; " + a("w.y.", 300), 4},
		}},
		{"answers are not cached where they are disabled", "disable success", []step{
			{"NOERROR; " + a("w.", 300), 0, "w. A", "NOERROR; " + a("w.", 300), 1},
			{denial("NXDOMAIN", 60, 60), 0, "w. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 60, 60), 2},
			{"", 0, "w. A", "NXDOMAIN; authority; " + fmt.Sprintf(soa, 60, 60), 2},
		}},
		{"TTLs are not decremented with keepttl", "keepttl", []step{
			{"NOERROR; " + a("w.", 300), 0, "w. A", "NOERROR; " + a("w.", 300), 1},
			{"", 299 * sec, "w. A", "NOERROR; " + a("w.", 300), 1},
			{"NOERROR; " + a("w.", 9), sec, "w. A", "NOERROR; " + a("w.", 9), 2},
		}},
		{"DO and CD have separate answers, AD and RD do not", "", []step{
			{"NOERROR AD; " + a("w.", 300), 0, "w. A", "NOERROR; " + a("w.", 300), 1},
			{"", 0, "w. A +ad", "NOERROR AD; " + a("w.", 300), 1},
			{"", 0, "w. A +norec", "NOERROR; " + a("w.", 300), 1},
			{"", 0, "w. A +do", "NOERROR AD; " + a("w.", 300), 2},
			{"", 0, "w. A +do", "NOERROR AD; " + a("w.", 300), 2},
			{"", 0, "w. A +cd", "NOERROR; " + a("w.", 300), 3},
			{"", 0, "w. A +cd +do", "NOERROR AD; " + a("w.", 300), 4},
			{"", 0, "w. A +cd +do", "NOERROR AD; " + a("w.", 300), 4},
			{"", 0, "w. A +edns", "NOERROR; " + a("w.", 300), 4},
			{"", 0, "w. AAAA", "NOERROR; " + a("w.", 300), 5},
		}},
		{"flags of the reply are cached", "", []step{
			{"NOERROR AA; " + a("w.", 300), 0, "w. A", "NOERROR AA; " + a("w.", 300), 1},
			{"", 0, "w. A", "NOERROR AA; " + a("w.", 300), 1},
		}},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			newTestCache(t, "cache {\nserve_stale off\n"+c.options+"\n}").steps(c.steps)
		})
	}
}

func TestZones(t *testing.T) {
	inBubble(t, "zones", func(t *testing.T) {
		b := newTestCache(t, "cache x. y.")
		b.bypass = plugin.Zones{"z.x."}
		for _, name := range []string{"w.", "w.z.x.", "Z.X."} {
			b.replies("NOERROR; " + a(name, 300))
			n := b.received()
			b.want(name+" A", "NOERROR; "+a(name, 300))
			b.want(name+" A", "NOERROR; "+a(name, 300))
			b.wantQueries(n + 2)
		}
		b.replies("NOERROR; " + a("w.Y.", 300))
		n := b.received()
		b.want("w.Y. A", "NOERROR; "+a("w.Y.", 300))
		b.want("w.y. A", "NOERROR; "+a("w.y.", 300))
		b.wantQueries(n + 1)
	})
}

// TestBypass checks that other opcodes, several questions and zone transfers bypass the cache.
func TestBypass(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(r *dns.Msg)
	}{
		{"update", func(r *dns.Msg) { r.Opcode = dns.OpcodeUpdate }},
		{"notify", func(r *dns.Msg) { r.Opcode = dns.OpcodeNotify }},
		{"transfer", func(r *dns.Msg) { r.Question[0].Qtype = dns.TypeAXFR }},
		{"incremental transfer", func(r *dns.Msg) { r.Question[0].Qtype = dns.TypeIXFR }},
		{"two questions", func(r *dns.Msg) { r.Question = append(r.Question, r.Question[0]) }},
		{"no question", func(r *dns.Msg) { r.Question = nil }},
		{"a name too long", func(r *dns.Msg) { r.Question[0].Name = strings.Repeat("a.", 200) }},
	} {
		chainOnly(t, c.name, func(t *testing.T) {
			b := newTestCache(t, "cache")
			b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				m := new(dns.Msg)
				m.SetReply(r)
				m.Answer = []dns.RR{test.A(a("w.", 300)), test.A(a("v.", 7200))}
				return dns.RcodeSuccess, w.WriteMsg(m)
			})
			for range 2 {
				r := query("w. A")
				c.change(r)
				w := new(client)
				if _, err := b.ServeDNS(context.Background(), w, r); err != nil {
					t.Error(err)
				}
				if got := w.reply.Answer[1].Header().Ttl; got != 7200 {
					t.Errorf("TTL %d, want that of the reply", got)
				}
			}
			b.wantQueries(2)
		})
	}
}

// TestForNext checks that the query to the next plugin has AD set whatever the client's query has, and that the plugin may
// change it.
func TestForNext(t *testing.T) {
	inBubble(t, "query", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			m := replyTo(t, r, "NOERROR AD; "+a("w.", 300))
			r.Question[0].Name = "changed."
			return 0, w.WriteMsg(m)
		})
		b.want("w. A +edns", "NOERROR; "+a("w.", 300))
		if !b.seen[0].AuthenticatedData || b.seen[0].IsEdns0() == nil {
			t.Errorf("the next plugin received %v", b.seen[0])
		}
	})
}

// TestOtherQuestion checks that a reply to another question is served and counted, but not cached.
func TestOtherQuestion(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(m *dns.Msg)
		drops  float64
	}{
		{"name", func(m *dns.Msg) { m.Question[0].Name = "v." }, 2},
		{"type", func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeANY }, 2},
		{"class", func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassANY }, 2},
		{"no reply", func(m *dns.Msg) { m.Response = false }, 2},
		{"no question", func(m *dns.Msg) { m.Question = nil }, 2},
	} {
		chainOnly(t, c.name, func(t *testing.T) {
			b := newTestCache(t, "cache")
			b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				m := replyTo(t, r, "NOERROR")
				c.change(m)
				return 0, w.WriteMsg(m)
			})
			for range 2 {
				w := new(client)
				if _, err := b.ServeDNS(context.Background(), w, query("w. A")); err != nil || w.reply == nil {
					t.Errorf("reply %v, %v", w.reply, err)
				}
			}
			b.wantQueries(2)
			if got := value(t, b.counters("").drops); got != c.drops {
				t.Errorf("%v drops were counted, want %v", got, c.drops)
			}
		})
	}
}

// TestExpiredSignature checks that a reply with expired signatures is not cached for queries with DO.
func TestExpiredSignature(t *testing.T) {
	const reply = "NOERROR; w. 300 IN A 192.0.2.1; w. 300 IN RRSIG A 8 1 300 19990101000000 19980101000000 1 . AA=="
	inBubble(t, "do", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			m := replyTo(t, r, reply)
			m.SetEdns0(1232, r.IsEdns0() != nil)
			return 0, w.WriteMsg(m)
		})
		b.want("w. A +do", reply)
		b.want("w. A +do", reply)
		b.wantQueries(2)
		b.want("w. A", reply)
		b.want("w. A", reply)
		b.wantQueries(3)
	})
}

// TestExtendedErrors checks that of the OPT record only extended errors are stored, for clients with EDNS.
func TestExtendedErrors(t *testing.T) {
	inBubble(t, "ede", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			m := replyTo(t, r, "SERVFAIL")
			m.SetEdns0(4096, false)
			opt := m.IsEdns0()
			opt.Option = []dns.EDNS0{
				&dns.EDNS0_NSID{Code: dns.EDNS0NSID, Nsid: "aa"},
				&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeNetworkError, ExtraText: "timed out"},
				&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeDNSBogus, ExtraText: strings.Repeat("a", 300)},
			}
			return m.Rcode, w.WriteMsg(m)
		})
		const opt = "OPT 23 (Network Error): (timed out) 6 (DNSSEC Bogus): ()"
		b.want("w. A +edns", "SERVFAIL; additional; "+opt)
		b.want("w. A +edns", "SERVFAIL; additional; "+opt)
		b.want("w. A", "SERVFAIL")
		b.want("v. A", "SERVFAIL")
		b.want("v. A +edns", "SERVFAIL; additional; "+opt)
		b.wantQueries(2)
		e := b.entry("v. A")
		if e == nil || string(e.Options) != "\x00\x0f\x00\x0b\x00\x17timed out\x00\x0f\x00\x02\x00\x06" {
			t.Errorf("the stored options are %q", e.Options)
		}
	})
}

// entry returns the entry for a query, or nil.
func (b *testCache) entry(text string) *store.Entry {
	b.t.Helper()
	var q wire.Query
	packed, ok := store.QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), query(text))
	if !ok {
		b.t.Fatalf("invalid query %s", text)
	}
	return b.store.Get(b.space.Key(nil, packed, &q))
}

func TestAnyCase(t *testing.T) {
	for _, c := range []struct {
		name, reply string
		want        bool
	}{
		{"address", "NOERROR; " + a("w.", 300), true},
		{"address under an alias in lower case", "NOERROR; w. 300 IN CNAME v.; v. 300 IN A 192.0.2.1", true},
		{"alias in upper case", "NOERROR; w. 300 IN CNAME V.; v. 300 IN A 192.0.2.1", false},
		{"owner in upper case", "NOERROR; w. 300 IN CNAME v.; V. 300 IN A 192.0.2.1", false},
		{"denial", denial("NXDOMAIN", 300, 300), true},
		{"denial in upper case", "NXDOMAIN; authority; x. 5 IN SOA ns.x. Root.x. 1 2 3 4 5", false},
		{"text", "NOERROR; w. 300 IN A 192.0.2.1; w. 300 IN TXT \"ABC\"", true},
		{"data of an unknown type", "NOERROR; w. 300 IN A 192.0.2.1; w. 300 IN RP a. b.", false},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			b := newTestCache(t, "cache")
			b.replies(c.reply)
			b.query("w. A")
			if e := b.entry("w. A"); e == nil || e.AnyCase != c.want {
				t.Errorf("the entry is %+v, want AnyCase %v", e, c.want)
			}
		})
	}
}

// TestWildcard checks that the metadata of the wildcard record is stored with the answer.
func TestWildcard(t *testing.T) {
	chainOnly(t, "wildcard", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			metadata.SetValueFunc(ctx, "zone/wildcard", func() string { return "*." })
			return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a("w.", 300)))
		})
		for range 2 {
			ctx := metadata.ContextWithMetadata(context.Background())
			if _, err := b.ServeDNS(ctx, new(client), query("w. A")); err != nil {
				t.Error(err)
			}
			if f := metadata.ValueFunc(ctx, "zone/wildcard"); f == nil || f() != "*." {
				t.Error("the wildcard is not in the metadata")
			}
		}
		b.wantQueries(1)
	})
}

// generation is a Generation that tests advance.
type generation struct{ n uint64 }

func (g *generation) Load() uint64 { return g.n }

// serial is a Serial that tests set.
type serial struct{ n int64 }

func (s *serial) Modified() int64 { return s.n }

// TestGenerations checks that an answer is served until its TTL expires or a generation advances, and never stale.
func TestGenerations(t *testing.T) {
	chainOnly(t, "generations", func(t *testing.T) {
		b := newTestCache(t, "cache")
		g, s := new(generation), &serial{7}
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			c := store.PropertiesOf(ctx, r)
			c.Bounds[0], c.Serial, c.AnyCase = validity.Bound{Generation: g, Number: g.n}, s, true
			return 0, w.WriteMsg(replyTo(t, r, denial("NXDOMAIN", 30, 30)))
		})
		nx := func(ttl, serial int) string {
			return fmt.Sprintf("NXDOMAIN; authority; example. %d IN SOA ns.example. root.example. %d 2 3 4 30", ttl, serial)
		}
		b.want("w. A", nx(30, 1))
		time.Sleep(10 * time.Second)
		b.want("w. A", nx(20, 7))
		s.n = 8
		b.want("w. A", nx(20, 8))
		b.wantQueries(1)
		g.n++
		b.want("w. A", nx(30, 1))
		b.wantQueries(2)
		b.fails()
		time.Sleep(30 * time.Second)
		b.want("w. A", "nothing")
		b.wantQueries(3)
	})
}

// TestGenerationsNotCached checks that with caching disabled an answer by generation is stored for the fast path only.
func TestGenerationsNotCached(t *testing.T) {
	chainOnly(t, "disabled", func(t *testing.T) {
		b := newTestCache(t, "cache {\ndisable success\n}")
		b.space.ByGeneration.Store(true)
		g := new(generation)
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			store.PropertiesOf(ctx, r).Bounds[0] = validity.Bound{Generation: g}
			return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a("w.", 30)))
		})
		b.want("w. A", "NOERROR; "+a("w.", 30))
		e := b.entry("w. A")
		if e == nil || e.Cached || e.Expires != 0 || e.Bounds[0].Generation != g {
			t.Errorf("the entry is %+v", e)
		}
		b.want("w. A", "NOERROR; "+a("w.", 30))
		b.wantQueries(2)
	})
}

// TestCapacity checks the configured limits of entries, and the counter of evictions.
func TestCapacity(t *testing.T) {
	inBubble(t, "capacity", func(t *testing.T) {
		b := newTestCache(t, "cache {\nsuccess 1\ndenial 2000\n}")
		b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a(r.Question[0].Name, 300)))
		})
		for i := range 1030 {
			b.query(fmt.Sprintf("w%d. A", i))
		}
		n := b.counters("")
		if got := value(t, n.evictions[store.Success]); got != 6 {
			t.Errorf("%v evictions, want 6", got)
		}
		if got := value(t, n.entries[store.Success]); got != minCapacity {
			t.Errorf("%v entries, want %d", got, minCapacity)
		}
		b.want("w1029. A", "NOERROR; "+a("w1029.", 300))
		b.wantQueries(1030)
	})
}

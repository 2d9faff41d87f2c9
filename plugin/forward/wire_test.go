package forward

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// received is the result of an Exchanger.
type received struct {
	reply []byte
	code  int
	err   error
}

// receiving is a Receiver with room for a second result, which would be wrong.
type receiving chan received

// Receive implements wirechain.Receiver.
func (r receiving) Receive(_ *batch.Batch, reply *wire.Reply, _ *vouch.Voucher, code int, err error) {
	if got, want := describeParsed(reply), describeParsed(reparsed(reply)); err == nil && got != want {
		err = fmt.Errorf("the reply is\n%s\nand its message\n%s", got, want)
	}
	r <- received{messageOf(reply), code, err}
}

// messageOf returns a copy of the message of a reply, nil without one.
func messageOf(reply *wire.Reply) []byte {
	if reply == nil {
		return nil
	}
	return slices.Clone(reply.Message)
}

// reparsed returns the message of a reply, parsed again.
func reparsed(reply *wire.Reply) *wire.Reply {
	if reply == nil {
		return nil
	}
	again := new(wire.Reply)
	if b := messageOf(reply); !reply.Ordinary || !again.Parse(b) {
		again.Read(b)
	}
	return again
}

// describeParsed describes the parts of a reply.
func describeParsed(r *wire.Reply) string {
	if r == nil {
		return "none"
	}
	text := fmt.Sprintf("%d %v %x", r.Rcode, r.OPT, r.Options())
	if r.Ordinary {
		text += fmt.Sprintf(" %+v %d %t %t", r.Plain(), r.Excess(), r.AnyCase, r.Escapes)
	}
	return text
}

// exchangeOver queries an Exchanger. It returns false if the plugin chain has to handle the query.
func exchangeOver(e wirechain.Exchanger, m *dns.Msg, tcp bool) (a answer, ok bool) {
	packed, err := m.Pack()
	var q wire.Query
	if err != nil || m.Compress || !q.Parse(packed) {
		return a, false
	}
	sent := slices.Clone(packed)
	done := make(receiving, 2)
	var b batch.Batch
	began := time.Now()
	if !e.Exchange(&b, &q, packed, tcp, done) {
		return a, false
	}
	b.Flush()
	r := <-done
	a = answer{code: r.code, err: r.err, took: time.Since(began)}
	switch {
	case !slices.Equal(packed, sent):
		a.err = fmt.Errorf("the query was changed from %x to %x", sent, packed)
	case len(done) > 0:
		a.err = fmt.Errorf("two results")
	case r.err == nil:
		if a.Msg, err = store.Unpack(r.reply); err != nil {
			return answer{err: err}, true
		}
		a.Id, a.code = m.Id, a.Rcode
	}
	return a, true
}

// wireTurn alternates the ways of ordinary queries in tests.
var wireTurn atomic.Uint32

// queryEither queries a handler by one of the ways in turn.
func queryEither(ctx context.Context, h plugin.Handler, m *dns.Msg, tcp bool) answer {
	if e, ok := h.(wirechain.Exchanger); ok && ctx.Done() == nil && wireTurn.Add(1)%2 == 0 {
		if a, ok := exchangeOver(e, m, tcp); ok {
			return a
		}
	}
	return queryWith(ctx, h, m, tcp)
}

// scripted is the behaviour of an upstream: its reply, nil for none.
type scripted func(r *dns.Msg, tcp bool) *dns.Msg

// scenario is a sequence of queries to upstreams with scripted behaviours.
type scenario struct {
	stanzas   func(to []string) string
	upstreams []scripted
	queries   []func() (m *dns.Msg, tcp bool)
}

// played are the results of a scenario.
type played struct {
	answers, upstream, metrics string
}

// play runs a scenario by one of the ways.
func (s scenario) play(t *testing.T, wire bool) (p played) {
	t.Helper()
	var seen []*sight
	var to []string
	for _, reply := range s.upstreams {
		one := new(sight)
		handler := func(tcp bool) dns.HandlerFunc {
			return func(w dns.ResponseWriter, r *dns.Msg) {
				one.add(r)
				if m := reply(r, tcp); m != nil {
					_ = w.WriteMsg(m)
				}
			}
		}
		seen, to = append(seen, one), append(to, script{udp: handler(false), tcp: handler(true), host: nextHost()}.address(t))
	}
	named := func(text string) string {
		for i, address := range to {
			text = strings.ReplaceAll(text, address, fmt.Sprint("upstream ", i))
		}
		return text
	}
	f := withoutKeepAlive(chainOf(t, s.stanzas(to)))
	for stanza, ok := f, true; ok; stanza, ok = stanza.Next.(*Forward) {
		for _, u := range *stanza.upstreams.Load() {
			u.optionCheck.Store(true) // its queries would count as well
		}
	}
	for i, query := range s.queries {
		m, tcp := query()
		m.Id = uint16(i)
		var a answer
		if wire {
			ok := false
			if a, ok = exchangeOver(f, m, tcp); !ok {
				t.Fatalf("query %d is for the plugin chain", i)
			}
		} else {
			a = queryWith(context.Background(), f, m, tcp)
		}
		p.answers += named(fmt.Sprintf("%d: code %d, error %v, %v\n", i, a.code, a.err, a.Msg))
	}
	for i, one := range seen {
		for _, r := range one.all() {
			r.Id = 0
			p.upstream += fmt.Sprintf("upstream %d: %v\n", i, r)
		}
		kit.Eventually(t, "no query is in flight", func() bool { return metric(t, "nearside_forward_in_flight", "to", to[i]) == 0 })
		p.metrics += named(countsOf(t, to[i]))
	}
	p.metrics += fmt.Sprintf("in progress: %d\n", f.concurrent.Load())
	return p
}

// countsOf returns the counters of an upstream, without those that depend on the time.
func countsOf(t *testing.T, to string) string {
	t.Helper()
	var lines []string
	for _, c := range counted {
		name := nameOf(c)
		if strings.HasSuffix(name, "packets_total") || strings.Contains(name, "healthcheck") || strings.HasSuffix(name, "connections") || strings.Contains(name, "conn_cache") {
			continue
		}
		for _, one := range seriesOf(t, c) {
			if !has(one, []string{"to", to}) {
				continue
			}
			value := one.GetCounter().GetValue() + one.GetGauge().GetValue() + float64(one.GetHistogram().GetSampleCount())
			lines = append(lines, fmt.Sprintf("%s%v: %v\n", name, one.GetLabel(), value))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// ordinary returns a query, over UDP or TCP.
func ordinary(name string, tcp bool, options ...dns.EDNS0) func() (*dns.Msg, bool) {
	return func() (*dns.Msg, bool) {
		m := question(name)
		if len(options) > 0 {
			m.Extra = []dns.RR{optOf(options...)}
		}
		return m, tcp
	}
}

// always returns a behaviour that is the same over UDP and TCP.
func always(reply func(*dns.Msg) *dns.Msg) scripted {
	return func(r *dns.Msg, _ bool) *dns.Msg { return reply(r) }
}

// coded returns a reply with a response code.
func coded(code int) func(*dns.Msg) *dns.Msg {
	return func(r *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(r, code) }
}

// malformed returns a reply with an address of three bytes.
func malformed(r *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(r)
	m.Answer = []dns.RR{&dns.RFC3597{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Rdlength: 3}, Rdata: "c00002"}}
	return m
}

// one returns a function for a stanza with options.
func one(options string) func([]string) string {
	return func(to []string) string {
		return stanzaOf("policy sequential\nmax_concurrent 100\nmax_fails 0\n"+options, to...)
	}
}

// several are queries over both protocols, with and without EDNS.
func several(names ...string) (all []func() (*dns.Msg, bool)) {
	for _, name := range names {
		all = append(all, ordinary(name, false), ordinary(name, true), ordinary(name, true, spoof()), ordinary(name, false, list()))
	}
	return all
}

// TestParity: queries of the plugin chain and queries in wire form get the same replies, reach upstreams in the same form,
// and count the same.
func TestParity(t *testing.T) {
	t.Parallel()
	silence := func(*dns.Msg) *dns.Msg { return nil }
	truncating := func(r *dns.Msg, tcp bool) *dns.Msg {
		m := addressReply(r)
		if !tcp {
			m.Truncated, m.Answer = true, nil
		}
		return m
	}
	for name, s := range map[string]scenario{
		"good":                 {one(""), []scripted{always(addressReply)}, several("a.example.", "B.Example.")},
		"TCP":                  {one("force_tcp"), []scripted{always(addressReply)}, several("a.example.")},
		"no data":              {one(""), []scripted{always(coded(0))}, several("a.example.")},
		"NXDOMAIN":             {one(""), []scripted{always(coded(dns.RcodeNameError))}, several("a.example.")},
		"refused, then good":   {one(""), []scripted{always(coded(dns.RcodeRefused)), always(addressReply)}, several("a.example.")},
		"SERVFAIL":             {one("failover SERVFAIL"), []scripted{always(coded(dns.RcodeServerFailure)), always(addressReply)}, several("a.example.")},
		"SERVFAIL everywhere":  {one("failover SERVFAIL"), []scripted{always(coded(dns.RcodeServerFailure)), always(coded(dns.RcodeServerFailure))}, several("a.example.")},
		"truncated":            {one("prefer_udp"), []scripted{truncating}, several("a.example.")},
		"truncated, no option": {one(""), []scripted{truncating}, several("a.example.")},
		"silent, then good":    {one("read_timeout 1s"), []scripted{always(silence), always(addressReply)}, several("a.example.")[:2]},
		"silent":               {one("read_timeout 100ms\ntimeout 5s\nmax_connect_attempts 1"), []scripted{always(silence)}, several("a.example.")[:2]},
		"caller":               {one("caller node-a zone-1"), []scripted{always(withOptions)}, several("a.example.", "b.example.")},
		"caller over TCP":      {one("force_tcp\ncaller node-a zone-1"), []scripted{always(tries)}, several("a.example.", "b.example.")},
		"search list":          {one("force_tcp\ncaller node-a"), []scripted{always(tries)}, []func() (*dns.Msg, bool){ordinary("a.example.", false, list()), ordinary("a.other.", false, list()), ordinary("a.example.", true, list(), spoof()), ordinary("a.example.", true, &dns.EDNS0_LOCAL{Code: wire.OptionSearchList})}},
		"refusal of caller": {one("force_tcp\ncaller node-a"), []scripted{always(func(r *dns.Msg) *dns.Msg {
			if len(callersOf(r)) > 0 {
				return coded(dns.RcodeFormatError)(r)
			}
			return addressReply(r)
		})}, several("a.example.")},
		"refusal without question": {one("force_tcp\ncaller node-a"), []scripted{always(func(r *dns.Msg) *dns.Msg {
			m := coded(dns.RcodeFormatError)(r)
			m.Question = nil
			return m
		})}, several("a.example.")},
		"extended code": {one("force_tcp\ncaller node-a"), []scripted{always(func(r *dns.Msg) *dns.Msg {
			m := coded(dns.RcodeBadCookie)(r)
			m.SetEdns0(1232, false)
			return m
		})}, several("a.example.")},
		"options before other records": {one("force_tcp\ncaller node-a"), []scripted{always(func(r *dns.Msg) *dns.Msg {
			m := withOptions(r)
			m.Extra = append(m.Extra, addressReply(r).Answer...)
			return m
		})}, several("a.example.")},
		"malformed":            {one("force_tcp\nmax_connect_attempts 1"), []scripted{always(malformed)}, several("a.example.")},
		"malformed, then good": {one("force_tcp\ncaller node-a"), []scripted{always(malformed), always(addressReply)}, several("a.example.")},
		"late, then good": {one("force_tcp\nread_timeout 1s"), []scripted{always(func(r *dns.Msg) *dns.Msg {
			time.Sleep(2 * time.Second)
			return addressReply(r)
		}), always(addressReply)}, several("a.example.")[:2]},
		"unknown types": {one(""), []scripted{always(func(r *dns.Msg) *dns.Msg {
			m := addressReply(r)
			m.Answer = append(m.Answer, &dns.HTTPS{SVCB: dns.SVCB{Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeHTTPS, Class: dns.ClassINET}, Priority: 1, Target: "."}})
			return m
		})}, several("a.example.")},
		"next": {func(to []string) string {
			return one("next NXDOMAIN")(to[:1]) + "\n" + one("next_on_nodata")(to[1:2]) + "\n" + one("")(to[2:])
		}, []scripted{always(coded(dns.RcodeNameError)), always(coded(0)), always(addressReply)}, several("a.example.")},
		"except": {func(to []string) string {
			return one("except b.example")(to[:1]) + "\n" + one("")(to[1:])
		}, []scripted{always(coded(0)), always(addressReply)}, several("a.example.", "b.example.", "x.B.Example.", "bb.example.")},
		"wrong case": {one("force_tcp\nread_timeout 100ms\ntimeout 5s\nmax_connect_attempts 1"), []scripted{always(func(r *dns.Msg) *dns.Msg {
			m := addressReply(r)
			m.Question[0].Name = strings.ToUpper(m.Question[0].Name)
			return m
		})}, several("a.example.")[:2]},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, got := s.play(t, false), s.play(t, true)
			for _, c := range []struct{ what, want, got string }{
				{"answers", want.answers, got.answers}, {"queries", want.upstream, got.upstream}, {"metrics", want.metrics, got.metrics},
			} {
				if c.got != c.want {
					t.Errorf("%s of the plugin chain:\n%s\nin wire form:\n%s", c.what, c.want, c.got)
				}
			}
			if want.upstream == "" || want.metrics == "" {
				t.Error("nothing to compare")
			}
		})
	}
}

// TestExchange_Refused: queries for the plugin chain are not forwarded.
func TestExchange_Refused(t *testing.T) {
	t.Parallel()
	transfer := func(name string) *dns.Msg { return new(dns.Msg).SetAxfr(name) }
	for name, c := range map[string]struct {
		stanzas string
		m       *dns.Msg
		want    bool
	}{
		"forwarded":                   {"forward . 192.0.2.1", question("a.example."), true},
		"another zone":                {"forward b.example 192.0.2.1", question("a.example."), false},
		"a part of a label":           {"forward b.example 192.0.2.1", question("bb.example."), false},
		"above the zone":              {"forward b.example 192.0.2.1", question("example."), false},
		"the zone, excepted":          {"forward b.example 192.0.2.1 {\nexcept b.example\n}", question("B.example."), true},
		"an excepted zone":            {"forward . 192.0.2.1 {\nexcept b.example\n}", question("a.B.example."), false},
		"a transfer":                  {"forward . 192.0.2.1", transfer("a.example."), false},
		"a later stanza":              {"forward b.example 192.0.2.1\nforward . 192.0.2.1", question("a.example."), true},
		"may leave the last stanza":   {"forward . 192.0.2.1 {\nnext NXDOMAIN\n}\nforward b.example 192.0.2.1", question("a.example."), false},
		"may reach a later stanza":    {"forward . 192.0.2.1 {\nnext NXDOMAIN\n}\nforward . 192.0.2.1", question("a.example."), true},
		"the last stanza has no next": {"forward . 192.0.2.1 {\nnext NXDOMAIN\n}", question("a.example."), true},
	} {
		t.Run(name, func(t *testing.T) {
			f := chainOf(t, c.stanzas)
			for stanza, ok := f, true; ok; stanza, ok = stanza.Next.(*Forward) {
				stanza.use(nil) // nothing is sent
			}
			a, ok := exchangeOver(f, c.m, true)
			if ok != c.want || ok && (a.code != dns.RcodeServerFailure || !errors.Is(a.err, errNone)) {
				t.Errorf("forwarded: %t, want %t; code %d, error %v", ok, c.want, a.code, a.err)
			}
		})
	}
}

// TestExchange_Tail: without a handler behind the last stanza, a query that is passed on fails as in the plugin chain.
func TestExchange_Tail(t *testing.T) {
	t.Parallel()
	at := script{tcp: replies(coded(dns.RcodeNameError))}.address(t)
	f := chainOf(t, stanzaOf("max_concurrent 5\nnext NXDOMAIN", at)+"\nforward b.example 192.0.2.1")
	last, _ := f.Next.(*Forward)
	last.Next = nil
	want := queryWith(context.Background(), f, question("a.example."), true)
	got, ok := exchangeOver(f, question("a.example."), true)
	if !ok || got.code != want.code || fmt.Sprint(got.err) != fmt.Sprint(want.err) || want.err == nil {
		t.Errorf("code %d, error %v; want code %d, error %v", got.code, got.err, want.code, want.err)
	}
	if n := f.concurrent.Load(); n != 0 {
		t.Errorf("%d queries in progress", n)
	}
}

// TestMatchesWire: names in wire form match the same stanzas as names in text.
func TestMatchesWire(t *testing.T) {
	t.Parallel()
	f := chainOf(t, "forward example.org 192.0.2.1 {\nexcept b.example.org c.example.org\n}")
	for _, name := range []string{".", "org.", "example.org.", "EXAMPLE.org.", "a.example.org.", "b.example.org.", "x.B.example.org.", "bb.example.org.", "aexample.org.", `a\.example.org.`, `\100.example.org.`, "c.example.org.example.org."} {
		m := new(dns.Msg).SetQuestion(name, dns.TypeA)
		packed := kit.Pack(t, m)
		wire := packed[wire.HeaderLen : len(packed)-wire.TypeClassLen]
		if got, want := f.matchesWire(wire), f.matches(strings.ToLower(name)); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
}

// TestExchange_Many: many concurrent queries of both ways are answered once, while some clients leave.
func TestExchange_Many(t *testing.T) {
	t.Parallel()
	at := script{tcp: replies(addressReply), host: nextHost()}.address(t)
	f := chainOf(t, stanzaOf("force_tcp\ncaller node-a", at))
	var clients sync.WaitGroup
	for c := range 8 {
		clients.Go(func() {
			for i := range 200 {
				m := question(fmt.Sprintf("q%d.c%d.example.", i, c))
				var a answer
				switch i % 3 {
				case 0:
					a, _ = exchangeOver(f, m, false)
				case 1:
					a = queryWith(context.Background(), f, m, false)
				default:
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*10*time.Microsecond)
					a = queryWith(ctx, f, m, false)
					cancel()
					if a.Msg == nil {
						continue
					}
				}
				if wrong := a.wrong(m); wrong != "" {
					t.Errorf("%s: %s", m.Question[0].Name, wrong)
				}
			}
		})
	}
	clients.Wait()
	kit.Eventually(t, "no query is in flight", func() bool { return metric(t, "nearside_forward_in_flight", "to", at) == 0 })
}

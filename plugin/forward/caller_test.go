package forward

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

// nodeA is the data of the option caller node-a zone-1.
const nodeA = "\x01\x06node-a\x06zone-1"

// spoof returns the option of a client that names another node.
func spoof() dns.EDNS0 {
	return &dns.EDNS0_LOCAL{Code: wire.OptionCaller, Data: []byte("\x01\x06node-b")}
}

func cookie() dns.EDNS0 { return &dns.EDNS0_COOKIE{Cookie: "0011223344556677"} }

func optOf(options ...dns.EDNS0) *dns.OPT {
	o := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT}, Option: options}
	o.SetUDPSize(1400)
	o.SetDo()
	return o
}

// clientQueries are the additional records of clients' queries.
var clientQueries = map[string]func() []dns.RR{
	"without EDNS":           func() []dns.RR { return nil },
	"with EDNS":              func() []dns.RR { return []dns.RR{optOf()} },
	"with a cookie":          func() []dns.RR { return []dns.RR{optOf(cookie())} },
	"with the option":        func() []dns.RR { return []dns.RR{optOf(spoof())} },
	"with the option twice":  func() []dns.RR { return []dns.RR{optOf(spoof(), cookie(), spoof())} },
	"with keepalive":         func() []dns.RR { return []dns.RR{optOf(&dns.EDNS0_TCP_KEEPALIVE{}, spoof(), cookie())} },
	"with the option in two": func() []dns.RR { return []dns.RR{optOf(spoof()), optOf(cookie(), spoof())} },
	"with another record": func() []dns.RR {
		return []dns.RR{optOf(spoof()), &dns.TXT{Hdr: dns.RR_Header{Name: "a.", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"a"}}}
	},
}

// callersOf returns the data of the options with a caller.
func callersOf(m *dns.Msg) (all []string) {
	for _, rr := range m.Extra {
		if o, ok := rr.(*dns.OPT); ok {
			for _, option := range o.Option {
				if local, ok := option.(*dns.EDNS0_LOCAL); ok && local.Code == wire.OptionCaller {
					all = append(all, string(local.Data))
				}
			}
		}
	}
	return all
}

// others returns the codes of the other options, without edns-tcp-keepalive.
func others(m *dns.Msg) (all []uint16) {
	if o := m.IsEdns0(); o != nil {
		for _, option := range o.Option {
			if !isHop(option.Option()) {
				all = append(all, option.Option())
			}
		}
	}
	return all
}

// withOptions answers queries that have EDNS with options. Some of these are not for the client.
func withOptions(r *dns.Msg) *dns.Msg {
	m := addressReply(r)
	if r.IsEdns0() != nil {
		m.SetEdns0(1232, r.IsEdns0().Do())
		m.IsEdns0().Option = []dns.EDNS0{spoof(), &dns.EDNS0_NSID{Nsid: "ab"}, spoof()}
	}
	return m
}

// carried are the protocols of an upstream: each function starts a server, and returns its TO and options.
var carried = map[string]func(t testing.TB, reply func(*dns.Msg) *dns.Msg) (to, options string){
	"UDP": func(t testing.TB, reply func(*dns.Msg) *dns.Msg) (string, string) {
		return script{tcp: replies(reply)}.address(t), "prefer_udp"
	},
	"TCP": func(t testing.TB, reply func(*dns.Msg) *dns.Msg) (string, string) {
		return script{tcp: replies(reply)}.address(t), "force_tcp"
	},
	"TLS": func(t testing.TB, reply func(*dns.Msg) *dns.Msg) (string, string) {
		c := rogue.NewCertificate(t, "127.0.0.1")
		return "tls://" + script{tcp: replies(reply), tls: c.Config}.address(t), "tls " + c.CA
	},
	"HTTPS": func(t testing.TB, reply func(*dns.Msg) *dns.Msg) (string, string) {
		c := rogue.NewCertificate(t, "127.0.0.1")
		return "https://" + startWeb(t, c.Config, reply).at, "tls " + c.CA
	},
}

// queryExtra sends a client's query over UDP, which must not be changed.
func queryExtra(t testing.TB, f *Forward, name string, extra []dns.RR) (*dns.Msg, answer) {
	t.Helper()
	m := question(name)
	m.Extra = extra
	if _, err := m.Pack(); err != nil {
		t.Fatal(err)
	}
	before, records := m.String(), slices.Clone(m.Extra)
	a := queryOver(f, m, false)
	if m.String() != before || !slices.Equal(m.Extra, records) {
		t.Errorf("the client's query was\n%s\nand is\n%s", before, m)
	}
	return m, a
}

// TestCaller: upstreams get the caller of the stanza only, and clients get none.
func TestCaller(t *testing.T) {
	t.Parallel()
	for way, start := range carried {
		for option, want := range map[string][]string{"": nil, "caller node-a zone-1": {nodeA}} {
			t.Run(way+" "+option, func(t *testing.T) {
				t.Parallel()
				var seen sight
				to, options := start(t, func(r *dns.Msg) *dns.Msg { seen.add(r); return withOptions(r) })
				f := chainOf(t, stanzaOf(options+"\n"+option, to))
				for name, extra := range clientQueries {
					m, a := queryExtra(t, f, "a.example.", extra())
					if wrong := a.wrong(m); wrong != "" {
						t.Fatalf("%s: %s", name, wrong)
					}
					all := seen.all()
					checkForwarded(t, name, m, all[len(all)-1], want)
					checkReply(t, name, m, a.Msg)
				}
			})
		}
	}
}

// checkForwarded compares a client's query with the query that the upstream received.
func checkForwarded(t testing.TB, name string, m, got *dns.Msg, want []string) {
	t.Helper()
	if callers := callersOf(got); !slices.Equal(callers, want) {
		t.Errorf("%s: the server gets the callers %q, want %q", name, callers, want)
	}
	if !slices.Equal(others(got), others(m)) {
		t.Errorf("%s: the server gets the options %v, want %v", name, others(got), others(m))
	}
	o, extra := got.IsEdns0(), len(m.Extra)
	switch {
	case m.IsEdns0() != nil:
		if o == nil || !o.Do() || o.UDPSize() != 1400 {
			t.Errorf("%s: the server gets %v", name, o)
		}
	case want == nil:
	default:
		extra++
		if o == nil || o.Do() || o.UDPSize() != 512+11 || o.Version() != 0 {
			t.Errorf("%s: the server gets %v", name, o)
		}
	}
	if len(got.Extra) != extra {
		t.Errorf("%s: the server gets %d additional records, want %d", name, len(got.Extra), extra)
	}
}

// checkReply compares the options of the client's reply with those of its query.
func checkReply(t testing.TB, name string, m, reply *dns.Msg) {
	t.Helper()
	if callers := callersOf(reply); len(callers) > 0 {
		t.Errorf("%s: the client gets the callers %q", name, callers)
	}
	want := []uint16{dns.EDNS0NSID}
	if m.IsEdns0() == nil {
		want = nil
	}
	if (reply.IsEdns0() != nil) != (m.IsEdns0() != nil) || !slices.Equal(others(reply), want) {
		t.Errorf("%s: the client gets %v", name, reply.IsEdns0())
	}
}

// TestCaller_All: all queries of an exchange have the caller.
func TestCaller_All(t *testing.T) {
	t.Parallel()
	var late, second sight
	slow := script{tcp: replies(func(r *dns.Msg) *dns.Msg { late.add(r); return nil })}.address(t)
	quick := script{tcp: replies(func(r *dns.Msg) *dns.Msg { second.add(r); return withOptions(r) })}.address(t)
	for name, options := range map[string]string{"hedge": "hedge 50ms", "read_timeout": "read_timeout 50ms", "fallback": "force_tcp\nfallback udp\nread_timeout 400ms"} {
		t.Run(name, func(t *testing.T) {
			f := withoutKeepAlive(chainOf(t, stanzaOf("max_fails 0\npolicy sequential\ncaller node-a zone-1\n"+options, slow, quick)))
			m, a := queryExtra(t, f, "a.example.", nil)
			if wrong := a.wrong(m); wrong != "" {
				t.Fatal(wrong)
			}
			for _, got := range append(late.clients(), second.clients()...) {
				checkForwarded(t, name, m, got, []string{nodeA})
			}
			checkReply(t, name, m, a.Msg)
		})
	}
}

// TestCaller_Signed: a signed query gets no option (RFC 8945 section 5.5). The caller of a client is dropped although that
// makes the signature invalid.
func TestCaller_Signed(t *testing.T) {
	t.Parallel()
	for name, extra := range map[string][]dns.RR{"alone": nil, "with a cookie": {optOf(cookie())}, "with the option": {optOf(cookie(), spoof())}} {
		t.Run(name, func(t *testing.T) {
			var seen sight
			at := script{tcp: replies(func(r *dns.Msg) *dns.Msg { seen.add(r); return addressReply(r) })}.address(t)
			f := chainOf(t, stanzaOf("caller node-a", at))
			tsig := &dns.TSIG{
				Hdr:       dns.RR_Header{Name: "key.example.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY},
				Algorithm: dns.HmacSHA256, MACSize: 2, MAC: "abcd",
			}
			m, a := queryExtra(t, f, "a.example.", append(slices.Clone(extra), tsig))
			if wrong := a.wrong(m); wrong != "" {
				t.Fatal(wrong)
			}
			got := seen.all()[0]
			checkForwarded(t, name, m, got, nil)
			if got.IsTsig() == nil {
				t.Errorf("the server gets %v", got)
			}
		})
	}
}

// refusal answers some queries with a response code.
func refusal(seen *sight, code int, bare bool, to func(r *dns.Msg) bool) func(*dns.Msg) *dns.Msg {
	return func(r *dns.Msg) *dns.Msg {
		seen.add(r)
		if !to(r) {
			return addressReply(r)
		}
		m := new(dns.Msg).SetRcode(r, code)
		if code > wire.MaxRcode {
			m.SetEdns0(1232, false)
		}
		if bare {
			m.Question = nil
		}
		return m
	}
}

// TestCaller_Refused: queries succeed at a server that refuses the option, or EDNS.
func TestCaller_Refused(t *testing.T) {
	t.Parallel()
	hasEDNS := func(r *dns.Msg) bool { return r.IsEdns0() != nil }
	hasCaller := func(r *dns.Msg) bool { return len(callersOf(r)) > 0 }
	always := func(*dns.Msg) bool { return true }
	for name, c := range map[string]struct {
		code     int
		bare     bool
		to       func(*dns.Msg) bool
		extra    func() []dns.RR
		rcode    int
		received []int // clients' queries at the server, after each of three of the client
	}{
		"FORMERR to EDNS":              {dns.RcodeFormatError, false, hasEDNS, clientQueries["without EDNS"], dns.RcodeSuccess, []int{2, 3, 4}},
		"FORMERR without a question":   {dns.RcodeFormatError, true, hasEDNS, clientQueries["without EDNS"], dns.RcodeSuccess, []int{2, 3, 4}},
		"NOTIMP to EDNS":               {dns.RcodeNotImplemented, false, hasEDNS, clientQueries["without EDNS"], dns.RcodeSuccess, []int{2, 3, 4}},
		"BADVERS to the option":        {dns.RcodeBadVers, false, hasCaller, clientQueries["without EDNS"], dns.RcodeSuccess, []int{2, 3, 4}},
		"BADVERS, and with EDNS":       {dns.RcodeBadVers, false, hasCaller, clientQueries["with EDNS"], dns.RcodeSuccess, []int{2, 3, 4}},
		"FORMERR, and with the option": {dns.RcodeFormatError, false, hasCaller, clientQueries["with the option"], dns.RcodeSuccess, []int{2, 3, 4}},
		"FORMERR to the client's EDNS": {dns.RcodeFormatError, false, hasEDNS, clientQueries["with EDNS"], dns.RcodeFormatError, []int{2, 3, 4}},
		"FORMERR to everything":        {dns.RcodeFormatError, false, always, clientQueries["without EDNS"], dns.RcodeFormatError, []int{2, 4, 6}},
		"another failure":              {dns.RcodeServerFailure, false, always, clientQueries["without EDNS"], dns.RcodeServerFailure, []int{1, 2, 3}},
		"a code that needs EDNS":       {dns.RcodeBadCookie, false, hasEDNS, clientQueries["without EDNS"], dns.RcodeServerFailure, []int{1, 2, 3}},
	} {
		for way, start := range carried {
			t.Run(name+" over "+way, func(t *testing.T) {
				t.Parallel()
				var seen sight
				to, options := start(t, refusal(&seen, c.code, c.bare, c.to))
				f := withoutKeepAlive(chainOf(t, stanzaOf(options+"\ncaller node-a zone-1", to)))
				for i, n := range c.received {
					m, a := queryExtra(t, f, "a.example.", c.extra())
					if a.Msg == nil || a.code != c.rcode || a.IsEdns0() != nil && len(c.extra()) == 0 {
						t.Errorf("query %d: code %d, error %v, message %v; want code %d", i, a.code, a.err, a.Msg, c.rcode)
					}
					if wrong := a.wrong(m); c.rcode == dns.RcodeSuccess && wrong != "" {
						t.Error(wrong)
					}
					if got := len(seen.clients()); got != n {
						t.Errorf("after query %d the server had received %d queries, want %d", i, got, n)
					}
					if i == 0 && c.received[1] == n+1 && c.received[0] > 1 {
						learned(t, f)
					}
				}
				for _, got := range seen.all() {
					if callers := callersOf(got); len(callers) > 0 && !slices.Equal(callers, []string{nodeA}) {
						t.Errorf("the server gets the callers %q", callers)
					}
				}
			})
		}
	}
}

// TestCaller_Again: an upstream that has refused the option gets it again when it answers queries of forward with it.
func TestCaller_Again(t *testing.T) {
	var seen sight
	var accepts atomic.Bool
	hasEDNS := func(r *dns.Msg) bool { return r.IsEdns0() != nil }
	at := script{tcp: replies(refusal(&seen, dns.RcodeFormatError, false, func(r *dns.Msg) bool { return hasEDNS(r) && !accepts.Load() }))}.address(t)
	f := chainOf(t, stanzaOf("caller node-a zone-1", at))
	u := upstreamOf(f, 0)
	u.optionsAgain = 10 * time.Millisecond
	wantRight(t, f, false, "a.example.")
	learned(t, f)
	wantRight(t, f, false, "b.example.")
	accepts.Store(true)
	kit.Eventually(t, "the option is used again", func() bool { return !u.unnamed.Load() })
	wantRight(t, f, false, "c.example.")
	var named []bool
	for _, r := range seen.clients() {
		named = append(named, hasEDNS(r))
	}
	if want := []bool{true, false, false, true}; !slices.Equal(named, want) {
		t.Errorf("queries with EDNS: %v, want %v", named, want)
	}
}

// TestCaller_RefusedThenSilent: the query is repeated within the share of its upstream, then sent to the next one.
func TestCaller_RefusedThenSilent(t *testing.T) {
	t.Parallel()
	for _, tcp := range []bool{false, true} {
		t.Run(fmt.Sprintf("TCP %t", tcp), func(t *testing.T) {
			var first, second sight
			bad := script{tcp: replies(func(r *dns.Msg) *dns.Msg {
				first.add(r)
				if r.IsEdns0() == nil {
					return nil
				}
				return new(dns.Msg).SetRcode(r, dns.RcodeFormatError)
			})}.address(t)
			well := script{tcp: replies(func(r *dns.Msg) *dns.Msg { second.add(r); return withOptions(r) })}.address(t)
			f := withoutKeepAlive(chainOf(t, stanzaOf("policy sequential\nmax_fails 0\nread_timeout 200ms\ncaller node-a zone-1", bad, well)))
			m := question("a.example.")
			if wrong := queryOver(f, m, tcp).wrong(m); wrong != "" {
				t.Fatal(wrong)
			}
			if len(first.clients()) != 2 || len(second.all()) != 1 || !slices.Equal(callersOf(second.all()[0]), []string{nodeA}) {
				t.Errorf("the servers got %v and %v", first.all(), second.all())
			}
		})
	}
}

// TestCaller_Checks: the query of a check has no caller.
func TestCaller_Checks(t *testing.T) {
	var seen sight
	at := script{tcp: replies(func(r *dns.Msg) *dns.Msg { seen.add(r); return addressReply(r) })}.address(t)
	f := chainOf(t, stanzaOf("caller node-a zone-1", at))
	upstreamOf(f, 0).failed()
	kit.Eventually(t, "it is checked", func() bool { return len(seen.all()) > 0 })
	if got := seen.all()[0]; len(got.Extra) > 0 {
		t.Errorf("the check is %v", got)
	}
}

// TestCaller_Allocs: queries without a caller cause no allocations, and neither does the caller.
func TestCaller_Allocs(t *testing.T) {
	without, edns, searches := question("a.example."), question("a.example."), question("a.example.")
	edns.Extra, searches.Extra = []dns.RR{optOf(&dns.EDNS0_NSID{})}, []dns.RR{optOf(list())}
	x := chainOf(t, "forward . 127.0.0.1 {\ncaller node-a zone-1\n}").newExchange(false, nil)
	kit.Must(t, x.setMessage(&request.Request{Req: edns, W: &test.ResponseWriter{}}))
	place, _ := wire.FindOPT(x.plain)
	opt := int(place.Owner)
	for name, c := range map[string]struct {
		max float64
		run func()
	}{
		"no options to remove":       {0, func() { withoutHops(without) }},
		"no options to remove, EDNS": {0, func() { withoutHops(edns) }},
		"a caller": {0, func() {
			x.addOptions(opt, "a.example.", nil)
			x.named = x.withOptions(x.named[:0], false)
		}},
		"a caller and a search list": {5, func() {
			x.addOptions(opt, "a.example.", []byte(podList))
			x.named = x.withOptions(x.named[:0], false)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := testing.AllocsPerRun(100, c.run); got > c.max {
				t.Errorf("%v allocations, want at most %v", got, c.max)
			}
		})
	}
}

// TestCaller_Room: a full answer to a query with the option fits a client without EDNS.
func TestCaller_Room(t *testing.T) {
	f := chainOf(t, stanzaOf("caller node-a", "127.0.0.1"))
	x := f.newExchange(false, nil)
	kit.Must(t, x.setMessage(&request.Request{Req: question("a.example."), W: &test.ResponseWriter{}}))
	m := kit.Unpack(t, x.queryFor(&attempt{to: upstreamOf(f, 0)}, true))
	reply := new(dns.Msg).SetReply(m)
	reply.SetEdns0(m.IsEdns0().UDPSize(), false)
	for reply.Len() < int(m.IsEdns0().UDPSize()) {
		reply.Answer = append(reply.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{""}})
	}
	packed := kit.Pack(t, reply)
	cleaned := message{Reply: new(wire.Reply)}
	if !cleaned.Parse(packed) {
		t.Fatal("not parsed")
	}
	kit.Must(t, x.clean(&cleaned, false))
	if got := len(cleaned.Message); got < dns.MinMsgSize || got > dns.MinMsgSize+11 {
		t.Errorf("a full reply has %d bytes for the client", got)
	}
}

package cache

import (
	"context"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// strict is an upstream that takes a second, and replies FORMERR to a query that is not ordinary.
func strict(t *testing.T, address string) plugin.HandlerFunc {
	return func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		time.Sleep(time.Second)
		packed, err := r.Pack()
		var q wire.Query
		if err != nil || !q.Parse(packed) {
			m := new(dns.Msg).SetRcode(r, dns.RcodeFormatError)
			return m.Rcode, w.WriteMsg(m)
		}
		return 0, w.WriteMsg(replyTo(t, r, "NOERROR; w. 60 IN A "+address))
	}
}

// unusual are queries for w. that a strict upstream refuses.
var unusual = []struct {
	name string
	edit func(r *dns.Msg)
	sent bool // to the upstream as it is, without a part that belongs to one hop otherwise
}{
	{"TSIG", func(r *dns.Msg) { r.SetTsig("unknown.", dns.HmacSHA256, 300, 0) }, true},
	{"SIG(0)", func(r *dns.Msg) {
		h := dns.RR_Header{Name: ".", Rrtype: dns.TypeSIG, Class: dns.ClassANY}
		r.Extra = []dns.RR{&dns.SIG{RRSIG: dns.RRSIG{Hdr: h, SignerName: "key.", Signature: "AAAA"}}}
	}, true},
	{"OPT and another additional record", func(r *dns.Msg) { r.Extra = append(r.SetEdns0(1232, false).Extra, extra) }, true},
	{"additional record", func(r *dns.Msg) { r.Extra = []dns.RR{extra} }, true},
	{"two OPT records", func(r *dns.Msg) { r.SetEdns0(1232, false).SetEdns0(1232, false) }, true},
	{"OPT record with a name", func(r *dns.Msg) { r.SetEdns0(1232, false).Extra[0].Header().Name = "w." }, true},
	{"answer", func(r *dns.Msg) { r.Answer = []dns.RR{extra} }, true},
	{"authority", func(r *dns.Msg) { r.Ns = []dns.RR{extra} }, true},
	{"AA", func(r *dns.Msg) { r.Authoritative = true }, true},
	{"TC", func(r *dns.Msg) { r.Truncated = true }, true},
	{"RA", func(r *dns.Msg) { r.RecursionAvailable = true }, true},
	{"Z", func(r *dns.Msg) { r.Zero = true }, true},
	{"response code", func(r *dns.Msg) { r.Rcode = dns.RcodeRefused }, true},
	{"opcode", func(r *dns.Msg) { r.Opcode = dns.OpcodeNotify }, true},
	{"EDNS flag", func(r *dns.Msg) { r.SetEdns0(1232, false).IsEdns0().Hdr.Ttl = 0x4000 }, false}, // CO, RFC 9824
	{"malformed key tag", func(r *dns.Msg) { addOptions(r, &dns.EDNS0_LOCAL{Code: 14, Data: []byte{1}}) }, false},
	{"NSID", func(r *dns.Msg) { addOptions(r, &dns.EDNS0_NSID{Code: dns.EDNS0NSID, Nsid: "00"}) }, false},
}

var extra = test.A("w. 60 IN A 192.0.2.99")

func addOptions(r *dns.Msg, options ...dns.EDNS0) {
	r.SetEdns0(1232, false).IsEdns0().Option = options
}

// TestOneClientsQueryDoesNotFailOthers has a client whose query the upstream refuses, and others whose queries for the same
// name arrive while it is in progress and after it: without a stored answer, and with an expired one.
func TestOneClientsQueryDoesNotFailOthers(t *testing.T) {
	for _, u := range unusual {
		for _, expired := range []bool{false, true} {
			name := u.name
			if expired {
				name += ", expired answer"
			}
			inBubble(t, name, func(t *testing.T) {
				b := newTestCache(t, "cache")
				want := "NOERROR; w. 60 IN A 192.0.2.1"
				b.upstream(strict(t, "192.0.2.1"))
				if expired {
					b.want("w. A", want)
					time.Sleep(time.Minute)
					want = "NOERROR; w. 60 IN A 192.0.2.2"
					b.upstream(strict(t, "192.0.2.2"))
				}
				own := make(chan string)
				go func() {
					w, r := new(client), query("w. A")
					u.edit(r)
					_, _ = b.serve(w, r)
					own <- brief(w.reply)
				}()
				b.concurrently([]timedQuery{
					{time.Second / 4, "w. A", 0, want, nil},
					{time.Second / 2, "w. A tcp", 0, want, nil},
				})
				wantOwn := want
				if u.sent {
					wantOwn = "FORMERR"
				}
				if got := <-own; got != wantOwn {
					t.Errorf("the unusual query got %s, want %s", got, wantOwn)
				}
			})
		}
	}
}

// TestUpstreamWithoutEDNS has an upstream that refuses EDNS (RFC 6891 section 7): the client with EDNS gets the refusal, so
// that it repeats its query without, and no other client does.
func TestUpstreamWithoutEDNS(t *testing.T) {
	inBubble(t, "FORMERR", func(t *testing.T) {
		b := newTestCache(t, "cache")
		b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			time.Sleep(time.Second)
			text := "NOERROR; w. 60 IN A 192.0.2.1"
			if r.IsEdns0() != nil {
				text = "FORMERR"
			}
			return 0, w.WriteMsg(replyTo(t, r, text))
		})
		b.concurrently([]timedQuery{
			{0, "w. A +edns", 0, "FORMERR", nil},
			{time.Second / 4, "w. A", 0, "NOERROR; w. 60 IN A 192.0.2.1", nil},
			{time.Second / 2, "w. A +edns", 0, "FORMERR", nil},
		})
	})
}

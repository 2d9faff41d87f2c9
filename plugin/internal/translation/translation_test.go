package translation

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/dns64"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
)

// lookup is a dns64.UpstreamInt.
type lookup func() (*dns.Msg, error)

func (f lookup) Lookup(context.Context, request.Request, string, uint16) (*dns.Msg, error) {
	return f()
}

// TestNativeAnswer: with translate_all, the AAAA records of a name are its answer if a reply shows that it has no A records. Other
// replies are those of CoreDNS.
func TestNativeAnswer(t *testing.T) {
	const six, four = "a.test. 60 IN AAAA 2001:db8::1", "a.test. 60 IN A 192.0.2.1"
	failed := errors.New("failed")
	for _, tc := range []struct {
		name     string
		optional bool // without translate_all
		ipv6     bool // only for clients with IPv6
		native   []dns.RR
		a        dns.Msg
		err      error
		want     string // the code, the flags AA and TC, and the data of the answer
		code     int
	}{
		{name: "no A record", native: []dns.RR{test.AAAA(six)}, want: "0 true false [2001:db8::1]"},
		{name: "no A record, with an alias", native: []dns.RR{test.CNAME("a.test. 60 IN CNAME b.test."), test.AAAA("b.test. 60 IN AAAA 2001:db8::2")},
			a: dns.Msg{Answer: []dns.RR{test.CNAME("a.test. 60 IN CNAME b.test.")}}, want: "0 true false [b.test. 2001:db8::2]"},
		{name: "the name does not exist for type A", native: []dns.RR{test.AAAA(six)}, a: dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeNameError}}, want: "0 true false [2001:db8::1]"},
		{name: "both", native: []dns.RR{test.AAAA(six)}, a: dns.Msg{Answer: []dns.RR{test.A(four)}}, want: "0 false false [64:ff9b::c000:201]"},
		{name: "no AAAA record", a: dns.Msg{Answer: []dns.RR{test.A(four)}}, want: "0 false false [64:ff9b::c000:201]"},
		{name: "no record", want: "0 false false []"},
		{name: "a failure of the A query", native: []dns.RR{test.AAAA(six)}, a: dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeServerFailure}}, want: "2 false false []"},
		{name: "a truncated reply", native: []dns.RR{test.AAAA(six)}, a: dns.Msg{MsgHdr: dns.MsgHdr{Truncated: true}}, want: "0 false true []"},
		{name: "an error", native: []dns.RR{test.AAAA(six)}, err: failed, want: "no reply", code: dns.RcodeServerFailure},
		{name: "a client with IPv4", ipv6: true, native: []dns.RR{test.AAAA(six)}, a: dns.Msg{Answer: []dns.RR{test.A(four)}}, want: "0 true false [2001:db8::1]"},
		{name: "without translate_all", optional: true, native: []dns.RR{test.AAAA(six)}, a: dns.Msg{Answer: []dns.RR{test.A(four)}}, want: "0 true false [2001:db8::1]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, prefix, err := net.ParseCIDR("64:ff9b::/96")
			kit.Must(t, err)
			d := &dns64.DNS64{Prefix: prefix, TranslateAll: !tc.optional, AllowIPv4: !tc.ipv6, Upstream: lookup(func() (*dns.Msg, error) { return &tc.a, tc.err })}
			h := Correct(func(next plugin.Handler) plugin.Handler { d.Next = next; return d })(plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				m := new(dns.Msg).SetReply(r)
				m.Authoritative, m.Answer = true, tc.native
				return dns.RcodeSuccess, w.WriteMsg(m)
			}))
			w := dnstest.NewRecorder(&test.ResponseWriter{})
			code, err := h.ServeDNS(context.Background(), w, new(dns.Msg).SetQuestion("a.test.", dns.TypeAAAA))
			if got := describe(w.Msg); got != tc.want || code != tc.code || !errors.Is(err, tc.err) {
				t.Errorf("%s, code %d, error %v, want %s, %d, %v", got, code, err, tc.want, tc.code, tc.err)
			}
		})
	}
}

func describe(m *dns.Msg) string {
	if m == nil {
		return "no reply"
	}
	data := []string{}
	for _, rr := range m.Answer {
		data = append(data, dns.Field(rr, 1))
	}
	return fmt.Sprint(m.Rcode, m.Authoritative, m.Truncated, data)
}

//go:build linux

package fastpath

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// reply is the scripted server's reply to a question.
type reply struct {
	rcode           int
	answer, ns, add []string // records as text; OWNER is the name of the question
	ad              bool     // authenticated data
	ede             []uint16 // extended errors
}

const soa = "test. 600 IN SOA ns.test. hostmaster.test. 7 3600 600 86400 600"

// script has the replies of a server for the zone test: by name and type, "name *" for any type.
var script = map[string]reply{
	"a.test. A":        {answer: []string{"OWNER 300 IN A 192.0.2.1"}},
	"a.test. AAAA":     {answer: []string{"OWNER 300 IN AAAA 2001:db8::1"}},
	"a.test. *":        {ns: []string{soa}},
	"many.test. A":     {answer: numbered(20, "OWNER 60 IN A 192.0.2.%d")},
	"most.test. A":     {answer: numbered(200, "OWNER 60 IN A 192.0.2.%d")},
	"many.test. AAAA":  {answer: numbered(40, "OWNER 60 IN AAAA 2001:db8::%d")},
	"chain.test. A":    {answer: []string{"OWNER 300 IN CNAME one.test.", "one.test. 300 IN CNAME two.test.", "two.test. 30 IN A 192.0.2.2", "two.test. 30 IN A 192.0.2.3"}},
	"chain.test. AAAA": {answer: []string{"OWNER 300 IN CNAME one.test.", "one.test. 300 IN CNAME two.test."}, ns: []string{soa}},
	"loose.test. A":    {answer: []string{"OWNER 300 IN CNAME elsewhere.example."}},
	"upper.test. A":    {answer: []string{"OWNER 300 IN CNAME Other.TEST.", "Other.TEST. 300 IN A 192.0.2.9"}},
	"txt.test. TXT":    {answer: []string{`OWNER 120 IN TXT "v=spf1 -all" "two \"strings\"" "\000\255\\"`}},
	"big.test. TXT":    {answer: numbered(30, `OWNER 120 IN TXT "`+strings.Repeat("x", 120)+`%d"`)},
	"huge.test. TXT":   {answer: numbered(120, `OWNER 120 IN TXT "`+strings.Repeat("y", 200)+`%d"`)},
	"mx.test. MX":      {answer: []string{"OWNER 300 IN MX 10 a.mx.test.", "OWNER 300 IN MX 20 b.mx.test."}, add: []string{"a.mx.test. 200 IN A 192.0.2.25", "b.mx.test. 200 IN A 192.0.2.26"}},
	"srv.test. SRV":    {answer: numbered(8, "OWNER 300 IN SRV 1 1 80 target%d.test."), add: numbered(8, "target%[1]d.test. 300 IN A 192.0.2.%[1]d")},
	"glue.test. SRV": {answer: []string{"OWNER 300 IN SRV 1 1 80 a.test.", "OWNER 300 IN SRV 1 1 80 longer.test."},
		add: []string{"a.test. 300 IN A 192.0.2.1", "a.test. 300 IN A 192.0.2.2", "a.test. 300 IN AAAA 2001:db8::1", "longer.test. 300 IN AAAA 2001:db8::2", "longer.test. 300 IN A 192.0.2.3"}},
	"behind.test. A": {answer: []string{"two.test. 300 IN A 192.0.2.1", "OWNER 300 IN CNAME two.test."}},
	"denied.test. *": {rcode: dns.RcodeNameError, ns: []string{soa}, add: []string{"ns.test. 300 IN A 192.0.2.53", "ns.test. 300 IN A 192.0.2.54"}},
	"https.test. HTTPS": {answer: []string{
		`OWNER 300 IN HTTPS 1 . alpn="h2,h3" ipv4hint="192.0.2.1"`}},
	"test. NS":          {answer: []string{"OWNER 300 IN NS ns.test."}, add: []string{"ns.test. 300 IN A 192.0.2.53"}},
	"test. SOA":         {answer: []string{"OWNER 300 IN SOA ns.test. hostmaster.test. 7 3600 600 86400 30"}},
	"secure.test. A":    {ad: true, answer: []string{"OWNER 300 IN A 192.0.2.4"}},
	"secure.test. AAAA": {ad: true, ns: []string{soa}},
	"ede.test. A":       {ede: []uint16{dns.ExtendedErrorCodeForgedAnswer}, answer: []string{"OWNER 300 IN A 192.0.2.5"}},
	"blocked.test. A":   {rcode: dns.RcodeNameError, ede: []uint16{dns.ExtendedErrorCodeBlocked, dns.ExtendedErrorCodeFiltered}, ns: []string{soa}},
	"nodata.test. *":    {ns: []string{soa}},
	"empty.test. *":     {},
	"refer.test. *":     {ns: []string{"refer.test. 300 IN NS ns.refer.test."}, add: []string{"ns.refer.test. 300 IN A 192.0.2.54"}},
	"fail.test. *":      {rcode: dns.RcodeServerFailure},
	"bogus.test. A":     {rcode: dns.RcodeServerFailure, ede: []uint16{dns.ExtendedErrorCodeDNSBogus}},
	"refused.test. *":   {rcode: dns.RcodeRefused},
	"notimp.test. *":    {rcode: dns.RcodeNotImplemented},
	"nosoa.test. *":     {rcode: dns.RcodeNameError},
	"zero.test. A":      {answer: []string{"OWNER 0 IN A 192.0.2.6"}},
	"short.test. A":     {answer: []string{"OWNER 1 IN A 192.0.2.7"}},
	"long.test. A":      {answer: []string{"OWNER 604800 IN A 192.0.2.8"}},
	"mixed.test. A":     {answer: []string{"OWNER 300 IN A 192.0.2.1", "OWNER 200 IN A 192.0.2.2"}, ns: []string{"test. 86400 IN NS ns.test."}, add: []string{"ns.test. 10 IN A 192.0.2.53"}},
	"any.test. ANY":     {answer: []string{"OWNER 300 IN A 192.0.2.1", "OWNER 300 IN AAAA 2001:db8::1", `OWNER 300 IN TXT "x"`}},
	"ds.test. DS":       {answer: []string{"OWNER 300 IN DS 12345 13 2 " + strings.Repeat("ab", 32)}},
	`a\.b.test. A`:      {answer: []string{"OWNER 300 IN A 192.0.2.10"}},
}

func numbered(n int, format string) (lines []string) {
	for i := range n {
		lines = append(lines, fmt.Sprintf(format, i+1))
	}
	return lines
}

// scriptedNames are the names of the script, and one that does not exist.
func scriptedNames() (names []string) {
	for key := range script {
		name, _, _ := strings.Cut(key, " ")
		names = append(names, name)
	}
	names = append(names, "none.test.", "none.at.all.test.")
	slices.Sort(names)
	return slices.Compact(names)
}

// answerScript answers by the script, and NXDOMAIN for other names. It adds a signature for a client with DO.
func answerScript(t *testing.T) dns.HandlerFunc {
	return func(w dns.ResponseWriter, r *dns.Msg) {
		name := strings.ToLower(r.Question[0].Name)
		say, ok := script[name+" "+dns.Type(r.Question[0].Qtype).String()]
		if !ok {
			say, ok = script[name+" *"]
		}
		if !ok {
			say = reply{rcode: dns.RcodeNameError, ns: []string{soa}}
		}
		m := new(dns.Msg).SetReply(r)
		m.Rcode, m.RecursionAvailable, m.AuthenticatedData = say.rcode, true, say.ad
		records := func(lines []string) (all []dns.RR) {
			for _, line := range lines {
				rr, err := dns.NewRR(strings.ReplaceAll(line, "OWNER", r.Question[0].Name))
				if err != nil {
					t.Errorf("%s: %v", line, err)
					continue
				}
				all = append(all, rr)
			}
			return all
		}
		m.Answer, m.Ns, m.Extra = records(say.answer), records(say.ns), records(say.add)
		opt := r.IsEdns0()
		if opt != nil {
			if opt.Do() && say.ad && len(m.Answer) > 0 {
				m.Answer = append(m.Answer, records([]string{"OWNER 300 IN RRSIG A 13 2 300 20990101000000 20200101000000 12345 test. " + strings.Repeat("q", 86) + "=="})...)
			}
			m.SetEdns0(1232, opt.Do())
			for _, code := range say.ede {
				m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_EDE{InfoCode: code, ExtraText: "why"})
			}
		}
		size := dns.MaxMsgSize
		if w.LocalAddr().Network() == "udp" {
			size = dns.MinMsgSize
			if opt != nil {
				size = max(size, int(opt.UDPSize()))
			}
		}
		m.Compress = true
		m.Truncate(size)
		_ = w.WriteMsg(m) // the client may have closed its socket
	}
}

// cacheBlock is the server block of nodecache in front of a server.
func cacheBlock(u *upstream, more ...string) string {
	return fmt.Sprintf(`.:PORT {
    bind 127.0.0.1 ::1
    errors
    prometheus METRICS
    FASTPATH
    %s
    forward . %s
}
`, strings.Join(more, "\n    "), u.address)
}

// TestParityOfCache compares the answers of a cache with the fast path and without it.
func TestParityOfCache(t *testing.T) {
	u := startUpstream(t, answerScript(t))
	p := startPair(t, "nodecache", cacheBlock(u, "cache"))
	for _, tc := range []struct {
		name    string
		queries []query
		again   int
		minimum int // percentage that is answered by the fast path
		maximum int
	}{
		{"all names and types", plain(t, scriptedNames()), 3, 50, 84},
		{"address as asked by different clients", variants(t, "a.test.", dns.TypeA), 2, 90, 100},
		{"many addresses as asked by different clients", variants(t, "many.test.", dns.TypeA), 2, 50, 100},
		{"more addresses as asked by different clients", variants(t, "most.test.", dns.TypeA), 2, 10, 100},
		{"aliases as asked by different clients", variants(t, "chain.test.", dns.TypeA), 2, 90, 100},
		{"aliases without data as asked by different clients", variants(t, "chain.test.", dns.TypeAAAA), 2, 90, 100},
		{"aliases in upper case as asked by different clients", variants(t, "upper.test.", dns.TypeA), 2, 40, 100},
		{"authenticated data as asked by different clients", variants(t, "secure.test.", dns.TypeA), 2, 90, 100},
		{"extended error as asked by different clients", variants(t, "ede.test.", dns.TypeA), 2, 90, 100},
		{"extended errors of NXDOMAIN as asked by different clients", variants(t, "blocked.test.", dns.TypeA), 2, 90, 100},
		{"long text as asked by different clients", variants(t, "big.test.", dns.TypeTXT), 2, 0, 80},
		{"longer text as asked by different clients", variants(t, "huge.test.", dns.TypeTXT), 2, 0, 80},
		{"escaped text as asked by different clients", variants(t, "txt.test.", dns.TypeTXT), 2, 90, 100},
		{"SRV as asked by different clients", variants(t, "srv.test.", dns.TypeSRV), 2, 30, 100},
		{"NODATA as asked by different clients", variants(t, "nodata.test.", dns.TypeA), 2, 90, 100},
		{"NXDOMAIN as asked by different clients", variants(t, "none.test.", dns.TypeA), 2, 90, 100},
		{"SERVFAIL as asked by different clients", variants(t, "fail.test.", dns.TypeA), 2, 50, 100},
		{"odd queries", odd(t, "a.test."), 1, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := p.on.scrape(t)
			sent := (&comparison{ttl: 1}).checkAll(t, p, tc.queries, tc.again)
			answered, _ := p.counted(t, before, sent)
			if percent := 100 * answered / sent; percent < tc.minimum || percent > tc.maximum {
				t.Errorf("%d of %d queries were answered by the fast path, want %d%% to %d%%", answered, sent, tc.minimum, tc.maximum)
			}
			t.Logf("%d of %d", answered, sent)
		})
	}
}

// TestMetricsOfCache compares the counters of a cache with and without the fast path.
func TestMetricsOfCache(t *testing.T) {
	u := startUpstream(t, answerScript(t))
	// No entry may expire while the test runs: that would change the counters by chance.
	names := []string{
		"a.test.", "many.test.", "chain.test.", "txt.test.", "big.test.", "mx.test.", "srv.test.", "secure.test.", "ede.test.", "blocked.test.",
		"nodata.test.", "none.test.",
	}
	some := slices.Concat(variants(t, "a.test.", dns.TypeA), variants(t, "txt.test.", dns.TypeTXT), variants(t, "many.test.", dns.TypeA), variants(t, "none.test.", dns.TypeA))
	all := slices.Concat(plain(t, names), some, variants(t, "ede.test.", dns.TypeA), variants(t, "secure.test.", dns.TypeA))
	for _, tc := range []struct {
		name     string
		corefile string
		queries  []query
	}{
		{"cache", cacheBlock(u, "cache {\nsuccess 9984 3600 600\ndenial 9984 1800 600\n}"), all},
		{"cache with loadbalance", cacheBlock(u, "cache {\nsuccess 9984 3600 600\ndenial 9984 1800 600\n}", "loadbalance"), some},
		{"cache with prefetch", cacheBlock(u, "cache {\nsuccess 9984 3600 600\ndenial 9984 1800 600\nprefetch 2 1m 10%\n}"), some},
		{"cache of two zones", strings.Replace(cacheBlock(u, "cache {\nsuccess 9984 3600 600\ndenial 9984 1800 600\n}"), ".:PORT", "test:PORT example.org:PORT", 1), some},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sameMetrics(t, startPair(t, "nodecache", tc.corefile), tc.queries)
		})
	}
}

package forward

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// isProbe reports whether a query is one of nodecache's own that finds out whether a server understands the options.
func isProbe(r *dns.Msg) bool { return r.Question[0].Qtype == dns.TypeSOA }

// clients returns the queries that are not probes.
func (s *sight) clients() []*dns.Msg { return slices.DeleteFunc(s.all(), isProbe) }

// learned waits until queries to the first upstream have no options.
func learned(t testing.TB, f *Forward) {
	t.Helper()
	kit.Eventually(t, "the server is known to answer without the options", upstreamOf(f, 0).unnamed.Load)
}

// txt is a record that no query needs.
func txt(name string) dns.RR {
	return &dns.TXT{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"a"}}
}

// TestOneClientsTwoRecordsKeepTheCallerOfOthers: a server refuses messages with more than two additional records, as CoreDNS does. The
// query of a client with two of them, and the OPT record that forward adds, is answered, and other queries have the caller.
func TestOneClientsTwoRecordsKeepTheCallerOfOthers(t *testing.T) {
	t.Parallel()
	var seen sight
	at := script{tcp: replies(refusal(&seen, dns.RcodeFormatError, true, func(r *dns.Msg) bool { return len(r.Extra) > 2 }))}.address(t)
	f := chainOf(t, stanzaOf("caller node-a zone-1", at))
	other := func() {
		t.Helper()
		wantRight(t, f, false, "other.example.")
		all := seen.clients()
		if got := callersOf(all[len(all)-1]); !slices.Equal(got, []string{nodeA}) {
			t.Errorf("the query of another client has the callers %q", got)
		}
	}
	for range 3 {
		m, a := queryExtra(t, f, "a.example.", []dns.RR{txt("a."), txt("b.")})
		if wrong := a.wrong(m); wrong != "" {
			t.Error(wrong)
		}
		other()
	}
	kit.Eventually(t, "the server is checked", func() bool { return slices.ContainsFunc(seen.all(), isProbe) })
	other()
}

// TestClusterNamesBehindBoxThatDropsTheCaller: a box on the path drops queries with the option, or answers them with an error. Once
// that is known, names of the cluster have answers without the caller, and with it when the box is gone.
func TestClusterNamesBehindBoxThatDropsTheCaller(t *testing.T) {
	t.Parallel()
	for name, rcode := range map[string]int{"drop": -1, "SERVFAIL": dns.RcodeServerFailure, "REFUSED": dns.RcodeRefused} {
		for _, options := range []string{"prefer_udp", "force_tcp", "force_tcp\nfallback udp"} {
			t.Run(fmt.Sprintf("%s, %q", name, options), func(t *testing.T) {
				t.Parallel()
				var gone atomic.Bool
				var seen sight
				at := script{tcp: replies(func(r *dns.Msg) *dns.Msg {
					seen.add(r)
					switch {
					case gone.Load() || len(callersOf(r)) == 0:
						return addressReply(r)
					case rcode < 0:
						return nil
					}
					return new(dns.Msg).SetRcode(r, rcode)
				})}.address(t)
				f := chainOf(t, stanzaOf(options+"\ncaller node-a zone-1\ntimeout 1s\nread_timeout 200ms", at))
				upstreamOf(f, 0).optionsAgain = 100 * time.Millisecond
				queryOver(f, question("first.example."), false)
				learned(t, f)
				before := len(seen.clients())
				wantRight(t, f, false, "a.example.", "b.example.")
				if all := seen.clients()[before:]; slices.ContainsFunc(all, func(r *dns.Msg) bool { return r.IsEdns0() != nil }) {
					t.Errorf("clients' queries have the option: %v", all)
				}
				gone.Store(true)
				kit.Eventually(t, "the option is used again", func() bool { return !upstreamOf(f, 0).unnamed.Load() })
				wantRight(t, f, false, "c.example.")
				if all := seen.clients(); !slices.Equal(callersOf(all[len(all)-1]), []string{nodeA}) {
					t.Errorf("the query has no caller: %v", all[len(all)-1])
				}
			})
		}
	}
}

// TestServerThatFailsSomeNamesKeepsTheCaller: clients query names for which the server has only an error, or no answer, with the
// options or without. Nothing is concluded for other names.
func TestServerThatFailsSomeNamesKeepsTheCaller(t *testing.T) {
	t.Parallel()
	var seen sight
	at := script{tcp: replies(func(r *dns.Msg) *dns.Msg {
		seen.add(r)
		switch name := r.Question[0].Name; {
		case name == "drop.example.":
			return nil
		case name == "fail.example.", len(callersOf(r)) > 0 && name == "formerr.example.":
			return new(dns.Msg).SetRcode(r, map[bool]int{true: dns.RcodeServerFailure, false: dns.RcodeFormatError}[name == "fail.example."])
		}
		return addressReply(r)
	})}.address(t)
	f := chainOf(t, stanzaOf("caller node-a zone-1\ntimeout 400ms\nread_timeout 100ms", at))
	u := upstreamOf(f, 0)
	u.optionsAgain = time.Millisecond
	for _, name := range []string{"drop.example.", "fail.example.", "formerr.example."} {
		kit.Eventually(t, "no check is under way", func() bool { return !u.optionCheck.Load() })
		before := len(seen.all()) - len(seen.clients())
		queryOver(f, question(name), false)
		kit.Eventually(t, "the server is checked", func() bool { return len(seen.all())-len(seen.clients()) >= before+2 && !u.optionCheck.Load() })
		wantRight(t, f, false, "other.example.")
		if all := seen.clients(); !slices.Equal(callersOf(all[len(all)-1]), []string{nodeA}) {
			t.Errorf("after %s, the query of another client has no caller: %v", name, all[len(all)-1])
		}
	}
}

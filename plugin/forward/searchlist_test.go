package forward

import (
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// podList is the search list in a client's query, and matched the option in the reply to it.
const (
	podList = "\x07example\x00\x01z\x00"
	matched = "\x01z\x00"
)

func list() dns.EDNS0 { return &dns.EDNS0_LOCAL{Code: wire.OptionSearchList, Data: []byte(podList)} }

// listsOf returns the data of the search list options in all OPT records.
func listsOf(m *dns.Msg) (all []string) {
	for _, rr := range m.Extra {
		if o, ok := rr.(*dns.OPT); ok {
			for _, option := range o.Option {
				if local, ok := option.(*dns.EDNS0_LOCAL); ok && local.Code == wire.OptionSearchList {
					all = append(all, string(local.Data))
				}
			}
		}
	}
	return all
}

// tries answers like cluster DNS after trying a search list, even to a query without one.
func tries(r *dns.Msg) *dns.Msg {
	m := addressReply(r)
	if r.IsEdns0() != nil {
		m.SetEdns0(1232, r.IsEdns0().Do())
		m.IsEdns0().Option = []dns.EDNS0{spoof(), &dns.EDNS0_LOCAL{Code: wire.OptionSearchList, Data: []byte(matched)}, &dns.EDNS0_NSID{Nsid: "ab"}}
	}
	return m
}

// TestSearch: a search list is sent only to upstreams with the option caller. The client receives their answer to it, if
// it has sent one.
func TestSearch(t *testing.T) {
	t.Parallel()
	queries := map[string]struct {
		extra          func() []dns.RR
		sent, answered []string // to the upstream and to the client, with the option caller
	}{
		"without EDNS":             {clientQueries["without EDNS"], nil, nil},
		"with EDNS":                {func() []dns.RR { return []dns.RR{optOf(cookie())} }, nil, nil},
		"with a list":              {func() []dns.RR { return []dns.RR{optOf(list())} }, []string{podList}, []string{matched}},
		"with a list among others": {func() []dns.RR { return []dns.RR{optOf(cookie(), list(), spoof(), &dns.EDNS0_TCP_KEEPALIVE{})} }, []string{podList}, []string{matched}},
		"with an empty list":       {func() []dns.RR { return []dns.RR{optOf(&dns.EDNS0_LOCAL{Code: wire.OptionSearchList})} }, []string{""}, []string{matched}},
		"with two lists":           {func() []dns.RR { return []dns.RR{optOf(list(), cookie(), list())} }, nil, nil},
	}
	for way, start := range carried {
		for option, cluster := range map[string]bool{"": false, "caller node-a zone-1": true} {
			t.Run(way+" "+option, func(t *testing.T) {
				t.Parallel()
				var seen sight
				to, options := start(t, func(r *dns.Msg) *dns.Msg { seen.add(r); return tries(r) })
				f := chainOf(t, stanzaOf(options+"\n"+option, to))
				for name, q := range queries {
					m, a := queryExtra(t, f, "a.example.", q.extra())
					if wrong := a.wrong(m); wrong != "" {
						t.Fatalf("%s: %s", name, wrong)
					}
					if !cluster {
						q.sent, q.answered = nil, nil
					}
					all := seen.all()
					got := all[len(all)-1]
					if sent := listsOf(got); !slices.Equal(sent, q.sent) {
						t.Errorf("%s: the server gets the lists %q, want %q", name, sent, q.sent)
					}
					if answered := listsOf(a.Msg); !slices.Equal(answered, q.answered) {
						t.Errorf("%s: the client gets %q, want %q", name, answered, q.answered)
					}
					if !slices.Equal(others(got), others(m)) || len(callersOf(a.Msg)) > 0 {
						t.Errorf("%s: the server gets %v, the client %v", name, got.IsEdns0(), a.IsEdns0())
					}
					if callers := callersOf(got); cluster && !slices.Equal(callers, []string{nodeA}) {
						t.Errorf("%s: the server gets the callers %q", name, callers)
					}
				}
			})
		}
	}
}

// TestSearch_Signed: the options for cluster DNS are not added to signed queries, and are removed from them.
func TestSearch_Signed(t *testing.T) {
	t.Parallel()
	var seen sight
	at := script{tcp: replies(func(r *dns.Msg) *dns.Msg { seen.add(r); return tries(r) })}.address(t)
	f := chainOf(t, stanzaOf("caller node-a", at))
	tsig := &dns.TSIG{
		Hdr:       dns.RR_Header{Name: "key.example.", Rrtype: dns.TypeTSIG, Class: dns.ClassANY},
		Algorithm: dns.HmacSHA256, MACSize: 2, MAC: "abcd",
	}
	m, a := queryExtra(t, f, "a.example.", []dns.RR{optOf(list(), cookie()), tsig})
	if wrong := a.wrong(m); wrong != "" {
		t.Fatal(wrong)
	}
	got := seen.all()[0]
	if got.IsTsig() == nil || len(listsOf(got)) > 0 || len(listsOf(a.Msg)) > 0 || !slices.Equal(others(got), others(m)) {
		t.Errorf("the server gets %v, the client %v", got, a.Msg)
	}
}

// TestSearch_Refused: the query to an upstream that refuses the options is repeated without them.
func TestSearch_Refused(t *testing.T) {
	t.Parallel()
	for way, start := range carried {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			var seen sight
			to, options := start(t, func(r *dns.Msg) *dns.Msg {
				seen.add(r)
				if len(callersOf(r)) > 0 {
					return new(dns.Msg).SetRcode(r, dns.RcodeFormatError)
				}
				return tries(r)
			})
			f := withoutKeepAlive(chainOf(t, stanzaOf(options+"\ncaller node-a zone-1", to)))
			for i, want := range []int{2, 3} { // the refusal is known the second time
				m, a := queryExtra(t, f, "a.example.", []dns.RR{optOf(list(), cookie())})
				if wrong := a.wrong(m); wrong != "" {
					t.Fatal(wrong)
				}
				all := seen.clients()
				last := all[len(all)-1]
				if len(all) != want || len(listsOf(last)) > 0 || !slices.Equal(others(last), others(m)) {
					t.Errorf("query %d: the server got %d queries, want %d; the last was %v", i, len(all), want, last)
				}
				if answered := listsOf(a.Msg); len(answered) > 0 {
					t.Errorf("query %d: the client gets %q for a list that was not sent", i, answered)
				}
				learned(t, f)
			}
			upstreamOf(f, 0).unnamed.Store(false)
			if _, a := queryExtra(t, f, "b.example.", []dns.RR{optOf(list())}); a.Msg == nil {
				t.Fatal(a.err)
			}
			if all := seen.clients(); len(all) != 5 || !slices.Equal(listsOf(all[3]), []string{podList}) {
				t.Errorf("once it may have the options again the server got %d queries, with %q", len(all), listsOf(all[len(all)-2]))
			}
		})
	}
}

package main

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

var testSearch = []string{"ns-000.svc.cluster.local.", "svc.cluster.local.", "cluster.local.", hostDomain}

func TestWalk(t *testing.T) {
	for _, c := range []struct {
		name string
		want []string
	}{
		{"www.example.com", []string{
			"www.example.com.ns-000.svc.cluster.local.", "www.example.com.svc.cluster.local.", "www.example.com.cluster.local.",
			"www.example.com." + hostDomain, "www.example.com.",
		}},
		{"db", []string{"db.ns-000.svc.cluster.local.", "db.svc.cluster.local.", "db.cluster.local.", "db." + hostDomain, "db."}},
		{"a.b.c.d.e", []string{
			"a.b.c.d.e.ns-000.svc.cluster.local.", "a.b.c.d.e.svc.cluster.local.", "a.b.c.d.e.cluster.local.", "a.b.c.d.e." + hostDomain, "a.b.c.d.e.",
		}},
		{"a.b.c.d.e.f", []string{
			"a.b.c.d.e.f.", "a.b.c.d.e.f.ns-000.svc.cluster.local.", "a.b.c.d.e.f.svc.cluster.local.", "a.b.c.d.e.f.cluster.local.", "a.b.c.d.e.f." + hostDomain,
		}},
		{"www.example.com.", []string{"www.example.com."}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := resolver{search: testSearch}
			if got := r.walk(c.name); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// records reads records in the format of zone files.
func records(t *testing.T, lines ...string) (all []dns.RR) {
	t.Helper()
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, rr)
	}
	return all
}

func TestAddressesIn(t *testing.T) {
	const asked, found = "www.example.com.ns-000.svc.cluster.local.", "www.example.com."
	for _, c := range []struct {
		name   string
		answer []string
		edit   func(*dns.Msg)
		want   string // addresses, with spaces between them
		err    error
	}{
		{name: "addresses", answer: []string{asked + " A 192.0.2.1", asked + " A 192.0.2.2"}, want: "192.0.2.1 192.0.2.2"},
		{name: "through a CNAME", answer: []string{asked + " CNAME " + found, found + " A 192.0.2.1"}, want: "192.0.2.1"},
		{name: "a CNAME alone", answer: []string{asked + " CNAME " + found}},
		{name: "no data"},
		{name: "no such name", edit: func(m *dns.Msg) { m.Rcode = dns.RcodeNameError }},
		{name: "a failure", edit: func(m *dns.Msg) { m.Rcode = dns.RcodeServerFailure }, err: errNoAnswer},
		{name: "refused", edit: func(m *dns.Msg) { m.Rcode = dns.RcodeRefused }, err: errNoAnswer},
		{name: "another name's address", answer: []string{found + " A 192.0.2.1"}, err: errWrong},
		{name: "an address of the CNAME's name", answer: []string{asked + " CNAME " + found, asked + " A 192.0.2.1"}, err: errWrong},
		{name: "the CNAME late", answer: []string{found + " A 192.0.2.1", asked + " CNAME " + found}, err: errWrong},
		{name: "the other family", answer: []string{asked + " AAAA 2001:db8::1"}, err: errWrong},
		{name: "no such name, with an address", answer: []string{asked + " A 192.0.2.1"}, edit: func(m *dns.Msg) { m.Rcode = dns.RcodeNameError }, err: errWrong},
		{name: "another question", edit: func(m *dns.Msg) { m.Question[0].Name = found }, err: errWrong},
		{name: "no question", edit: func(m *dns.Msg) { m.Question = nil }, err: errWrong},
		{name: "a query", edit: func(m *dns.Msg) { m.Response = false }, err: errWrong},
		{name: "truncated", edit: func(m *dns.Msg) { m.Truncated = true }, err: errWrong},
	} {
		t.Run(c.name, func(t *testing.T) {
			query := new(dns.Msg).SetQuestion(asked, dns.TypeA)
			m := new(dns.Msg).SetReply(query)
			m.Answer = records(t, c.answer...)
			if c.edit != nil {
				c.edit(m)
			}
			got, err := addressesIn(query.Question[0], m)
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if text := addressText(got); text != c.want {
				t.Errorf("addresses %q, want %q", text, c.want)
			}
		})
	}
}

// serveDNS answers on a port of 127.0.0.1 for as long as the test runs.
func serveDNS(t *testing.T, answer dns.HandlerFunc) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: answer}
	done := make(chan error, 1)
	go func() { done <- server.ActivateAndServe() }()
	t.Cleanup(func() {
		_ = conn.Close() // which ends it
		<-done
	})
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// zoneAnswer answers from records; other names do not exist.
func zoneAnswer(zone []dns.RR, w dns.ResponseWriter, r *dns.Msg) error {
	m := new(dns.Msg).SetRcode(r, dns.RcodeNameError)
	for _, rr := range zone {
		if rr.Header().Name != r.Question[0].Name {
			continue
		}
		m.Rcode = dns.RcodeSuccess
		if rr.Header().Rrtype == r.Question[0].Qtype {
			m.Answer = append(m.Answer, rr)
		}
	}
	return w.WriteMsg(m)
}

func TestLookup(t *testing.T) {
	const long = time.Minute // so that no query is repeated
	zone := records(t,
		"db.ns-000.svc.cluster.local. A 192.0.2.1",
		"db.ns-000.svc.cluster.local. AAAA 2001:db8::1",
		"six.ns-000.svc.cluster.local. AAAA 2001:db8::6",
		"six.svc.cluster.local. A 192.0.2.6",
		"text.ns-000.svc.cluster.local. TXT t",
		"text.cluster.local. A 192.0.2.7",
		"www.example.com. A 192.0.2.8",
	)
	server := serveDNS(t, func(w dns.ResponseWriter, r *dns.Msg) {
		if strings.HasPrefix(r.Question[0].Name, "broken.svc.") {
			_ = w.WriteMsg(new(dns.Msg).SetRcode(r, dns.RcodeServerFailure)) // the result has the error
			return
		}
		_ = zoneAnswer(zone, w, r)
	})
	for _, c := range []struct {
		name    string
		want    string
		queries int
		err     error
	}{
		{"db", "192.0.2.1 2001:db8::1", 2, nil},
		{"six", "2001:db8::6", 2, nil},
		{"text", "192.0.2.7", 6, nil},
		{"www.example.com", "192.0.2.8", 10, nil},
		{"www.example.com.", "192.0.2.8", 2, nil},
		{"missing", "", 10, nil},
		{"broken", "", 4, errNoAnswer},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := resolver{server: server, from: podOf(0).address, search: testSearch, timeout: long}
			got, err := r.lookup(c.name)
			if !errors.Is(err, c.err) || addressText(got) != c.want || r.queries != c.queries || r.again != 0 {
				t.Errorf("addresses %q, error %v, %d queries of which %d again; want %q, %v and %d", addressText(got), err, r.queries, r.again, c.want, c.err, c.queries)
			}
		})
	}
}

func TestLookupFromPod(t *testing.T) {
	var other atomic.Value
	server := serveDNS(t, func(w dns.ResponseWriter, r *dns.Msg) {
		if from := w.RemoteAddr().(*net.UDPAddr).IP; !from.Equal(podOf(3).address) {
			other.Store(from)
		}
		_ = zoneAnswer(nil, w, r) // the result has the error
	})
	r := resolver{server: server, from: podOf(3).address, timeout: time.Minute}
	if _, err := r.lookup("www.example.com"); err != nil || other.Load() != nil {
		t.Errorf("error %v; asked from %v", err, other.Load())
	}
}

// TestLookupSentAgain has lost queries: queries without an answer are sent again, those with one are not.
func TestLookupSentAgain(t *testing.T) {
	zone := records(t, "www.example.com. A 192.0.2.8", "www.example.com. AAAA 2001:db8::8")
	for _, c := range []struct {
		name    string
		lost    int64 // of the queries for AAAA, the first ones
		timeout time.Duration
		err     error
	}{
		{"once", 1, time.Second, nil},
		{"for good", 1000, 10 * time.Millisecond, errNoAnswer},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked atomic.Int64
			server := serveDNS(t, func(w dns.ResponseWriter, r *dns.Msg) {
				if r.Question[0].Qtype == dns.TypeAAAA && asked.Add(1) <= c.lost {
					return
				}
				_ = zoneAnswer(zone, w, r) // the result has the error
			})
			r := resolver{server: server, from: podOf(0).address, timeout: c.timeout}
			got, err := r.lookup("www.example.com")
			if !errors.Is(err, c.err) || r.again < 1 || r.queries != 2+r.again {
				t.Errorf("error %v, want %v; %d queries, of which %d again", err, c.err, r.queries, r.again)
			}
			if text := addressText(got); c.err == nil && text != "192.0.2.8 2001:db8::8" {
				t.Errorf("addresses %q", text)
			}
		})
	}
}

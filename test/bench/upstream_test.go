package main

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// packed returns a query in wire format.
func packed(t *testing.T, name string, qtype, class uint16) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.Question[0].Qclass = class
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestReadQuestion(t *testing.T) {
	query := packed(t, "n1.example.com.", dns.TypeA, dns.ClassINET)
	edited := func(at int, v byte) []byte {
		b := append([]byte(nil), query...)
		b[at] = v
		return b
	}
	long := append(append([]byte(nil), query[:headerSize]...), []byte(strings.Repeat("\x01a", 128)+"\x00\x00\x01\x00\x01")...)
	for _, c := range []struct {
		name  string
		query []byte
		owner string // nil, if it must be refused
	}{
		{"a name", query, "\x02n1\x07example\x03com\x00"},
		{"the root", packed(t, ".", dns.TypeNS, dns.ClassINET), "\x00"},
		{"nothing", nil, ""},
		{"a header alone", query[:headerSize], ""},
		{"without the class", query[:len(query)-2], ""},
		{"a name that ends early", query[:headerSize+4], ""},
		{"a response", edited(2, 0x81), ""},
		{"two questions", edited(5, 2), ""},
		{"a compressed name", edited(headerSize, 0xc0), ""},
		{"a name of 257 bytes", long, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			q, err := readQuestion(c.query)
			if (err == nil) != (c.owner != "") || string(q.owner) != c.owner {
				t.Errorf("owner name %q, error %v; want %q", q.owner, err, c.owner)
			}
		})
	}
}

func TestAppendAnswer(t *testing.T) {
	edns := new(dns.Msg).SetQuestion("n1.Example.com.", dns.TypeA).SetEdns0(1232, true)
	query, err := edns.Pack()
	if err != nil {
		t.Fatal(err)
	}
	q, err := readQuestion(query)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		data    []byte
		records int
	}{
		{"an address", []byte{192, 0, 2, 1}, 1},
		{"no data", nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var m dns.Msg
			if err := m.Unpack(appendAnswer([]byte("xx"), query, q, 60, c.data)[2:]); err != nil {
				t.Fatal(err)
			}
			if m.Id != edns.Id || !m.Response || !m.RecursionAvailable || !m.RecursionDesired || m.Rcode != dns.RcodeSuccess ||
				len(m.Question) != 1 || m.Question[0] != edns.Question[0] || len(m.Answer) != c.records || len(m.Ns)+len(m.Extra) > 0 {
				t.Fatalf("answer %s", &m)
			}
			if c.records == 0 {
				return
			}
			if got := m.Answer[0].String(); got != "n1.Example.com.\t60\tIN\tA\t192.0.2.1" {
				t.Errorf("record %q", got)
			}
		})
	}
}

func TestCounts(t *testing.T) {
	for _, c := range []struct {
		text string
		want upstreamCounts
		bad  bool
	}{
		{"open 2 max 500 queries 8000", upstreamCounts{2, 500, 8000}, false},
		{upstreamCounts{open: 1}.String(), upstreamCounts{open: 1}, false},
		{"open 2", upstreamCounts{open: 2}, true},
		{"", upstreamCounts{}, true},
	} {
		t.Run(c.text, func(t *testing.T) {
			got, err := parseCounts(c.text)
			if got != c.want || (err != nil) != c.bad {
				t.Errorf("%+v, error %v; want %+v, error: %v", got, err, c.want, c.bad)
			}
		})
	}
}

// TestJudgeAddress has answers to other questions, with the right number of records.
func TestJudgeAddress(t *testing.T) {
	l, err := freshNames(t.TempDir(), "test", 2)
	if err != nil {
		t.Fatal(err)
	}
	c := checker{server: &server{name: nameCoreDNS}}
	query := l.packets[0]
	q, err := readQuestion(query.bytes)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"", "want the address"} {
		t.Run("answer "+l.packets[i].address.String(), func(t *testing.T) {
			err := c.judge(query, appendAnswer(nil, query.bytes, q, 60, l.packets[i].address))
			if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("error %v, want %q in it", err, want)
			}
		})
	}
}

func TestAnswerTo(t *testing.T) {
	const soa = "\t30\tIN\tSOA\tZONE ZONE 1 7200 1800 86400 30"
	for _, c := range []struct {
		name   string
		qtype  uint16
		rcode  int
		answer string // data of a record
		zone   string // zone of the SOA record
	}{
		{"n0.example.com.", dns.TypeA, dns.RcodeSuccess, "A\t232.43.105.176", ""},
		{"n0.example.com.", dns.TypeAAAA, dns.RcodeSuccess, "AAAA\t2001:db8::e82b:69b0", ""},
		{"n0.example.com.", dns.TypeHINFO, dns.RcodeSuccess, "", "example.com."},
		{"n1.example.com.", dns.TypeA, dns.RcodeSuccess, "A\t185.255.4.101", ""},
		{"n1.example.com.", dns.TypeAAAA, dns.RcodeSuccess, "", "example.com."},
		{"example.com.", dns.TypeHINFO, dns.RcodeSuccess, "", "example.com."},
		{"com.", dns.TypeHINFO, dns.RcodeSuccess, "", "com."},
		{".", dns.TypeHINFO, dns.RcodeSuccess, "", "."},
		{"n0.example.com." + hostDomain, dns.TypeA, dns.RcodeNameError, "", hostDomain},
		{"n0.example.com." + hostDomain, dns.TypeAAAA, dns.RcodeNameError, "", hostDomain},
		{hostDomain, dns.TypeHINFO, dns.RcodeNameError, "", hostDomain},
		{"not" + hostDomain, dns.TypeHINFO, dns.RcodeSuccess, "", "not" + hostDomain},
	} {
		t.Run(c.name+" "+dns.TypeToString[c.qtype], func(t *testing.T) {
			query := packed(t, c.name, c.qtype, dns.ClassINET)
			q, err := readQuestion(query)
			if err != nil {
				t.Fatal(err)
			}
			var m dns.Msg
			if err := m.Unpack(answerTo([]byte("xx"), query, q)[2:]); err != nil {
				t.Fatal(err)
			}
			if m.Rcode != c.rcode || len(m.Question) != 1 || m.Question[0].Name != c.name || len(m.Extra) > 0 {
				t.Errorf("answer %s", &m)
			}
			var answer, authority []string
			if c.answer != "" {
				answer = []string{c.name + "\t3600\tIN\t" + c.answer}
			} else {
				authority = []string{c.zone + strings.ReplaceAll(soa, "ZONE", c.zone)}
			}
			if got := recordText(m.Answer); !slices.Equal(got, answer) {
				t.Errorf("answer section %q, want %q", got, answer)
			}
			if got := recordText(m.Ns); !slices.Equal(got, authority) {
				t.Errorf("authority section %q, want %q", got, authority)
			}
		})
	}
}

func recordText(records []dns.RR) (all []string) {
	for _, r := range records {
		all = append(all, r.String())
	}
	return all
}

// TestExternalAddresses compares the addresses that the load expects with the upstream server's.
func TestExternalAddresses(t *testing.T) {
	for _, name := range []string{"n0.example.com", "n1.example.com", "n2.example.com", "n3.example.com"} {
		var answered []netip.Addr
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			query := packed(t, dns.Fqdn(name), qtype, dns.ClassINET)
			q, err := readQuestion(query)
			if err != nil {
				t.Fatal(err)
			}
			var m dns.Msg
			if err := m.Unpack(answerTo(nil, query, q)); err != nil {
				t.Fatal(err)
			}
			found, err := addressesIn(m.Question[0], &m)
			if err != nil {
				t.Fatal(err)
			}
			answered = append(answered, found...)
		}
		if want, err := externalAddresses(name); err != nil || !slices.Equal(answered, want) {
			t.Errorf("%s has %v, and %v is expected, error %v", name, answered, want, err)
		}
	}
}

package dnssec

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/dnssec/keyfile"
	"github.com/nearside-dns/nearside/test/kit"
)

// newHandler returns the plugin for zones, before a plugin with a reply.
func newHandler(zones []string, keys []*key, reply *dns.Msg) *handler {
	next := plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		if reply == nil {
			return dns.RcodeServerFailure, errors.New("no reply")
		}
		return reply.Rcode, w.WriteMsg(reply)
	})
	return &handler{Next: next, zones: zones, signer: newSigner(keys, defaultCapacity)}
}

// newQuery returns a query, which requests signatures if do is set.
func newQuery(name string, qtype uint16, do bool) *dns.Msg {
	return new(dns.Msg).SetQuestion(name, qtype).SetEdns0(4096, do)
}

// exchange returns the reply to a query.
func exchange(t testing.TB, h plugin.Handler, query *dns.Msg) *dns.Msg {
	t.Helper()
	w := dnstest.NewRecorder(&test.ResponseWriter{})
	if _, err := h.ServeDNS(t.Context(), w, query); err != nil || w.Msg == nil {
		t.Fatalf("no reply: %v", err)
	}
	return w.Msg
}

// section returns records from their texts.
func section(t testing.TB, lines string) (all []dns.RR) {
	t.Helper()
	for line := range strings.Lines(lines) {
		rr, err := dns.NewRR(line)
		kit.Must(t, err)
		if rr != nil {
			all = append(all, rr)
		}
	}
	return all
}

// short returns a line for each record; of signatures the name, TTL, type, labels and signer.
func short(section []dns.RR) string {
	var lines []string
	for _, rr := range section {
		line := strings.Join(strings.Fields(rr.String()), " ")
		if s, ok := rr.(*dns.RRSIG); ok {
			line = strings.Join(strings.Fields(s.Hdr.String()), " ") + " " + dns.TypeToString[s.TypeCovered] + " " + string('0'+s.Labels) + " " + s.SignerName
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// verify checks all signatures of a section. It returns their number.
func verify(t testing.TB, keys []*key, section []dns.RR, now time.Time) (n int) {
	t.Helper()
	for _, rr := range section {
		s, ok := rr.(*dns.RRSIG)
		if !ok {
			continue
		}
		n++
		if !s.ValidityPeriod(now) {
			t.Errorf("%s is not valid now", s)
		}
		var rrset []dns.RR
		for _, other := range section {
			if h := other.Header(); strings.EqualFold(h.Name, s.Hdr.Name) && h.Rrtype == s.TypeCovered && h.Class == s.Hdr.Class {
				other = dns.Copy(other)
				other.Header().Name = s.Hdr.Name
				rrset = append(rrset, other)
			}
		}
		i := slices.IndexFunc(keys, func(k *key) bool { return k.tag == s.KeyTag })
		if i < 0 {
			t.Errorf("%s: no such key", s)
			continue
		}
		public := *keys[i].public
		public.Hdr.Name = s.SignerName
		if err := s.Verify(&public, rrset); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	return n
}

const (
	soa       = "example.org. 30 IN SOA ns.example.org. mail.example.org. 1 2 3 4 30"
	soaSigned = soa + "\nexample.org. 30 IN RRSIG SOA 2 example.org."
	types     = "A HINFO TXT AAAA LOC SRV CERT SSHFP RRSIG NSEC TLSA HIP OPENPGPKEY SPF"
)

var replies = []struct {
	name           string
	qname          string
	qtype          uint16
	rcode          int
	answer, ns     string // of the next plugin
	extra          string
	signed, signNS string // of the reply
	signExtra      string
	remains        bool // the reply is not signed
}{
	{
		name: "positive", qname: "a.example.org.", qtype: dns.TypeA,
		answer:    "a.example.org. 60 IN A 192.0.2.1\na.example.org. 60 IN A 192.0.2.2",
		ns:        "example.org. 90 IN NS ns.example.org.",
		extra:     "ns.example.org. 30 IN A 192.0.2.3",
		signed:    "a.example.org. 60 IN A 192.0.2.1\na.example.org. 60 IN A 192.0.2.2\na.example.org. 60 IN RRSIG A 3 example.org.",
		signNS:    "example.org. 90 IN NS ns.example.org.\nexample.org. 90 IN RRSIG NS 2 example.org.",
		signExtra: "ns.example.org. 30 IN A 192.0.2.3\nns.example.org. 30 IN RRSIG A 3 example.org.",
	}, {
		name: "case of the question", qname: "A.eXample.org.", qtype: dns.TypeA,
		answer: "A.eXample.org. 60 IN A 192.0.2.1",
		signed: "A.eXample.org. 60 IN A 192.0.2.1\nA.eXample.org. 60 IN RRSIG A 3 example.org.",
	}, {
		name: "wildcard itself", qname: "*.example.org.", qtype: dns.TypeA,
		answer: "*.example.org. 60 IN A 192.0.2.1",
		signed: "*.example.org. 60 IN A 192.0.2.1\n*.example.org. 60 IN RRSIG A 2 example.org.",
	}, {
		name: "alias in the zone", qname: "a.example.org.", qtype: dns.TypeA,
		answer: "a.example.org. 60 IN CNAME b.example.org.\nb.example.org. 30 IN A 192.0.2.1",
		signed: "a.example.org. 60 IN CNAME b.example.org.\nb.example.org. 30 IN A 192.0.2.1\na.example.org. 60 IN RRSIG CNAME 3 example.org.\nb.example.org. 30 IN RRSIG A 3 example.org.",
	}, {
		name: "alias to another zone", qname: "a.example.org.", qtype: dns.TypeA,
		answer: "a.example.org. 60 IN CNAME b.example.net.\nb.example.net. 30 IN A 192.0.2.1",
		signed: "a.example.org. 60 IN CNAME b.example.net.\nb.example.net. 30 IN A 192.0.2.1\na.example.org. 60 IN RRSIG CNAME 3 example.org.",
	}, {
		name: "alias to a zone below", qname: "a.example.org.", qtype: dns.TypeA,
		answer: "a.example.org. 60 IN CNAME b.sub.example.org.\nb.sub.example.org. 30 IN A 192.0.2.1",
		signed: "a.example.org. 60 IN CNAME b.sub.example.org.\nb.sub.example.org. 30 IN A 192.0.2.1\na.example.org. 60 IN RRSIG CNAME 3 example.org.\nb.sub.example.org. 30 IN RRSIG A 4 sub.example.org.",
	}, {
		name: "alias to a nonexistent name", qname: "a.example.org.", qtype: dns.TypeA, rcode: dns.RcodeNameError,
		answer: "a.example.org. 60 IN CNAME b.example.org.", ns: soa,
		signed: "a.example.org. 60 IN CNAME b.example.org.\na.example.org. 60 IN RRSIG CNAME 3 example.org.",
		signNS: soaSigned,
	}, {
		name: "nonexistent", qname: "No.example.org.", qtype: dns.TypeA, rcode: dns.RcodeNameError, ns: soa,
		signNS: soaSigned + "\nNo.example.org. 30 IN RRSIG NSEC 3 example.org.\nNo.example.org. 30 IN NSEC \\000.no.example.org. HINFO TXT AAAA LOC SRV CERT SSHFP RRSIG NSEC TLSA HIP OPENPGPKEY SPF",
	}, {
		name: "no data", qname: "a.example.org.", qtype: dns.TypeMX, ns: soa,
		signNS: soaSigned + "\na.example.org. 30 IN RRSIG NSEC 3 example.org.\na.example.org. 30 IN NSEC \\000.a.example.org. " + types,
	}, {
		name: "no data of the zone", qname: "example.org.", qtype: dns.TypeMX, ns: soa,
		signNS: soaSigned + "\nexample.org. 30 IN RRSIG NSEC 2 example.org.\nexample.org. 30 IN NSEC \\000.example.org. A NS SOA HINFO TXT AAAA LOC SRV CERT SSHFP RRSIG NSEC DNSKEY TLSA HIP OPENPGPKEY SPF",
	}, {
		name: "NSEC", qname: "a.example.org.", qtype: dns.TypeNSEC, ns: soa,
		signed: "a.example.org. 30 IN RRSIG NSEC 3 example.org.\na.example.org. 30 IN NSEC \\000.a.example.org. " + types,
	}, {
		name: "no DS", qname: "a.example.org.", qtype: dns.TypeDS, ns: soa,
		signNS: soaSigned + "\na.example.org. 30 IN RRSIG NSEC 3 example.org.\na.example.org. 30 IN NSEC \\000.a.example.org. A NS HINFO TXT AAAA LOC SRV CERT SSHFP RRSIG NSEC TLSA HIP OPENPGPKEY SPF",
	}, {
		name: "delegation", qname: "a.b.Cut.example.org.", qtype: dns.TypeA,
		ns: "Cut.example.org. 60 IN NS ns.cut.example.org.", extra: "ns.cut.example.org. 60 IN A 192.0.2.1",
		signNS:    "Cut.example.org. 60 IN NS ns.cut.example.org.\nCut.example.org. 60 IN RRSIG NSEC 3 example.org.\nCut.example.org. 60 IN NSEC cut\\000.example.org. A NS HINFO TXT AAAA LOC SRV CERT SSHFP RRSIG NSEC TLSA HIP OPENPGPKEY SPF",
		signExtra: "ns.cut.example.org. 60 IN A 192.0.2.1",
	}, {
		name: "signed delegation", qname: "a.cut.example.org.", qtype: dns.TypeA,
		ns:     "cut.example.org. 60 IN NS ns.example.net.\ncut.example.org. 30 IN DS 1 13 2 0000000000000000000000000000000000000000000000000000000000000000",
		signNS: "cut.example.org. 60 IN NS ns.example.net.\ncut.example.org. 30 IN DS 1 13 2 0000000000000000000000000000000000000000000000000000000000000000\ncut.example.org. 30 IN RRSIG DS 3 example.org.",
	}, {
		name: "failure", qname: "a.example.org.", qtype: dns.TypeA, rcode: dns.RcodeServerFailure,
	}, {
		name: "nonexistent without SOA", qname: "a.example.org.", qtype: dns.TypeA, rcode: dns.RcodeNameError, remains: true,
	}, {
		name: "denial that is signed", qname: "a.example.org.", qtype: dns.TypeA, rcode: dns.RcodeNameError, remains: true,
		ns: soa + "\na.example.org. 30 IN NSEC b.example.org. A",
	}, {
		name: "another zone", qname: "a.example.net.", qtype: dns.TypeA, answer: "a.example.net. 60 IN A 192.0.2.1", remains: true,
	}, {
		name: "transfer", qname: "example.org.", qtype: dns.TypeAXFR, answer: soa + "\nexample.org. 60 IN NS ns.example.org.\n" + soa, remains: true,
	}, {
		name: "record that cannot be packed", qname: "a.example.org.", qtype: dns.TypeANY, remains: true,
		answer: "a.example.org. 60 IN A 192.0.2.1\na.example.org. 60 IN SSHFP 1 1 zz",
	}, {
		name: "name without a next one", qname: longName, qtype: dns.TypeA, rcode: dns.RcodeNameError, ns: soa, remains: true,
	},
}

// longName has 255 octets, the maximum.
var longName = strings.Repeat(strings.Repeat("a", 48)+".", 4) + strings.Repeat("a", 45) + ".example.org."

// TestReplies signs replies of the next plugin, and sends them as they are to a client that does not request signatures.
func TestReplies(t *testing.T) {
	keys := []*key{newKey(t, "example.org.", keyfile.ZoneSigning, dns.ECDSAP256SHA256)}
	for _, tc := range replies {
		t.Run(tc.name, func(t *testing.T) {
			m := new(dns.Msg).SetQuestion(tc.qname, tc.qtype)
			m.Response, m.Rcode, m.RecursionAvailable = true, tc.rcode, true
			m.Answer, m.Ns, m.Extra = slices.Grow(section(t, tc.answer), 9), slices.Grow(section(t, tc.ns), 9), slices.Grow(section(t, tc.extra), 9)
			before := m.String()
			h := newHandler([]string{"example.org.", "sub.example.org."}, keys, m)
			if plain := exchange(t, h, newQuery(tc.qname, tc.qtype, false)); plain != m {
				t.Errorf("without the flag: %s", plain)
			}
			reply := exchange(t, h, newQuery(tc.qname, tc.qtype, true))
			if after := m.String(); after != before {
				t.Errorf("the reply of the next plugin was\n%s\nand is\n%s", before, after)
			}
			for _, s := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
				if free := s[len(s):cap(s)]; slices.ContainsFunc(free, func(rr dns.RR) bool { return rr != nil }) {
					t.Error("records were written behind a section of the next plugin")
				}
			}
			if tc.remains {
				if reply != m {
					t.Errorf("changed to\n%s", reply)
				}
				return
			}
			rcode := tc.rcode
			if rcode == dns.RcodeNameError && tc.answer == "" {
				rcode = dns.RcodeSuccess
			}
			if reply.Rcode != rcode || !reply.RecursionAvailable {
				t.Errorf("%s, want %s", dns.RcodeToString[reply.Rcode], dns.RcodeToString[rcode])
			}
			for _, s := range []struct {
				section string
				got     []dns.RR
				want    string
			}{{"answer", reply.Answer, tc.signed}, {"authority", reply.Ns, tc.signNS}, {"additional", reply.Extra, tc.signExtra}} {
				if got := short(s.got); got != s.want {
					t.Errorf("%s section\n%s\nwant\n%s", s.section, got, s.want)
				}
				verify(t, keys, s.got, time.Now())
			}
		})
	}
}

// TestSignedTwice signs a reply of the plugin again, as the reply to a lookup through the server: it has each signature once.
func TestSignedTwice(t *testing.T) {
	keys := []*key{newKey(t, "example.org.", keyfile.ZoneSigning, dns.ECDSAP256SHA256), newKey(t, "example.org.", keyfile.ZoneSigning, dns.ED25519)}
	m := new(dns.Msg).SetQuestion("a.example.org.", dns.TypeA)
	m.Response, m.Answer = true, section(t, "a.example.org. 60 IN CNAME b.example.org.\nb.example.org. 30 IN A 192.0.2.1")
	h := newHandler([]string{"example.org."}, keys, m)
	once := exchange(t, h, newQuery("a.example.org.", dns.TypeA, true))
	m.Answer = once.Answer
	twice := exchange(t, h, newQuery("a.example.org.", dns.TypeA, true))
	if n := verify(t, keys, twice.Answer, time.Now()); n != 4 || short(twice.Answer) != short(once.Answer) {
		t.Errorf("%d signatures:\n%s", n, short(twice.Answer))
	}
	m.Answer = m.Answer[:3]
	if n := verify(t, keys, exchange(t, h, newQuery("a.example.org.", dns.TypeA, true)).Answer, time.Now()); n != 4 {
		t.Errorf("%d signatures, of which the next plugin has one", n)
	}
}

// TestKeys has keys of one kind, which sign all RRsets, and of both.
func TestKeys(t *testing.T) {
	ksk, zsk := newKey(t, "example.org.", keyfile.KeySigning, dns.ECDSAP256SHA256), newKey(t, "org.", keyfile.ZoneSigning, dns.ED25519)
	second := newKey(t, "example.org.", keyfile.ZoneSigning, dns.RSASHA256)
	for _, tc := range []struct {
		name          string
		keys          []*key
		zone, address []*key // that sign the DNSKEY records and others
	}{
		{"zone-signing", []*key{zsk}, []*key{zsk}, []*key{zsk}},
		{"key-signing", []*key{ksk}, []*key{ksk}, []*key{ksk}},
		{"two of a kind", []*key{zsk, second}, []*key{zsk, second}, []*key{zsk, second}},
		{"both kinds", []*key{zsk, ksk, second}, []*key{ksk}, []*key{zsk, second}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := new(dns.Msg).SetQuestion("a.example.org.", dns.TypeA)
			m.Response, m.Answer = true, section(t, "a.example.org. 60 IN A 192.0.2.1")
			h := newHandler([]string{"example.org."}, tc.keys, m)
			check := func(reply *dns.Msg, want []*key) {
				t.Helper()
				var got []*key
				for _, rr := range reply.Answer {
					if s, ok := rr.(*dns.RRSIG); ok {
						got = append(got, tc.keys[slices.IndexFunc(tc.keys, func(k *key) bool { return k.tag == s.KeyTag })])
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("signed by %d keys, want %d:\n%s", len(got), len(want), reply)
				}
				verify(t, tc.keys, reply.Answer, time.Now())
			}
			check(exchange(t, h, newQuery("A.example.org.", dns.TypeA, true)), tc.address)
			check(exchange(t, h, newQuery("EXAMPLE.org.", dns.TypeDNSKEY, true)), tc.zone)
			plain := exchange(t, h, newQuery("example.org.", dns.TypeDNSKEY, false))
			if !plain.Authoritative || len(plain.Answer) != len(tc.keys) {
				t.Errorf("keys: %s", plain)
			}
			for i, rr := range plain.Answer {
				want := *tc.keys[i].public
				want.Hdr.Name = "example.org."
				if !dns.IsDuplicate(rr, &want) || rr.Header().Ttl != 3600 {
					t.Errorf("key %s, want %s", rr, &want)
				}
			}
		})
	}
}

// TestPassed passes queries that the plugin does not answer, and replies in wire form.
func TestPassed(t *testing.T) {
	keys := []*key{newKey(t, "example.org.", keyfile.ZoneSigning, dns.ECDSAP256SHA256)}
	h := newHandler([]string{"example.org."}, keys, nil)
	for name, query := range map[string]*dns.Msg{
		"DNSKEY of a name in the zone": newQuery("a.example.org.", dns.TypeDNSKEY, true),
		"DNSKEY of another zone":       newQuery("example.net.", dns.TypeDNSKEY, true),
		"DNSKEY of another class":      {Question: []dns.Question{{Name: "example.org.", Qtype: dns.TypeDNSKEY, Qclass: dns.ClassCHAOS}}},
		"without a question":           {},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := h.ServeDNS(t.Context(), &test.ResponseWriter{}, query); err == nil || err.Error() != "no reply" {
				t.Errorf("error %v, want that of the next plugin", err)
			}
		})
	}
	t.Run("wire form", func(t *testing.T) {
		m := new(dns.Msg).SetQuestion("a.example.org.", dns.TypeA)
		m.Response, m.Answer = true, section(t, "a.example.org. 60 IN A 192.0.2.1")
		packed := kit.Pack(t, m)
		h.Next = plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, _ *dns.Msg) (int, error) {
			if n, err := w.Write(packed); n != len(packed) || err != nil {
				t.Errorf("written: %d, %v", n, err)
			}
			_, err := w.Write(packed[:5])
			return dns.RcodeSuccess, err
		})
		w := dnstest.NewRecorder(&test.ResponseWriter{})
		if _, err := h.ServeDNS(t.Context(), w, newQuery("a.example.org.", dns.TypeA, true)); err == nil {
			t.Error("half a message was written")
		}
		if n := verify(t, keys, w.Msg.Answer, time.Now()); n != 1 {
			t.Errorf("%d signatures", n)
		}
	})
}

package dnssec

import (
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/dnssec/keyfile"
)

// FuzzReply signs any reply of the next plugin: it keeps its records, can be packed, and all of its new signatures are valid.
func FuzzReply(f *testing.F) {
	for _, tc := range replies {
		m := new(dns.Msg).SetQuestion(tc.qname, tc.qtype)
		m.Rcode, m.Answer, m.Ns, m.Extra = tc.rcode, section(f, tc.answer), section(f, tc.ns), section(f, tc.extra)
		if packed, err := m.Pack(); err == nil {
			f.Add(packed)
		}
	}
	keys := []*key{newKey(f, ".", keyfile.ZoneSigning, dns.ED25519), newKey(f, ".", keyfile.KeySigning, dns.ED25519)}
	h := newHandler([]string{".", "example.org.", "b.example.org."}, keys, nil)
	f.Fuzz(func(t *testing.T, packed []byte) {
		m := new(dns.Msg)
		if err := m.Unpack(packed); err != nil || len(m.Question) == 0 {
			return
		}
		for _, rr := range slices.Concat(m.Answer, m.Ns, m.Extra) {
			if h := rr.Header(); h.Class != dns.ClassINET && h.Rrtype != dns.TypeOPT {
				return // plugins answer queries of the class IN, which are signed, with records of that class
			}
		}
		signed := (&writer{handler: h, server: "fuzz"}).sign(m)
		if _, err := m.Pack(); err == nil {
			if _, err := signed.Pack(); err != nil {
				t.Errorf("pack: %v", err)
			}
		}
		denied := m.Question[0].Qtype == dns.TypeNSEC && len(m.Answer) == 0 && len(m.Ns) == 1 // the SOA record is not sent
		for _, s := range []struct{ old, now []dns.RR }{{m.Answer, signed.Answer}, {m.Ns, signed.Ns}, {m.Extra, signed.Extra}} {
			if !denied && !slices.Equal(s.old, s.now[:min(len(s.old), len(s.now))]) {
				t.Errorf("%s\nwas\n%s", s.now, s.old)
			}
			if !slices.ContainsFunc(s.old, func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeRRSIG }) {
				verify(t, keys, s.now, time.Now())
			}
		}
	})
}

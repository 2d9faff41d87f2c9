package store

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/miekg/dns"
)

// oddReply returns a packed reply with a readable record on either side of one with any type and data, and an OPT record with options.
func oddReply(t testing.TB, rrtype uint16, data, options []byte) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion("www.example.org.", rrtype)
	m.Response, m.Compress = true, true
	a := &dns.A{Hdr: dns.RR_Header{Name: "www.example.org.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: []byte{192, 0, 2, 1}}
	odd := &dns.RFC3597{Hdr: dns.RR_Header{Name: "www.example.org.", Rrtype: rrtype, Class: dns.ClassINET, Ttl: 60}, Rdata: hex.EncodeToString(data)}
	m.Answer, m.Ns = []dns.RR{a, odd, a}, []dns.RR{a}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	b[11] = 1
	b = append(b, 0, 0, byte(dns.TypeOPT), 4, 208, 0, 0, 0, 0, 0, byte(len(options)))
	return append(b, options...)
}

// oddData are data that package dns refuses.
var oddData = []struct {
	name   string
	rrtype uint16
	data   []byte
	opaque bool
}{
	{"HTTPS, a hint of 3 bytes", dns.TypeHTTPS, []byte("\x00\x01\x00\x00\x04\x00\x03\xc0\x00\x02"), true},
	{"HTTPS, keys in the wrong order", dns.TypeHTTPS, []byte("\x00\x01\x00\x00\x04\x00\x04\xc0\x00\x02\x01\x00\x01\x00\x03\x02h2"), true},
	{"SVCB with a target beyond its end", dns.TypeSVCB, []byte("\x00\x01\x05one"), true},
	{"CAA with a tag beyond its end", dns.TypeCAA, []byte("\x00\x09issue"), true},
	{"TXT with a string beyond its end", dns.TypeTXT, []byte("\x05one"), true},
	{"LOC of 17 bytes", dns.TypeLOC, make([]byte, 17), true},
	{"an address of 3 bytes", dns.TypeA, []byte{192, 0, 2}, false},
	{"an alias with a compression pointer to itself", dns.TypeCNAME, []byte("\xc0\x3f"), false},
	{"an SOA with a byte behind its end", dns.TypeSOA, make([]byte, 2+20+1), false},
}

// TestUnpackKeepsUnreadableData: records whose data package dns cannot read keep their bytes, and so do the records beside them.
func TestUnpackKeepsUnreadableData(t *testing.T) {
	for _, c := range oddData {
		t.Run(c.name, func(t *testing.T) {
			b := oddReply(t, c.rrtype, c.data, nil)
			if new(dns.Msg).Unpack(b) == nil {
				t.Fatal("package dns accepts it")
			}
			m, err := Unpack(b)
			if !c.opaque {
				if err == nil {
					t.Errorf("accepted: %v", m)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			m.Compress = true
			if again, err := m.Pack(); err != nil || !bytes.Equal(again, b) {
				t.Errorf("packed as %x (%v), want %x", again, err, b)
			}
		})
	}
}

// TestUnpackDropsUnreadableOptions: options of an OPT record are between two servers, and the client can do without them.
func TestUnpackDropsUnreadableOptions(t *testing.T) {
	b := oddReply(t, dns.TypeA, []byte{192, 0, 2, 2}, []byte{0, dns.EDNS0SUBNET, 0, 4, 0, 9, 1, 2})
	if new(dns.Msg).Unpack(b) == nil {
		t.Fatal("package dns accepts it")
	}
	m, err := Unpack(b)
	if err != nil || len(m.Answer) != 3 || m.IsEdns0() == nil || len(m.IsEdns0().Option) > 0 {
		t.Errorf("%v, error %v", m, err)
	}
}

// FuzzUnpack asserts that Unpack accepts what package dns accepts, and that packing and unpacking does not change opaque records.
func FuzzUnpack(f *testing.F) {
	for _, c := range oddData {
		f.Add(oddReply(f, c.rrtype, c.data, nil))
		f.Add(oddReply(f, c.rrtype, c.data, []byte{0, 3, 0, 9}))
	}
	opaque := func(m *dns.Msg) (all []string) {
		for _, rr := range slices.Concat(m.Answer, m.Ns, m.Extra) {
			if _, is := rr.(*dns.RFC3597); is {
				all = append(all, rr.String())
			}
		}
		return all
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		want := new(dns.Msg)
		readable := want.Unpack(b) == nil
		m, err := Unpack(b)
		switch {
		case readable && (err != nil || m.String() != want.String()):
			t.Fatalf("%x is\n%v\n(%v), want\n%v", b, m, err, want)
		case readable || err != nil:
			return
		}
		packed, err := m.Pack()
		if err != nil {
			return // as for other messages that package dns unpacks
		}
		again, err := Unpack(packed)
		if err == nil && !slices.Equal(opaque(again), opaque(m)) { // package dns packs some records in a form that it refuses
			t.Errorf("%x is\n%v\nand after packing\n%v", b, m, again)
		}
	})
}

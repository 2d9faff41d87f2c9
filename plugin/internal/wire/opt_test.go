package wire

import (
	"bytes"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"
)

// TestOPT writes OPT records and reads the messages with package dns.
func TestOPT(t *testing.T) {
	query := new(dns.Msg).SetQuestion("a.test.", dns.TypeA)
	packed, err := query.Pack()
	kit.Must(t, err)
	local := AppendOption(nil, dns.EDNS0LOCALSTART, []byte("data"))
	begin := len(packed)
	added := AddOPT(bytes.Clone(packed), 1400)
	for _, option := range []bool{false, true} {
		b := bytes.Clone(added)
		if option {
			b = append(b, local...)
			EndOPT(b, begin)
		}
		var m dns.Msg
		if err := m.Unpack(b); err != nil {
			t.Fatalf("option %v: %v", option, err)
		}
		opt := m.IsEdns0()
		if opt == nil || opt.UDPSize() != 1400 || opt.Hdr.Ttl != 0 || (len(opt.Option) > 0) != option || !IsOPT(b[begin:]) || UDPSize(b[begin:]) != 1400 {
			t.Errorf("option %v: %v", option, &m)
		}
		if data, ok := MessageOption(b, dns.EDNS0LOCALSTART); ok != option || option && string(data) != "data" {
			t.Errorf("option %v: read %q, %v", option, data, ok)
		}
	}
	rr, _, err := dns.UnpackRR(AppendOPT(nil, 512, DO, local), 0)
	if opt, is := rr.(*dns.OPT); err != nil || !is || !opt.Do() || opt.UDPSize() != 512 || len(opt.Option) != 1 {
		t.Errorf("appended %v, %v", rr, err)
	}
	for _, b := range [][]byte{packed, packed[:HeaderLen-1], nil} {
		if _, ok := MessageOption(b, dns.EDNS0LOCALSTART); ok {
			t.Errorf("an option in %x", b)
		}
	}
	if IsOPT(added[begin:begin+OPTLen-1]) || IsOPT(added[begin-1:]) {
		t.Error("a part of an OPT record counts as one")
	}
}

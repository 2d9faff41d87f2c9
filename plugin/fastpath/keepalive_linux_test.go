package fastpath

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// FuzzWithoutKeepAlive compares the removal of edns-tcp-keepalive with package dns: the rest of the message is unchanged.
func FuzzWithoutKeepAlive(f *testing.F) {
	keepAlive, cookie := &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE}, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0102030405060708"}
	withTimeout := &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE, Timeout: 7}
	for _, options := range [][]dns.EDNS0{nil, {keepAlive}, {cookie, keepAlive}, {keepAlive, cookie, keepAlive}, {withTimeout}, {cookie}} {
		m := new(dns.Msg).SetQuestion("keep.example.", dns.TypeA).SetEdns0(1232, true)
		m.IsEdns0().Option = options
		b := kit.Pack(f, m)
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := new(dns.Msg)
		valid := before.Unpack(b) == nil
		original := slices.Clone(b)
		rest, found := withoutKeepAlive(b)
		if !found {
			if !bytes.Equal(rest, original) {
				t.Errorf("% x is changed to % x", original, rest)
			}
			return
		}
		if !valid {
			return // the server refuses it either way
		}
		after := new(dns.Msg)
		if err := after.Unpack(rest); err != nil {
			t.Fatalf("% x is changed to % x: %v", original, rest, err)
		}
		opt := before.IsEdns0()
		opt.Option = slices.DeleteFunc(opt.Option, func(o dns.EDNS0) bool {
			k, is := o.(*dns.EDNS0_TCP_KEEPALIVE)
			return is && k.Timeout == 0 && k.Length == 0
		})
		if got, want := after.String(), before.String(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// TestAddKeepAlive adds the option to replies of the plugin chain.
func TestAddKeepAlive(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*dns.Msg)
		added  bool
	}{
		"without EDNS": {func(*dns.Msg) {}, false},
		"with EDNS":    {func(m *dns.Msg) { m.SetEdns0(1232, false) }, true},
		"with an option": {func(m *dns.Msg) {
			m.SetEdns0(1232, true)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: 15}}
		}, true},
		"with a signature": {func(m *dns.Msg) {
			m.SetEdns0(1232, false).SetTsig("key.", dns.HmacSHA256, 300, 1)
		}, false},
		"too long": {func(m *dns.Msg) {
			for range 257 {
				m.Answer = append(m.Answer, &dns.TXT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeTXT, Class: 1}, Txt: []string{string(make([]byte, 243))}})
			}
			m.SetEdns0(1232, false)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := addressReply("keep.example.", 3)
			c.change(m)
			packed := kit.Pack(t, m)
			if c.added {
				opt := m.IsEdns0()
				opt.Option = append(opt.Option, &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE, Timeout: 100, Length: 2})
			}
			want := kit.Pack(t, m)
			if got := addKeepAlive(slices.Clip(slices.Clone(packed)), 10*time.Second); !bytes.Equal(got, want) {
				t.Errorf("got\n% x, want\n% x", got, want)
			}
		})
	}
	for i := range 60 {
		packed, _ := addressReply("keep.example.", 3).Pack()
		if i < len(packed) {
			packed = packed[:i] // must not panic
			addKeepAlive(slices.Clip(packed), time.Second)
		}
	}
}

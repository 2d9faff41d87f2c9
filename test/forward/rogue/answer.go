package rogue

import (
	"hash/fnv"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Address returns the address that a good server returns for a name, in any letter case. It is in 10.0.0.0/8; two
// different names share an address about once in 16 million.
func Address(name string) netip.Addr {
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.ToLower(dns.Fqdn(name)))) // it never fails
	sum := h.Sum32()
	sum ^= sum >> 24 << 8
	return netip.AddrFrom4([4]byte{10, byte(sum >> 16), byte(sum >> 8), byte(sum)})
}

// WrongAddress is the address in wrong replies that have records.
var WrongAddress = netip.AddrFrom4([4]byte{203, 0, 113, 66})

// messages returns the replies to a query, without the length prefix. The last one is the right answer, unless OnlyWrong
// omits it.
func (b Behaviour) messages(query *dns.Msg, tcp bool) ([][]byte, error) {
	var all [][]byte
	if b.Wrong != 0 && !b.Bare {
		base, err := b.reply(query, WrongAddress, tcp).Pack()
		if err != nil {
			return nil, err
		}
		all = b.Wrong.replies(base, tcp)
	}
	if b.OnlyWrong {
		return all, nil
	}
	right, err := b.reply(query, Address(query.Question[0].Name), tcp).Pack()
	return append(all, right), err
}

// reply returns the reply to a query.
func (b Behaviour) reply(query *dns.Msg, address netip.Addr, tcp bool) *dns.Msg {
	m := new(dns.Msg).SetRcode(query, b.Rcode)
	m.RecursionAvailable = true
	if b.Bare {
		m.Question = nil
		return m
	}
	b.addOptions(m, query, tcp)
	if b.Truncate && !tcp {
		m.Truncated = true
		return m
	}
	q := query.Question[0]
	if b.Rcode == dns.RcodeSuccess && !b.NoData && q.Qtype == dns.TypeA {
		m.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: b.ttl()},
			A:   net.IP(address.AsSlice()),
		}}
	}
	return m
}

func (b Behaviour) ttl() uint32 {
	if b.TTL == 0 {
		return 300
	}
	return b.TTL
}

// addOptions adds EDNS to the reply if the query has EDNS.
func (b Behaviour) addOptions(m, query *dns.Msg, tcp bool) {
	if query.IsEdns0() == nil {
		return
	}
	m.SetEdns0(1232, query.IsEdns0().Do())
	if tcp && b.Keepalive != nil {
		o := m.IsEdns0()
		o.Option = append(o.Option, keepaliveOption(*b.Keepalive))
	}
}

// keepaliveOption returns the option with a timeout in units of 100 ms.
func keepaliveOption(timeout uint16) dns.EDNS0 {
	return &dns.EDNS0_LOCAL{Code: dns.EDNS0TCPKEEPALIVE, Data: []byte{byte(timeout >> 8), byte(timeout)}}
}

// replies returns the wrong replies of the set, made from a reply that is right except for its address.
func (w Wrong) replies(base []byte, tcp bool) [][]byte {
	var all [][]byte
	for _, kind := range []Wrong{WrongID, WrongQuestion, WrongType, WrongDirection} {
		if w&kind != 0 {
			all = append(all, kind.patch(append([]byte(nil), base...)))
		}
	}
	if w&Empty != 0 {
		all = append(all, []byte{})
	}
	if w&Short != 0 {
		all = append(all, base[:3])
	}
	if w&Noise != 0 {
		all = append(all, noise(base, tcp))
	}
	return all
}

// Offsets in a message: of the flags, and of the first letter of the question's name.
const (
	flagsAt  = 2
	letterAt = 13
)

// patch makes one field of a reply wrong. The root has no letters: its type is changed instead.
func (w Wrong) patch(m []byte) []byte {
	end := letterAt - 1 // of the question's name, which is not compressed
	if m[end] == 0 && w == WrongQuestion {
		w = WrongType
	}
	for m[end] != 0 {
		end += int(m[end]) + 1
	}
	switch w {
	case WrongID:
		m[0] ^= byte(1 + rand.IntN(255))
	case WrongQuestion:
		m[letterAt] = 'a' + (m[letterAt]|0x20-'a'+1)%26
	case WrongType:
		m[end+2] ^= 16
	case WrongDirection:
		m[flagsAt] &^= 0x80
	}
	return m
}

// noise returns random bytes with the id of a message.
func noise(m []byte, tcp bool) []byte {
	length := 1000
	if tcp {
		length = 65535
	}
	block := noiseBlock()
	at := rand.IntN(len(block) - length)
	return append(m[:2:2], block[at+2:at+length]...)
}

// noiseBlock is twice the longest message, so that each reply takes its own part: random bytes made for each reply would
// take more CPU than all else that a load does.
var noiseBlock = sync.OnceValue(func() []byte {
	b := make([]byte, 2*65536)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
})

// wait returns the delay of the answer for a name.
func (b Behaviour) wait(name string) time.Duration {
	d := b.Delay
	if strings.HasPrefix(strings.ToLower(name), "slow") {
		d += b.Slow
	}
	if b.Shuffle > 0 {
		d += rand.N(b.Shuffle)
	}
	if chance(b.LateShare) {
		d += b.Late
	}
	return d
}

// chance returns true with a probability.
func chance(share float64) bool { return share > 0 && rand.Float64() < share }

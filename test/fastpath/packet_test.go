//go:build linux

package fastpath

import (
	"encoding/binary"

	"github.com/miekg/dns"
)

// record has the offsets of a resource record's parts in a message.
type record struct {
	rrtype         uint16
	ttl, data, end int
}

// records returns the records of a message up to the first error. It is a simple parser that shares no code with the
// code under test.
func records(m []byte) (all []record) {
	if len(m) < 12 {
		return nil
	}
	at := 12
	for range binary.BigEndian.Uint16(m[4:]) {
		if at = nameEnd(m, at) + 4; at > len(m) {
			return nil
		}
	}
	for _, count := range []int{6, 8, 10} {
		for range binary.BigEndian.Uint16(m[count:]) {
			at = nameEnd(m, at)
			if at+10 > len(m) {
				return all
			}
			r := record{rrtype: binary.BigEndian.Uint16(m[at:]), ttl: at + 4, data: at + 10}
			r.end = r.data + int(binary.BigEndian.Uint16(m[at+8:]))
			if r.end > len(m) {
				return all
			}
			all = append(all, r)
			at = r.end
		}
	}
	return all
}

// nameEnd returns where a name ends, or the end of the message.
func nameEnd(m []byte, at int) int {
	for at < len(m) {
		switch n := int(m[at]); {
		case n == 0:
			return at + 1
		case n >= 0xc0:
			return at + 2
		default:
			at += 1 + n
		}
	}
	return len(m)
}

// maskSerials sets the serial of every SOA record to 0: it depends on the time at which a program has loaded the
// manifests.
func maskSerials(m []byte) {
	for _, r := range records(m) {
		if r.rrtype == dns.TypeSOA && r.end-r.data >= 20 {
			clear(m[r.end-20 : r.end-16])
		}
	}
}

// matchTTLs copies the TTLs of one message into another where they differ by at most a number of seconds.
func matchTTLs(from, to []byte, apart uint32) {
	a, b := records(from), records(to)
	if len(a) != len(b) {
		return
	}
	for i := range a {
		x, y := binary.BigEndian.Uint32(from[a[i].ttl:]), binary.BigEndian.Uint32(to[b[i].ttl:])
		if a[i].rrtype != dns.TypeOPT && max(x, y)-min(x, y) <= apart {
			binary.BigEndian.PutUint32(to[b[i].ttl:], x)
		}
	}
}

// describe returns a message as text for a failure.
func describe(b []byte) string {
	if b == nil {
		return "nothing"
	}
	m := new(dns.Msg)
	if err := m.Unpack(b); err != nil {
		return err.Error()
	}
	return m.String()
}

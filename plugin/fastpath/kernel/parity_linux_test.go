//go:build amd64 || arm64

package kernel

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/property"
)

// TestParity compares the replies of the program to random queries with those of the store, byte for byte: it answers as plugin
// fastpath does, or passes the packet unchanged.
func TestParity(t *testing.T) {
	b := newBed(t)
	answered, passed := 0, map[string]int{}
	heard, silent := vouch.NewSession(validity.Now), vouch.NewSession(validity.Now)
	heard.Opened(validity.Now(), 0)
	property.Seeds(t, 0, 300, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 7))
		p := &parity{bed: b, T: t, Rand: r, sessions: []*vouch.Session{heard, silent}}
		heard.Opened(validity.Now(), 0)
		heard.Heard(0)
		names := make([]string, 1+r.IntN(4))
		for i := range names {
			names[i] = p.name(seed)
		}
		for _, name := range names {
			p.store(name)
		}
		for range 40 {
			q := p.query(names[r.IntN(len(names))])
			switch why := p.check(q); why {
			case "":
				answered++
			default:
				passed[why]++
			}
		}
		if t.Failed() {
			t.Logf("names %q", names)
		}
	})
	if !property.Fixed() {
		return
	}
	if answered < 1000 {
		t.Errorf("%d answers in the kernel", answered)
	}
	for _, why := range []string{"no entry", "too long", "letter case"} {
		if passed[why] == 0 {
			t.Errorf("no query was passed on for %q: %v", why, passed)
		}
	}
}

// parity is a random case of the test.
type parity struct {
	*testing.T
	*rand.Rand
	bed      *bed
	sessions []*vouch.Session
	shuffled map[string]bool
}

// name returns a name with 20 to 150 bytes in wire form.
func (p *parity) name(seed uint64) string {
	labels := []string{fmt.Sprintf("n%d-%d", seed, p.IntN(1<<30))}
	for range 1 + p.IntN(5) {
		labels = append(labels, strings.Repeat(string(rune('a'+p.IntN(26))), 1+p.IntN(25)))
	}
	return strings.Join(append(labels, "svc.cluster.local."), ".")
}

func (p *parity) chance(one int) bool { return p.IntN(one) == 0 }

// message returns a random reply for a name.
func (p *parity) message(name string, qtype uint16) *dns.Msg {
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.Response, m.Authoritative, m.RecursionAvailable, m.AuthenticatedData = true, p.chance(2), p.chance(2), p.chance(3)
	ttl := uint32(5 + p.IntN(3000)) // #nosec G115 -- positive
	owner := name
	header := func(rrtype uint16) dns.RR_Header {
		return dns.RR_Header{Name: owner, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
	}
	switch p.IntN(6) {
	case 0:
		m.Rcode = dns.RcodeNameError
		fallthrough
	case 1:
		owner = "cluster.local."
		m.Ns = append(m.Ns, &dns.SOA{Hdr: header(dns.TypeSOA), Ns: "ns.dns.cluster.local.", Mbox: "hostmaster.cluster.local.", Serial: 7, Minttl: ttl})
		return m
	case 2:
		target := "target." + name
		m.Answer = append(m.Answer, &dns.CNAME{Hdr: header(dns.TypeCNAME), Target: target})
		owner = target
	case 3:
		m.Answer = append(m.Answer, &dns.TXT{Hdr: header(dns.TypeTXT), Txt: []string{strings.Repeat("x", p.IntN(200))}})
		return m
	}
	for range 1 + p.IntN(30) {
		ttl = uint32(5 + p.IntN(3000)) // #nosec G115
		if qtype == dns.TypeAAAA {
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: header(dns.TypeAAAA), AAAA: net.IP(p.bytes(16))})
		} else {
			m.Answer = append(m.Answer, &dns.A{Hdr: header(dns.TypeA), A: net.IP(p.bytes(4))})
		}
	}
	return m
}

func (p *parity) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(p.Uint32())
	}
	b[0] = 0xfd
	return b
}

// store stores a random answer for a name.
func (p *parity) store(name string) {
	qtype := []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT}[p.IntN(3)]
	e := &store.Entry{AnyCase: !p.chance(3), FixedTTL: p.chance(5), Cached: true, Kind: store.Success}
	if p.chance(3) {
		e.Options = []byte{0, 15, 0, 2, 0, byte(p.IntN(20))}
	}
	kit.Must(p, e.Fill(p.message(name, qtype)))
	now := validity.Now()
	e.Stored = now - time.Duration(p.IntN(3000))*time.Millisecond
	e.Expires = now + time.Minute + time.Duration(p.IntN(1000))*time.Second
	if p.chance(3) {
		e.Voucher = p.sessions[p.IntN(2)].Voucher([]uint64{1, 2})
		if p.chance(3) {
			e.Limit = now + time.Duration(1+p.IntN(100))*time.Second
		}
	}
	if p.chance(3) {
		e.Popularity = &store.Popularity{Amount: 1, Gap: time.Second, From: e.Expires - time.Second}
	}
	if p.shuffled == nil {
		p.shuffled = map[string]bool{}
	}
	plain, compressed := e.Parts()
	shuffle := p.chance(3) && !plain.Glue && !plain.Ordered && !compressed.Ordered
	p.shuffled[name] = shuffle
	query := question(p.T, name, qtype, func(m *dns.Msg) {
		m.CheckingDisabled = p.chance(8)
		if p.chance(4) {
			m.SetEdns0(1232, true)
		}
	})
	if err := p.bed.put(query, e, shuffle); (err != nil) != p.isUnfit(len(name)+1, e) {
		p.Fatalf("copy %s: %v", name, err)
	}
}

// isUnfit reports whether an entry has no copy in the kernel: the question's name or all forms are too long.
func (p *parity) isUnfit(nameLen int, e *store.Entry) bool {
	plain, compressed := e.Parts()
	return nameLen > maxName || len(plain.Packed) > maxAnswer && (compressed.Packed == nil || len(compressed.Packed) > maxAnswer)
}

// query returns a random datagram with a query for a name.
func (p *parity) query(name string) *datagram {
	d := &datagram{from: netip.MustParseAddrPort("10.244.1.7:40000"), to: listener4, partial: p.chance(3), without: p.chance(8)}
	d.partial = d.partial && !d.without
	if p.chance(2) {
		d.from, d.to, d.without = netip.MustParseAddrPort("[fd00:10::7]:40001"), listener6, false
	}
	if p.chance(10) {
		name = "other." + name
	}
	if p.chance(4) {
		mixed := []byte(name)
		for i, c := range mixed {
			if c >= 'a' && c <= 'z' && p.chance(2) {
				mixed[i] = c - 'a' + 'A'
			}
		}
		name = string(mixed)
	}
	d.message = question(p.T, name, []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT}[p.IntN(3)], func(m *dns.Msg) {
		m.Id, m.RecursionDesired, m.AuthenticatedData, m.CheckingDisabled = uint16(p.Uint32()), !p.chance(4), p.chance(3), p.chance(8)
		if !p.chance(3) {
			m.SetEdns0([]uint16{100, 512, 700, 1232, 1400, 4096}[p.IntN(6)], p.chance(4))
		}
	})
	return d
}

// check runs the program on a query, and returns "" if it has answered, or else why it has not.
func (p *parity) check(d *datagram) string {
	before := validity.Now()
	frame := d.frame()
	result, out := p.bed.run(slices.Clone(frame))
	after := validity.Now()
	first, why := p.want(d, before)
	if result == passedOn {
		if !bytes.Equal(out, frame) {
			p.Fatalf("passed on\n%x as\n%x", frame, out)
		}
		if why == "" {
			p.Fatalf("%v passed on, want an answer in the kernel", d)
		}
		return why
	}
	if result != redirected {
		p.Fatalf("result %d", result)
	}
	got := p.bed.reply(d, out)
	if why != "" {
		p.Fatalf("answered %x, want it to be passed on: %s", got, why)
	}
	last, _ := p.want(d, after)
	if !p.same(d, got, first) && !p.same(d, got, last) {
		p.Fatalf("query %x of %v\ngot  %x\nwant %x", d.message, d.from, got, first)
	}
	return ""
}

// same compares messages, with the addresses in any order if they are in random order.
func (p *parity) same(d *datagram, got, want []byte) bool {
	if bytes.Equal(got, want) {
		return true
	}
	var q wire.Query
	q.Parse(d.message)
	name, _, _ := dns.UnpackDomainName(d.message, wire.HeaderLen)
	if !p.shuffled[strings.ToLower(name)] {
		return false
	}
	var a, b dns.Msg
	if a.Unpack(got) != nil || b.Unpack(want) != nil || len(got) != len(want) {
		return false
	}
	text := func(m *dns.Msg) string {
		var ttls, all []string
		for _, rr := range m.Answer { // TTLs are not exchanged with the addresses
			ttls = append(ttls, fmt.Sprint(rr.Header().Ttl))
			rr.Header().Ttl = 0
			all = append(all, rr.String())
		}
		slices.Sort(all)
		m.Answer = nil
		return m.String() + strings.Join(all, "\n") + strings.Join(ttls, " ")
	}
	return text(&a) == text(&b)
}

// want returns the reply of the store at a time, and why it is not in the kernel.
func (p *parity) want(d *datagram, now time.Duration) (reply []byte, why string) {
	var q wire.Query
	if !q.Parse(d.message) {
		return nil, "no query"
	}
	var buf [store.MaxKey]byte
	e := p.bed.store.Get(p.bed.keyspace.Key(buf[:0], d.message, &q))
	fragments := 1480
	if d.to.Addr().Is6() {
		fragments = 1220
	}
	switch {
	case e == nil:
		return nil, "no entry"
	case p.isUnfit(q.NameLen, e):
		return nil, "unfit"
	case !e.Fresh(now):
		return nil, "not fresh"
	case q.Upper && !e.AnyCase:
		return nil, "letter case"
	case d.ambiguous():
		return nil, "checksum"
	}
	patch := e.Patch(now)
	form := e.Form(&q, &patch, q.Limit(), fragments)
	if form == nil || form.ReplyLen(&q, &patch) > maxAnswer {
		return nil, "too long"
	}
	return form.AppendReply(nil, d.message, &q, &patch), ""
}

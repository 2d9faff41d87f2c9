//go:build amd64 || arm64

package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/property"
)

const web = "web.shop.svc.cluster.local."

// address returns an entry with an address for a name, whose TTL is an hour.
func address(t testing.TB, name string, change func(*store.Entry)) *store.Entry {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	m.Response = true
	m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 3600}, A: net.IPv4(10, 96, 0, 1)})
	e := &store.Entry{AnyCase: true, Cached: true, Stored: validity.Now()}
	e.Expires = e.Stored + time.Hour
	if change != nil {
		change(e)
	}
	kit.Must(t, e.Fill(m))
	return e
}

// from is a client of the tests.
var from = netip.MustParseAddrPort("10.244.1.7:40000")

// ask returns the result of a query for a name, over IPv4.
func (b *bed) ask(name string, change func(*dns.Msg)) uint32 {
	b.Helper()
	d := &datagram{from: from, to: listener4, message: question(b, name, dns.TypeA, change)}
	frame := d.frame()
	result, out := b.run(slices.Clone(frame))
	if result == passedOn && !bytes.Equal(out, frame) {
		b.Fatalf("passed on\n%x as\n%x", frame, out)
	}
	return result
}

// must stores an entry, which has a copy.
func (b *bed) must(name string, e *store.Entry) *store.Entry {
	b.Helper()
	kit.Must(b, b.put(question(b, name, dns.TypeA, nil), e, false))
	return e
}

// TestEnds has the reasons for which the kernel does not answer with a copy any more, from the next packet on.
func TestEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*store.Entry, *vouch.Session)
		end    func(*bed, *store.Entry, *vouch.Session)
	}{
		"removed":           {end: func(b *bed, e *store.Entry, _ *vouch.Session) { b.store.Remove(e) }},
		"replaced":          {end: func(b *bed, _ *store.Entry, _ *vouch.Session) { b.replace(address(b, web, nil)) }},
		"keyspace dropped":  {end: func(b *bed, _ *store.Entry, _ *vouch.Session) { b.keyspace.Drop() }},
		"evicted":           {end: func(b *bed, _ *store.Entry, _ *vouch.Session) { b.store.SetBudget(1) }},
		"no lease":          {end: func(b *bed, _ *store.Entry, _ *vouch.Session) { b.SetLease(b.numbers[listener4], time.Time{}) }},
		"lease expired":     {end: func(b *bed, _ *store.Entry, _ *vouch.Session) { b.SetLease(b.numbers[listener4], time.Now()) }},
		"listener replaced": {end: func(b *bed, _ *store.Entry, _ *vouch.Session) { b.Clear(b.numbers[listener4]) }},
		"TTL": {
			change: func(e *store.Entry, _ *vouch.Session) { e.Expires = validity.Now() + 300*time.Millisecond },
			end:    func(_ *bed, e *store.Entry, _ *vouch.Session) { time.Sleep(e.Expires - validity.Now()) },
		},
		"time of prefetch": {
			change: func(e *store.Entry, _ *vouch.Session) {
				e.Popularity = &store.Popularity{Amount: 1, Gap: time.Hour, From: validity.Now() + 300*time.Millisecond}
			},
			end: func(_ *bed, e *store.Entry, _ *vouch.Session) { time.Sleep(e.Popularity.From - validity.Now()) },
		},
		"invalidated by its session": {
			change: func(e *store.Entry, s *vouch.Session) { e.Voucher = s.Voucher([]uint64{7}) },
			end: func(_ *bed, _ *store.Entry, s *vouch.Session) {
				vouch.End(s.Invalidate([]uint64{7}))
			},
		},
		"session retired": {
			change: func(e *store.Entry, s *vouch.Session) { e.Voucher = s.Voucher([]uint64{7}) },
			end:    func(_ *bed, _ *store.Entry, s *vouch.Session) { s.Retire() },
		},
		"session closed, after the TTL": {
			change: func(e *store.Entry, s *vouch.Session) {
				e.Voucher, e.Stored, e.Expires = s.Voucher([]uint64{7}), 1, 2
			},
			end: func(_ *bed, _ *store.Entry, s *vouch.Session) { s.Close() },
		},
		"session silent, after the TTL": {
			change: func(e *store.Entry, s *vouch.Session) {
				e.Voucher, e.Stored, e.Expires = s.Voucher([]uint64{7}), 1, 2
			},
			end: func(_ *bed, _ *store.Entry, s *vouch.Session) {
				for s.Vouches(validity.Now()) {
					time.Sleep(10 * time.Millisecond)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			s := vouch.NewSession(validity.Now)
			s.Opened(validity.Now(), 0)
			s.Heard(0)
			e := b.must(web, address(t, web, func(e *store.Entry) {
				if tt.change != nil {
					tt.change(e, s)
				}
			}))
			if b.ask(web, nil) != redirected {
				t.Fatal("not answered in the kernel")
			}
			tt.end(b, e, s)
			if b.ask(web, nil) != passedOn {
				t.Error("answered in the kernel")
			}
			if got := b.waitCounted(1); got != 1 {
				t.Errorf("%d answers counted, want 1", got)
			}
		})
	}
}

// replace stores an entry without a copy.
func (b *bed) replace(e *store.Entry) {
	b.Helper()
	query := question(b, web, dns.TypeA, nil)
	var q wire.Query
	q.Parse(query)
	b.store.Put(b.keyspace, b.keyspace.Key(nil, query, &q), e)
}

// waitCounted returns the number of answers that were counted, after the next collection.
func (b *bed) waitCounted(atLeast uint64) uint64 {
	b.Helper()
	for end := time.Now().Add(10 * time.Second); b.counted.total() < atLeast && time.Now().Before(end); {
		time.Sleep(collectInterval / 10)
	}
	return b.counted.total()
}

// TestVouched answers after the TTL while the session is heard, with the configured TTL, and counts that.
func TestVouched(t *testing.T) {
	b := newBed(t)
	s := vouch.NewSession(validity.Now)
	opened := validity.Now()
	s.Opened(opened, 0)
	s.Heard(0)
	b.must(web, address(t, web, func(e *store.Entry) { e.Voucher, e.Stored, e.Expires = s.Voucher([]uint64{7}), 1, 2 }))
	for s.Vouches(validity.Now()) {
		time.Sleep(10 * time.Millisecond)
	}
	if b.ask(web, nil) != passedOn {
		t.Error("answered while the session is silent")
	}
	s.Heard(uint64((validity.Now() - opened).Microseconds())) // #nosec G115 -- positive
	if b.ask(web, nil) != redirected {
		t.Error("not answered although the session was heard")
	}
	if b.waitCounted(1) != 1 || !b.counted.all[0].Beyond {
		t.Errorf("counted %+v", b.counted.all)
	}
}

// TestCounts compares the numbers of answers with those of queries, by all properties.
func TestCounts(t *testing.T) {
	b := newBed(t)
	e := b.must(web, address(t, web, func(e *store.Entry) {
		e.Popularity = &store.Popularity{Amount: 1 << 40, Gap: time.Hour, From: 1 << 60}
	}))
	want := map[Answered]uint64{}
	r := rand.New(rand.NewPCG(1, 2))
	const n = 500
	for range n {
		a := Answered{EDNS: r.IntN(2) == 0, IPv6: r.IntN(2) == 0}
		want[a]++
		d := &datagram{from: from, to: listener4}
		if a.IPv6 {
			d.from, d.to = netip.MustParseAddrPort("[fd00:10::7]:40001"), listener6
		}
		d.message = question(t, web, dns.TypeA, func(m *dns.Msg) {
			if a.EDNS {
				m.SetEdns0(1232, false)
			}
		})
		if result, _ := b.run(d.frame()); result != redirected {
			t.Fatalf("result %d", result)
		}
	}
	b.waitCounted(n)
	got := map[Answered]uint64{}
	for _, a := range b.counted.all {
		if a.Took <= 0 || a.Took > time.Millisecond {
			t.Errorf("took %s", a.Took)
		}
		number := a.Number
		a.Number, a.Took = 0, 0
		got[a] += number
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("counted %v, want %v", got, want)
	}
	if s := b.Statistics(); s.Answered != n || s.Entries != 2 {
		t.Errorf("statistics %+v", s)
	}
	if !e.Popular() {
		t.Error("hits in the kernel do not make an entry popular")
	}
}

// TestPassed has queries to the listener that the program passes on, by reason, and other packets, which it does not count.
func TestPassed(t *testing.T) {
	b := newBed(t)
	b.must(web, address(t, web, func(e *store.Entry) { e.AnyCase = false }))
	option := func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0011223344556677"})
	}
	frame := func(change func(*datagram), mutate func([]byte)) []byte {
		d := &datagram{from: from, to: listener4, message: question(t, web, dns.TypeA, nil)}
		if change != nil {
			change(d)
		}
		f := d.frame()
		if mutate != nil {
			mutate(f)
		}
		return f
	}
	const ip, udp = etherLen, etherLen + 20
	header := func(f []byte) { // of IP, with its checksum
		f[ip+10], f[ip+11] = 0, 0
		sum := ^folded(0, f[ip:udp])
		f[ip+10], f[ip+11] = byte(sum>>8), byte(sum)
	}
	asks := func(name string, change func(*dns.Msg)) func(*datagram) {
		return func(d *datagram) { d.message = question(t, name, dns.TypeA, change) }
	}
	for name, tt := range map[string]struct {
		frame  []byte
		reason string
	}{
		"another name":            {frame(asks("other."+web, nil), nil), "no_entry"},
		"another type":            {frame(func(d *datagram) { d.message = question(t, web, dns.TypeTXT, nil) }, nil), "no_entry"},
		"checking disabled":       {frame(asks(web, func(m *dns.Msg) { m.CheckingDisabled = true }), nil), "no_entry"},
		"upper case":              {frame(asks("WEB.shop.svc.cluster.local.", nil), nil), "case"},
		"an option":               {frame(asks(web, option), nil), "query"},
		"EDNS version 1":          {frame(asks(web, func(m *dns.Msg) { m.SetEdns0(1232, false).IsEdns0().SetVersion(1) }), nil), "query"},
		"two questions":           {frame(asks(web, func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }), nil), "query"},
		"class CHAOS":             {frame(asks(web, func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }), nil), "query"},
		"opcode NOTIFY":           {frame(asks(web, func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }), nil), "query"},
		"a response":              {frame(asks(web, func(m *dns.Msg) { m.Response = true }), nil), "query"},
		"a bare header":           {frame(func(d *datagram) { d.message = d.message[:12] }, nil), "query"},
		"bytes behind":            {frame(func(d *datagram) { d.message = append(d.message, 0) }, nil), "query"},
		"a fragment":              {frame(nil, func(f []byte) { f[ip+6] = 0x20; header(f) }), "packet"},
		"the last fragment":       {frame(nil, func(f []byte) { f[ip+7] = 1; header(f) }), "packet"},
		"IP checksum":             {frame(nil, func(f []byte) { f[ip+10]++ }), "packet"},
		"UDP checksum":            {frame(nil, func(f []byte) { f[udp+6] ^= 0x55 }), "checksum"},
		"IP length":               {frame(nil, func(f []byte) { f[ip+3]--; header(f) }), "packet"},
		"UDP length":              {frame(nil, func(f []byte) { f[udp+5]-- }), "packet"},
		"source port 0":           {frame(func(d *datagram) { d.from = netip.AddrPortFrom(from.Addr(), 0) }, nil), "packet"},
		"multicast source":        {frame(func(d *datagram) { d.from = netip.MustParseAddrPort("224.0.0.1:40000") }, nil), "packet"},
		"IP options":              {frame(nil, func(f []byte) { f[ip] = 0x46; header(f) }), "packet"},
		"another address":         {frame(func(d *datagram) { d.to = netip.MustParseAddrPort("169.254.20.11:53") }, nil), ""},
		"another port":            {frame(func(d *datagram) { d.to = netip.MustParseAddrPort("169.254.20.10:54") }, nil), ""},
		"TCP":                     {frame(nil, func(f []byte) { f[ip+9] = 6; header(f) }), ""},
		"broadcast":               {frame(nil, func(f []byte) { copy(f, "\xff\xff\xff\xff\xff\xff") }), ""},
		"VLAN":                    {frame(nil, func(f []byte) { f[12], f[13] = 0x81, 0 }), ""},
		"ARP":                     {frame(nil, func(f []byte) { f[12], f[13] = 8, 6 }), ""},
		"a short frame":           {frame(nil, nil)[:etherLen+20], ""},
		"IPv6 in a frame of IPv4": {frame(nil, func(f []byte) { f[ip] = 0x65; header(f) }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := b.Statistics()
			result, out := b.run(slices.Clone(tt.frame))
			if result != passedOn || !bytes.Equal(out, tt.frame) {
				t.Fatalf("result %d, packet\n%x, want it to be passed on:\n%x", result, out, tt.frame)
			}
			for reason, n := range b.Statistics().Passed {
				if want := reason == tt.reason; n-before.Passed[reason] != map[bool]uint64{true: 1}[want] {
					t.Errorf("%s: %d more", reason, n-before.Passed[reason])
				}
			}
		})
	}
	if b.ask(web, nil) != redirected {
		t.Error("an ordinary query is not answered")
	}
}

// TestFlood offers many names that are queried once: the names that are queried again and again keep their copies.
func TestFlood(t *testing.T) {
	b := newBed(t)
	b.store.SetBudget(1 << 30)
	const popular = 100
	name := func(kind string, i int) string { return fmt.Sprintf("%s-%d.shop.svc.cluster.local.", kind, i) }
	for i := range popular {
		b.must(name("popular", i), address(t, name("popular", i), nil))
	}
	full := 0
	for i := range 3 * maxEntries {
		n := name("random", i)
		query := question(t, n, dns.TypeA, nil)
		if err := b.put(query, address(t, n, nil), false); errors.Is(err, errFull) {
			full++
		} else if err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			for i := range popular {
				if b.ask(name("popular", i), nil) != redirected {
					t.Fatalf("popular name %d is not answered: %+v", i, b.Statistics())
				}
			}
		}
	}
	if s := b.Statistics(); full == 0 || s.Entries > maxEntries {
		t.Errorf("%d entries, %d refused", s.Entries, full)
	}
}

// TestClients answers a name with the search list of the client, and ends that when the list changes.
func TestClients(t *testing.T) {
	b := newBed(t)
	lists := new(fixedLists)
	lists.list.Store(3)
	e := address(t, web, nil)
	query := question(t, web, dns.TypeA, nil)
	var q wire.Query
	q.Parse(query)
	key := b.keyspace.Key(make([]byte, 0, store.MaxKey), query, &q)
	b.store.Put(b.keyspace, key, e)
	o := Offer{
		Entry: e, Listener: b.numbers[listener4], Counter: &b.counted, Client: from.Addr(), Lists: lists,
		Question: Question{Name: store.KeyName(key), Type: dns.TypeA, List: 3},
	}
	b.mu.Lock()
	err := b.copy(&o, validity.Now())
	b.mu.Unlock()
	kit.Must(t, err)
	ask := func(client string) uint32 {
		d := &datagram{from: netip.AddrPortFrom(netip.MustParseAddr(client), 40000), to: listener4, message: query}
		result, _ := b.run(d.frame())
		return result
	}
	if ask("10.244.1.7") != redirected || ask("10.244.1.8") != passedOn {
		t.Error("the answer is not for the client with the list alone")
	}
	lists.list.Store(4)
	for end := time.Now().Add(10 * time.Second); ask("10.244.1.7") == redirected; time.Sleep(collectInterval / 10) {
		if time.Now().After(end) {
			t.Fatal("answered with the list that the client had")
		}
	}
}

// TestMutations changes bytes of packets: the program answers exactly those that a socket would receive as queries for the name.
func TestMutations(t *testing.T) {
	b := newBed(t)
	b.must(web, address(t, web, nil))
	answered, passed := 0, 0
	property.Seeds(t, 0, 20, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 3))
		for range 300 {
			d := &datagram{from: from, to: listener4, message: question(t, web, dns.TypeA, func(m *dns.Msg) {
				if r.IntN(2) == 0 {
					m.SetEdns0(1232, r.IntN(2) == 0)
				}
			})}
			if r.IntN(2) == 0 {
				d.from, d.to = netip.MustParseAddrPort("[fd00:10::7]:40001"), listener6
			}
			mutateMessage := r.IntN(2) == 0
			if mutateMessage {
				mutate(r, d.message)
			}
			frame := d.frame()
			if !mutateMessage {
				mutate(r, frame)
			}
			if b.judge(t, frame) {
				answered++
			} else {
				passed++
			}
		}
	})
	if property.Fixed() && (answered < 100 || passed < 1000) {
		t.Errorf("%d answered, %d passed on", answered, passed)
	}
}

// judge runs the program on a frame, and reports whether it was answered. It fails for a frame that passes with a change, and for an
// answer to a frame that no socket would receive.
func (b *bed) judge(t *testing.T, frame []byte) (answered bool) {
	t.Helper()
	result, out := b.run(slices.Clone(frame))
	switch {
	case result == passedOn && !bytes.Equal(out, frame):
		t.Fatalf("passed on\n%x as\n%x", frame, out)
	case result != passedOn && !receivable(frame):
		t.Fatalf("answered %x, which no socket would receive", frame)
	}
	return result != passedOn
}

// FuzzFrame runs the program on any frame.
func FuzzFrame(f *testing.F) {
	b := newBed(f)
	b.must(web, address(f, web, nil))
	for _, d := range []*datagram{
		{from: from, to: listener4, message: question(f, web, dns.TypeA, nil)},
		{from: from, to: listener4, partial: true, message: question(f, web, dns.TypeA, func(m *dns.Msg) { m.SetEdns0(1232, true) })},
		{from: netip.MustParseAddrPort("[fd00:10::7]:40001"), to: listener6, message: question(f, web, dns.TypeA, nil)},
	} {
		f.Add(d.frame())
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < etherLen+1 || len(frame) > 1500 {
			return
		}
		switch head := len(frame) - etherLen; binary.BigEndian.Uint16(frame[12:]) {
		case unix.ETH_P_IP:
			if head < 20 {
				return // the kernel runs no program on a shorter frame
			}
		case unix.ETH_P_IPV6:
			if head < 40 {
				return
			}
		}
		b.TB = t
		b.judge(t, frame)
	})
}

// mutate changes one to three bytes.
func mutate(r *rand.Rand, b []byte) {
	for range 1 + r.IntN(3) {
		b[r.IntN(len(b))] ^= byte(1 << r.IntN(8))
	}
}

// receivable reports whether a frame has a query for the name of the test in wire form, and valid lengths and checksums.
func receivable(f []byte) bool {
	head, address := etherLen+20, 4
	if f[12] == 0x86 {
		head, address = etherLen+40, 16
	}
	if len(f) < head+8+wire.HeaderLen {
		return false
	}
	if address == 4 && folded(0, f[etherLen:head]) != 0xffff {
		return false
	}
	source, _ := netip.AddrFromSlice(f[head-2*address : head-address])
	destination, _ := netip.AddrFromSlice(f[head-address : head])
	udp := f[head:]
	sum, field := folded(pseudoSum(source, destination, len(udp)), udp), uint16(udp[6])<<8|uint16(udp[7])
	valid := sum == 0xffff || field == folded(pseudoSum(source, destination, len(udp)), nil) || field == 0 && address == 4
	var q wire.Query
	m := udp[8:]
	if !valid || int(udp[4])<<8|int(udp[5]) != len(udp) || !q.Parse(m) || q.Type != dns.TypeA {
		return false
	}
	name, _, err := dns.UnpackDomainName(m, wire.HeaderLen)
	return err == nil && dns.CanonicalName(name) == web && (destination == listener4.Addr() || destination == listener6.Addr())
}

// fixedLists has one search list for all clients.
type fixedLists struct{ list atomic.Uint32 }

// ListOf implements Lists.
func (f *fixedLists) ListOf(netip.Addr) uint32 { return f.list.Load() }

// TestClose uses entries and sessions after the table was closed: neither refers to its memory any more.
func TestClose(t *testing.T) {
	b := newBed(t)
	s := vouch.NewSession(validity.Now)
	s.Opened(validity.Now(), 0)
	s.Heard(0)
	e := b.must(web, address(t, web, func(e *store.Entry) { e.Voucher = s.Voucher([]uint64{7}) }))
	if b.ask(web, nil) != redirected {
		t.Fatal("not answered in the kernel")
	}
	kit.Must(t, b.Close())
	b.closed = true
	if b.counted.total() != 1 {
		t.Errorf("%d answers counted, want 1", b.counted.total())
	}
	s.Heard(0)
	b.store.Remove(e)
	if n := b.store.Bytes(); n != 0 {
		t.Errorf("%d bytes of the store are in use", n)
	}
}

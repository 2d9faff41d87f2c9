package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

func TestPipelining(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 100, 2)
	all := b.sendAll(300, "n")
	first, second := b.accept(), b.accept()
	received := []map[string][]byte{first.queries(100), second.queries(100)}
	if received[0][all[0].name] == nil { // the handshakes are concurrent
		first, second = second, first
		slices.Reverse(received)
	}
	if n := b.waitingNow(); n != 100 {
		t.Errorf("%d calls wait, want 100", n)
	}
	if n := number(b.Metrics.InFlight); n != 200 {
		t.Errorf("%d in flight, want 200", n)
	}
	for i, s := range all[:200] {
		if received[i/100][s.name] == nil {
			t.Fatalf("call %d is not on connection %d", i, i/100)
		}
	}
	// Each answer makes room for the first waiting call.
	var later [][]byte
	order := rand.New(rand.NewPCG(1, 2)).Perm(100)
	for i, n := range order {
		s := all[n]
		first.respond(answer(received[0][s.name]))
		s.answered()
		q := first.query()
		if want := all[200+i]; nameOf(q) != want.name {
			t.Fatalf("after %d answers got %s, want %s", i+1, nameOf(q), want.name)
		}
		later = append(later, answer(q))
	}
	first.respond(later...)
	allAnswered(all[200:])
	for i := 199; i >= 100; i-- {
		second.respond(answer(received[1][all[i].name]))
	}
	allAnswered(all[100:200])
	for _, s := range all { // later answers do not overwrite them
		s.right()
	}
	if n := b.accepted.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
	if n := b.Metrics.dropped(); n != [4]int{} {
		t.Errorf("dropped %v", n)
	}
	if hits, misses := number(b.Metrics.Hits), number(b.Metrics.Misses); hits != 298 || misses != 2 {
		t.Errorf("%d hits and %d misses, want 298 and 2", hits, misses)
	}
}

func TestSecondConnectionOnlyWhenFull(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 3, 2)
	early := b.sendAll(3, "a")
	one := b.accept()
	received := one.queries(3)
	for _, s := range early {
		one.respond(answer(received[s.name]))
	}
	allAnswered(early)
	full := b.sendAll(3, "b")
	received = one.queries(3)
	if n := b.accepted.Load(); n != 1 {
		t.Fatalf("%d connections while the first had room", n)
	}
	more := b.send("more.example.")
	two := b.accept()
	two.respond(answer(two.query()))
	more.answered()
	for _, s := range full {
		one.respond(answer(received[s.name]))
	}
	allAnswered(full)
}

// Waiting calls are sent before new ones.
func TestWaitingFirst(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 2, 1)
	b.tick = time.Hour
	first, second := b.send("first.example."), b.send("second.example.")
	one := b.accept()
	one.queries(2)
	early := b.sendAll(3, "early")
	b.mu.Lock()
	b.MaxInFlight = 100 // as at the end of the serial class
	b.mu.Unlock()
	late := b.send("late.example.")
	for _, s := range append(early, late) {
		q := one.query()
		if nameOf(q) != s.name {
			t.Errorf("got %s, want %s", nameOf(q), s.name)
		}
		one.respond(answer(q))
	}
	allAnswered(append(early, late))
	b.Cancel(first.Call)
	b.Cancel(second.Call)
}

func TestBusy(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 2, 1)
	all := b.sendAll(2+maxWaiting, "n")
	one := b.accept()
	q := one.query()
	if err := b.send("more.example.").fails(); !errors.Is(err, ErrBusy) {
		t.Errorf("error %v, want ErrBusy", err)
	}
	one.respond(answer(q))
	all[0].answered()
	again := b.send("again.example.") // fills the queue again
	for _, s := range all[1:] {
		s.notDone()
		b.Cancel(s.Call)
	}
	again.notDone()
	b.Cancel(again.Call)
	if n := b.waitingNow(); n != 0 {
		t.Errorf("%d wait after they were cancelled", n)
	}
}

func TestNoQuery(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 1, 1)
	for name, query := range map[string][]byte{"nothing": nil, "a header": make([]byte, 12)} {
		s := newSent(t, "x.example.")
		s.Query = query
		s.sendTo(b)
		if err := s.fails(); !errors.Is(err, errQuery) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if b.dials.Load() != 0 {
		t.Error("a connection was made")
	}
}

// A connection without a free id gets no query.
func TestNoFreeID(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 65000, 1)
	first := b.send("first.example.")
	b.accept().query()
	b.mu.Lock()
	c := b.conns[0]
	for i := 0; len(c.byID) < 1<<16; i++ { // as after many queries, some of them cancelled
		if c.byID[uint16(i)] == nil {
			c.byID[uint16(i)] = &flight{id: uint16(i), conn: c}
			if i%5 > 0 {
				c.inFlight++
			}
		}
	}
	hasRoom := c.hasRoom(65000, 0)
	for i := range 1 << 16 {
		if f := c.byID[uint16(i)]; f.call == nil {
			delete(c.byID, uint16(i))
		}
	}
	c.inFlight = 1
	b.mu.Unlock()
	if hasRoom {
		t.Error("the connection gets a query without a free id")
	}
	b.Cancel(first.Call)
}

// A connection with very many ids reserved for missing answers is replaced.
func TestReservedIDs(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, serving(t, func(c *session) {
		for q := c.next(); q != nil; q = c.next() {
			if nameOf(q) != "never.example." {
				c.respond(answer(q))
			}
		}
	}), 1000, 1)
	for i := range maxReserved {
		b.Cancel(b.send("never.example.").Call)
		if i%500 == 0 {
			b.send("often.example.").answered()
		}
	}
	b.send("then.example.").answered()
	if n := b.accepted.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

// TestAnswerInAnotherCase: over TCP, where it is hard to forge, it is the answer, with the case of the query.
func TestAnswerInAnotherCase(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 10, 1)
	s := b.send("wWw.eXample.")
	one := b.accept()
	one.respond(edit(answer(one.query()), func(b []byte) { copy(b[wire.HeaderLen:], "\x03www\x07EXAMPLE") }))
	s.answered()
	if !s.CaseChanged || number(b.Metrics.Case) != 1 || b.Metrics.dropped() != [4]int{} {
		t.Errorf("case changed: %t, %d counted, %v dropped", s.CaseChanged, number(b.Metrics.Case), b.Metrics.dropped())
	}
}

func TestDroppedAnswers(t *testing.T) {
	for _, c := range []struct {
		name    string
		replies func(query []byte) [][]byte
		want    [4]int // id, question, case, malformed
	}{
		{"another id", func(q []byte) [][]byte {
			return [][]byte{edit(answer(q), func(b []byte) { setID(b, id(b)+1000) })}
		}, [4]int{1}},
		{"an id of long ago", func(q []byte) [][]byte {
			return [][]byte{edit(answer(q), func(b []byte) { setID(b, id(b)-1000) })}
		}, [4]int{1}},
		{"another question", func(q []byte) [][]byte {
			return [][]byte{edit(answer(q), func(b []byte) { b[13] = '-' })}
		}, [4]int{0, 1}},
		{"the query", func(q []byte) [][]byte { return [][]byte{q} }, [4]int{0, 0, 0, 1}},
		{"short ones", func(q []byte) (all [][]byte) {
			for n := range 12 {
				all = append(all, answer(q)[:n])
			}
			return all
		}, [4]int{0, 0, 0, 12}},
		{"the answer twice", func(q []byte) [][]byte { return [][]byte{answer(q), answer(q)} }, [4]int{1}},
		{"a refusal without a question", func(q []byte) [][]byte {
			return [][]byte{edit(rcodeOnly(dns.RcodeRefused), func(b []byte) { copy(b, q[:2]) })}
		}, [4]int{}},
		{"a header without an error", func(q []byte) [][]byte {
			return [][]byte{edit(rcodeOnly(0), func(b []byte) { copy(b, q[:2]) })}
		}, [4]int{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t, newServer(t), 10, 1)
			s := b.send("wrong.example.")
			one := b.accept()
			q := one.query()
			one.respond(c.replies(q)...)
			// The connection still works.
			other := b.send("other.example.")
			one.respond(answer(one.query()))
			other.answered()
			if got := b.Metrics.dropped(); got != c.want {
				t.Errorf("dropped %v, want %v", got, c.want)
			}
			switch {
			case c.name == "a refusal without a question":
				s.wait()
				if s.Err != nil || len(s.Reply) != 12 || id(s.Reply) != 0xabcd || s.Reply[3] != dns.RcodeRefused {
					t.Errorf("reply %x, error %v", s.Reply, s.Err)
				}
			case c.name != "the answer twice": // then the right one
				s.notDone()
				one.respond(answer(q))
				fallthrough
			default:
				s.answered()
			}
			if n := number(b.Metrics.Late); n != 0 {
				t.Errorf("%d late answers", n)
			}
		})
	}
}

// Frames may be split at any byte.
func TestPieces(t *testing.T) {
	for _, size := range []int{1, 2, 3, 13, 1000, 100000} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t, newServer(t), 1000, 1)
			all := b.sendAll(20, "n")
			one := b.accept()
			var stream []byte
			for _, q := range one.queries(20) {
				long := append(answer(q), make([]byte, rand.IntN(200))...)
				if size > 100 {
					long = append(answer(q), make([]byte, rand.IntN(maxMessage-len(q)))...)
				}
				stream = append(stream, frame(long)...)
			}
			for len(stream) > 0 {
				n := min(size, len(stream))
				kit.Send(t, one, stream[:n])
				stream = stream[n:]
			}
			for _, s := range all {
				s.wait()
				if s.Err != nil || nameOf(s.Reply) != s.name {
					t.Fatalf("%s: %v, %v", s.name, nameOf(s.Reply), s.Err)
				}
			}
		})
	}
}

func TestLongQueries(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, serving(t, echo), 1000, 2)
	var all []*sent
	for i := range 20 { // more bytes than one write
		s := newSent(t, letters(i)+".example.")
		s.Query = append(s.Query, make([]byte, maxMessage-len(s.Query))...)
		s.sendTo(b)
		all = append(all, s)
	}
	for _, s := range all {
		s.wait()
		if s.Err != nil || len(s.Reply) != maxMessage {
			t.Errorf("%d bytes, error %v", len(s.Reply), s.Err)
		}
	}
}

func TestFirstQueryHasKeepAlive(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 10, 1)
	ask := func() *sent {
		s := newSent(t, "www.example.")
		s.Query = withOPT(t)
		s.sendTo(b)
		return s
	}
	first, second := ask(), ask()
	one := b.accept()
	plain := len(withOPT(t))
	if n := len(one.query()); n != plain+4 {
		t.Errorf("the first query has %d bytes, want %d", n, plain+4)
	}
	if n := len(one.query()); n != plain {
		t.Errorf("the second query has %d bytes, want %d", n, plain)
	}
	b.Cancel(first.Call)
	b.Cancel(second.Call)
}

// withKeepAlive returns the answer to a query without an OPT record, with edns-tcp-keepalive in tenths of a second.
func withKeepAlive(query []byte, tenths uint16) []byte {
	return append(edit(answer(query), func(b []byte) { b[wire.ARCountAt+1]++ }),
		0, 0, wire.TypeOPT, 4, 208, 0, 0, 0, 0, 0, 6, 0, wire.OptionKeepAlive, 0, 2, byte(tenths>>8), byte(tenths))
}

func TestKeepAlive(t *testing.T) {
	t.Run("0", func(t *testing.T) {
		t.Parallel()
		b := newTestbed(t, newServer(t), 2, 1)
		b.tick = time.Hour
		first, second := b.send("first.example."), b.send("second.example.")
		third := b.send("third.example.") // waits
		one := b.accept()
		received := one.queries(2)
		one.respond(withKeepAlive(received[first.name], 0))
		first.wait()
		two := b.accept() // at once: the first connection is retired
		if q := two.query(); nameOf(q) != third.name {
			t.Fatalf("got %s", nameOf(q))
		} else {
			two.respond(answer(q))
		}
		third.answered()
		one.respond(answer(received[second.name]))
		second.answered()
		one.end()
	})
	for _, c := range []struct {
		name   string
		tenths uint16
		idle   time.Duration // limit of the idle time, with an expire of a minute
	}{
		{"a time", 100, 10 * time.Second},
		{"longer than expire", 36000, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t, serving(t, func(one *session) {
				for q := one.next(); q != nil && one.respond(withKeepAlive(q, c.tenths)); q = one.next() {
				}
			}), 2, 1)
			b.send("first.example.").wait()
			b.clock.skip(c.idle - time.Second)
			time.Sleep(20 * time.Millisecond) // for a check of the connections
			b.send("second.example.").wait()
			if n := b.accepted.Load(); n != 1 {
				t.Errorf("%d connections", n)
			}
			b.clock.skip(c.idle)
			becomes(t, "connections", b.Metrics.Connections, 0)
		})
	}
	t.Run("in the answer to a cancelled query", func(t *testing.T) {
		t.Parallel()
		b := newTestbed(t, newServer(t), 2, 1)
		s := b.send("first.example.")
		one := b.accept()
		q := one.query()
		b.Cancel(s.Call)
		one.respond(withKeepAlive(q, 0))
		one.end()
	})
}

// keepAliveOf agrees with package dns.
func FuzzKeepAliveOf(f *testing.F) {
	option := &dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE, Timeout: 300}
	cookie := &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"}
	f.Add(withOPT(f))
	f.Add(withOPT(f, option))
	f.Add(withOPT(f, cookie, option))
	f.Add(withKeepAlive(question(f, "www.example."), 7))
	full := new(dns.Msg)
	full.SetQuestion("www.example.", dns.TypeA)
	full.Compress = true
	for _, text := range []string{"www.example. 60 IN CNAME a.www.example.", "a.www.example. 60 IN A 192.0.2.1"} {
		rr, err := dns.NewRR(text)
		kit.Must(f, err)
		full.Answer, full.Ns = append(full.Answer, rr), append(full.Ns, rr)
	}
	full.SetEdns0(1232, true)
	full.IsEdns0().Option = []dns.EDNS0{option}
	b := kit.Pack(f, full)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < wire.HeaderLen {
			return
		}
		idle, ok := keepAliveOf(b)
		m := new(dns.Msg)
		if m.Unpack(b) != nil {
			return // it must not panic
		}
		var want time.Duration
		found := false
		for _, rr := range m.Extra {
			o, is := rr.(*dns.OPT)
			if !is {
				continue
			}
			for _, option := range o.Option {
				// Package dns accepts other lengths of this option than RFC 7828.
				if k, is := option.(*dns.EDNS0_TCP_KEEPALIVE); is && k.Timeout > 0 {
					want, found = time.Duration(k.Timeout)*100*time.Millisecond, true
				}
			}
			break
		}
		if found && (!ok || idle != want) && bytes.Count(b, keepAlive[:2]) == 1 {
			t.Errorf("%v, %v of %v", idle, ok, m)
		}
	})
}

func TestExpire(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 2, 1)
	s := b.send("first.example.")
	one := b.accept()
	q := one.query()
	b.clock.skip(2 * time.Minute) // the connection is not idle
	time.Sleep(20 * time.Millisecond)
	one.respond(answer(q))
	s.answered()
	b.clock.skip(59 * time.Second)
	s = b.send("second.example.")
	one.respond(answer(one.query()))
	s.answered()
	b.clock.skip(time.Minute)
	one.end()
	becomes(t, "connections", b.Metrics.Connections, 0)
	kit.Eventually(t, "the checks have ended", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return !b.ticking
	})
	s = b.send("third.example.")
	two := b.accept()
	two.respond(answer(two.query()))
	s.answered()
}

func TestMaxAge(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 10, 1)
	b.MaxAge = time.Second
	old := b.send("old.example.")
	one := b.accept()
	q := one.query()
	b.clock.skip(2 * time.Second)
	s := b.send("new.example.")
	two := b.accept()
	two.respond(answer(two.query()))
	s.answered()
	one.respond(answer(q))
	old.answered()
	one.end()
}

func TestMaxIdle(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 1, 5)
	b.MaxIdle = 2
	all := b.sendAll(5, "n")
	var sessions []*session
	for range 5 {
		sessions = append(sessions, b.accept())
	}
	for _, one := range sessions {
		one.respond(answer(one.query()))
	}
	allAnswered(all)
	becomes(t, "connections", b.Metrics.Connections, 2)
	b.sendAll(2, "m")
	time.Sleep(10 * time.Millisecond)
	if n := b.accepted.Load(); n != 5 {
		t.Errorf("%d connections, want 5", n)
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 2, 2)
	all := b.sendAll(6, "n")
	one, two := b.accept(), b.accept()
	b.Pool.Close()
	go echo(one) // waiting calls are sent first
	go echo(two)
	allAnswered(all)
	b.wantClosed()
	if n := b.accepted.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
	late := b.send("late.example.")
	three := b.accept()
	three.respond(answer(three.query()))
	late.answered()
	three.end()
	b.wantClosed()
	cancelled := b.send("cancelled.example.")
	four := b.accept()
	four.query()
	b.Cancel(cancelled.Call)
	four.end()
}

// Data read from a lost connection has no effect.
func TestLostAfterClose(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 10, 1)
	s := b.send("n.example.")
	one := b.accept()
	one.query()
	b.Pool.Close()
	b.mu.Lock()
	c := b.conns[0]
	b.mu.Unlock()
	b.lost(c, syscall.EPIPE) // as after a failed write
	two := b.accept()
	two.respond(answer(two.query()))
	s.answered()
	two.end()
	one.end()
	c.receive(frame([]byte("something"))) // before the end was read
	b.wantClosed()
}

func TestCloseOfIdle(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 1, 2)
	s := b.send("n.example.")
	one := b.accept()
	one.respond(answer(one.query()))
	s.answered()
	b.Pool.Close()
	one.end()
	b.Pool.Close()
}

func TestAlone(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 10, 1)
	shared := b.send("shared.example.")
	one := b.accept()
	q := one.query()
	alone := newSent(t, "alone.example.")
	alone.Alone = true
	alone.sendTo(b)
	two := b.accept()
	other := b.send("other.example.")
	received := one.query()
	transfer := two.query()
	two.respond(answer(transfer), answer(transfer))
	alone.answered()
	two.end()
	one.respond(answer(received), answer(q))
	other.answered()
	shared.answered()
	// Cancelling closes the connection, even during the handshake.
	alone = newSent(t, "again.example.")
	alone.Alone = true
	alone.sendTo(b)
	b.Cancel(alone.Call)
	becomes(t, "connections", b.Metrics.Connections, 1)
	alone.notDone()
	// A lost one is not repeated.
	alone = newSent(t, "lost.example.")
	alone.Alone = true
	alone.sendTo(b)
	for {
		c := b.accept()
		kit.Must(t, c.SetReadDeadline(time.Now().Add(soon)))
		if q := c.next(); q != nil && nameOf(q) == alone.name { // the cancelled one may be accepted first
			c.close()
			break
		}
	}
	if err := alone.fails(); !errors.Is(err, errClosed) {
		t.Errorf("error %v", err)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 2, 1)
	b.tick = time.Hour
	first, second := b.send("first.example."), b.send("second.example.")
	third, fourth := b.send("third.example."), b.send("fourth.example.")
	one := b.accept()
	received := one.queries(2)
	b.Cancel(fourth.Call)
	b.Cancel(first.Call)
	b.Cancel(first.Call) // has no effect
	q := one.query()     // there is room
	if nameOf(q) != third.name {
		t.Fatalf("got %s, want %s", nameOf(q), third.name)
	}
	if n := number(b.Metrics.InFlight); n != 2 {
		t.Errorf("%d in flight, want 2", n)
	}
	b.mu.Lock()
	b.conns[0].nextID = id(received[first.name]) // the next id
	b.mu.Unlock()
	one.respond(answer(q))
	third.answered()
	fifth := b.send("fifth.example.")
	q = one.query()
	if got := id(q); got == id(received[first.name]) || got == id(received[second.name]) {
		t.Errorf("id %d is reused before its answer has arrived", got)
	}
	one.respond(answer(received[first.name]), answer(q), answer(received[second.name]))
	fifth.answered()
	second.answered()
	if n := number(b.Metrics.Late); n != 1 {
		t.Errorf("%d late answers, want 1", n)
	}
	if n := b.Metrics.dropped(); n != [4]int{} {
		t.Errorf("dropped %v", n)
	}
	first.notDone()
	fourth.notDone()
	b.mu.Lock()
	b.conns[0].nextID = id(received[first.name])
	b.mu.Unlock()
	sixth := b.send("sixth.example.")
	if q = one.query(); id(q) != id(received[first.name]) {
		t.Error("the id is not reused after its answer has arrived")
	}
	one.respond(answer(q))
	sixth.answered()
	b.Cancel(sixth.Call) // has returned
}

func TestElsewhere(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 10, 2)
	first := b.send("first.example.")
	one := b.accept()
	one.respond(answer(one.query()))
	first.answered()
	again := newSent(t, "again.example.")
	again.Elsewhere(first.Call)
	again.sendTo(b)
	two := b.accept()
	two.respond(answer(two.query()))
	again.answered()
}

// A call that avoids a connection uses it if no other can be opened.
func TestElsewhereUnavailable(t *testing.T) {
	for _, c := range []struct {
		name        string
		connections int
	}{{"full", 1}, {"refused", 2}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t, newServer(t), 10, c.connections)
			b.backoff, b.maxBackoff = time.Hour, time.Hour
			first := b.send("first.example.")
			one := b.accept()
			one.respond(answer(one.query()))
			first.answered()
			b.refuse()
			for _, name := range []string{"second.example.", "third.example."} {
				again := newSent(t, name)
				again.Elsewhere(first.Call)
				again.sendTo(b)
				one.respond(answer(one.query()))
				again.answered()
			}
		})
	}
}

func TestLate(t *testing.T) {
	t.Run("silent from the beginning", func(t *testing.T) {
		t.Parallel()
		b := newTestbed(t, newServer(t), 10, 1)
		s := b.send("first.example.")
		one := b.accept()
		q := one.query()
		if established, answers, held := b.State(s.Call); !established || answers || held {
			t.Errorf("established: %v, answers: %v, held: %v", established, answers, held)
		}
		b.Late(s.Call)
		other := b.send("other.example.")
		two := b.accept()
		two.respond(answer(two.query()))
		other.answered()
		one.respond(answer(q)) // is still accepted
		s.answered()
		one.end()
	})
	t.Run("silent later", func(t *testing.T) {
		t.Parallel()
		b := newTestbed(t, newServer(t), 2, 1)
		b.tick = time.Hour
		early := b.send("early.example.")
		one := b.accept()
		one.respond(answer(one.query()))
		early.answered()
		other := b.send("other.example.")
		one.query()
		s, waits := b.send("first.example."), b.send("waits.example.")
		one.query()
		b.Late(s.Call)
		two := b.accept() // for the waiting call
		if q := two.query(); nameOf(q) != waits.name {
			t.Fatalf("got %s", nameOf(q))
		} else {
			two.respond(answer(q))
		}
		waits.answered()
		b.Late(s.Call)
		b.Cancel(s.Call)
		b.Cancel(other.Call)
		one.end()
	})
	t.Run("delivers answers", func(t *testing.T) {
		t.Parallel()
		b := newTestbed(t, newServer(t), 10, 1)
		slow, fast := b.send("slow.example."), b.send("fast.example.")
		one := b.accept()
		received := one.queries(2)
		one.respond(answer(received[fast.name]))
		fast.answered()
		if established, answers, _ := b.State(slow.Call); !established || !answers {
			t.Errorf("established: %v, answers: %v", established, answers)
		}
		b.Late(slow.Call)
		other := b.send("other.example.")
		one.respond(answer(one.query()), answer(received[slow.name]))
		other.answered()
		slow.answered()
	})
	t.Run("during the handshake", func(t *testing.T) {
		t.Parallel()
		b := newTestbed(t, newServer(t), 10, 1)
		go1 := make(chan struct{})
		dial := b.Dial
		b.Dial = func(ctx context.Context) (net.Conn, error) {
			<-go1
			return dial(ctx)
		}
		s := b.send("first.example.")
		if established, answers, _ := b.State(s.Call); established || answers {
			t.Errorf("established: %v, answers: %v", established, answers)
		}
		b.Late(s.Call)
		other := b.send("other.example.")
		close(go1)
		one := b.accept()
		one.respond(answer(one.query()))
		one.respond(answer(one.query()))
		s.answered()
		other.answered()
	})
	t.Run("after the answer", func(t *testing.T) {
		t.Parallel()
		b := newTestbed(t, serving(t, echo), 10, 1)
		s := b.send("first.example.")
		s.answered()
		b.Late(s.Call)
		b.send("other.example.").answered()
		if n := b.accepted.Load(); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

func TestRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	b := newTestbed(t, s, 10, 2)
	b.backoff, b.maxBackoff = time.Minute, 4*time.Minute
	s.refuse()
	all := b.sendAll(1000, "n")
	for _, s := range all {
		if err := s.fails(); !errors.Is(err, syscall.ECONNREFUSED) || !refused(err) {
			t.Fatalf("error %v", err)
		}
	}
	if n := b.dials.Load(); n > 2 {
		t.Errorf("%d handshakes for 1000 calls", n)
	}
	failed := b.dials.Load()
	pause := time.Minute << (failed - 1)
	for i, want := range []time.Duration{pause, min(2*pause, 4*time.Minute), 4 * time.Minute, 4 * time.Minute} {
		b.clock.skip(want - 10*time.Second)
		if err := b.send("early.example.").fails(); !refused(err) {
			t.Errorf("error %v", err)
		}
		if n := b.dials.Load(); n != failed+int32(i) {
			t.Errorf("pause %d: %d handshakes, want %d", i, n, failed+int32(i))
		}
		b.clock.skip(20 * time.Second)
		if err := b.send("later.example.").fails(); !refused(err) {
			t.Errorf("error %v", err)
		}
		if n := b.dials.Load(); n != failed+int32(i)+1 {
			t.Errorf("after pause %d: %d handshakes, want %d", i, n, failed+int32(i)+1)
		}
	}
	s.again()
	b.clock.skip(5 * time.Minute)
	good := b.send("good.example.")
	one := b.accept()
	one.respond(answer(one.query()))
	good.answered()
	b.mu.Lock()
	if b.failures != 0 || !b.retryAt.IsZero() {
		t.Error("failures are not reset")
	}
	b.mu.Unlock()
}

// Waiting calls get a new connection when the pause after a failed handshake is over.
func TestWaitingAfterBackoff(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	b := newTestbed(t, s, 2, 2)
	b.backoff, b.maxBackoff = time.Hour, time.Hour
	all := b.sendAll(2, "n")
	b.accept().queries(2)
	s.refuse()
	waits := b.send("waits.example.")
	kit.Eventually(t, "the connection was refused", func() bool { return b.waitingNow() == 1 })
	s.again()
	b.clock.skip(time.Hour)
	two := b.accept()
	two.respond(answer(two.query()))
	waits.answered()
	b.Cancel(all[0].Call)
	b.Cancel(all[1].Call)
}

// A server that does not read does not block Send, and the unsent bytes are bounded.
func TestServerThatDoesNotRead(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 65000, 2)
	var all []*sent
	begin := time.Now()
	for i := range 3000 {
		s := newSent(t, letters(i)+".example.")
		s.Query = append(s.Query, make([]byte, 10000)...)
		started := time.Now()
		s.sendTo(b)
		if took := time.Since(started); took > 5*time.Second {
			t.Fatalf("Send took %v", took)
		}
		all = append(all, s)
	}
	unsent := func() (n int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, c := range b.conns {
			n += len(c.out)
		}
		return n
	}
	if n := unsent(); n > 2*(maxUnsent+10100) {
		t.Errorf("%d bytes wait to be written", n)
	}
	// After TCP_USER_TIMEOUT, which a busy machine may reach, a connection is replaced.
	if n := b.accepted.Load(); n > 2 && time.Since(begin) < time.Second {
		t.Errorf("%d connections", n)
	}
	for _, s := range all {
		b.Cancel(s.Call)
	}
	b.clock.skip(2 * time.Minute) // both are idle
	becomes(t, "connections", b.Metrics.Connections, 0)
	noneLeftOf(t, b)
}

// noneLeftOf waits until the pool has no connections.
func noneLeftOf(t *testing.T, b *testbed) {
	t.Helper()
	kit.Eventually(t, "no connection is left", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.conns)+len(b.retired) == 0
	})
}

// A write timeout ends the connection.
func TestWriteTime(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 65000, 1)
	first := b.send("first.example.")
	one := b.accept()
	one.respond(answer(one.query()))
	first.answered()
	for i := range 3000 {
		s := newSent(t, letters(i)+".example.")
		s.Query = append(s.Query, make([]byte, 10000)...)
		s.sendTo(b)
		defer b.Cancel(s.Call)
	}
	b.accept().close() // after the first is lost
}

// Each packet is counted once.
func TestPackets(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 10, 1)
	for i := range 20 {
		s := b.send(letters(i) + ".example.")
		if i == 0 {
			b.accept().s.t.Helper()
			b.guard.Lock()
			one := b.all[0]
			b.guard.Unlock()
			go echo(one)
		}
		s.answered()
	}
	b.Pool.Close()
	b.wantClosed()
	sent, received := number(b.Metrics.Sent), number(b.Metrics.Received)
	if sent < 20 || sent > 200 || received < 20 || received > 200 {
		t.Errorf("%d packets sent and %d received for 20 queries", sent, received)
	}
}

func TestRTT(t *testing.T) {
	t.Parallel()
	p := NewPool(Config{})
	if p.rtt != 0 {
		t.Errorf("%v before an answer", p.rtt)
	}
	for _, c := range []struct{ took, want time.Duration }{
		{80, 80}, {160, 90}, {90, 90}, {10, 80},
	} {
		p.observeRTT(c.took * time.Millisecond)
		if got := p.rtt; got != c.want*time.Millisecond {
			t.Errorf("%v after one of %v ms, want %v ms", got, int64(c.took), int64(c.want))
		}
	}
}

func TestFunc(t *testing.T) {
	t.Parallel()
	closed := false
	var ended atomic.Int32
	f := &Func{
		Exchange: func(ctx context.Context, query []byte) ([]byte, error) {
			switch nameOf(query) {
			case "unanswered.example.":
				<-ctx.Done()
				ended.Add(1)
				return nil, ctx.Err()
			case "fails.example.":
				return nil, io.EOF
			}
			return edit(answer(query), func(b []byte) { setID(b, 7) }), nil
		},
		Closed: func() { closed = true },
	}
	send(t, f, "works.example.").answered()
	if err := send(t, f, "fails.example.").fails(); !errors.Is(err, io.EOF) {
		t.Errorf("error %v", err)
	}
	cancelled := send(t, f, "unanswered.example.")
	f.Cancel(cancelled.Call)
	f.Late(cancelled.Call)
	late := newSent(t, "unanswered.example.")
	late.Deadline = time.Now().Add(10 * time.Millisecond)
	late.sendTo(f)
	if err := late.fails(); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	kit.Eventually(t, "no call is left", func() bool { return ended.Load() == 2 })
	cancelled.notDone()
	f.Close()
	if !closed {
		t.Error("Closed was not called")
	}
}

// A flush ends although the server reads nothing for a while: the writer writes the rest, and all queries are answered on
// the same connection.
func TestFlushBeforeServerReads(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	b := newTestbed(t, s, 1000, 2)
	warm := b.send("warm.example.")
	one := b.accept()
	one.respond(answer(one.query()))
	warm.answered()
	b.mu.Lock()
	b.stall, b.maxStall = time.Hour, time.Hour // no copies
	b.write = time.Hour                        // until the server reads
	for _, c := range b.conns {
		if err := c.c.(*net.TCPConn).SetWriteBuffer(4 << 10); err != nil {
			t.Error(err)
		}
	}
	b.mu.Unlock()
	kit.Must(t, one.SetReadBuffer(4<<10))
	var all []*sent
	for i := range 30 {
		all = append(all, b.sendAll(30, strings.Repeat(letters(i), 40)[:40])...)
	}
	b.ended.Go(func() { echo(one) })
	allAnswered(all)
	if n := b.accepted.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

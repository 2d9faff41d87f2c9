package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// packet is a query over UDP and its sender.
type packet struct {
	query []byte
	from  *net.UDPAddr
}

// udpServer listens on loopback. Tests read and write its packets.
type udpServer struct {
	*net.UDPConn
	t       testing.TB
	packets chan packet
}

func newUDPServer(t testing.TB) *udpServer {
	t.Helper()
	return udpServerAt(t, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
}

func udpServerAt(t testing.TB, at *net.UDPAddr) *udpServer {
	t.Helper()
	c, err := net.ListenUDP("udp", at)
	kit.Must(t, err)
	s := &udpServer{UDPConn: c, t: t, packets: make(chan packet, 4096)}
	var ended sync.WaitGroup
	ended.Go(func() {
		buf := make([]byte, maxMessage)
		for {
			n, from, err := c.ReadFromUDP(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil { // others are ICMP errors for earlier packets
				s.packets <- packet{slices.Clone(buf[:n]), from}
			}
		}
	})
	t.Cleanup(func() {
		_ = c.Close()
		ended.Wait()
	})
	return s
}

// next returns the next query.
func (s *udpServer) next() packet {
	s.t.Helper()
	select {
	case p := <-s.packets:
		return p
	case <-time.After(soon):
		s.t.Fatal("no query")
		return packet{}
	}
}

// respond writes packets to the sender of a query.
func (s *udpServer) respond(to packet, messages ...[]byte) {
	s.t.Helper()
	for _, m := range messages {
		if _, err := s.WriteToUDP(m, to.from); err != nil {
			s.t.Fatal(err)
		}
	}
}

func newDatagrams(t testing.TB, s *udpServer) *Datagrams {
	t.Helper()
	d := &Datagrams{Address: s.LocalAddr().String(), Expire: time.Minute, Metrics: newMetrics()}
	t.Cleanup(func() {
		d.Close()
		becomes(t, "sockets in the end", d.Metrics.Connections, 0)
		becomes(t, "queries on their way in the end", d.Metrics.InFlight, 0)
	})
	return d
}

// idleNow returns the number of idle sockets.
func (d *Datagrams) idleNow() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.idle)
}

func TestUDP(t *testing.T) {
	t.Parallel()
	s := newUDPServer(t)
	d := newDatagrams(t, s)
	ports, ids := map[int]bool{}, map[uint16]bool{}
	var all []*sent
	var received []packet
	for i := range 50 {
		all = append(all, send(t, d, letters(i)+".example."))
	}
	for range all {
		p := s.next()
		received = append(received, p)
		ports[p.from.Port], ids[id(p.query)] = true, true
	}
	if len(ports) != 50 || len(ids) < 45 {
		t.Errorf("%d ports and %d ids for 50 queries", len(ports), len(ids))
	}
	if n := number(d.Metrics.InFlight); n != 50 {
		t.Errorf("%d in flight", n)
	}
	slices.Reverse(received)
	for _, p := range received {
		s.respond(p, answer(p.query))
	}
	allAnswered(all)
	m := d.Metrics
	if got, want := []int{number(m.Sent), number(m.Received), number(m.Misses), number(m.Hits), number(m.Connections)}, []int{50, 50, 50, 0, 50}; !slices.Equal(got, want) {
		t.Errorf("packets sent and received, misses, hits, sockets: %v, want %v", got, want)
	}
	// The sockets alternate, and ids differ.
	var first []int
	same := 0
	for i := range 50 {
		one := send(t, d, letters(i)+".example.")
		p := s.next()
		if !ports[p.from.Port] || slices.Contains(first, p.from.Port) {
			t.Fatalf("port %d was used recently", p.from.Port)
		}
		first = append(first, p.from.Port)
		if ids[id(p.query)] {
			same++
		}
		s.respond(p, answer(p.query))
		one.answered()
		kit.Eventually(t, "the socket is idle", func() bool { return d.idleNow() == 50 })
	}
	for _, s := range all { // later answers do not overwrite them
		s.right()
	}
	if same > 5 {
		t.Errorf("%d ids are the same as before", same)
	}
	if n := number(m.Hits); n != 50 {
		t.Errorf("%d hits, want 50", n)
	}
}

func TestUDPDropsWrongAnswers(t *testing.T) {
	for _, c := range []struct {
		name  string
		wrong func(query []byte) [][]byte
		want  [4]int // id, question, case, malformed
	}{
		{"another id", func(q []byte) [][]byte { return [][]byte{edit(answer(q), func(b []byte) { b[0] ^= 1 })} }, [4]int{1}},
		{"another id and question", func(q []byte) [][]byte {
			return [][]byte{edit(answer(q), func(b []byte) { b[0] ^= 1; b[13] = '-' })}
		}, [4]int{1}},
		{"another question", func(q []byte) [][]byte { return [][]byte{edit(answer(q), func(b []byte) { b[13] = '-' })} }, [4]int{0, 1}},
		{"the query", func(q []byte) [][]byte { return [][]byte{q} }, [4]int{0, 0, 0, 1}},
		{"short ones", func(q []byte) (all [][]byte) {
			for n := range 12 {
				all = append(all, answer(q)[:n])
			}
			return all
		}, [4]int{0, 0, 0, 12}},
		{"many", func(q []byte) (all [][]byte) {
			for i := range maxGuesses - 1 {
				all = append(all, edit(answer(q), func(b []byte) { setID(b, id(b)+1+uint16(i)) }))
			}
			return all
		}, [4]int{maxGuesses - 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newUDPServer(t)
			d := newDatagrams(t, s)
			one := send(t, d, "www.example.")
			p := s.next()
			s.respond(p, c.wrong(p.query)...)
			kit.Eventually(t, "the wrong answers are dropped", func() bool { return d.Metrics.dropped() == c.want })
			one.notDone()
			s.respond(p, answer(p.query))
			one.answered()
			becomes(t, "sockets: the sender of a wrong answer may know the port", d.Metrics.Connections, 0)
		})
	}
}

// TestUDPAnswerInAnotherCase: the query is sent again from another port with its name in lower case, once, and the next answer is
// accepted in any case. A signed query is sent again unchanged.
func TestUDPAnswerInAnotherCase(t *testing.T) {
	for name, signed := range map[string]bool{"unsigned": false, "signed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newUDPServer(t)
			d := newDatagrams(t, s)
			one := newSent(t, "wWw.eXample.")
			one.Signed = signed
			one.sendTo(d)
			p := s.next()
			upper := func(b []byte) { copy(b[wire.HeaderLen:], "\x03WWW\x07EXAMPLE") }
			s.respond(p, edit(answer(p.query), upper))
			next := s.next()
			want := question(t, "www.example.")
			if signed {
				want = question(t, "wWw.eXample.")
			}
			if next.from.Port == p.from.Port || !bytes.Equal(next.query[2:], want[2:]) {
				t.Errorf("from port %d and %d: %q, want %q", p.from.Port, next.from.Port, next.query, want)
			}
			s.respond(next, edit(answer(next.query), upper))
			one.wait()
			got := string(one.Reply[wire.HeaderLen:one.question])
			if one.Err != nil || !one.CaseChanged || signed != strings.HasPrefix(got, "\x03WWW") {
				t.Errorf("error %v, case changed: %t, question %q", one.Err, one.CaseChanged, got)
			}
			if got := []int{number(d.Metrics.Case), number(d.Metrics.Dropped[WrongCase])}; !slices.Equal(got, []int{1, 1}) {
				t.Errorf("%v replies in another case and dropped ones are counted, want 1 and 1", got)
			}
		})
	}
}

// A duplicate of an answer arrives before the next query, which uses another port.
func TestUDPAnswersTwice(t *testing.T) {
	t.Parallel()
	s := newUDPServer(t)
	d := newDatagrams(t, s)
	one := send(t, d, "www.example.")
	p := s.next()
	s.respond(p, answer(p.query), answer(p.query))
	one.answered()
	kit.Eventually(t, "the socket is idle", func() bool { return d.idleNow() == 1 })
	kit.Eventually(t, "the second copy has arrived", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		answer, failed := d.idle[0].unread()
		return answer && !failed
	})
	other := send(t, d, "other.example.")
	next := s.next()
	if next.from.Port == p.from.Port {
		t.Error("the port that received an early answer is reused")
	}
	s.respond(next, answer(next.query))
	other.answered()
	m := d.Metrics
	if got, want := []int{number(m.Hits), number(m.Misses), number(m.Dropped[Early]), number(m.Connections)}, []int{0, 2, 1, 1}; !slices.Equal(got, want) {
		t.Errorf("hits, misses, answers before the query, sockets: %v, want %v", got, want)
	}
	if dropped := m.dropped(); dropped != [4]int{} {
		t.Errorf("%v answers were compared with the query and dropped", dropped)
	}
}

func TestUDPRefusalWithoutQuestion(t *testing.T) {
	t.Parallel()
	s := newUDPServer(t)
	d := newDatagrams(t, s)
	one := send(t, d, "www.example.")
	p := s.next()
	s.respond(p, edit(rcodeOnly(5), func(b []byte) { copy(b, p.query[:2]) }))
	one.wait()
	if one.Err != nil || len(one.Reply) != 12 || id(one.Reply) != 0xabcd {
		t.Errorf("reply %x, error %v", one.Reply, one.Err)
	}
}

func TestUDPRefused(t *testing.T) {
	t.Parallel()
	s := newUDPServer(t)
	d := newDatagrams(t, s)
	at := s.LocalAddr().(*net.UDPAddr)
	one := send(t, d, "first.example.")
	p := s.next()
	s.respond(p, answer(p.query))
	one.answered()
	kit.Eventually(t, "the socket is idle", func() bool { return d.idleNow() == 1 })
	kit.Must(t, s.Close())
	for range 3 {
		one = send(t, d, "www.example.")
		if err := one.fails(); !refused(err) || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("error %v", err)
		}
	}
	if n := d.idleNow(); n != 0 {
		t.Errorf("%d idle sockets have had errors", n)
	}
	if n := number(d.Metrics.Connections); n != 0 {
		t.Errorf("%d sockets", n)
	}
	s = udpServerAt(t, at)
	one = send(t, d, "again.example.")
	p = s.next()
	s.respond(p, answer(p.query))
	one.answered()
}

// An old error of a socket is not that of the next query.
func TestUDPStaleError(t *testing.T) {
	t.Parallel()
	s := newUDPServer(t)
	d := newDatagrams(t, s)
	at := s.LocalAddr().(*net.UDPAddr)
	one := send(t, d, "first.example.")
	p := s.next()
	s.respond(p, answer(p.query))
	one.answered()
	kit.Eventually(t, "the socket is idle", func() bool { return d.idleNow() == 1 })
	kit.Must(t, s.Close())
	d.mu.Lock()
	err := d.idle[0].write([]byte("something too late"))
	d.mu.Unlock()
	kit.Must(t, err)
	s = udpServerAt(t, at)
	one = send(t, d, "again.example.")
	next := s.next()
	if next.from.Port == p.from.Port {
		t.Skip("the kernel had forgotten the error")
	}
	s.respond(next, answer(next.query))
	one.answered()
	if hits, misses := number(d.Metrics.Hits), number(d.Metrics.Misses); hits != 0 || misses != 2 {
		t.Errorf("%d hits and %d misses, want 0 and 2", hits, misses)
	}
}

func TestUDPIdleSockets(t *testing.T) {
	burst := func(t *testing.T, s *udpServer, d *Datagrams, n int) {
		t.Helper()
		var all []*sent
		for i := range n {
			all = append(all, send(t, d, letters(i)+".example."))
		}
		var received []packet
		for range all {
			received = append(received, s.next())
		}
		for _, p := range received {
			s.respond(p, answer(p.query))
		}
		allAnswered(all)
	}
	for _, c := range []struct {
		name            string
		expire, maxAge  time.Duration
		maxIdle         int
		idle, idleAfter int
	}{
		{"idle", time.Minute, 0, 0, 10, 10},
		{"without expire", 0, 0, 0, 0, 0},
		{"few", time.Minute, 0, 3, 3, 3},
		{"closed after a time", 10 * time.Millisecond, 0, 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newUDPServer(t)
			d := newDatagrams(t, s)
			d.Expire, d.MaxAge, d.MaxIdle = c.expire, c.maxAge, c.maxIdle
			burst(t, s, d, 10)
			becomes(t, "sockets", d.Metrics.Connections, c.idle)
			becomes(t, "sockets later", d.Metrics.Connections, c.idleAfter)
		})
	}
	t.Run("many", func(t *testing.T) {
		t.Parallel()
		s := newUDPServer(t)
		d := newDatagrams(t, s)
		burst(t, s, d, maxIdleSockets+20)
		becomes(t, "sockets", d.Metrics.Connections, maxIdleSockets)
		d.Close()
		becomes(t, "sockets", d.Metrics.Connections, 0)
		burst(t, s, d, 2) // no socket becomes idle
		becomes(t, "sockets", d.Metrics.Connections, 0)
	})
	t.Run("old", func(t *testing.T) {
		t.Parallel()
		s := newUDPServer(t)
		d := newDatagrams(t, s)
		d.MaxAge = time.Nanosecond
		burst(t, s, d, 1)
		burst(t, s, d, 1)
		if n := number(d.Metrics.Misses); n != 2 {
			t.Errorf("%d misses, want 2", n)
		}
		becomes(t, "sockets", d.Metrics.Connections, 1)
	})
}

// The socket of an unanswered query is not reused: the answer may arrive late.
func TestUDPUnanswered(t *testing.T) {
	t.Parallel()
	s := newUDPServer(t)
	d := newDatagrams(t, s)
	one := newSent(t, "never.example.")
	one.Deadline = time.Now().Add(20 * time.Millisecond)
	one.sendTo(d)
	p := s.next()
	if err := one.fails(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	becomes(t, "sockets", d.Metrics.Connections, 0)
	cancelled := send(t, d, "cancelled.example.")
	q := s.next()
	d.Cancel(cancelled.Call)
	becomes(t, "sockets", d.Metrics.Connections, 0)
	becomes(t, "on their way", d.Metrics.InFlight, 0)
	cancelled.notDone()
	other := send(t, d, "other.example.")
	r := s.next()
	if r.from.Port == p.from.Port || r.from.Port == q.from.Port {
		t.Error("a socket is used again")
	}
	s.respond(r, answer(r.query))
	other.answered()
	d.Cancel(other.Call) // has returned
	d.Late(other.Call)
	other.notDone()
}

func TestUDPCancelBeforeSending(t *testing.T) {
	t.Parallel()
	s := newUDPServer(t)
	d := newDatagrams(t, s)
	for range 200 {
		one := send(t, d, "www.example.")
		d.Cancel(one.Call) // at any time
		one.notDone()
	}
	becomes(t, "sockets", d.Metrics.Connections, 0)
	becomes(t, "on their way", d.Metrics.InFlight, 0)
}

// Cancelling a call that has just been answered does not affect the next call on its socket.
func TestUDPCancelLeavesOthers(t *testing.T) {
	t.Parallel()
	s := newUDPServer(t)
	d := newDatagrams(t, s)
	var workers, server sync.WaitGroup
	stop := make(chan struct{})
	server.Go(func() {
		for {
			select {
			case p := <-s.packets:
				_, _ = s.WriteToUDP(answer(p.query), p.from)
			case <-stop:
				return
			}
		}
	})
	var failed atomic.Value
	for range 8 {
		workers.Go(func() {
			for i := range 1000 {
				one := newSent(t, "www.example.")
				one.sendTo(d)
				if i%2 == 0 {
					for s := 0; s < i%40; s++ {
						time.Sleep(0)
					}
					d.Cancel(one.Call)
					continue
				}
				<-one.done
				if one.Err != nil {
					failed.Store(one.Err)
				}
			}
		})
	}
	workers.Wait()
	if err := failed.Load(); err != nil {
		t.Errorf("a call failed: %v", err)
	}
	becomes(t, "on their way", d.Metrics.InFlight, 0)
	close(stop)
	server.Wait()
}

// After many wrong ids the query is sent from another port, since the attacker knows this one.
func TestUDPGuesses(t *testing.T) {
	t.Parallel()
	s := newUDPServer(t)
	d := newDatagrams(t, s)
	one := send(t, d, "www.example.")
	p := s.next()
	for i := range maxGuesses {
		s.respond(p, edit(answer(p.query), func(b []byte) { setID(b, id(b)+1+uint16(i)) }))
	}
	other := s.next()
	if other.from.String() == p.from.String() {
		t.Errorf("both queries from %s", p.from)
	}
	s.respond(p, answer(p.query)) // too late
	one.notDone()
	s.respond(other, answer(other.query))
	one.answered()
}

// An answer longer than the query allows counts as truncated.
func TestUDPLongAnswers(t *testing.T) {
	for _, c := range []struct {
		size      uint16 // of the query's OPT record
		length    int
		truncated bool
	}{{0, 513, false}, {0, 4096, false}, {0, 4097, true}, {0, 65000, true}, {4096, 4096, false}, {4097, 4097, false}, {8192, 8192, false}, {8192, 8193, true}, {65000, 65000, false}} {
		t.Run(fmt.Sprintf("%d of %d", c.length, c.size), func(t *testing.T) {
			t.Parallel()
			s := newUDPServer(t)
			d := newDatagrams(t, s)
			one := newSent(t, "long.example.")
			plain := len(one.Query)
			if c.size > 0 {
				one.Query = append(edit(one.Query, func(b []byte) { b[wire.ARCountAt+1]++ }), 0, 0, wire.TypeOPT, byte(c.size>>8), byte(c.size), 0, 0, 0, 0, 0, 0)
			}
			one.sendTo(d)
			p := s.next()
			long := answer(p.query)
			s.respond(p, append(long, make([]byte, c.length-len(long))...))
			one.wait()
			want := c.length
			if c.truncated {
				want = plain
			}
			if one.Err != nil || len(one.Reply) != want || id(one.Reply) != 0xabcd || (one.Reply[wire.FlagsAt]&wire.TC != 0) != c.truncated {
				t.Errorf("%d bytes, error %v", len(one.Reply), one.Err)
			}
		})
	}
}

func TestUDPErrors(t *testing.T) {
	t.Parallel()
	d := &Datagrams{Address: "127.0.0.1:53", Metrics: newMetrics()}
	one := newSent(t, "x.example.")
	one.Query = one.Query[:12]
	one.sendTo(d)
	if err := one.fails(); !errors.Is(err, errQuery) {
		t.Errorf("error %v", err)
	}
	d.Address = "no address"
	if err := send(t, d, "x.example.").fails(); err == nil || refused(err) {
		t.Errorf("error %v", err)
	}
	d.Address, d.Source = "127.0.0.1:53", net.ParseIP("192.0.2.1")
	if err := send(t, d, "x.example.").fails(); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("error %v", err)
	}
	if n := number(d.Metrics.Connections) + number(d.Metrics.InFlight); n != 0 {
		t.Errorf("gauges are %d, want 0", n)
	}
}

func TestDialer(t *testing.T) {
	source := net.IPv4(127, 0, 0, 9)
	for _, c := range []struct {
		network string
		source  net.IP
		want    string
	}{{"udp", source, "127.0.0.9"}, {"tcp", source, "127.0.0.9"}, {"udp", nil, "127.0.0.1"}, {"tcp", nil, "127.0.0.1"}} {
		t.Run(fmt.Sprint(c.network, " ", c.source), func(t *testing.T) {
			t.Parallel()
			address := newServer(t).l.Addr().String()
			if c.network == "udp" {
				address = newUDPServer(t).LocalAddr().String()
			}
			conn, err := Dialer(c.network, c.source).DialContext(context.Background(), c.network, address)
			kit.Must(t, err)
			if host, _, err := net.SplitHostPort(conn.LocalAddr().String()); err != nil || host != c.want {
				t.Errorf("from %s (%v), want %s", host, err, c.want)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

package transport

import (
	"errors"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// closing serves connections that end after a number of answers.
func closing(answers int, how func(*session)) func(*session) {
	return func(c *session) {
		for range answers {
			q := c.next()
			if q == nil || !c.respond(answer(q)) {
				return
			}
		}
		how(c)
	}
}

// halfway writes the beginning of a frame, and closes the connection.
func halfway(c *session) {
	_, _ = c.Write([]byte{0, 50, 1, 2, 3})
	c.close()
}

// Every call is answered although the server closes connections, in different ways.
func TestServersThatClose(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers int
		how     func(*session)
		maxOpen int32 // connections at once
		log     string
	}{
		{"after each answer", 1, (*session).close, 300, "closes connections after one answer"},
		{"after each answer with a reset", 1, (*session).reset, 300, "closes connections after one answer"},
		{"after each answer in a frame", 1, halfway, 300, "closes connections after one answer"},
		{"after 2 answers", 2, (*session).close, 300, "closes connections after 2 answers"},
		{"after 20 answers", 20, (*session).close, 2 * 1000 / 20, "closes connections after 20 answers"},
		{"after 20 answers with a reset", 20, (*session).reset, 2 * 1000 / 20, "closes connections after 20 answers"},
		{"after 20 answers in a frame", 20, halfway, 2 * 1000 / 20, "closes connections after 20 answers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t, serving(t, closing(c.answers, c.how)), 1000, 2)
			for round := range 3 {
				allAnswered(b.sendAll(300, letters(round)))
			}
			b.wantLog(c.log)
			// The server may count a connection that this side has not closed yet.
			if n := b.maxOpen.Load(); n > c.maxOpen+8 {
				t.Errorf("%d connections at once", n)
			}
		})
	}
}

// An answer received before a reset is used, although writes fail.
func TestAnswerBeforeReset(t *testing.T) {
	t.Parallel()
	var firsts atomic.Int32
	s := serving(t, func(c *session) {
		q := c.next()
		if q == nil {
			return
		}
		if nameOf(q) == "first.example." {
			firsts.Add(1)
		}
		c.respond(answer(q))
		c.reset()
	})
	const rounds = 200
	for range rounds {
		b := newTestbed(t, s, 1000, 1)
		first := b.send("first.example.")
		var others []*sent
		for len(first.done) == 0 && len(others) < 100 {
			others = append(others, b.send("other.example."))
			time.Sleep(10 * time.Microsecond)
		}
		first.answered()
		for _, o := range others {
			b.Cancel(o.Call)
		}
		b.Pool.Close()
		b.wantClosed()
	}
	if n := firsts.Load(); n != rounds {
		t.Errorf("%d of %d queries were sent again although they were answered", n-rounds, rounds)
	}
}

// Calls to a server that never answers fail after few connections.
func TestServersThatCloseAtOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		serve func(*session)
	}{
		{"at once", func(*session) {}},
		{"at once with a reset", (*session).reset},
		{"after a query", func(c *session) { c.next() }},
		{"after a query with a reset", func(c *session) {
			c.next()
			c.reset()
		}},
		{"in the middle of a frame", func(c *session) {
			c.next()
			halfway(c)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t, serving(t, c.serve), 1000, 2)
			all := b.sendAll(500, "n")
			for _, s := range all {
				if err := s.fails(); !errors.Is(err, errClosed) && !refused(err) {
					t.Fatalf("error %v", err)
				}
			}
			// Some connections may be opened before the last of the pause begins: shared ones, and those for one query.
			if n := b.dials.Load(); n > pauseAfter+maxUnansweredConnections+maxEscapes {
				t.Errorf("%d connections for 500 calls", n)
			}
			if n := number(b.Metrics.Single); n > 1 {
				t.Errorf("%d changes to one query per connection", n)
			}
		})
	}
}

// A call fails after losing a few connections that have delivered other answers.
func TestMoves(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 1000, 1)
	unlucky := b.send("unlucky.example.")
	for i := range 2 {
		unlucky.notDone()
		one := b.accept()
		one.query()
		for range 3 + i { // different numbers, so that no limit is set
			s := b.send("lucky.example.")
			one.respond(answer(one.query()))
			s.answered()
		}
		one.close()
	}
	own := b.accept() // for this query alone, which may be the reason for the closes
	own.query()
	s := b.send("lucky.example.")
	one := b.accept()
	one.respond(answer(one.query()))
	s.answered()
	own.close()
	if err := unlucky.fails(); !errors.Is(err, errClosed) {
		t.Errorf("error %v", err)
	}
}

// minutes returns the remaining time of the class in whole minutes.
func (b *testbed) minutes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int(b.classUntil.Sub(b.now()).Round(time.Minute) / time.Minute)
}

func TestOneQueryPerConnection(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 100, 2)
	b.minSerial, b.maxSerial = 10*time.Minute, 60*time.Minute
	closes := func() {
		t.Helper()
		first, second := b.send("first.example."), b.send("second.example.")
		one := b.accept()
		q := one.query()
		if next := one.query(); nameOf(q) != first.name || nameOf(next) != second.name {
			t.Fatalf("%s and %s on one connection", nameOf(q), nameOf(next))
		}
		one.respond(answer(q))
		one.close()
		first.answered()
		two := b.accept()
		two.respond(answer(two.query()))
		two.close()
		second.answered()
		kit.Eventually(t, "no connection is left", func() bool { return b.connsNow() == 0 })
	}
	for i, want := range []int{10, 20, 40, 60, 60} {
		closes()
		if got := b.minutes(); got != want {
			t.Fatalf("time %d: for %d minutes, want %d", i, got, want)
		}
		if got := number(b.Metrics.Single); got != i+1 {
			t.Errorf("time %d: %d changes counted", i, got)
		}
		// Meanwhile each query has its own connection.
		all := b.sendAll(5, "single")
		for range all {
			one := b.accept()
			one.respond(answer(one.query()))
			one.close()
		}
		allAnswered(all)
		b.clock.skip(time.Duration(want)*time.Minute - 10*time.Second)
		early := b.sendAll(2, "early")
		for range early {
			one := b.accept()
			one.respond(answer(one.query()))
			one.close()
		}
		allAnswered(early)
		kit.Eventually(t, "no connection is left", func() bool { return b.connsNow() == 0 })
		b.clock.skip(20 * time.Second)
	}
	// After a long time the shortest is used again.
	b.clock.skip(2 * time.Hour)
	closes()
	if got := b.minutes(); got != 10 {
		t.Errorf("after a long time: for %d minutes, want 10", got)
	}
}

// The connections to a serial server are bounded, and reused if it leaves them open.
func TestOneQueryPerConnectionIsBounded(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 100, 2)
	b.mu.Lock()
	b.setSerial(0, "is serial")
	b.mu.Unlock()
	const maxOpen = maxSerialConnections
	all := b.sendAll(maxOpen+100, "n")
	if n := b.waitingNow(); n != 100 {
		t.Errorf("%d calls wait, want 100", n)
	}
	var end sync.WaitGroup
	for range maxOpen {
		one := b.accept()
		end.Go(func() { echo(one) })
	}
	allAnswered(all)
	if n := b.accepted.Load(); n != maxOpen {
		t.Errorf("%d connections, want %d", n, maxOpen)
	}
	b.clock.skip(31 * time.Second) // the class has expired
	becomes(t, "connections", b.Metrics.Connections, 2)
	b.Pool.Close()
	end.Wait()
}

func TestLimit(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 100, 2)
	for range 2 {
		all := b.sendAll(5, "n")
		one := b.accept()
		received := one.queries(5)
		for _, s := range all[:3] {
			one.respond(answer(received[s.name]))
		}
		allAnswered(all[:3])
		one.close()
		two := b.accept()
		received = two.queries(2)
		two.respond(answer(received[all[3].name]), answer(received[all[4].name]))
		allAnswered(all[3:])
		b.mu.Lock()
		for _, c := range b.conns {
			b.retire(c) // so that its end does not set the class
		}
		b.mu.Unlock()
		two.end()
	}
	b.wantLog("closes connections after 3 answers")
	// Connections get no more queries than that, even if the server leaves them open.
	var maxQueries, open atomic.Int32
	stop := make(chan struct{})
	b.ended.Go(func() {
		for {
			select {
			case <-stop:
				return
			case one := <-b.sessions:
				b.ended.Go(func() {
					n := int32(0)
					for q := one.next(); q != nil; q = one.next() {
						n++
						maxQueries.Store(max(maxQueries.Load(), n))
						open.Store(max(open.Load(), int32(number(b.Metrics.Connections))))
						one.respond(answer(q))
					}
				})
			}
		}
	})
	allAnswered(b.sendAll(100, "m"))
	for i := range 10 {
		b.send("o" + letters(i) + ".example.").answered()
	}
	close(stop)
	if n := maxQueries.Load(); n != 3 {
		t.Errorf("%d queries on a connection, want 3", n)
	}
	if n := open.Load(); n > 2*100/3+2 { // some may be closing
		t.Errorf("%d connections at once", n)
	}
	// The limit expires.
	b.clock.skip(b.maxSerial + time.Second)
	kit.Eventually(t, "no connection is left", func() bool { return b.connsNow() == 0 })
	all := b.sendAll(10, "p")
	one := b.accept()
	for range all {
		one.respond(answer(one.query()))
	}
	allAnswered(all)
}

// The end of a connection changes the class or the limit.
func TestObserveClose(t *testing.T) {
	reset := &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	for _, c := range []struct {
		name     string
		answered []int // by successive connections
		waits    bool  // a query waits on each
		after    time.Duration
		err      error
		limit    int
		single   bool
	}{
		{"one answer, others wait, once", []int{1}, true, 0, reset, 0, false},
		{"one answer, others wait, twice", []int{1, 1}, true, 0, reset, 1, true},
		{"one answer, others wait, twice, long after", []int{1, 1}, true, time.Second, reset, 0, false},
		{"one answer, once", []int{1}, false, 0, reset, 0, false},
		{"one answer, twice", []int{1, 1}, false, 0, reset, 1, true},
		{"one answer, twice, long after", []int{1, 1}, false, time.Second, reset, 0, false},
		{"no answer, twice", []int{0, 0}, true, 0, reset, 0, false},
		{"no answer, repeatedly", []int{0, 0, 0}, true, 0, reset, 0, true},
		{"no answer, no other waits", []int{0, 0, 0}, false, 0, reset, 0, false},
		{"no answer, one in between", []int{0, 0, 5, 0, 0}, true, 0, reset, 0, false},
		{"the same number twice", []int{7, 7}, true, 0, reset, 7, false},
		{"different numbers", []int{7, 8, 7}, true, 0, reset, 0, false},
		{"another number later", []int{7, 7, 9, 9}, true, 0, reset, 9, false},
		{"closed here", []int{1, 1}, true, 0, net.ErrClosed, 0, false},
		{"dead", []int{1, 1}, true, 0, &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ETIMEDOUT)}, 0, false},
		{"cannot be written to", []int{1, 1}, true, 0, &net.OpError{Op: "write", Err: os.ErrDeadlineExceeded}, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t, newServer(t), 100, 1)
			for _, n := range c.answered {
				s := b.send("first.example.")
				one := b.acceptFirst()
				q := one.query()
				if n > 0 {
					one.respond(answer(q))
					s.answered()
				}
				b.mu.Lock()
				ends := b.conns[0]
				ends.answered = n
				b.mu.Unlock()
				var waits *sent
				if c.waits {
					waits = b.send("waits.example.")
					one.query()
				}
				b.clock.skip(c.after)
				b.lost(ends, c.err)
				if n == 0 {
					b.Cancel(s.Call)
				}
				if waits != nil {
					b.Cancel(waits.Call)
				}
				b.retireAll() // those of the moved calls
				becomes(t, "connections", b.Metrics.Connections, 0)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.limit != c.limit || (b.depth(b.now()) == 1) != c.single {
				t.Errorf("limit %d, depth %d", b.limit, b.depth(b.now()))
			}
		})
	}
}

// A server that closes connections with many queries without an answer may limit their number, and have none that it can
// answer: it gets half as many before it gets a connection for each query.
func TestObserveClose_ManyQueries(t *testing.T) {
	for _, c := range []struct {
		name            string
		queries         []int // on successive connections
		limit, capacity int
		single          bool
	}{
		{"few closes", []int{90, 80}, 0, 100, false},
		{"as many as for one query", []int{90, 80, 70}, 35, minConnections * (100 / 35) * 35, false},
		{"one with few queries", []int{90, 80, manyQueries - 1}, 0, maxUnansweredConnections, true},
		{"sent before the limit", []int{90, 80, 70, 36, 100}, 35, minConnections * (100 / 35) * 35, false},
		{"closed below the limit", []int{90, 80, 70, 35}, 17, minConnections * (100 / 17) * 17, false},
		{"closed below half of it", []int{90, 80, 70, 35, 17}, 0, maxUnansweredConnections, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t, newServer(t), 100, 1)
			for _, n := range c.queries {
				all := b.sendAll(2, "n")
				b.acceptFirst().queries(2)
				b.mu.Lock()
				ends := b.conns[0]
				ends.sent = n
				b.mu.Unlock()
				b.lost(ends, syscall.ECONNRESET)
				for _, s := range all {
					b.Cancel(s.Call)
				}
				b.retireAll() // those of the moved calls
				becomes(t, "connections", b.Metrics.Connections, 0)
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			depth := b.depth(b.now())
			b.setCapacity(depth, b.maxConns(depth))
			if b.limit != c.limit || (depth == 1) != c.single || b.Capacity() != c.capacity {
				t.Errorf("limit %d, depth %d, capacity %d; want limit %d, capacity %d", b.limit, depth, b.Capacity(), c.limit, c.capacity)
			}
		})
	}
}

// inOrder serves one query at a time. Those for names that begin with slow wait for end, and their copies a little
// longer.
func inOrder(end <-chan struct{}) func(*session) {
	var seen sync.Map
	return func(c *session) {
		for q := c.next(); q != nil; q = c.next() {
			if name := nameOf(q); name[:4] == "slow" {
				_, again := seen.LoadOrStore(name, true)
				<-end
				if again {
					time.Sleep(50 * time.Millisecond)
				}
			}
			if !c.respond(answer(q)) {
				return
			}
		}
	}
}

// Queries behind a slow one are answered by another connection. When the slow one is answered, and then their originals,
// the server counts as serial.
func TestInOrderServer(t *testing.T) {
	for _, c := range []struct {
		name string
		warm bool // the connection has delivered an answer
		slow int
		fast int
	}{
		{"one slow query", true, 1, 200},
		{"one slow query on a new connection", false, 1, 200},
		{"two slow queries", true, 2, 200},
		{"one behind a slow query", true, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			end := make(chan struct{})
			release := sync.OnceFunc(func() { close(end) })
			b := newTestbed(t, serving(t, inOrder(end)), 1000, 2)
			t.Cleanup(release) // before that of the testbed
			b.setStall(100 * time.Millisecond)
			if c.warm {
				b.send("warm.example.").answered()
			}
			slow := b.sendAll(c.slow, "slow")
			allAnswered(b.sendAll(c.fast, "fast"))
			for _, s := range slow {
				s.notDone()
			}
			if n := b.accepted.Load(); n > int32(c.slow)+4 { // the machine may be slow
				t.Errorf("%d connections", n)
			}
			release()
			allAnswered(slow)
			b.wantLog("works on one query of a connection at a time")
			if n := number(b.Metrics.Single); n != 1 {
				t.Errorf("%d changes to one query per connection", n)
			}
			allAnswered(b.sendAll(100, "after"))
			b.Pool.Close()
			b.wantClosed()
		})
	}
}

// setStall sets the wait that counts as a stall. Before a short one, it waits until the queries in flight are that old: the newest
// of them is copied.
func (b *testbed) setStall(d time.Duration) {
	if d < time.Second {
		time.Sleep(d)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stall, b.maxStall = d, d
}

// ageQueries makes the queries of the first connection older, and prevents further copies.
func (b *testbed) ageQueries(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.conns[0]
	c.copies = maxCopies
	for _, f := range c.queue() {
		f.sent = f.sent.Add(-d)
	}
}

// Two successive stalls of a connection that delivers answers make a server serial.
func TestStalls(t *testing.T) {
	const (
		nothing, faster, busy = "nothing in between", "an original is faster than its copy", "a busy connection"
		before, long          = "a connection that was busy before the copies", "queries wait for long on a busy connection"
	)
	for name, want := range map[string]int{nothing: 1, faster: 0, busy: 0, before: 0, long: 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t, newServer(t), 100, 2)
			warm := b.send("warm.example.")
			one := b.accept()
			one.respond(answer(one.query()))
			warm.answered()
			all := b.sendAll(4+2*busyAnswers, "n")
			received := one.queries(len(all))
			progress := func(n int) {
				for _, s := range all[:n] {
					one.respond(answer(received[s.name]))
					s.answered()
				}
				all = all[n:]
			}
			if name == before || name == long {
				progress(busyAnswers)
			}
			var other *session
			for round := range 2 {
				b.setStall(5 * time.Millisecond)
				if round == 0 {
					other = b.accept()
				}
				copied := other.query()
				b.setStall(time.Hour)
				last := all[len(all)-1]
				if nameOf(copied) != last.name {
					t.Fatalf("a copy of %s, want %s", nameOf(copied), last.name)
				}
				if name == long {
					b.ageQueries(2 * time.Hour)
				}
				switch {
				case round == 1 && name == faster:
					progress(len(all))
					return
				case round == 1 && name == busy:
					progress(busyAnswers + 1)
				default:
					progress(1)
				}
				other.respond(answer(copied))
				last.answered()
				all = all[:len(all)-1]
			}
			if n := number(b.Metrics.Single); n != want {
				t.Errorf("%d changes to one query per connection, want %d", n, want)
			}
			for _, s := range all {
				b.Cancel(s.Call)
			}
		})
	}
}

// A query that newer ones have overtaken waits for no other: a copy that is answered sooner is no stall.
func TestOvertakenQuery(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 100, 2)
	slow := b.sendAll(1+maxStalls, "slow")
	one := b.accept()
	one.queries(len(slow))
	overtake := func() {
		s := b.send("fast.example.")
		one.respond(answer(one.query()))
		s.answered()
	}
	overtake()
	var other *session
	for i := range maxStalls {
		b.setStall(5 * time.Millisecond)
		if i == 0 {
			other = b.accept()
		}
		q := other.query()
		b.setStall(time.Hour)
		copied := slow[len(slow)-1-i]
		if nameOf(q) != copied.name {
			t.Fatalf("a copy of %s, want %s", nameOf(q), copied.name)
		}
		overtake()
		other.respond(answer(q))
		copied.answered()
	}
	if n := number(b.Metrics.Single); n != 0 {
		t.Errorf("%d changes to one query per connection", n)
	}
	b.Cancel(slow[0].Call)
}

// A serial server is sent no copies: queries behind a slow one move at once. An answer out of order ends the class.
func TestSerialServerGetsNoCopies(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 100, 2)
	all := b.sendAll(3, "n")
	one := b.accept()
	received := one.queries(3)
	b.mu.Lock()
	b.setSerial(0, "is serial")
	b.mu.Unlock()
	b.setStall(5 * time.Millisecond)
	for range 2 {
		other := b.accept()
		other.respond(answer(other.query()))
	}
	allAnswered(all[1:])
	if n := number(b.Metrics.Depth.(depths)); n != 5 {
		t.Errorf("%d queries were sent, want 3 and 2 of them again", n)
	}
	one.respond(answer(received[all[1].name]))
	becomes(t, "late answers", b.Metrics.Late, 1)
	one.respond(answer(received[all[0].name]))
	all[0].answered()
	b.mu.Lock()
	defer b.mu.Unlock()
	if got := b.classAt(b.now()); got != pipelined {
		t.Errorf("class %d after an answer out of order, want %d", got, pipelined)
	}
}

// A pipelined server gets no copies.
func TestOutOfOrderServer(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 100, 2)
	all := b.sendAll(20, "n")
	one := b.accept()
	received := one.queries(20)
	one.respond(answer(received[all[1].name]), answer(received[all[0].name]))
	all[1].answered()
	all[0].answered()
	b.mu.Lock()
	b.stall, b.maxStall = 5*time.Millisecond, 5*time.Millisecond
	b.mu.Unlock()
	time.Sleep(50 * time.Millisecond)
	for _, s := range all[2:] {
		one.respond(answer(received[s.name]))
		s.answered()
	}
	if n := b.accepted.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	if n := number(b.Metrics.Depth.(depths)); n != 20 {
		t.Errorf("%d queries were sent, want 20", n)
	}
	// After a long time the class expires.
	b.clock.skip(b.maxSerial + time.Second)
	kit.Eventually(t, "no connection is left", func() bool { return b.connsNow() == 0 })
	again := b.sendAll(2, "again")
	b.accept().queries(2)
	b.accept().query()
	b.Cancel(again[0].Call)
	b.Cancel(again[1].Call)
}

// A server that is slow with all queries for a while is serial only if the late answers are in order.
func TestSlowServer(t *testing.T) {
	for _, c := range []struct {
		name      string
		order     []int // of the answers on the first connection
		cancelled bool  // the slowest, before the answers
		want      int   // changes to one query per connection
	}{
		{"in order", []int{0, 1, 2, 3}, false, 1},
		{"the slowest later", []int{1, 0, 2, 3}, false, 0},
		{"the slowest last", []int{1, 2, 3, 0}, false, 0},
		{"in order, the slowest is cancelled", []int{0, 1, 2, 3}, true, 1},
		{"the slowest is cancelled and late", []int{1, 2, 3, 0}, true, 0},
		{"the slowest is cancelled and never answered", []int{1, 2, 3}, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t, newServer(t), 100, 2)
			b.setStall(time.Hour)
			warm := b.send("warm.example.")
			one := b.accept()
			one.respond(answer(one.query()))
			warm.answered()
			all := b.sendAll(4, "n")
			received := one.queries(4)
			b.setStall(5 * time.Millisecond)
			two := b.accept()
			q := two.query()
			if nameOf(q) != all[3].name {
				t.Fatalf("a copy of %s, want %s", nameOf(q), all[3].name)
			}
			b.setStall(time.Hour)
			two.respond(answer(q))
			two.respond(answer(two.query())) // those between
			two.respond(answer(two.query()))
			allAnswered(all[1:])
			if c.cancelled {
				b.Cancel(all[0].Call)
			}
			for i, n := range c.order {
				one.respond(answer(received[all[n].name]))
				kit.Eventually(t, "the late answer is read", func() bool {
					late := i + 1
					if !c.cancelled && slices.Contains(c.order[:i+1], 0) {
						late--
					}
					return number(b.Metrics.Late) >= min(late, 3) // then the connection may be closed
				})
			}
			if !c.cancelled {
				all[0].answered()
			}
			if n := number(b.Metrics.Single); n != c.want {
				t.Errorf("%d changes to one query per connection, want %d", n, c.want)
			}
			b.Pool.Close()
			one.end()
			two.end()
		})
	}
}

// The queries of a dead connection are answered by another, and the server does not become serial.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 100, 2)
	b.stall, b.maxStall = 5*time.Millisecond, 5*time.Millisecond
	warm := b.send("warm.example.")
	dead := b.accept()
	dead.respond(answer(dead.query()))
	warm.answered()
	all := b.sendAll(20, "n")
	dead.queries(20)
	other := b.accept()
	b.mu.Lock()
	b.stall, b.maxStall = time.Hour, time.Hour // no more stalls
	b.mu.Unlock()
	b.ended.Go(func() {
		for one := other; one != nil; one = <-b.sessions {
			b.ended.Go(func() { echo(one) })
		}
	})
	allAnswered(all)
	allAnswered(b.sendAll(20, "m"))
	if n := number(b.Metrics.Single); n != 0 {
		t.Errorf("%d changes to one query per connection", n)
	}
	b.clock.skip(10 * time.Second) // its queries have timed out
	dead.end()
}

// A server that answers the first query of each connection only does not get the others repeatedly until that is known.
func TestServerThatStops(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, serving(t, func(c *session) {
		if q := c.next(); q != nil && c.respond(answer(q)) {
			for q != nil {
				q = c.next()
			}
		}
	}), 1000, 2)
	b.setStall(20 * time.Millisecond)
	const queries = 300
	var all []*sent
	for i := range queries {
		all = append(all, b.send(letters(i)+".example."))
		time.Sleep(time.Millisecond)
	}
	allAnswered(all)
	if n := number(b.Metrics.Depth.(depths)); n > 3*queries {
		t.Errorf("%d queries were sent for %d", n, queries)
	}
}

// ignoring serves connections on which a query is ignored that arrives while another one is worked on.
func ignoring(work time.Duration) func(*session) {
	return func(c *session) {
		var working sync.Mutex
		busy := false
		for q := c.next(); q != nil; q = c.next() {
			working.Lock()
			if !busy {
				busy = true
				time.AfterFunc(work, func() {
					working.Lock()
					defer working.Unlock()
					busy = false
					c.respond(answer(q))
				})
			}
			working.Unlock()
		}
	}
}

// silentAfter serves connections that stay open and are silent after a number of answers.
func silentAfter(answers int) func(*session) {
	return closing(answers, func(c *session) {
		for c.next() != nil {
		}
	})
}

// reversedSilentAfter is silentAfter with the first two answers in the wrong order, if both queries are received soon.
func reversedSilentAfter(answers int) func(*session) {
	return func(c *session) {
		first, rest := c.next(), answers-1
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if second := c.next(); second != nil {
			rest--
			c.respond(answer(second))
		}
		_ = c.SetReadDeadline(time.Time{})
		if first != nil && c.respond(answer(first)) {
			silentAfter(rest)(c)
		}
	}
}

// A server that leaves queries unanswered gets as many per connection as it answers. Other queries are answered meanwhile.
func TestUnansweredQueriesAreSentElsewhere(t *testing.T) {
	many := func(b *testbed) []*sent {
		time.Sleep(2 * time.Millisecond)
		return b.sendAll(2, "many")
	}
	pairs := func(b *testbed) []*sent {
		allAnswered(b.sendAll(2, "pair"))
		return nil
	}
	single := func(b *testbed) []*sent {
		b.send("single.example.").answered()
		return nil
	}
	const one, seven = "answers one query of a connection", "answers 7 queries of a connection"
	for _, c := range []struct {
		name  string
		serve func(*session)
		send  func(*testbed) []*sent
		log   string // "" is that for one query per connection
	}{
		{"ignores queries while it works on another, many queries", ignoring(3 * time.Millisecond), many, ""},
		{"ignores queries while it works on another, pairs", ignoring(3 * time.Millisecond), pairs, "ignores a query while it works on another"},
		{"is silent after 1 answer, many queries", silentAfter(1), many, one},
		{"is silent after 1 answer, pairs", silentAfter(1), pairs, one},
		{"is silent after 1 answer, single queries", silentAfter(1), single, one},
		{"is silent after 7 answers, many queries", silentAfter(7), many, seven},
		{"is silent after 7 answers, pairs", silentAfter(7), pairs, seven},
		{"is silent after 7 answers, single queries", silentAfter(7), single, seven},
		{"answers out of order, and is silent after 7 answers", reversedSilentAfter(7), many, seven},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t, serving(t, c.serve), 1000, 2)
			b.setStall(30 * time.Millisecond)
			b.silence = 30 * time.Millisecond
			var all []*sent
			learned := func() bool { return number(b.Metrics.Single) > 0 || c.log != "" && len(b.logged) > 0 }
			for end := time.Now().Add(soon); !learned() && time.Now().Before(end); {
				all = append(all, c.send(b)...)
			}
			b.wantLog(c.log)
			allAnswered(all)
			b.setStall(time.Hour) // no more copies
			for range 20 {
				allAnswered(b.sendAll(5, "after"))
			}
			b.Pool.Close()
		})
	}
}

// The copies for a silent connection are bounded: each is of another query, all on one other connection.
func TestCopiesAreBounded(t *testing.T) {
	for _, connections := range []int{2, 10} {
		t.Run(strconv.Itoa(connections)+" connections", func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t, newServer(t), 100, connections)
			b.stall, b.maxStall = time.Millisecond, time.Millisecond
			all := b.sendAll(50, "n")
			b.accept().queries(50)
			copied, other := map[string]bool{}, b.accept()
			for range maxCopies {
				copied[nameOf(other.query())] = true
			}
			time.Sleep(50 * time.Millisecond)
			if n := number(b.Metrics.Depth.(depths)); n != 50+maxCopies || len(copied) != maxCopies {
				t.Errorf("%d copies of %d queries", n-50, len(copied))
			}
			if n := b.accepted.Load(); n != 2 {
				t.Errorf("%d connections, want 2", n)
			}
			if copied[all[0].name] {
				t.Error("a copy of the oldest")
			}
			for _, s := range all {
				s.notDone()
				b.Cancel(s.Call)
			}
		})
	}
}

// A query survives the loss of the connection of its copy, or of its own.
func TestLostCopy(t *testing.T) {
	for _, name := range []string{"the copy's connection is lost", "the silent connection is lost", "both are lost", "the copy's answer is wrong"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTestbed(t, newServer(t), 100, 2)
			b.stall, b.maxStall = 5*time.Millisecond, time.Hour
			first, second := b.send("first.example."), b.send("second.example.")
			one := b.accept()
			received := one.queries(2)
			two := b.accept()
			q := two.query()
			b.mu.Lock()
			b.stall = time.Hour
			b.mu.Unlock()
			switch name {
			case "the copy's connection is lost":
				two.close()
				becomes(t, "connections", b.Metrics.Connections, 1)
				one.respond(answer(received[second.name]), answer(received[first.name]))
			case "the silent connection is lost":
				one.close()
				becomes(t, "connections", b.Metrics.Connections, 1)
				two.respond(answer(q))
				two.respond(answer(two.query()))
			case "both are lost":
				one.close()
				becomes(t, "connections", b.Metrics.Connections, 1)
				two.close()
				for range 2 { // the query with the copy gets its own connection
					c := b.accept()
					c.respond(answer(c.query()))
				}
				first.answered()
				second.answered()
				return
			case "the copy's answer is wrong":
				two.respond(q)
				becomes(t, "dropped", b.Metrics.Dropped[Malformed], 1)
				one.respond(answer(received[second.name]), answer(received[first.name]))
			}
			first.answered()
			second.answered()
			if n := number(b.Metrics.InFlight); n != 0 {
				t.Errorf("%d in flight", n)
			}
		})
	}
}

// A server that announces edns-tcp-keepalive gets neither copies nor a second connection because of a slow query.
func TestKeepAliveServer(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 100, 2)
	first := b.send("first.example.")
	one := b.accept()
	one.respond(withKeepAlive(one.query(), 100))
	first.wait()
	slow := b.send("slow.example.")
	all := b.sendAll(20, "n")
	received := one.queries(21)
	b.setStall(5 * time.Millisecond)
	time.Sleep(50 * time.Millisecond) // for checks of the connections
	for _, s := range all {
		one.respond(answer(received[s.name]))
		s.answered()
	}
	time.Sleep(50 * time.Millisecond)
	if n := b.accepted.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
	if n := number(b.Metrics.Depth.(depths)); n != 22 {
		t.Errorf("%d queries were sent, want 22", n)
	}
	one.respond(answer(received[slow.name]))
	slow.answered()
}

// Queries that wait because this process did not run cause no copies: a late check detects no stalls.
func TestLateCheck(t *testing.T) {
	t.Parallel()
	b := newTestbed(t, newServer(t), 100, 2)
	b.tick = time.Hour
	all := b.sendAll(5, "n")
	one := b.accept()
	received := one.queries(5)
	b.setStall(5 * time.Millisecond)
	for _, c := range []struct {
		late time.Duration
		want int // queries sent
	}{{time.Second, 5}, {0, 6}} {
		b.mu.Lock()
		b.clock.skip(time.Second)
		b.checkAt = b.now().Add(-c.late)
		b.mu.Unlock()
		b.check()
		if n := number(b.Metrics.Depth.(depths)); n != c.want {
			t.Errorf("%v late: %d queries were sent, want %d", c.late, n, c.want)
		}
	}
	for _, s := range all {
		one.respond(answer(received[s.name]))
		s.answered()
	}
}

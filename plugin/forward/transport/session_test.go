package transport

import (
	"encoding/binary"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// coherentBed is a pool with sessions, and its server.
type coherentBed struct {
	*testbed
	epoch time.Time
}

func newCoherent(t testing.TB, s *server, depth, connections int) *coherentBed {
	t.Helper()
	b := &coherentBed{testbed: newTestbed(t, s, depth, connections), epoch: time.Now().Add(-time.Hour)}
	counter := func() prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{Name: "c"}) }
	byReason := map[string]prometheus.Counter{}
	for _, reason := range FallbackReasons() {
		byReason[reason] = counter()
	}
	b.Coherence = &Coherence{
		Now:  func() time.Duration { return b.clock.now().Sub(b.epoch) },
		Lost: new(LostSessions), Sessions: prometheus.NewGauge(prometheus.GaugeOpts{Name: "g"}), Invalidations: counter(), Fallbacks: byReason,
	}
	t.Cleanup(func() {
		b.Pool.Close()
		becomes(t, "sessions in the end", b.Coherence.Sessions, 0)
	})
	return b
}

// serverClock is the clock of the server, which has another zero than that of the pool.
func (b *coherentBed) serverClock() uint64 {
	return uint64((b.Coherence.Now() - 30*time.Minute) / time.Microsecond)
}

// opening returns the response to a Session request.
func (b *coherentBed) opening(request []byte) []byte {
	return dso.AppendSessionResponse(nil, id(request), dso.Opening{Instance: 7, Clock: b.serverClock()})
}

func (b *coherentBed) beat() []byte { return dso.AppendHeartbeat(nil, b.serverClock()) }

// wantFallbacks waits for the number of fallbacks for a reason. There must be none for others that are not in the list.
func (b *coherentBed) wantFallbacks(want map[string]int) {
	b.t.Helper()
	for reason, c := range b.Coherence.Fallbacks {
		becomes(b.t, "fallbacks because of "+reason, c, want[reason])
	}
}

// request returns the next message of a connection, which must be a Session request.
func (c *session) request() []byte {
	c.s.t.Helper()
	m := c.query()
	parsed, err := dso.Parse(m)
	tlv, ok := parsed.Primary()
	if err != nil || !dso.IsDSO(m) || parsed.ID == 0 || parsed.Response || !ok || tlv.Type != dso.Session || !slices.Equal(tlv.Data, []byte{dso.Version}) {
		c.s.t.Fatalf("message %x, want a Session request", m)
	}
	return m
}

// begin sends a first query, and opens the session of its connection, on which a heartbeat was received.
func (b *coherentBed) begin() *session {
	b.t.Helper()
	first := b.send("first.example.")
	c := b.acceptFirst()
	b.mu.Lock()
	known := b.known
	b.mu.Unlock()
	q, request := []byte(nil), []byte(nil)
	if known { // the answer may have handles
		request, q = c.request(), c.query()
		c.respond(b.opening(request), answerWith(q, 1<<40), b.beat())
	} else {
		q, request = c.query(), c.request()
		c.respond(answer(q), b.opening(request), b.beat())
	}
	if first.answered(); id(q) == id(request) || first.Voucher == nil {
		b.t.Fatalf("ids %d of the query and %d of the request, voucher %v", id(q), id(request), first.Voucher)
	}
	kit.Eventually(b.t, "the session vouches", func() bool { return b.Vouches(nil) })
	if first.Voucher.Lapsed() == known {
		b.t.Fatal("an answer that is older than the session is fresh, or one of the session is not")
	}
	return c
}

// send sends a query that requests notification.
func (b *coherentBed) send(name string) *sent {
	b.t.Helper()
	s := newSent(b.t, name)
	s.Query = answerWith(s.Query)
	s.Query[wire.FlagsAt] &^= wire.QR
	s.sendTo(b.Pool)
	return s
}

// answerWith returns the answer to a query, which has no records but an OPT record, with handles.
func answerWith(query []byte, handles ...uint64) []byte {
	reply := answer(query[:wire.QuestionEnd(query)])
	binary.BigEndian.PutUint16(reply[wire.ARCountAt:], 1)
	data := dso.AppendHandles(nil, handles)
	reply = append(reply, 0, 0, wire.TypeOPT, 4, 208, 0, 0, 0, 0)
	reply = binary.BigEndian.AppendUint16(reply, uint16(4+len(data)))
	reply = binary.BigEndian.AppendUint16(reply, wire.OptionNotify)
	return append(binary.BigEndian.AppendUint16(reply, uint16(len(data))), data...)
}

// stored is an answer that depends on handles.
type stored struct{ ended atomic.Int32 }

func (s *stored) Invalidated() func() { s.ended.Add(1); return nil }
func (s *stored) Stored() bool        { return true }

// learn queries a name, and returns the voucher of the answer with handles.
func (b *coherentBed) learn(c *session, name string, handles ...uint64) *vouch.Voucher {
	b.t.Helper()
	s := b.send(name)
	c.respond(answerWith(c.query(), handles...))
	s.wait()
	if s.Err != nil || s.Voucher == nil {
		b.t.Fatalf("%s: voucher %v and error %v", name, s.Voucher, s.Err)
	}
	return s.Voucher
}

// TestSession_Order: a voucher is made before the messages behind the answer are processed, and after those in front of it.
func TestSession_Order(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	now := b.Coherence.Now()
	v := b.learn(c, "a.example.", 1, 2)
	other := b.learn(c, "b.example.", 3)
	entry := new(stored)
	v.Attach(entry)
	if !v.Vouches(now) || v.Ended() {
		t.Error("the session does not vouch for its answer")
	}
	// An answer, and the invalidation of its handle behind it.
	late := b.send("c.example.")
	c.respond(answerWith(c.query(), 4), dso.AppendInvalidate(nil, []uint64{4}))
	late.wait()
	if late.Voucher == nil || !late.Voucher.Ended() {
		t.Error("an answer whose invalidation is behind it has not ended")
	}
	// An invalidation, and an answer with the same handle behind it, which is of new data.
	again := b.send("a.example.")
	c.respond(dso.AppendInvalidate(nil, []uint64{2, 99}), answerWith(c.query(), 2))
	again.wait()
	if !v.Ended() || entry.ended.Load() != 1 {
		t.Errorf("the invalidated answer has not ended: %t, %d calls", v.Ended(), entry.ended.Load())
	}
	if again.Voucher.Ended() || !again.Voucher.Vouches(now) || other.Ended() {
		t.Error("answers behind the invalidation or with other handles have ended")
	}
	becomes(t, "invalidated handles", b.Coherence.Invalidations, 3)
	// All answers.
	c.respond(dso.AppendInvalidate(nil, nil))
	kit.Eventually(t, "all answers have ended", func() bool { return other.Ended() && again.Voucher.Ended() })
	becomes(t, "invalidated handles", b.Coherence.Invalidations, 3+3)
	b.wantFallbacks(nil)
}

// TestSession_HandleLimit: answers beyond the limit of handles of a session have no voucher, and are counted.
func TestSession_HandleLimit(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	v := b.learn(c, "a.example.", 1)
	b.mu.Lock()
	for n := uint64(2); b.conns[0].session.Voucher([]uint64{n}) != nil; n++ {
	}
	b.mu.Unlock()
	s := b.send("b.example.")
	c.respond(answerWith(c.query(), 1<<40))
	if s.wait(); s.Err != nil || s.Voucher != nil || v.Ended() {
		t.Errorf("voucher %v and error %v", s.Voucher, s.Err)
	}
	b.wantFallbacks(map[string]int{SessionLimit: 1})
}

// TestSession_WithoutHandles: no session vouches for such answers, nor for one before the session is open, which then lapses.
func TestSession_WithoutHandles(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	early := b.send("early.example.")
	c := b.acceptFirst()
	q := c.query()
	c.respond(answerWith(q, 1))
	early.wait()
	if early.Err != nil || early.Voucher == nil || early.Voucher.Lapsed() {
		t.Errorf("error %v and voucher %v before the session is open", early.Err, early.Voucher)
	}
	c.respond(b.opening(c.request()), b.beat())
	kit.Eventually(t, "the session vouches", func() bool { return b.Vouches(nil) })
	if !early.Voucher.Lapsed() || early.Voucher.Ended() || early.Voucher.Vouches(b.Coherence.Now()) {
		t.Error("the session vouches for an older answer, which is not fetched again")
	}
	for name, reply := range map[string]func(q []byte) []byte{
		"no OPT record":    answer,
		"no handle":        func(q []byte) []byte { return answerWith(q) },
		"too many handles": func(q []byte) []byte { return answerWith(q, make([]uint64, dso.MaxHandles+1)...) },
		"half a handle":    func(q []byte) []byte { r := answerWith(q, 1); r[len(r)-9] -= 4; r[len(r)-13] -= 4; return r[:len(r)-4] },
	} {
		s := b.send("www.example.")
		c.respond(reply(c.query()))
		if s.wait(); s.Err != nil || s.Voucher != nil {
			t.Errorf("%s: voucher %v and error %v", name, s.Voucher, s.Err)
		}
	}
}

// TestSession_NotRequested: handles in the answer to a query that has not requested them are ignored.
func TestSession_NotRequested(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	s := b.testbed.send("www.example.")
	c.respond(answerWith(c.query(), 1))
	if s.wait(); s.Err != nil || s.Voucher != nil {
		t.Errorf("voucher %v and error %v", s.Voucher, s.Err)
	}
}

// TestSession_Delayed: heartbeats that arrive 3 seconds after they were sent do not vouch.
func TestSession_Delayed(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	v := b.learn(c, "a.example.", 1)
	beat := b.beat()
	b.clock.skip(3 * time.Second)
	for range 10 {
		c.respond(beat, dso.AppendHeartbeat(nil, b.serverClock()-3e6))
		s := b.send("www.example.")
		c.respond(answer(c.query()))
		s.answered()
		if v.Vouches(b.Coherence.Now()) || b.Vouches(nil) || b.Vouches(s.Call) {
			t.Fatal("a delayed heartbeat vouches")
		}
	}
	b.wantFallbacks(map[string]int{SessionSilent: 1})
	c.respond(b.beat())
	kit.Eventually(t, "the session vouches again", func() bool { return v.Vouches(b.Coherence.Now()) })
	b.wantFallbacks(map[string]int{SessionSilent: 1})
}

// TestSession_Silent: each silence counts once.
func TestSession_Silent(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	for n := 1; n <= 3; n++ {
		if age, ok := b.HeartbeatAge(); !ok || age > soon {
			t.Errorf("age of the last heartbeat %v, %t", age, ok)
		}
		b.clock.skip(vouch.Silence)
		b.wantFallbacks(map[string]int{SessionSilent: n})
		b.clock.skip(vouch.Silence)
		time.Sleep(20 * time.Millisecond) // several checks
		b.wantFallbacks(map[string]int{SessionSilent: n})
		if age, ok := b.HeartbeatAge(); !ok || age < 2*vouch.Silence {
			t.Errorf("age of the last heartbeat %v, %t", age, ok)
		}
		c.respond(b.beat())
		kit.Eventually(t, "the session vouches", func() bool { return b.Vouches(nil) })
	}
	becomes(t, "sessions", b.Coherence.Sessions, 1)
}

// TestSession_Closed: the answers of a lost connection fall back to their TTL, and the next one has a session again.
func TestSession_Closed(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	for n := 1; n <= 3; n++ {
		c := b.begin()
		v := b.learn(c, "a.example.", 1)
		becomes(t, "sessions", b.Coherence.Sessions, 1)
		if n == 2 {
			c.reset()
		} else {
			c.close()
		}
		b.wantFallbacks(map[string]int{SessionClosed: n})
		becomes(t, "sessions", b.Coherence.Sessions, 0)
		if v.Vouches(b.Coherence.Now()) || v.Ended() || v.Lapsed() || !b.Notifies() {
			t.Error("a closed session vouches, has invalidated its answers, or is not opened again")
		}
	}
}

// TestSession_Retired: this side closes a connection, and no session reports the end of its answers any more.
func TestSession_Retired(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	v := b.learn(b.begin(), "a.example.", 1)
	b.mu.Lock()
	b.retire(b.conns[0])
	b.mu.Unlock()
	kit.Eventually(t, "the answers have lapsed", v.Lapsed)
	if v.Vouches(b.Coherence.Now()) || v.Ended() {
		t.Error("a retired session vouches, or has invalidated its answers")
	}
	becomes(t, "sessions", b.Coherence.Sessions, 0)
}

// TestSession_NotifiesWhilePaused: queries on the connection of an open session request notification while no other session may
// be opened.
func TestSession_NotifiesWhilePaused(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	b.mu.Lock()
	b.pauseSessions(time.Hour, b.now())
	b.mu.Unlock()
	if !b.Notifies() {
		t.Error("queries request no notification although a session is open")
	}
	c.close()
	kit.Eventually(t, "queries request no notification", func() bool { return !b.Notifies() })
}

// TestSession_NotifiesAfterPause: the first query after a pause requests notification, although no connection exists.
func TestSession_NotifiesAfterPause(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	b.closesNew.Store(true)
	c.close()
	_ = b.send("lost.example.").fails()
	kit.Eventually(t, "the pool is idle", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return !b.ticking
	})
	b.mu.Lock()
	b.pauseSessions(time.Hour, b.now())
	b.mu.Unlock()
	if b.Notifies() {
		t.Error("queries request notification while no session may be opened")
	}
	b.clock.skip(time.Hour)
	if !b.Notifies() {
		t.Error("queries request no notification after the pause")
	}
}

// TestSession_NoOption: a connection that requests a session has no edns-tcp-keepalive, RFC 8490 section 7.1.2.
func TestSession_NoOption(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	s := newSent(t, "www.example.")
	s.Query = answerWith(s.Query) // with an OPT record
	s.Query[wire.FlagsAt] &^= wire.QR
	s.sendTo(b.Pool)
	c := b.acceptFirst()
	q := c.query()
	if _, ok := wire.MessageOption(q, wire.OptionKeepAlive); ok {
		t.Error("the first query has edns-tcp-keepalive")
	}
	c.respond(answer(q), b.opening(c.request()))
	s.answered()
}

// TestSession_IDs: no query has the id 0 or that of Session requests.
func TestSession_IDs(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	b.mu.Lock()
	reserved := b.conns[0].session.id
	b.mu.Unlock()
	for _, next := range []uint16{0xfffe, reserved - 2} {
		b.mu.Lock()
		b.conns[0].nextID = next
		b.mu.Unlock()
		for range 5 {
			s := b.send("www.example.")
			q := c.query()
			if id(q) == 0 || id(q) == reserved {
				t.Errorf("a query has id %d", id(q))
			}
			c.respond(answer(q))
			s.answered()
		}
	}
}

// TestSession_NoFreeID: a connection whose queries have all ids but the two of its session has no room.
func TestSession_NoFreeID(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	b.begin()
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.conns[0]
	for id := uint16(1); id != 0; id++ {
		if id == c.session.id {
			continue
		}
		if c.byID[id] = new(flight); len(c.byID) < 1<<16-3 {
			continue
		}
		if room, want := c.hasRoom(100, 0), len(c.byID) < 1<<16-2; room != want {
			t.Errorf("with %d ids in use: has room %t, want %t", len(c.byID), room, want)
		}
	}
	clear(c.byID)
}

// TestSession_Suspended: after a machine was suspended, the clocks are compared again before a heartbeat vouches.
func TestSession_Suspended(t *testing.T) {
	const asleep = time.Hour // of this machine, whose clock stood still
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	v := b.learn(c, "a.example.", 1)
	ahead := func() uint64 { return b.serverClock() + uint64(asleep/time.Microsecond) }
	opened := func(request []byte) []byte {
		return dso.AppendSessionResponse(nil, id(request), dso.Opening{Instance: 7, Clock: ahead()})
	}
	c.respond(dso.AppendHeartbeat(nil, ahead()), dso.AppendHeartbeat(nil, ahead()))
	request := c.request() // at once
	b.wantFallbacks(map[string]int{SessionClock: 1})
	if v.Vouches(b.Coherence.Now()) {
		t.Error("the session vouches before the clocks are compared")
	}
	c.respond(opened(request), dso.AppendHeartbeat(nil, ahead()))
	kit.Eventually(t, "the session vouches", func() bool { return v.Vouches(b.Coherence.Now()) })
	// A response to a request from before the suspension does not count.
	b.clock.skip(compareEvery)
	b.wantFallbacks(map[string]int{SessionClock: 1, SessionSilent: 1})
	request = c.request()
	c.respond(dso.AppendHeartbeat(nil, ahead()+uint64(asleep/time.Microsecond)), opened(request), dso.AppendHeartbeat(nil, ahead()))
	request = c.request()
	b.wantFallbacks(map[string]int{SessionClock: 2, SessionSilent: 1})
	if v.Vouches(b.Coherence.Now()) {
		t.Error("the session vouches by a comparison from before the suspension")
	}
	c.respond(opened(request), dso.AppendHeartbeat(nil, ahead()))
	kit.Eventually(t, "the session vouches", func() bool { return v.Vouches(b.Coherence.Now()) })
}

// TestSession_Keepalive: the request is repeated while no query is in flight, and sooner after a slow response.
func TestSession_Keepalive(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	b.learn(c, "a.example.", 1)
	first := byte(0)
	for n := range 5 {
		b.clock.skip(compareEvery - time.Second)
		s := b.send("www.example.")
		c.respond(answer(c.query())) // a request would be the first message
		s.answered()
		b.clock.skip(time.Second)
		request := c.request()
		if n == 0 {
			first = request[1]
		}
		if request[1] != first {
			t.Error("the request has another id")
		}
		c.respond(b.opening(request), b.beat())
		kit.Eventually(t, "the session vouches", func() bool { return b.Vouches(nil) })
	}
	b.clock.skip(compareEvery)
	slow := c.request()
	b.clock.skip(time.Second / 2)
	c.respond(b.opening(slow))
	time.Sleep(20 * time.Millisecond)
	b.clock.skip(compareSoon)
	began := time.Now()
	c.respond(b.opening(c.request()))
	if wait := time.Since(began); wait > compareEvery/2 {
		t.Errorf("the clocks are compared again %v after a slow response", compareSoon+wait)
	}
	if n := b.dials.Load(); n != 1 {
		t.Errorf("%d connections, want that of the session", n)
	}
}

// TestSession_Idle: one idle connection stays open for its session while answers depend on it.
func TestSession_Idle(t *testing.T) {
	b := newCoherent(t, newServer(t), 1, 3)
	b.MaxIdle, b.Expire = 1, maxSilence/3
	keep := func(c *session) {
		if !c.respond(b.beat()) {
			t.Error("the connection is closed")
		}
	}
	c := b.begin()
	burst := []*sent{b.send("a.example."), b.send("b.example.")}
	q, second := c.query(), b.accept()
	second.respond(b.opening(second.request()), answer(second.query()), b.beat())
	c.respond(answerWith(q, 1))
	allAnswered(burst)
	becomes(t, "sessions", b.Coherence.Sessions, 2)
	go func() { // the keepalive
		for m := c.next(); m != nil; m = c.next() {
			c.respond(b.opening(m), b.beat())
		}
	}()
	b.clock.skip(b.Expire)
	for m := second.next(); m != nil; m = second.next() { // until it is closed
	}
	becomes(t, "sessions", b.Coherence.Sessions, 1)
	for range 20 {
		b.clock.skip(b.Expire)
		keep(c)
		time.Sleep(2 * time.Millisecond)
	}
	if !b.Vouches(nil) {
		kit.Eventually(t, "the session vouches", func() bool { keep(c); return b.Vouches(nil) })
	}
	c.respond(dso.AppendInvalidate(nil, []uint64{1}))
	becomes(t, "connections without dependent answers", b.Metrics.Connections, 0)
	if n := number(b.Coherence.Fallbacks[SessionClosed]); n != 0 {
		t.Errorf("%d fallbacks because of idle connections without dependent answers", n)
	}
}

// TestSession_Age: a connection with dependent answers has its own maximum age.
func TestSession_Age(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	b.Expire, b.MaxAge, b.Coherence.MaxAge = time.Hour, time.Minute, 10*time.Minute
	c := b.begin()
	b.learn(c, "a.example.", 1)
	heard := func() {
		t.Helper()
		b.clock.skip(5 * time.Minute)
		c.respond(b.opening(c.request()), b.beat())
		kit.Eventually(t, "the session vouches", func() bool { return b.Vouches(nil) })
	}
	heard()
	b.learn(c, "b.example.", 1)
	heard()
	s := b.send("c.example.")
	next := b.accept()
	next.respond(b.opening(next.request()))
	next.respond(answer(next.query()))
	s.answered()
}

// TestSession_AgeWhileSilent: a replica that sends no heartbeats, since its view of the cluster is frozen, gets queries on a
// connection for no longer than a server without sessions.
func TestSession_AgeWhileSilent(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	b.Expire, b.MaxAge, b.Coherence.MaxAge = time.Hour, time.Minute, 10*time.Minute
	c := b.begin()
	b.learn(c, "a.example.", 1)
	b.clock.skip(b.MaxAge + time.Second)
	c.respond(b.opening(c.request()))
	s := b.send("b.example.")
	next := b.accept()
	next.respond(b.opening(next.request()), answer(next.query()))
	s.answered()
}

// TestSession_IdleWhileSilent: an idle connection survives a silence of the server for some seconds, since its session has
// received every change when it is heard again, and is closed after a longer one.
func TestSession_IdleWhileSilent(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	b.Expire = time.Second
	c := b.begin()
	v := b.learn(c, "a.example.", 1)
	go func() { // the keepalive
		for m := c.next(); m != nil; m = c.next() {
			c.respond(b.opening(m))
		}
	}()
	for range 3 {
		b.clock.skip(compareEvery / 2)
		time.Sleep(20 * time.Millisecond) // several checks
		if !c.respond(b.beat()) {
			t.Fatal("the connection is closed")
		}
		kit.Eventually(t, "the session vouches again", func() bool { return v.Vouches(b.Coherence.Now()) })
	}
	b.clock.skip(time.Minute)
	becomes(t, "connections", b.Metrics.Connections, 0)
}

// TestSession_Late: a query without an answer does not end a connection that delivers heartbeats, and gets no copy.
func TestSession_Late(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 2)
	b.stall, b.maxStall = 10*time.Millisecond, 50*time.Millisecond
	c := b.begin()
	held, other := b.send("held.example."), b.send("other.example.")
	queries := c.queries(2)
	kit.Eventually(t, "a heartbeat after the queries", func() bool {
		c.respond(b.beat())
		established, answers, heard := b.State(held.Call)
		return established && !answers && heard
	})
	for range 30 { // less than MaxHold
		c.respond(b.beat())
		b.Late(held.Call)
		b.clock.skip(100 * time.Millisecond)
		time.Sleep(time.Millisecond)
	}
	if n := b.dials.Load(); n != 1 || b.connsNow() != 1 || !b.Vouches(held.Call) {
		t.Errorf("%d connections made and %d open, want that of the session", n, b.connsNow())
	}
	c.respond(answer(queries["held.example."]), answer(queries["other.example."]))
	held.answered()
	other.answered()
	last := b.send("last.example.")
	q := c.query()
	b.clock.skip(vouch.Silence)
	b.Late(last.Call)
	if b.connsNow() != 0 {
		t.Error("a connection without any message since the query still gets queries")
	}
	c.respond(answer(q))
	last.answered()
}

// The allocations of an answer with a handle that the session has: the voucher and its handles.
const roundTripHandles = 2

// TestSession_Allocations: answers of a session cause allocations only if they have handles.
func TestSession_Allocations(t *testing.T) {
	for name, limit := range map[string]float64{"without handles": 0, "with a handle": roundTripHandles} {
		t.Run(name, func(t *testing.T) {
			var b *coherentBed
			ready := make(chan struct{})
			s := serving(t, func(c *session) {
				<-ready
				buf := make([]byte, 512)
				for n, err := c.Read(buf); err == nil; n, err = c.Read(buf) {
					for at := 0; at < n; at += 2 + int(buf[at+1]) {
						m := buf[at+2 : at+2+int(buf[at+1])]
						if dso.IsDSO(m) {
							c.respond(b.opening(m), b.beat())
							continue
						}
						m[2] |= 0x80
						if _, err := c.Write(buf[at : at+2+len(m)]); err != nil {
							return
						}
					}
				}
			})
			b = newCoherent(t, s, 100, 2)
			b.tick = time.Hour
			close(ready)
			query := question(t, "www.example.")
			if limit > 0 {
				query = answerWith(query, 1)
				query[2] &^= 0x80
			}
			b.send("www.example.").answered()
			becomes(t, "sessions", b.Coherence.Sessions, 1)
			measureRoundTrips(t, b.Pool, query, limit)
		})
	}
}

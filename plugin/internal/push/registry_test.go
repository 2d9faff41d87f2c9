package push

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestOrder lets connections send answers while Generations advance: no client has an answer that has ended, once all messages
// have arrived. Sessions are closed and revoked meanwhile.
func TestOrder(t *testing.T) {
	r := NewRegistry()
	generations := make([]*generation, 16)
	for i := range generations {
		generations[i] = new(generation)
	}
	rounds := 3000
	if testing.Short() {
		rounds = 500
	}
	conns := make([]*conn, 8)
	var wg sync.WaitGroup
	for i := range conns {
		conns[i] = &conn{t: t}
		s := r.Open(conns[i], netip.Addr{})
		defer s.Close()
		wg.Go(func() { sendAnswers(s, conns[i], generations, rounds, uint64(i)) }) // #nosec G115 -- small
	}
	wg.Go(func() { // sessions that end
		for i := range rounds / 10 {
			c := &conn{t: t}
			s := r.Open(c, netip.Addr{})
			sendAnswers(s, c, generations, 10, uint64(i)) // #nosec G115 -- small
			s.Close()
		}
	})
	for i := range 2 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 2)) // #nosec G115 -- small
			for n := range rounds {
				generations[random.IntN(len(generations))].Advance()
				if n%500 == 499 {
					r.Revoke()
				}
				runtime.Gosched()
			}
		})
	}
	wg.Wait()
	for i, c := range conns {
		kit.Succeeds(t, kit.Patience, fmt.Sprint("connection ", i), func() error {
			if stale := c.stale(generations); len(stale) > 0 {
				return fmt.Errorf("answers %v have ended and were not invalidated", stale)
			}
			return nil
		})
	}
}

// sendAnswers sends answers as a connection does.
func sendAnswers(s *Subscriber, c *conn, generations []*generation, rounds int, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 3))
	for range rounds {
		g := generations[random.IntN(len(generations))]
		number := g.Load()
		if random.IntN(4) == 0 {
			runtime.Gosched()
		}
		c.mu.Lock()
		handle := s.Subscribe(g)
		current := g.Load() == number
		c.stream = append(c.stream, message{answer: true, handle: handle, number: number})
		if !current {
			c.stream = append(c.stream, message{handles: []uint64{handle}})
		}
		c.mu.Unlock()
	}
}

// stale returns the answers that the client of a connection holds valid, and that are not.
func (c *conn) stale(generations []*generation) (all []message) {
	now := map[uint64]uint64{}
	for _, g := range generations {
		if w := g.Watch(nil); w != nil {
			t := w.(*topic)
			t.registry.mu.Lock()
			now[t.number] = g.Load()
			t.registry.mu.Unlock()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	valid := map[uint64][]message{}
	for _, m := range c.stream {
		switch {
		case m.answer:
			valid[m.handle] = append(valid[m.handle], m)
		case !m.heartbeat && len(m.handles) == 0:
			clear(valid)
		}
		for _, h := range m.handles {
			delete(valid, h)
		}
	}
	for _, answers := range valid {
		for _, m := range answers {
			if m.number != now[m.handle] {
				all = append(all, m)
			}
		}
	}
	return all
}

// TestHeartbeats checks the time between heartbeats on a clock of the test.
func TestHeartbeats(t *testing.T) {
	var now time.Duration
	live := false
	r := NewRegistry()
	r.running = true
	r.now = func() time.Duration { return now }
	n := newNotifier(r)
	conns := make([]*conn, 12)
	for i := range conns {
		conns[i] = &conn{t: t}
		r.Open(conns[i], netip.Addr{})
	}
	beats := func(steps int, each time.Duration) (counts []int) {
		for range steps {
			now += each
			n.beat()
		}
		for _, c := range conns {
			stream := c.take()
			counts = append(counts, len(stream))
			for i, m := range stream {
				if !m.heartbeat || m.clock > uint64(now/time.Microsecond) || // #nosec G115 -- positive
					i > 0 && m.clock-stream[i-1].clock != uint64(max(each, HeartbeatInterval)/time.Microsecond) { // #nosec G115 -- positive
					t.Errorf("stream %+v", stream)
				}
			}
		}
		return counts
	}
	all := func(n int) string { return fmt.Sprint(slices.Repeat([]int{n}, len(conns))) }
	expect := func(what string, got []int, want int) {
		t.Helper()
		if fmt.Sprint(got) != all(want) {
			t.Errorf("%s: heartbeats %v, want %d", what, got, want)
		}
	}
	expect("nothing offered", beats(10, step), 0)
	withdraw := r.Offer(func() bool { return live })
	expect("not live", beats(10, step), 0)
	live = true
	expect("two intervals", beats(2*parts, step), 2)
	expect("after a stall", beats(1, 10*HeartbeatInterval), 1)
	expect("after the stall", beats(parts, step), 1)
	stale := r.Offer(func() bool { return false })
	expect("one of two not live", beats(parts, step), 0)
	stale()
	expect("live again", beats(parts, step), 1)
	withdraw()
	if expect("withdrawn", beats(parts, step), 0); r.Offers() {
		t.Error("sessions are accepted")
	}
}

// TestParts checks that the parts have the same number of sessions, also after some have ended.
func TestParts(t *testing.T) {
	r, _ := newManual()
	var sessions []*Subscriber
	for range 4 * parts {
		sessions = append(sessions, r.Open(discard{}, netip.Addr{}))
	}
	random := rand.New(rand.NewPCG(1, 1))
	for _, i := range random.Perm(len(sessions))[:2*parts] {
		sessions[i].Close()
		sessions[i] = r.Open(discard{}, netip.Addr{})
	}
	for i, part := range r.sessions {
		if len(part) != 4 {
			t.Errorf("part %d has %d sessions", i, len(part))
		}
		for k, s := range part {
			if s.part != i || s.position != k {
				t.Errorf("session %d of part %d has position %d of part %d", k, i, s.position, s.part)
			}
		}
	}
}

// TestPause checks the time between the wake-ups of the notifier, and that the heartbeats of each are few.
func TestPause(t *testing.T) {
	for _, tt := range []struct {
		sessions int
		want     time.Duration
	}{
		{1, 50 * time.Millisecond}, {99, 50 * time.Millisecond}, {320, 50 * time.Millisecond}, {321, 25 * time.Millisecond},
		{1000, 10 * time.Millisecond}, {5000, 2 * time.Millisecond}, {15000, step}, {1 << 20, step},
	} {
		got := pauseOf(tt.sessions)
		if got != tt.want || HeartbeatInterval%got != 0 {
			t.Errorf("%d sessions: %s, want %s", tt.sessions, got, tt.want)
		}
	}
}

// TestCatchUp checks that the heartbeats after a delay are sent in bursts of limited size, and each once.
func TestCatchUp(t *testing.T) {
	now := time.Hour
	r := NewRegistry()
	r.running, r.now = true, func() time.Duration { return now }
	r.Offer(func() bool { return true })
	n := newNotifier(r)
	const each = 8 // sessions of a part
	conns := make([]*conn, each*parts)
	for i := range conns {
		conns[i] = &conn{t: t}
		r.Open(conns[i], netip.Addr{})
	}
	now += HeartbeatInterval
	counts := make([]int, len(conns))
	for range len(conns)/maxAtOnce + 1 {
		sent := 0
		n.beat()
		for i, c := range conns {
			got := len(c.take())
			counts[i] += got
			sent += got
		}
		if sent >= maxAtOnce+each {
			t.Errorf("%d heartbeats at once", sent)
		}
	}
	if !slices.Equal(counts, slices.Repeat([]int{1}, len(conns))) {
		t.Errorf("heartbeats %v", counts)
	}
}

// TestBeforeHeartbeat checks that a change is sent before the heartbeat whose clock is later.
func TestBeforeHeartbeat(t *testing.T) {
	tests := map[string]func(r *Registry, g *generation){
		"change": func(_ *Registry, g *generation) { g.Advance() },
		"reload": func(r *Registry, _ *generation) { r.Revoke() },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			r, n := newManual()
			r.now = func() time.Duration { return time.Hour }
			n.steps = int64(time.Hour/step) - parts
			r.Offer(func() bool { return true })
			c, g := &conn{t: t}, new(generation)
			s := r.Open(c, netip.Addr{})
			s.Subscribe(g)
			change(r, g)
			n.beat()
			if stream := c.take(); len(stream) != 2 || stream[0].heartbeat || !stream[1].heartbeat {
				t.Errorf("stream %+v", stream)
			}
		})
	}
}

// TestRevoke invalidates the answers of the sessions of that time: not those of a session that is the first one later.
func TestRevoke(t *testing.T) {
	for name, tt := range map[string]struct {
		before, remain bool // there is a session before, and it remains
		notified       bool // the notifier runs before the new session
		want           bool // all handles of the new session are invalidated
	}{
		"no session":                  {false, false, false, false},
		"no session, notified":        {false, false, true, false},
		"the session ends":            {true, false, false, false},
		"the session ends, notified":  {true, false, true, false},
		"a session remains":           {true, true, false, true},
		"a session remains, notified": {true, true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			r, n := newManual()
			former, c := &conn{t: t}, &conn{t: t}
			var s *Subscriber
			if tt.before {
				s = r.Open(former, netip.Addr{})
			}
			r.Revoke()
			if tt.before && !tt.remain {
				s.Close()
			}
			if tt.notified {
				n.invalidate()
			}
			r.Open(c, netip.Addr{})
			n.invalidate()
			if _, all := invalidated(c.take()); all != tt.want {
				t.Errorf("all handles of the new session are invalidated: %t, want %t", all, tt.want)
			}
			if _, all := invalidated(former.take()); all != tt.remain {
				t.Errorf("all handles of the former session are invalidated: %t, want %t", all, tt.remain)
			}
		})
	}
}

// TestSessionHasRoom asserts that the other end accepts as many handles as a session may have here.
func TestSessionHasRoom(t *testing.T) {
	s := vouch.NewSession(func() time.Duration { return 0 })
	for handle := range uint64(maxPerSession) {
		if s.Voucher([]uint64{handle + 1}) == nil {
			t.Fatalf("no voucher for handle %d", handle+1)
		}
	}
}

func TestLimits(t *testing.T) {
	r, n := newManual()
	r.perSession, r.perProcess = 3, 12
	generations := make([]*generation, 4)
	for i := range generations {
		generations[i] = new(generation)
	}
	subscribe := func(s *Subscriber) (count int) {
		for _, g := range generations {
			if s.Subscribe(g) != 0 {
				count++
			}
		}
		return count
	}
	var sessions []*Subscriber
	for i, want := range []int{3, 2, 2, 2, 1, 1, 1, 0} {
		s := r.Open(discard{}, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})) // #nosec G115 -- small
		sessions = append(sessions, s)
		if got := subscribe(s); got != want {
			t.Errorf("client %d has %d subscriptions, want %d", i, got, want)
		}
	}
	if a := subscribe(sessions[0]); a != 3 {
		t.Errorf("%d subscriptions are renewed, want 3", a)
	}
	got := r.Statistics()
	if want := [refuseReasons]uint64{SessionLimit: 2, SourceLimit: 12, ProcessLimit: 7}; got.Refused != want || got.Subscriptions != 12 {
		t.Errorf("%+v, want %v refused", got, want)
	}
	generations[0].Advance()
	n.invalidate()
	if got := r.Statistics(); got.Subscriptions != 5 || got.Invalidations != 7 {
		t.Errorf("%+v, want 5 subscriptions", got)
	}
	if a := subscribe(sessions[7]); a != 2 {
		t.Errorf("%d subscriptions after some have ended, want 2", a)
	}
}

// TestUnsubscribe ends one of two subscriptions, of two sessions: no invalidation follows, and the others remain.
func TestUnsubscribe(t *testing.T) {
	r, n := newManual()
	a, b := &conn{t: t}, &conn{t: t}
	first, second := r.Open(a, netip.Addr{}), r.Open(b, netip.Addr{})
	ended, kept := new(generation), new(generation)
	for _, s := range []*Subscriber{first, second} {
		s.Subscribe(ended)
		s.Subscribe(kept)
	}
	first.Unsubscribe(ended)
	first.Unsubscribe(ended) // no effect
	if got := r.Statistics().Subscriptions; got != 3 {
		t.Errorf("%d subscriptions, want 3", got)
	}
	ended.Advance()
	kept.Advance()
	n.invalidate()
	for c, want := range map[*conn]int{a: 1, b: 2} {
		if handles, _ := invalidated(c.take()); len(handles) != want {
			t.Errorf("%v are invalidated, want %d", handles, want)
		}
	}
	first.Close()
	first.Unsubscribe(ended)
	second.Close()
	if got := r.Statistics(); got.Subscriptions != 0 || len(r.sources) != 0 {
		t.Errorf("%+v", got)
	}
}

// TestManyHandles checks that more handles than a message may have are sent in several.
func TestManyHandles(t *testing.T) {
	r, n := newManual()
	c := &conn{t: t}
	s := r.Open(c, netip.Addr{})
	var want []uint64
	generations := make([]generation, dso.MaxInvalidated+10)
	for i := range generations {
		want = append(want, s.Subscribe(&generations[i]))
	}
	for i := range generations {
		generations[i].Advance()
	}
	n.invalidate()
	stream := c.take()
	if got, _ := invalidated(stream); !slices.Equal(got, want) {
		t.Errorf("%d handles, want %d", len(got), len(want))
	}
	for _, m := range stream {
		if len(m.handles) > dso.MaxInvalidated {
			t.Errorf("%d handles in a message", len(m.handles))
		}
	}
	if cap(s.pending) > maxPending || len(s.topics) != 0 || s.maxTopics != 0 {
		t.Errorf("the session retains %d handles and %d topics", cap(s.pending), len(s.topics))
	}
}

// TestOtherWatcher checks that a Generation which another registry watches gets no handle.
func TestOtherWatcher(t *testing.T) {
	r, _ := newManual()
	other, _ := newManual()
	g := new(generation)
	s, peer := r.Open(discard{}, netip.Addr{}), other.Open(discard{}, netip.Addr{})
	if peer.Subscribe(g) == 0 || s.Subscribe(g) != 0 {
		t.Error("a registry subscribed to a Generation of another")
	}
}

// TestEnd checks that the notifier ends with the last session, and starts again.
func TestEnd(t *testing.T) {
	r := NewRegistry()
	running := func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.running
	}
	for range 2 {
		c, g := &conn{t: t}, new(generation)
		s := r.Open(c, netip.Addr{})
		s.Subscribe(g)
		g.Advance()
		kit.Eventually(t, "the invalidation", func() bool { handles, _ := invalidated(c.take()); return len(handles) == 1 })
		s.Close()
		kit.Eventually(t, "the end", func() bool { return !running() })
	}
}

func TestStatistics(t *testing.T) {
	r, _ := newManual()
	r.CountClosed(Unread)
	r.CountClosed(Malformed)
	r.CountClosed(Malformed)
	if got, want := r.Statistics(), [closeReasons]uint64{Unread: 1, Malformed: 2}; got.Closed != want || got.Live {
		t.Errorf("%+v, want %v", got, want)
	}
	r.Offer(func() bool { return true })
	if !r.Statistics().Live {
		t.Error("not live")
	}
	if got := fmt.Sprint(Unread, Silent, Malformed, SessionLimit, ProcessLimit); got != "unread silent malformed session process" {
		t.Error(got)
	}
}

// TestSourceLimit has clients with many sessions that subscribe to all that they can. A lone one gets a fifth of the subscriptions
// of the process, and each further one a fifth of the others; the first one gets more again once others have ended.
func TestSourceLimit(t *testing.T) {
	r, _ := newManual()
	r.perSession, r.perProcess = 4, 40
	generations := make([]generation, 8)
	subscribe := func(s *Subscriber) (handles int) {
		for i := range generations {
			if s.Subscribe(&generations[i]) != 0 {
				handles++
			}
		}
		return handles
	}
	var sessions []*Subscriber
	open := func(client string, wants ...int) {
		t.Helper()
		for _, want := range wants {
			s := r.Open(discard{}, netip.MustParseAddr(client))
			sessions = append(sessions, s)
			if got := subscribe(s); got != want {
				t.Errorf("%s has %d handles, want %d", client, got, want)
			}
		}
	}
	open("192.0.2.1", 4, 4, 1, 0)
	open("192.0.2.2", 4, 3, 0)
	open("192.0.2.3", 4, 1, 0)
	open("192.0.2.4", 4, 0)
	if refused := r.Statistics().Refused; refused != [refuseReasons]uint64{SessionLimit: 20, SourceLimit: 51} {
		t.Errorf("refused %v", refused)
	}
	for i, s := range sessions {
		if i != 3 {
			s.Close()
		}
	}
	if got := subscribe(sessions[3]); got != 4 {
		t.Errorf("%d handles after the other sessions have ended, want 4", got)
	}
	if len(r.sources) != 1 {
		t.Errorf("%d addresses are remembered, want that of the open session", len(r.sources))
	}
}

// TestNewcomers has clients that subscribe to all that they can, until none gets more: a client of a small cluster still does.
func TestNewcomers(t *testing.T) {
	r, _ := newManual()
	r.perProcess = 40_000
	generations := make([]generation, 30_000)
	for i := range 15 {
		s := r.Open(discard{}, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})) // #nosec G115 -- small
		for k := range generations {
			s.Subscribe(&generations[k])
		}
	}
	s := r.Open(discard{}, netip.MustParseAddr("198.51.100.1"))
	for k := range topics {
		if s.Subscribe(&generations[k]) == 0 {
			t.Fatalf("no more than %d handles, %d of %d are in use", k, r.Statistics().Subscriptions, r.perProcess)
		}
	}
}

package vouch

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/push"
)

// clocks are those of a client and a server in one true time. Each may have stopped for a time, and they run at different
// speeds.
type clocks struct {
	truth                      time.Duration
	clientStopped, serverStops time.Duration
	drift                      float64 // of the client's clock, a share
}

func (c *clocks) client() time.Duration {
	return time.Duration(float64(c.truth-c.clientStopped) * (1 + c.drift))
}

// server returns the server's clock in microseconds. It has started an hour before the client's.
func (c *clocks) server() uint64 {
	return uint64((c.truth - c.serverStops + time.Hour) / time.Microsecond) // #nosec G115 -- positive
}

// newSession returns a session whose clocks have been compared, without delay.
func newSession(c *clocks) *Session {
	c.truth = time.Minute
	s := NewSession(c.client)
	s.Opened(c.client(), c.server())
	return s
}

// TestHeard is what a session vouches for after a heartbeat, in the client's time.
func TestHeard(t *testing.T) {
	tests := map[string]struct {
		prepare func(c *clocks, s *Session) (heard bool)
		ok      bool
		until   time.Duration // from the start of the test
	}{
		"no heartbeat": {func(*clocks, *Session) bool { return true }, true, 0},
		"at once":      {func(c *clocks, s *Session) bool { return s.Heard(c.server()) }, true, Silence},
		"delayed": {func(c *clocks, s *Session) bool {
			sent := c.server()
			c.truth += 700 * time.Millisecond
			return s.Heard(sent)
		}, true, Silence},
		"delayed too long": {func(c *clocks, s *Session) bool {
			sent := c.server()
			c.truth += 1100 * time.Millisecond
			return s.Heard(sent)
		}, true, 0},
		"comparison delayed": {func(c *clocks, s *Session) bool {
			requested := c.client()
			c.truth += 300 * time.Millisecond // of the request
			clock := c.server()
			c.truth += 200 * time.Millisecond // of the response
			s.Opened(requested, clock)
			return s.Heard(c.server())
		}, true, Silence + 200*time.Millisecond},
		"an older one after": {func(c *clocks, s *Session) bool {
			older := c.server()
			c.truth += 100 * time.Millisecond
			return s.Heard(c.server()) && s.Heard(older)
		}, true, Silence + 100*time.Millisecond},
		"client stopped": {func(c *clocks, s *Session) bool {
			s.Heard(c.server())
			c.truth, c.clientStopped = c.truth+time.Second, time.Second
			return s.Heard(c.server())
		}, false, 0},
		"client stopped for a moment": {func(c *clocks, s *Session) bool {
			c.truth, c.clientStopped = c.truth+tolerance/2, tolerance/2
			return s.Heard(c.server())
		}, true, Silence}, // from now, not from the time that the server's clock has
		"client stopped, no comparison since": {func(c *clocks, s *Session) bool {
			c.truth, c.clientStopped = c.truth+time.Second, time.Second
			return s.Heard(c.server()) || !s.Heard(c.server())
		}, false, 0},
		"client stopped, compared": {func(c *clocks, s *Session) bool {
			c.truth, c.clientStopped = c.truth+time.Second, time.Second
			s.Heard(c.server())
			s.Opened(c.client(), c.server())
			return s.Heard(c.server())
		}, true, Silence},
		"server stopped": {func(c *clocks, s *Session) bool {
			c.truth, c.serverStops = c.truth+2*time.Second, 2*time.Second
			return s.Heard(c.server())
		}, true, 0},
		"server stopped, compared": {func(c *clocks, s *Session) bool {
			c.truth, c.serverStops = c.truth+2*time.Second, 2*time.Second
			s.Opened(c.client(), c.server())
			return s.Heard(c.server())
		}, true, 2*time.Second + Silence},
		"closed":              {func(c *clocks, s *Session) bool { s.Close(); return s.Heard(c.server()) }, false, 0},
		"closed after one":    {func(c *clocks, s *Session) bool { ok := s.Heard(c.server()); s.Close(); return ok }, true, 0},
		"opened after closed": {func(c *clocks, s *Session) bool { s.Close(); s.Opened(0, 0); return s.Heard(c.server()) }, false, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := new(clocks)
			s := newSession(c)
			began := c.client()
			if ok := tt.prepare(c, s); ok != tt.ok {
				t.Errorf("heard: %t", ok)
			}
			until := began + tt.until
			vouched := tt.until > 0 && s.Vouches(until-time.Millisecond)
			if tt.until > 0 && !vouched || s.Vouches(max(until, c.client())) {
				t.Errorf("until %s, want %s", time.Duration(s.until.Load())-began, tt.until)
			}
		})
	}
}

func TestBeforeOpened(t *testing.T) {
	c := &clocks{truth: time.Minute}
	s := NewSession(c.client)
	if s.Heard(c.server()); s.Vouches(c.client()) || s.Vouches(0) {
		t.Error("the session vouches before the clocks were compared")
	}
	if _, heard := s.Age(); heard {
		t.Error("a heartbeat was heard")
	}
}

func TestAge(t *testing.T) {
	c := new(clocks)
	s := newSession(c)
	s.Heard(c.server())
	c.truth += 300 * time.Millisecond
	if age, heard := s.Age(); !heard || age != 300*time.Millisecond {
		t.Errorf("%s, %t", age, heard)
	}
}

// TestNeverLonger delays messages at random on a stream in order: a session never vouches when no heartbeat was sent within
// Silence, and most of the time it does when the network is fast.
func TestNeverLonger(t *testing.T) {
	tests := map[string]struct {
		delay time.Duration // maximum
		drift float64
		share float64 // of the time in which the session vouches, at least
	}{
		"fast":              {5 * time.Millisecond, 0, 0.997},
		"slow":              {400 * time.Millisecond, 0, 0.3},
		"client's is fast":  {5 * time.Millisecond, 1e-4, 0.997},
		"client's is slow":  {5 * time.Millisecond, -1e-4, 0.997},
		"very slow network": {3 * time.Second, 0, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(3) {
				w := &world{random: rand.New(rand.NewPCG(seed, 4)), delay: tt.delay, clocks: clocks{truth: time.Minute, drift: tt.drift}}
				w.session = NewSession(w.client)
				// What the clocks drift apart until they are compared the next time, that comparison included.
				slack := time.Duration(1e-4 * float64(12*time.Second+2*tt.delay))
				vouched, steps := 0, 0
				for ; w.truth < 3*time.Minute; w.truth += time.Millisecond {
					w.step()
					if steps++; !w.session.Vouches(w.client()) {
						continue
					}
					if vouched++; w.truth-w.heard > Silence+slack {
						t.Fatalf("seed %d: the last heartbeat was sent %s ago", seed, w.truth-w.heard)
					}
				}
				if share := float64(vouched) / float64(steps); share < tt.share {
					t.Errorf("seed %d: the session vouches %.3f of the time, want %.3f", seed, share, tt.share)
				}
			}
		})
	}
}

// world is a client and a server, with a network between them.
type world struct {
	clocks
	random           *rand.Rand
	delay            time.Duration
	session          *Session
	heard            time.Duration // the true time at which the last heartbeat was sent that has arrived
	toServer, toward []flying
	lastRequest      time.Duration
}

// flying is a message on its way: a request with the client's time, a response with that and the clock, or a heartbeat.
type flying struct {
	arrives, sent, requested time.Duration
	clock                    uint64
	response                 bool
}

// step continues the world until its time.
func (w *world) step() {
	send := func(to *[]flying, m flying) {
		m.sent, m.arrives = w.truth, w.truth+time.Duration(w.random.Int64N(int64(w.delay)))
		if n := len(*to); n > 0 {
			m.arrives = max(m.arrives, (*to)[n-1].arrives) // the stream is in order
		}
		*to = append(*to, m)
	}
	if w.lastRequest == 0 || w.truth-w.lastRequest >= 10*time.Second {
		w.lastRequest = w.truth
		send(&w.toServer, flying{requested: w.client()})
	}
	for len(w.toServer) > 0 && w.toServer[0].arrives <= w.truth {
		send(&w.toward, flying{requested: w.toServer[0].requested, clock: w.server(), response: true})
		w.toServer = w.toServer[1:]
	}
	if w.truth%push.HeartbeatInterval == 0 {
		send(&w.toward, flying{clock: w.server()})
	}
	for len(w.toward) > 0 && w.toward[0].arrives <= w.truth {
		m := w.toward[0]
		w.toward = w.toward[1:]
		if m.response {
			w.session.Opened(m.requested, m.clock)
			continue
		}
		w.session.Heard(m.clock)
		w.heard = m.sent
	}
}

// TestSessionLimit checks that a session has a limit of handles, which other answers with the handles do not need.
func TestSessionLimit(t *testing.T) {
	c := new(clocks)
	s := newSession(c)
	for n := range uint64(maxHandles) {
		if s.Voucher([]uint64{n + 1}) == nil {
			t.Fatalf("no voucher for handle %d", n+1)
		}
	}
	if s.Voucher([]uint64{maxHandles + 1}) != nil || s.Len() != maxHandles {
		t.Errorf("%d handles", s.Len())
	}
	if s.Voucher([]uint64{1, 2}) == nil {
		t.Error("no voucher for known handles")
	}
	if s.Invalidate(nil); s.Len() != 0 || s.Voucher([]uint64{maxHandles + 1}) == nil {
		t.Error("no voucher after an invalidation")
	}
}

func ExampleSession() {
	now := 10 * time.Second
	s := NewSession(func() time.Duration { return now })
	s.Opened(now, 5_000_000)
	now += 100 * time.Millisecond
	s.Heard(5_100_000)
	v := s.Voucher([]uint64{7})
	fmt.Println(v.Vouches(now), v.Vouches(now+Silence))
	s.Invalidate([]uint64{7})
	fmt.Println(v.Vouches(now), v.Ended())
	// Output:
	// true false
	// false true
}

// Package vouch is the end in nodecache of a session that keeps the cache of a node coherent with clusterdns (package push is the
// other end). A Session turns the messages into the validity of answers: a Voucher vouches for an answer while heartbeats of its
// session arrive and none of its handles is invalidated. It has no connections, no answers and no metrics.
package vouch

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Silence is the time after a heartbeat in which a session vouches for answers.
	Silence = time.Second
	// tolerance is the time by which a heartbeat may appear to be from the future before the clocks are compared again: one
	// of the machines was suspended.
	tolerance = 50 * time.Millisecond
	// maxHandles is the maximum number of handles of a session, twice the limit of package push. Answers beyond it have no
	// voucher.
	maxHandles = 1 << 16
)

// Session is a session of a node's cache with a server. Its connection calls the methods in the order of the messages.
type Session struct {
	now   func() time.Duration // the clock of the answers' validity
	until atomic.Int64         // the session vouches for answers until this time, on that clock
	// vouched is the last time at which the session vouched for answers; it applies while until is 0.
	vouched atomic.Int64
	lapsed  atomic.Bool // see Retire

	mu      sync.Mutex
	mirror  func(until time.Duration, lapsed bool) // see Mirror; nil without one
	base    time.Duration                          // the earliest time at which the server's clock may have been 0, on the clock of now
	opened  bool
	closed  bool
	handles map[uint64]*Handle
}

// NewSession returns a session that vouches for nothing until Opened and a heartbeat. now returns the time on the clock of the
// answers' validity.
func NewSession(now func() time.Duration) *Session {
	return &Session{now: now, handles: map[uint64]*Handle{}}
}

// Opened records the response to a Session request that was sent at a time: the server's clock, in microseconds, had the
// value clock then or later. It is called again when the clocks were compared again: an earlier result is replaced even if it
// vouches for longer, as it may be from before one of the clocks stopped.
func (s *Session) Opened(requested time.Duration, clock uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base, s.opened = requested-micros(clock), !s.closed
}

func micros(clock uint64) time.Duration { return time.Duration(clock) * time.Microsecond } // #nosec G115 -- since a start

// Heard records a heartbeat that the server sent at a time of its clock. However long the network has delayed it, the session
// vouches for answers for Silence from the earliest time at which it may have been sent. Heard returns false if the clocks
// have to be compared again; the session vouches for nothing until then.
func (s *Session) Heard(clock uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.opened {
		return !s.closed
	}
	now, sent := s.now(), s.base+micros(clock)
	if sent > now+tolerance {
		s.opened = false
		s.silence() // earlier heartbeats were dated by the same comparison
		return false
	}
	s.until.Store(max(s.until.Load(), int64(min(sent, now)+Silence)))
	s.reflect()
	return true
}

// Mirror calls a function at once and after each change of its arguments: the time until which the session vouches for answers,
// 0 if it does not, and whether its answers have lapsed. The function is called with the session locked, and replaces an
// earlier one; nil ends the calls.
func (s *Session) Mirror(mirror func(until time.Duration, lapsed bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mirror = mirror
	s.reflect()
}

// reflect calls the mirror. mu is locked.
func (s *Session) reflect() {
	if s.mirror != nil {
		s.mirror(time.Duration(s.until.Load()), s.lapsed.Load())
	}
}

// Age returns the maximum time since the last heartbeat was sent. It returns false before the first heartbeat,
// after the end of the session, and while the clocks have to be compared.
func (s *Session) Age() (time.Duration, bool) {
	until := time.Duration(s.until.Load())
	return s.now() - (until - Silence), until != 0
}

// Vouches reports whether the session vouches for its answers at a time.
func (s *Session) Vouches(now time.Duration) bool { return now < time.Duration(s.until.Load()) }

// Voucher returns the voucher for an answer with handles, nil without handles, beyond maxHandles, or if the session has
// ended. It is called before messages behind the answer are processed.
func (s *Session) Voucher(handles []uint64) *Voucher {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(handles) == 0 {
		return nil
	}
	v := &Voucher{handles: make([]*Handle, 0, len(handles))}
	for _, n := range handles {
		h := s.handles[n]
		if h == nil && len(s.handles) == maxHandles {
			return nil
		}
		if h == nil {
			h = &Handle{session: s}
			s.handles[n] = h
		}
		v.handles = append(v.handles, h)
	}
	return v
}

// Invalidate ends the validity of the answers with any of the handles, or without handles of all answers, and returns
// the stored ones, for which the caller calls End.
func (s *Session) Invalidate(handles []uint64) (dependents []Dependent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(handles) == 0 {
		for _, h := range s.handles {
			dependents = h.end(dependents)
		}
		s.handles = map[uint64]*Handle{}
		return dependents
	}
	for _, n := range handles {
		if h := s.handles[n]; h != nil {
			dependents = h.end(dependents)
			delete(s.handles, n)
		}
	}
	if len(s.handles) == 0 {
		s.handles = map[uint64]*Handle{} // the memory of a map does not shrink
	}
	return dependents
}

// Retire ends the session of a connection that is closed while both ends work: its answers lapse. They are fetched again when
// they are used next, for no session reports their end any more; their TTL applies while fetching them fails.
func (s *Session) Retire() {
	s.lapsed.Store(true)
	s.Close()
}

// Close ends the session: each answer falls back to its TTL.
func (s *Session) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened, s.closed = false, true
	s.silence()
	for _, h := range s.handles {
		h.dependents = nil
	}
	s.handles = nil
}

// silence ends the time for which the session vouches.
func (s *Session) silence() {
	if until := s.until.Load(); until != 0 {
		s.vouched.Store(min(until, int64(s.now())))
	}
	s.until.Store(0)
	s.reflect()
}

// LastVouched returns the time until which the session vouches, or did last; 0 if it never has.
func (s *Session) LastVouched() time.Duration {
	if until := s.until.Load(); until != 0 {
		return time.Duration(until)
	}
	return time.Duration(s.vouched.Load())
}

// Len returns the number of handles.
func (s *Session) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.handles)
}

package coherence

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
)

// Session is a session of a node's cache with a server. Its connection calls the methods in the order of the messages.
type Session struct {
	now   func() time.Duration // the clock of the answers' validity
	until atomic.Int64         // the session vouches for answers until this time, on that clock

	mu      sync.Mutex
	base    time.Duration // the earliest time that the zero of the server's clock may have, on this clock
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
// value clock then or later. It is called again when the clocks were compared again.
func (s *Session) Opened(requested time.Duration, clock uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base, s.opened = requested-micros(clock), !s.closed
}

func micros(clock uint64) time.Duration { return time.Duration(clock) * time.Microsecond } // #nosec G115 -- since a start

// Heard records a heartbeat that the server sent at a time of its clock. However long the network has delayed it, the session
// vouches for answers for Silence from the earliest time at which it may have been sent. Heard returns false if the clocks
// have to be compared again, and vouches for nothing until then.
func (s *Session) Heard(clock uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.opened {
		return !s.closed
	}
	now, sent := s.now(), s.base+micros(clock)
	if sent > now+tolerance {
		s.opened = false
		s.until.Store(0)
		return false
	}
	s.until.Store(max(s.until.Load(), int64(min(sent, now)+Silence)))
	return true
}

// Age returns the time since the last heartbeat was sent at the latest, and whether there was one.
func (s *Session) Age() (time.Duration, bool) {
	until := time.Duration(s.until.Load())
	return s.now() - (until - Silence), until != 0
}

// Vouches reports whether the session vouches for its answers at a time.
func (s *Session) Vouches(now time.Duration) bool { return now < time.Duration(s.until.Load()) }

// Voucher returns the voucher for an answer with handles, nil if the session has ended. It is called before messages behind
// the answer are processed.
func (s *Session) Voucher(handles []uint64) *Voucher {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(handles) == 0 {
		return nil
	}
	v := &Voucher{handles: make([]*Handle, 0, len(handles))}
	for _, n := range handles {
		h := s.handles[n]
		if h == nil {
			h = &Handle{session: s, number: n}
			s.handles[n] = h
		}
		v.handles = append(v.handles, h)
	}
	return v
}

// Invalidate ends the validity of the answers with any of some handles, or of all answers without any, and returns what
// depends on them. The caller calls Invalidated of each.
func (s *Session) Invalidate(handles []uint64) (dependents []Dependent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(handles) == 0 {
		for _, h := range s.handles {
			dependents = h.end(dependents)
		}
		clear(s.handles)
		return dependents
	}
	for _, n := range handles {
		if h := s.handles[n]; h != nil {
			dependents = h.end(dependents)
			delete(s.handles, n)
		}
	}
	return dependents
}

// Close ends the session: each answer falls back to its TTL.
func (s *Session) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened, s.closed = false, true
	s.until.Store(0)
	clear(s.handles)
}

// Len returns the number of handles.
func (s *Session) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.handles)
}

// Handle stands for data of the server on which answers depend.
type Handle struct {
	session    *Session
	number     uint64
	ended      atomic.Bool
	dependents []Dependent // guarded by the session's mutex
	compactAt  int
}

// end ends the validity of the answers that depend on the handle. The session's mutex is locked.
func (h *Handle) end(dependents []Dependent) []Dependent {
	h.ended.Store(true)
	dependents = append(dependents, h.dependents...)
	h.dependents = nil
	return dependents
}

// Dependent is a stored answer that depends on handles.
type Dependent interface {
	// Invalidated is called when the answer has ended, without a lock, more than once if it depends on several handles.
	Invalidated()
	// Stored reports whether the answer is still stored.
	Stored() bool
}

// Voucher is the validity of an answer beyond its TTL. It is immutable, except for its handles.
type Voucher struct {
	handles []*Handle
	limit   time.Duration // the end of the part of the answer that no session vouches for; 0 without such a part
}

// Ended reports whether a handle was invalidated: the answer must not be served, whatever its TTL. nil has not ended.
func (v *Voucher) Ended() bool {
	if v != nil {
		for _, h := range v.handles {
			if h.ended.Load() {
				return true
			}
		}
	}
	return false
}

// Vouches reports whether the answer is valid at a time, although its TTL may have expired. nil does not vouch.
func (v *Voucher) Vouches(now time.Duration) bool {
	if v == nil || v.limit != 0 && now >= v.limit {
		return false
	}
	for _, h := range v.handles {
		if h.ended.Load() || !h.session.Vouches(now) {
			return false
		}
	}
	return true
}

// LastVouched returns the last time at which the answer was known to be valid, not after now; 0 if it never was.
func (v *Voucher) LastVouched(now time.Duration) time.Duration {
	if v == nil {
		return 0
	}
	last := now
	if v.limit != 0 {
		last = min(last, v.limit)
	}
	for _, h := range v.handles {
		last = min(last, time.Duration(h.session.until.Load()))
	}
	return last
}

// Attach makes an answer a dependent of the handles.
func (v *Voucher) Attach(d Dependent) {
	if v == nil {
		return
	}
	ended := false
	for _, h := range v.handles {
		ended = !h.attach(d) || ended
	}
	if ended {
		d.Invalidated()
	}
}

// minCompact is the number of dependents of a handle from which those that are not stored any more are removed.
const minCompact = 8

// attach adds a dependent, and returns false if the handle was invalidated.
func (h *Handle) attach(d Dependent) bool {
	h.session.mu.Lock()
	defer h.session.mu.Unlock()
	if h.ended.Load() {
		return false
	}
	if len(h.dependents) >= max(minCompact, h.compactAt) {
		stored := h.dependents[:0]
		for _, other := range h.dependents {
			if other.Stored() {
				stored = append(stored, other)
			}
		}
		clear(h.dependents[len(stored):])
		h.dependents, h.compactAt = stored, 2*len(stored)
	}
	h.dependents = append(h.dependents, d)
	return true
}

// Join returns the voucher for an answer that was made of two answers, each with its voucher or nil, and the time at which its
// TTL expires, 0 for none: it is nil if neither has one.
func Join(a *Voucher, aExpires time.Duration, b *Voucher, bExpires time.Duration) *Voucher {
	if a == nil && b == nil {
		return nil
	}
	v := new(Voucher)
	v.add(a, aExpires)
	v.add(b, bExpires)
	return v
}

func (v *Voucher) add(other *Voucher, expires time.Duration) {
	limit := expires
	if other != nil {
		v.handles = append(v.handles, other.handles...)
		limit = other.limit
	}
	if limit != 0 && (v.limit == 0 || limit < v.limit) {
		v.limit = limit
	}
}

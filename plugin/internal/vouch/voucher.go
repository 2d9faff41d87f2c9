package vouch

import (
	"slices"
	"sync/atomic"
	"time"
)

// Handle stands for data of the server on which answers depend.
type Handle struct {
	session    *Session
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

// End calls Invalidated of stored answers that have ended, and then the functions that these calls have returned: all answers
// are removed before any of them is fetched again.
func End(dependents []Dependent) {
	var all []func()
	for _, d := range dependents {
		if then := d.Invalidated(); then != nil {
			all = append(all, then)
		}
	}
	for _, then := range all {
		then()
	}
}

// Dependent is a stored answer that depends on handles.
type Dependent interface {
	// Invalidated is called when the answer has ended, without a lock, more than once if it depends on several handles. It
	// returns a function that may fetch the answer again, or nil. See End.
	Invalidated() (then func())
	// Stored reports whether the answer is still stored. It is called with the session locked, and locks nothing.
	Stored() bool
}

// Voucher is the validity of an answer beyond its TTL. It is immutable, except for its handles.
type Voucher struct {
	handles []*Handle
	limit   time.Duration // expiry of the part of the answer that no session vouches for; 0 without such a part
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

// Lapsed reports whether a session of the answer was retired: see Session.Retire. nil has not lapsed.
func (v *Voucher) Lapsed() bool {
	if v != nil {
		for _, h := range v.handles {
			if h.session.lapsed.Load() {
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
		last = min(last, h.session.LastVouched())
	}
	return last
}

// Session returns the session of all handles, and the expiry of the part of the answer that no session vouches for, 0 without
// such a part. It returns false if there are several sessions.
func (v *Voucher) Session() (s *Session, limit time.Duration, ok bool) {
	for _, h := range v.handles {
		if s != nil && h.session != s {
			return nil, 0, false
		}
		s = h.session
	}
	return s, v.limit, s != nil
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
		End([]Dependent{d})
	}
}

// The parts of Memory in bytes.
const (
	voucherMemory = 40 // a Voucher without handles, and a Dependent of the size of a pointer
	placeMemory   = 32 // the place of a handle in the Voucher, and that of the Dependent in the handle, which grow by doubling
	handleMemory  = 88 // a handle, with its place in the session
)

// Memory returns the memory of the voucher in bytes once Attach has made an answer a dependent of its handles. The memory of a
// handle itself counts for its first dependent. Memory returns 0 for nil.
func (v *Voucher) Memory() int {
	if v == nil {
		return 0
	}
	n := voucherMemory + len(v.handles)*placeMemory
	for _, h := range v.handles {
		if h.isUnused() {
			n += handleMemory
		}
	}
	return n
}

// isUnused reports whether the handle has no dependent.
func (h *Handle) isUnused() bool {
	h.session.mu.Lock()
	defer h.session.mu.Unlock()
	return len(h.dependents) == 0
}

// minCompact is the number of dependents of a handle from which attach removes dependents that are not stored any more.
const minCompact = 8

// attach adds a dependent, and returns false if the handle was invalidated.
func (h *Handle) attach(d Dependent) bool {
	h.session.mu.Lock()
	defer h.session.mu.Unlock()
	switch {
	case h.ended.Load():
		return false
	case h.session.closed:
		return true // the session reports no end any more
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

// Join returns the voucher for an answer that was made of two answers, given the voucher of each, or nil, and the time at
// which its TTL expires, 0 for none. It returns nil without vouchers.
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
		for _, h := range other.handles {
			if !slices.Contains(v.handles, h) {
				v.handles = append(v.handles, h)
			}
		}
		limit = other.limit
	}
	if limit != 0 && (v.limit == 0 || limit < v.limit) {
		v.limit = limit
	}
}

package store

import (
	"sync/atomic"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/vouch"
)

// link is the dependent of a Voucher's handles for an entry. A handle refers to the link until the next compaction of its
// dependents, but not to the memory of an entry that was evicted or replaced.
type link struct{ entry atomic.Pointer[Entry] } // nil once the entry is not stored any more

var _ vouch.Dependent = (*link)(nil)

// linkEntry lets the session that vouches for an entry end it: by a link, since the session may outlive the entry.
func (e *Entry) linkEntry() {
	if e.Voucher != nil {
		l := new(link)
		l.entry.Store(e)
		e.Dependent = l
	}
}

// unlinkEntry removes the reference to an entry from its Dependent.
func (e *Entry) unlinkEntry() {
	if l, ok := e.Dependent.(*link); ok {
		l.entry.Store(nil)
	}
}

// entryOf returns the entry of a dependent of this package, nil if it is not stored any more.
func entryOf(d vouch.Dependent) *Entry { return d.(*link).entry.Load() }

// Stored implements vouch.Dependent.
func (l *link) Stored() bool { return l.entry.Load() != nil }

// Invalidated implements vouch.Dependent: it removes the entry, which is not fresh any more, and returns the call of the
// keyspace's function (OnInvalidated), once.
func (l *link) Invalidated() (then func()) {
	e := l.entry.Load()
	if e == nil {
		return nil
	}
	if f := e.keyspace.store.invalidate(e); f != nil {
		return func() { f(e) }
	}
	return nil
}

// invalidate removes an entry if it is still there, and returns the function to call then, or nil.
func (s *Store) invalidate(e *Entry) func(*Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.newer == nil {
		return nil
	}
	s.unlink(e)
	return e.keyspace.invalidated
}

// Key returns the key of an entry that was stored. It is a copy.
func (e *Entry) Key() []byte { return []byte(e.key) }

// Lifetime returns the time for which clients may use an answer that they receive at a time, by its TTLs: the whole lifetime
// while a session vouches for it, and the remaining one otherwise.
func (e *Entry) Lifetime(now time.Duration) time.Duration {
	if e.Vouched(now) {
		return max(0, e.Expires-e.Stored) // Expires of a reply that another cache has received may be before Stored
	}
	return max(0, e.Expires-now)
}

// StaleUntil returns the time from which the entry is not served stale any more. It is as long after the last time at which a
// session vouched for the answer as Gone is after Expires, and not before Gone.
func (e *Entry) StaleUntil(now time.Duration) time.Duration {
	if e.Voucher == nil || e.Gone <= e.Expires {
		return e.Gone
	}
	return max(e.Gone, e.Voucher.LastVouched(now)+e.Gone-e.Expires)
}

// patchVouched sets the changes to TTLs. While a session vouches for the answer, TTLs are not decremented, and limited to the
// time until Limit. Otherwise they are decremented since Stored, and limited to the time until Expires: parts of the answer
// may have been received before it was stored.
func (e *Entry) patchVouched(p *Patch, now time.Duration) {
	if e.Vouched(now) {
		if e.Limit > now {
			p.Max = seconds(e.Limit - now)
		}
		return
	}
	p.Age = uint32((now - e.Stored) / time.Second) // #nosec G115 -- less than the process has run
	if left := e.Expires - now; left > 0 {
		p.Max = seconds(left)
	} else {
		p.FixedTTL = true // the session fell silent after the answer was found to be fresh
	}
}

// seconds returns a positive time in seconds, rounded up.
func seconds(d time.Duration) uint32 {
	return uint32((d + time.Second - 1) / time.Second) // #nosec G115 -- a TTL, or less
}

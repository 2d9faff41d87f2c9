package store

import "time"

// Eviction is by a clock hand (second chance): it decrements the credit of entries that it passes, evicts an entry without
// credit, and a hit restores the credit. Answers of other servers have more credit than those of the process itself, and
// large ones less.
const (
	creditCostly = 3
	creditOwn    = 2
	largeEntry   = 4 << 10
)

// maxCredit returns the credit of an entry after a hit.
func (e *Entry) maxCredit() int32 {
	credit := int32(creditOwn)
	if e.Costly {
		credit = creditCostly
	}
	if e.size > largeEntry {
		credit--
	}
	return credit
}

// use restores the credit, and that of the answers that the entry was made of: lookups find the entry instead of them. It
// writes only a changed value, since readers share the cache line.
func (e *Entry) use() {
	credit := e.maxCredit()
	if e.credit.Load() == credit {
		return
	}
	e.credit.Store(credit)
	for s := e.Sources; s != nil; s = s.Next {
		if source := entryOf(s.Dependent); source != nil {
			source.use()
		}
	}
}

// shrink evicts entries, except a new one, until all entries fit the budget.
func (s *Store) shrink(fresh *Entry) {
	for s.bytes.Load() > s.budget.Load() && s.evict(func(o *Entry) bool { return o != fresh }) {
	}
}

// evict removes one of the entries that may be evicted: the first that the hand finds without credit, or that is useless.
// It returns false if there is none.
func (s *Store) evict(may func(*Entry) bool) bool {
	if s.hand == nil {
		return false
	}
	now := s.now()
	// Each round decrements credits, but concurrent hits restore them: the last round ignores credit.
	start, rounds := s.hand, 0
	for e := s.hand; rounds <= creditCostly; {
		next := e.newer
		if may(e) {
			if e.credit.Load() <= 0 && e.copiesUsed() { // hits that CountCopied has not counted yet
				e.use()
			}
			if e.credit.Load() <= 0 || rounds == creditCostly || e.useless(now) {
				s.hand = next
				s.unlink(e)
				if evicted := e.keyspace.evicted[e.Kind]; evicted != nil && e.Cached && !e.useless(now) {
					evicted()
				}
				return true
			}
			e.credit.Add(-1)
		}
		if e = next; e == start {
			rounds++
		}
	}
	return false
}

// useless reports whether the answer can't be served any more, not even stale.
func (e *Entry) useless(now time.Duration) bool {
	return !e.Current() || e.Expired(now) && now >= max(e.Expires, e.StaleUntil(now))
}

// Popular reports whether the answer has been served lately: since it was stored, and, while the store is full, since the
// clock hand passed it last; or whether it has the hits of an answer that is prefetched.
func (e *Entry) Popular() bool {
	return e.credit.Load() > 0 || e.Popularity != nil && e.Popularity.hits.Load() >= e.Popularity.Amount
}

package store

import (
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

func TestDescribe(t *testing.T) {
	const sec = time.Second
	g := new(generation)
	for name, tt := range map[string]struct {
		make func(c *clock, s *heardSession) *Entry
		want string // at 10 s
	}{
		"without an end": {func(*clock, *heardSession) *Entry { return &Entry{Stored: 4 * sec} }, "stored 6s ago, valid: without an end"},
		"TTL":            {func(*clock, *heardSession) *Entry { return &Entry{Validity: validity.Validity{Expires: 12 * sec}} }, "stored 10s ago, valid: its TTL ends in 2s"},
		"TTL ended":      {func(*clock, *heardSession) *Entry { return &Entry{Validity: validity.Validity{Expires: 7 * sec}} }, "stored 10s ago, not valid: its TTL ended 3s ago"},
		"stored after the lookup": {func(*clock, *heardSession) *Entry {
			return &Entry{Stored: 11 * sec, Validity: validity.Validity{Expires: 12 * sec}}
		},
			"stored 0s ago, valid: its TTL ends in 2s"},
		"restored": {func(*clock, *heardSession) *Entry {
			return &Entry{Restored: true, Stored: -50 * sec, Validity: validity.Validity{Expires: 12 * sec}}
		},
			"restored from the snapshot of an earlier process, received 1m0s ago, valid: its TTL ends in 2s"},
		"data": {func(*clock, *heardSession) *Entry {
			e := new(Entry)
			e.DependOn(g)
			e.DependOn(new(generation))
			return e
		}, "stored 10s ago, valid: until one of the 2 generations of its data advances"},
		"data changed, within the TTL": {func(*clock, *heardSession) *Entry {
			e := new(Entry)
			e.Until(12 * sec)
			e.DependOn(g)
			e.DependOn(new(generation))
			g.Add(1)
			return e
		}, "stored 10s ago, not valid: its TTL ends in 2s; 1 of the 2 generations of its data have advanced"},
		"one query": {func(*clock, *heardSession) *Entry {
			e := new(Entry)
			e.End()
			return e
		}, "stored 10s ago, not valid: for one query only"},
		"session, beyond the TTL": {func(c *clock, s *heardSession) *Entry {
			c.Store(int64(10 * sec))
			s.hear()
			return &Entry{Validity: s.vouchedUntil(7*sec, 1)}
		}, "stored 10s ago, valid: its TTL ended 3s ago; valid beyond the TTL while heartbeats of the session with cluster DNS arrive"},
		"session without heartbeats": {func(_ *clock, s *heardSession) *Entry { return &Entry{Validity: s.vouchedUntil(12*sec, 1)} },
			"stored 10s ago, valid: its TTL ends in 2s; no heartbeat of the session with cluster DNS arrives: the TTL applies"},
		"session reported a change": {func(_ *clock, s *heardSession) *Entry {
			e := &Entry{Validity: s.vouchedUntil(12*sec, 1)}
			s.invalidate(1)
			return e
		}, "stored 10s ago, not valid: its TTL ends in 2s; the session with cluster DNS has reported a change of its data"},
		"session retired": {func(_ *clock, s *heardSession) *Entry {
			e := &Entry{Validity: s.vouchedUntil(12*sec, 1)}
			s.Retire()
			return e
		}, "stored 10s ago, not valid: its TTL ends in 2s; no session with cluster DNS reports its end (it is older, or its own was closed): it is fetched again"},
	} {
		t.Run(name, func(t *testing.T) {
			c := new(clock)
			e := tt.make(c, newSession(c))
			if got := e.Describe(10 * sec); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestDue: Due is the result of the next Count, and counts nothing.
func TestDue(t *testing.T) {
	p := &Popularity{Amount: 3, Gap: time.Minute, From: 2 * time.Second}
	for i, now := range []time.Duration{0, 1, time.Second, 2 * time.Second, 3 * time.Second, 2 * time.Minute, 2*time.Minute + 1, 2*time.Minute + 2} {
		_ = p.Due(now)
		if due, counted := p.Due(now), p.Count(now); due != counted {
			t.Errorf("query %d at %s: due %t, counted %t", i, now, due, counted)
		}
	}
}

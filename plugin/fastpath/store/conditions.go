package store

import (
	"context"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// Conditions are what an answer hangs on besides its TTL.
type Conditions struct {
	// Bounds are the Generations that must not advance; without one there are no conditions.
	Bounds [MaxBounds]Bound
	// Serial is the present serial number of the zone, for negative answers.
	Serial Serial
	// AnyCase tells that no name in the answer but the question's follows the question's case.
	AnyCase bool
}

// Known reports whether there are conditions.
func (c *Conditions) Known() bool { return c.Bounds[0].Generation != nil }

// never is a Generation that has advanced already.
type never struct{}

// Load implements Generation.
func (never) Load() uint64 { return 1 }

// Outdated returns conditions that do not hold: what hangs on them was wrong before it was given.
func Outdated() Conditions { return Conditions{Bounds: [MaxBounds]Bound{{Generation: never{}}}} }

type conditionsKey struct{}

// wanted are the conditions of the reply to a query.
type wanted struct {
	query      *dns.Msg
	conditions Conditions
}

// WithConditions is for a cache: the plugin that answers this query behind it fills in the conditions,
// instead of keeping the answer itself.
func WithConditions(ctx context.Context, query *dns.Msg) (context.Context, *Conditions) {
	w := &wanted{query: query}
	return context.WithValue(ctx, conditionsKey{}, w), &w.conditions
}

// ConditionsFrom returns what a cache wants to have filled in about a query, or nil if there is no cache
// in front that has asked it: a plugin between may ask others of its own.
func ConditionsFrom(ctx context.Context, query *dns.Msg) *Conditions {
	w, _ := ctx.Value(conditionsKey{}).(*wanted)
	if w == nil || w.query != query {
		return nil
	}
	return &w.conditions
}

// Keep keeps the reply to a query for as long as its conditions hold, if there is somebody who gives it
// from here. The reply has no OPT record; the message may be changed afterwards. Replies to questions in
// upper case are not kept, since others would get their case.
func (s *Space) Keep(r, m *dns.Msg, c *Conditions) {
	if !s.ByGeneration.Load() || !c.Known() || m.Truncated {
		return
	}
	var space [wire.MaxQuery]byte
	var q wire.Query
	query, ok := q.FromMsg(space[:0], r)
	if !ok || q.Upper {
		return
	}
	var buf [wire.MaxKey]byte
	key := s.Key(buf[:0], query, &q)
	if e := s.store.find(s.store.Hash(key), key); e != nil && e.Fresh(s.store.now()) {
		return // this is what it says
	}
	e := &Entry{
		Kind: Success, Stored: s.store.now(),
		Bounds: c.Bounds, Serial: c.Serial, AnyCase: c.AnyCase,
	}
	if m.Rcode != dns.RcodeSuccess || len(m.Answer) == 0 {
		e.Kind = Denial
	}
	if e.Fill(m) != nil {
		return
	}
	s.store.Put(s, key, e)
}

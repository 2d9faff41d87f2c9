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

type conditionsKey struct{}

// WithConditions is for a cache: the plugin that answers behind it fills in the conditions, instead of
// keeping the answer itself.
func WithConditions(ctx context.Context) (context.Context, *Conditions) {
	c := new(Conditions)
	return context.WithValue(ctx, conditionsKey{}, c), c
}

// ConditionsFrom returns what a cache wants to have filled in, or nil if there is no cache in front.
func ConditionsFrom(ctx context.Context) *Conditions {
	c, _ := ctx.Value(conditionsKey{}).(*Conditions)
	return c
}

// Keep keeps a reply for as long as its conditions hold, if there is somebody who gives it from here.
// The reply has no OPT record; the message may be changed afterwards. Replies to questions in upper case
// are not kept, since others would get their case.
func (s *Space) Keep(m *dns.Msg, c *Conditions) {
	if !s.ByGeneration.Load() || !c.Known() || m.Truncated || len(m.Question) != 1 {
		return
	}
	var space [wire.MaxQuery]byte
	var q wire.Query
	query, ok := q.FromMsg(space[:0], m)
	if !ok || q.Upper {
		return
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
	var key [wire.MaxKey]byte
	s.store.Put(s, s.Key(key[:0], query, &q), e)
}

package answers

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
)

// Conditions are what an answer hangs on besides its TTL.
type Conditions struct {
	// Bounds are the Generations that must not advance; without one there are no conditions.
	Bounds [MaxBounds]Bound
	// Serial is the present serial number of the zone, for negative answers.
	Serial Serial
	// Expires is until when a cache behind keeps the answer, in time since Epoch; 0 if none does.
	Expires time.Duration
	// AnyCase tells that no name in the answer but the question's follows the question's case.
	AnyCase bool
	// Options are those of the OPT record that are kept with the answer, in wire form.
	Options []byte
	// Views is there if the answer depends on who asks; View is for whom it is.
	Views Views
	View  View
}

// Known reports whether there are conditions.
func (c *Conditions) Known() bool { return c.Bounds[0].Generation != nil }

// ForAll reports whether the answer is the same whoever asks.
func (c *Conditions) ForAll() bool { return c.Views == nil && !c.View.Private }

// never is a Generation that has advanced already.
type never struct{}

// Load implements Generation.
func (never) Load() uint64 { return 1 }

// Outdated returns conditions that do not hold: what hangs on them was wrong before it was given.
func Outdated() Conditions { return Conditions{Bounds: [MaxBounds]Bound{{Generation: never{}}}} }

type conditionsKey struct{}

// Wanted are the conditions of the reply to a query, which a cache wants to know.
type Wanted struct {
	Conditions

	query  *dns.Msg
	outer  *Wanted // of the query for which this one is asked, if there is one
	forOne atomic.Bool
}

// WithConditions is for a cache: the plugin that answers this query behind it fills in the conditions,
// instead of keeping the answer itself.
func WithConditions(ctx context.Context, query *dns.Msg) (context.Context, *Wanted) {
	w := &Wanted{query: query, outer: wantedFrom(ctx)}
	return context.WithValue(ctx, conditionsKey{}, w), w
}

func wantedFrom(ctx context.Context) *Wanted {
	w, _ := ctx.Value(conditionsKey{}).(*Wanted)
	return w
}

// ForAll reports whether the reply is the same whoever asks. It is not if it has something in it that was found
// out for who asks, be it by another query on the way to the reply.
func (w *Wanted) ForAll() bool { return !w.forOne.Load() && w.Conditions.ForAll() }

// ForOne notes that something was found out for who asks: what comes of it is for no other.
func ForOne(ctx context.Context) {
	for w := wantedFrom(ctx); w != nil; w = w.outer {
		w.forOne.Store(true)
	}
}

// ConditionsFrom returns what a cache wants to have filled in about a query, or nil if there is no cache
// in front that has asked it: a plugin between may ask others of its own.
func ConditionsFrom(ctx context.Context, query *dns.Msg) *Conditions {
	w := wantedFrom(ctx)
	if w == nil || w.query != query {
		return nil
	}
	return &w.Conditions
}

// Keep keeps the reply to a query for as long as its conditions hold, if there is somebody who gives it
// from here. The reply has no OPT record; the message may be changed afterwards. Replies to questions in
// upper case are not kept, since others would get their case. A reply without the option of package search is that
// to the name alone, and kept as such.
func (s *Keyspace) Keep(r, m *dns.Msg, c *Conditions) {
	if !s.ByGeneration.Load() || !c.Known() || m.Truncated {
		return
	}
	var space [MaxQuery]byte
	var q Query
	query, ok := q.FromMsg(space[:0], r)
	if !ok || q.Upper {
		return
	}
	if !searchlist.InOptions(c.Options) {
		q.Search = nil // the reply is the one to the name alone
	}
	var buf [MaxKey]byte
	key := s.Key(buf[:0], query, &q)
	if c.Views != nil {
		s.keep(key, &Entry{Bounds: c.Bounds, Views: c.Views})
		key = AppendKeyView(key, c.View.Number)
	}
	if c.View.Private || s.has(key, false) {
		return
	}
	e := &Entry{Options: c.Options, Bounds: c.Bounds, Serial: c.Serial, AnyCase: c.AnyCase}
	if m.Rcode != dns.RcodeSuccess || len(m.Answer) == 0 {
		e.Kind = Denial
	}
	if e.Fill(m) == nil {
		s.keep(key, e)
	}
}

// keep puts an entry into the store, unless there is one that says the same.
func (s *Keyspace) keep(key []byte, e *Entry) {
	if !s.has(key, e.Views != nil) {
		e.Stored = s.store.now()
		s.store.Put(s, key, e)
	}
}

// has reports whether there is an entry that holds: an answer, or what leads to those of the views.
func (s *Keyspace) has(key []byte, views bool) bool {
	e := s.store.find(s.store.Hash(key), key)
	return e != nil && (e.Views != nil) == views && e.Fresh(s.store.now())
}

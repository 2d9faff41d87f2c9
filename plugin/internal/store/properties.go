package store

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
)

// Properties are the data besides the message that a cache needs to store a reply.
type Properties struct {
	// Validity bounds how long the reply may be served. A plugin that answers from its own data sets Generations; without
	// them a cache uses the TTL. A plugin that receives the reply over a session sets the Voucher. A cache that answers
	// another cache sets Expires, Limit as in Entry, and Lifetime, the time for which clients may use the reply by its TTLs.
	validity.Validity
	Limit, Lifetime time.Duration
	// Foreign is set if the reply has data of another server: its TTL ends it as well, and sessions do not vouch for it by the
	// Generations.
	Foreign bool
	// Serial is the present serial number of the zone, for negative answers.
	Serial Serial
	// AnyCase reports that no name in the reply except the question's follows the question's case.
	AnyCase bool
	// Options are the options of the OPT record that are stored with the answer, in wire form.
	Options []byte
	// Waits is set for a negative answer for a name that queries wait for, with the TTL 0: see Entry.Waits.
	Waits bool
	// Views is set if the reply depends on the caller; View is the caller's.
	Views Views
	View  View
}

// ByGeneration reports whether the reply depends on data that Generations count, and on nothing else.
func (p *Properties) ByGeneration() bool { return !p.Foreign && p.Validity.ByGeneration() }

// forAll reports whether all callers get the same reply.
func (p *Properties) forAll() bool { return p.Views == nil && !p.View.Private }

type recordedKey struct{}

// Recorded has the Properties of the reply to a query. The plugin that answers the query fills them in.
type Recorded struct {
	Properties

	query   *dns.Msg
	outer   *Recorded // of the query that this one was sent for, or nil
	private atomic.Bool
}

// Record returns a context for a query that a cache passes to the next plugin. The plugin that answers this query fills
// in the Properties, and does not store the answer itself.
func Record(ctx context.Context, query *dns.Msg) (context.Context, *Recorded) {
	r := &Recorded{query: query, outer: recordedFrom(ctx)}
	return context.WithValue(ctx, recordedKey{}, r), r
}

func recordedFrom(ctx context.Context) *Recorded {
	r, _ := ctx.Value(recordedKey{}).(*Recorded)
	return r
}

// PropertiesOf returns the Properties to fill in for a query, nil if no cache in front of the caller has passed on this
// very query: plugins send further queries of their own.
func PropertiesOf(ctx context.Context, query *dns.Msg) *Properties {
	r := recordedFrom(ctx)
	if r == nil || r.query != query {
		return nil
	}
	return &r.Properties
}

// ForAll reports whether all callers get the same reply. It returns false after MarkPrivate for a query that was sent to
// answer this one.
func (r *Recorded) ForAll() bool { return !r.private.Load() && r.forAll() }

// MarkPrivate marks the reply to the query as one caller's, and the replies to all queries that the query was sent for.
func MarkPrivate(ctx context.Context) {
	for r := recordedFrom(ctx); r != nil; r = r.outer {
		r.private.Store(true)
	}
}

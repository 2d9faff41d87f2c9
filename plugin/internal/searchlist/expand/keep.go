package expand

import (
	"context"
	"fmt"
	"time"

	"github.com/coredns/coredns/plugin/metrics"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// forever is when what hangs on Generations alone expires.
const forever = time.Duration(1<<63 - 1)

// holds is while what came of asking for candidates holds, all of them.
type holds struct {
	never   bool
	expires time.Duration // since store's epoch
	bounds  []answers.Bound
}

func allHold() holds { return holds{expires: forever} }

func neverHolds() holds { return holds{never: true} }

// take takes in what the reply for one candidate hangs on. What no cache keeps is not kept here either.
func (h *holds) take(reply *dns.Msg, wanted *answers.Wanted) {
	switch {
	case h.never:
	case reply == nil, reply.Truncated, reply.Rcode == dns.RcodeRefused, !wanted.ForAll():
		h.never = true
	case wanted.Known():
		h.bind(&wanted.Conditions)
		if wanted.Expires != 0 { // a cache in front of who knows the Generations
			h.expires = min(h.expires, wanted.Expires)
		}
	default:
		h.expires = min(h.expires, wanted.Expires)
	}
}

// bind takes in Generations. If one of them has advanced since it was taken in, something has changed on the way.
func (h *holds) bind(c *answers.Conditions) {
	for _, b := range c.Bounds {
		if b.Generation == nil {
			break
		}
		if !h.has(b) {
			h.bounds = append(h.bounds, b)
		}
	}
	h.never = h.never || len(h.bounds) > answers.MaxBounds
}

func (h *holds) has(b answers.Bound) bool {
	for _, other := range h.bounds {
		if other.Generation == b.Generation {
			h.never = h.never || other.Number != b.Number
			return true
		}
	}
	return false
}

// ttl returns the TTL of an alias to a record with a TTL, in seconds: what is denied on the way may be there sooner
// than the record is gone.
func (h *holds) ttl(record uint32) uint32 {
	if h.never || h.expires == forever {
		return record
	}
	left := max(0, h.expires-answers.Now())
	return min(record, uint32((left+time.Second-1)/time.Second)) // #nosec G115 -- a TTL, or less
}

// key is where the answer to a query is kept.
type key struct {
	query []byte
	q     answers.Query
	bytes []byte // empty if nothing is kept
}

func (x *Expander) key(r *dns.Msg, q *Question) *key {
	k := &key{}
	var ok bool
	if k.query, ok = k.q.FromMsg(make([]byte, 0, answers.MaxQuery), r); !ok || k.q.Upper {
		return k
	}
	k.bytes = x.Block.Keyspace.Key(make([]byte, 0, answers.MaxKey), k.query, &k.q)
	if q.Path != 0 {
		k.bytes = answers.AppendKeyPath(k.bytes, q.Path)
	}
	return k
}

// fresh returns what is kept, or nil.
func (k *key) fresh() *answers.Entry {
	if len(k.bytes) == 0 {
		return nil
	}
	if e := answers.Shared.Get(k.bytes); e != nil && e.Fresh(answers.Now()) {
		return e
	}
	return nil
}

// keep keeps the reply to a query for as long as all holds that it follows from. Extended errors would be lost; what
// has one is for this client only.
func (x *Expander) keep(k *key, m *dns.Msg, out *outcome) {
	h := &out.holds
	now := answers.Now()
	if out.plain || len(k.bytes) == 0 || h.never || h.expires <= now || len(errorsOf(out.reply)) > 0 {
		return
	}
	e := &answers.Entry{Stored: now, Serial: out.serial, Count: &kept{results: x.Results, what: out.came()}}
	copy(e.Bounds[:], h.bounds)
	if h.expires != forever {
		e.Expires, e.Gone, e.Costly = h.expires, h.expires, true
	}
	if len(m.Answer) == 0 {
		e.Kind = answers.Denial
	}
	if e.Fill(m) == nil {
		answers.Shared.Put(x.Block.Keyspace, k.bytes, e)
	}
}

// give answers a query with what is kept.
func (x *Expander) give(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, k *key, e *answers.Entry) (int, error) {
	p := e.Patch(answers.Now())
	m, err := e.Message(k.query, k.q, &p)
	if err != nil {
		answers.Shared.Remove(e)
		return dns.RcodeServerFailure, fmt.Errorf("plugin/%s: what is kept for %s: %w", x.Plugin, r.Question[0].Name, err)
	}
	e.Count.On(metrics.WithServer(ctx)).Inc()
	if err := w.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

package expand

import (
	"context"
	"fmt"
	"time"

	"github.com/coredns/coredns/plugin/metrics"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// joinReply joins the validity of the reply for a candidate with that of the walk. A reply that no cache stores, and that
// no Generation counts, expires at once: an alias that depends on it has the TTL 0.
func joinReply(v *answers.Validity, reply *dns.Msg, recorded *answers.Recorded) {
	switch {
	case reply == nil, reply.Truncated, reply.Rcode == dns.RcodeRefused, !recorded.ForAll():
		v.End()
	case !recorded.ByGeneration() && recorded.Expires == 0:
		v.Until(answers.Now())
	default:
		v.Join(&recorded.Validity)
	}
}

// aliasTTL returns the TTL of an alias to a record with a TTL, in seconds: a name that does not exist now may exist before
// the record expires.
func aliasTTL(v *answers.Validity, record uint32) uint32 {
	if v.Ended() || v.Expires == 0 {
		return record
	}
	left := max(0, v.Expires-answers.Now())
	return min(record, uint32((left+time.Second-1)/time.Second)) // #nosec G115 -- a TTL, or less
}

// key is the key of the answer to a query in the store.
type key struct {
	query []byte
	q     answers.Query
	bytes []byte // empty if the answer is not stored
}

func (x *Expander) key(r *dns.Msg, q *Question) *key {
	k := &key{}
	var ok bool
	if k.query, ok = k.q.FromMsg(make([]byte, 0, answers.MaxQuery), r); !ok || k.q.Upper {
		return k
	}
	k.bytes = x.Block.Keyspace.Key(make([]byte, 0, answers.MaxKey), k.query, &k.q)
	if q.ListID != 0 {
		k.bytes = answers.AppendKeyList(k.bytes, q.ListID)
	}
	return k
}

// fresh returns the fresh entry of the key, or nil.
func (k *key) fresh() *answers.Entry {
	if len(k.bytes) == 0 {
		return nil
	}
	if e := answers.Shared.Get(k.bytes); e != nil && e.Fresh(answers.Now()) {
		return e
	}
	return nil
}

// store stores the reply to a query until the reply for one of its candidates ends. A reply with extended errors is not
// stored: the stored answer would not have them.
func (x *Expander) store(k *key, m *dns.Msg, out *outcome) {
	now := answers.Now()
	if out.stored || len(k.bytes) == 0 || !out.validity.Fresh(now) || len(errorsOf(out.reply)) > 0 {
		return
	}
	e := &answers.Entry{Stored: now, Validity: out.validity, Serial: out.serial, Count: &hitCounter{metrics: x.Metrics, labels: out.labels()}}
	if e.Expires != 0 {
		e.Gone, e.Costly = e.Expires, true
	}
	if len(m.Answer) == 0 {
		e.Kind = answers.Denial
	}
	if e.Fill(m) == nil {
		answers.Shared.Put(x.Block.Keyspace, k.bytes, e)
	}
}

// writeStored answers a query from the store.
func (x *Expander) writeStored(ctx context.Context, w dns.ResponseWriter, r *dns.Msg, k *key, e *answers.Entry) (int, error) {
	p := e.Patch(answers.Now())
	m, err := e.Message(k.query, k.q, &p)
	if err != nil {
		answers.Shared.Remove(e)
		return dns.RcodeServerFailure, fmt.Errorf("plugin/%s: unpack stored answer of %s: %w", x.Plugin, r.Question[0].Name, err)
	}
	e.Count.Counter(metrics.WithServer(ctx)).Inc()
	if err := w.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

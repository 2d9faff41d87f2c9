package expand

import (
	"fmt"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

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
	if !k.storable(out) || len(errorsOf(out.reply.message())) > 0 {
		return
	}
	if e := x.newEntry(out, len(m.Answer) > 0); e.Fill(m) == nil {
		answers.Shared.Put(x.Block.Keyspace, k.bytes, e)
	}
}

// storable reports whether the reply to a query is stored, unless it has extended errors. One that has ended since it was made is
// stored as well, unless a fresh one is: it answers no query, but the session of the node's cache that receives this reply reports
// the end to it.
func (k *key) storable(out *outcome) bool {
	if out.stored || len(k.bytes) == 0 {
		return false
	}
	v := &out.validity
	return v.Fresh(answers.Now()) || v.ByGeneration() && !v.Ended() && v.Voucher == nil && v.Expires == 0 && k.fresh() == nil
}

// newEntry returns the entry of a reply, without the answer. answered reports whether that has records in the answer section.
func (x *Expander) newEntry(out *outcome, answered bool) *answers.Entry {
	e := &answers.Entry{
		Stored: answers.Now(), Validity: out.validity, Limit: out.limit, Serial: out.reply.serial,
		Count: &hitCounter{metrics: x.Metrics, labels: out.labels()}, Waits: out.waits,
	}
	if e.Expires != 0 {
		e.Gone, e.Costly = e.Expires, true
	}
	if !answered {
		e.Kind = answers.Denial
	}
	return e
}

// writeStored answers a query from the store.
func (x *Expander) writeStored(w dns.ResponseWriter, r *dns.Msg, k *key, e *answers.Entry, p *answers.Patch) (int, error) {
	m, err := e.Message(k.query, k.q, p)
	if err != nil {
		answers.Shared.Remove(e)
		return dns.RcodeServerFailure, fmt.Errorf("plugin/%s: unpack stored answer of %s: %w", x.Plugin, r.Question[0].Name, err)
	}
	if err := w.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

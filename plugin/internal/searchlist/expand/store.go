package expand

import (
	"errors"
	"fmt"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// key is the key of the answer to a query in the store.
type key struct {
	query []byte
	q     wire.Query
	bytes []byte // empty if the answer is not stored
}

func (x *Expander) key(r *dns.Msg, q *Question) *key {
	k := &key{}
	var ok bool
	if k.query, ok = store.QueryFromMsg(&k.q, make([]byte, 0, wire.MaxQuery), r); !ok || k.q.Upper {
		return k
	}
	k.bytes = x.Block.Keyspace.Key(make([]byte, 0, store.MaxKey), k.query, &k.q)
	if q.ListID != 0 {
		k.bytes = store.AppendKeyList(k.bytes, q.ListID)
	}
	return k
}

// fresh returns the fresh entry of the key, or nil.
func (k *key) fresh() *store.Entry {
	if len(k.bytes) == 0 {
		return nil
	}
	if e := store.Shared.Get(k.bytes); e != nil && e.Fresh(validity.Now()) {
		return e
	}
	return nil
}

// store stores the reply to a query until the validity of a candidate's reply ends. A reply with extended errors is not
// stored: the stored answer would not have them.
func (x *Expander) store(k *key, composed []byte, out *outcome) {
	if !k.storable(out) || len(out.reply.errors) > 0 {
		return
	}
	if e, err := x.newEntry(out, composed); err == nil {
		store.Shared.Put(x.Block.Keyspace, k.bytes, e)
	}
}

// storable reports whether the reply to a query is stored if it has no extended errors. A reply that has ended since it was made
// is stored, too, unless a fresh one is stored already: it answers no query, but the session with the node's cache that receives
// this reply reports the end.
func (k *key) storable(out *outcome) bool {
	if out.stored || len(k.bytes) == 0 {
		return false
	}
	v := &out.validity
	return v.Fresh(validity.Now()) || v.ByGeneration() && !v.Ended() && v.Voucher == nil && v.Expires == 0 && k.fresh() == nil
}

// errUnstorable is the error for a reply that is not stored.
var errUnstorable = errors.New("the reply has no form that can be stored")

// newEntry returns the entry of a composed reply.
func (x *Expander) newEntry(out *outcome, composed []byte) (*store.Entry, error) {
	e := &store.Entry{
		Stored: validity.Now(), Validity: out.validity, Limit: out.limit, Serial: out.reply.serial,
		Count: &hitCounter{metrics: x.Metrics, labels: out.labels()}, Waits: out.waits,
	}
	if e.Expires != 0 {
		e.Gone, e.Costly = e.Expires, true
	}
	if wire.Count(composed, wire.ANCountAt) == 0 {
		e.Kind = store.Denial
	}
	r := wire.NewReply()
	defer r.Release()
	if !r.ReadPlain(composed) {
		return nil, errUnstorable
	}
	err := e.FillReply(r)
	e.AnyCase = false // the names follow the question's case
	return e, err
}

// writeStored answers a query from the store.
func (x *Expander) writeStored(w dns.ResponseWriter, r *dns.Msg, k *key, e *store.Entry, p *store.Patch) (int, error) {
	m, err := e.Message(k.query, k.q, p)
	if err != nil {
		store.Shared.Remove(e)
		return dns.RcodeServerFailure, fmt.Errorf("plugin/%s: unpack stored answer of %s: %w", x.Plugin, r.Question[0].Name, err)
	}
	if err := w.WriteMsg(m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

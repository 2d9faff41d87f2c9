package store

import (
	"iter"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// All yields the entries of the keyspace without a lock. Entries that are stored or removed meanwhile may be missing. Of two
// entries of one key, of which one is being replaced, the newer one is first.
func (k *Keyspace) All() iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for i := range k.store.buckets {
			for e := k.store.buckets[i].Load(); e != nil; e = e.next.Load() {
				if e.keyspace == k && !yield(e) {
					return
				}
			}
		}
	}
}

// AppendReplyKey appends the key under which a reply in wire form answers a query with the flags DO and CD, and without a search
// list. It returns false for a reply without a valid question. The rest of the message may be of any form.
func (k *Keyspace) AppendReplyKey(dst, reply []byte, do, cd bool) ([]byte, bool) {
	q := wire.Query{DO: do, CD: cd}
	if !q.ParseQuestion(reply) {
		return dst, false
	}
	return k.Key(dst, reply, &q), true
}

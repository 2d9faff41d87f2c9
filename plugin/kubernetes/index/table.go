package index

import (
	"hash/maphash"
	"iter"
	"sync/atomic"
)

// table is a hash table that any number of goroutines read without a lock while one writes. A key
// may stand in it more than once. Readers see chains of nodes that never change once linked in; a
// writer replaces the part of a chain that comes before the node it takes out.
type table[K comparable, V any] struct {
	seed    maphash.Seed
	buckets atomic.Pointer[[]atomic.Pointer[node[K, V]]]
	size    int // nodes in all; read and written by the writer only
}

type node[K comparable, V any] struct {
	next *node[K, V]
	key  K
	val  V
}

// minBuckets is the smallest number of chains, a power of two.
const minBuckets = 16

func newTable[K comparable, V any]() *table[K, V] {
	t := &table[K, V]{seed: maphash.MakeSeed()}
	b := make([]atomic.Pointer[node[K, V]], minBuckets)
	t.buckets.Store(&b)
	return t
}

func (t *table[K, V]) bucket(k K) *atomic.Pointer[node[K, V]] {
	b := *t.buckets.Load()
	return &b[maphash.Comparable(t.seed, k)&uint64(len(b)-1)]
}

// get returns a value of k; where k stands several times, any one of them.
func (t *table[K, V]) get(k K) (v V, ok bool) {
	for n := t.bucket(k).Load(); n != nil; n = n.next {
		if n.key == k {
			return n.val, true
		}
	}
	return v, false
}

// all yields every value of k as of one moment.
func (t *table[K, V]) all(k K) iter.Seq[V] {
	return func(yield func(V) bool) {
		for n := t.bucket(k).Load(); n != nil; n = n.next {
			if n.key == k && !yield(n.val) {
				return
			}
		}
	}
}

// each yields every key and value. It sees all that stands in the table from before it begins until
// it ends, and may or may not see what is added or removed meanwhile.
func (t *table[K, V]) each() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		b := *t.buckets.Load()
		for i := range b {
			for n := b[i].Load(); n != nil; n = n.next {
				if !yield(n.key, n.val) {
					return
				}
			}
		}
	}
}

// add puts v beside what k has already.
func (t *table[K, V]) add(k K, v V) {
	t.resize()
	p := t.bucket(k)
	p.Store(&node[K, V]{next: p.Load(), key: k, val: v})
	t.size++
}

// set makes v the one value of k, in one step: a reader sees the old value or the new one.
func (t *table[K, V]) set(k K, v V) {
	p := t.bucket(k)
	for n := p.Load(); n != nil; n = n.next {
		if n.key == k {
			p.Store(&node[K, V]{next: without(p.Load(), n), key: k, val: v})
			return
		}
	}
	t.add(k, v)
}

// remove takes out the first value of k for which match holds.
func (t *table[K, V]) remove(k K, match func(V) bool) {
	p := t.bucket(k)
	for n := p.Load(); n != nil; n = n.next {
		if n.key == k && match(n.val) {
			p.Store(without(p.Load(), n))
			t.size--
			t.resize()
			return
		}
	}
}

// without returns the chain from head on less the node out: the nodes before it as copies, those
// behind it as they are.
func without[K comparable, V any](head, out *node[K, V]) *node[K, V] {
	if head == out {
		return out.next
	}
	first := &node[K, V]{key: head.key, val: head.val}
	last := first
	for n := head.next; n != out; n = n.next {
		last.next = &node[K, V]{key: n.key, val: n.val}
		last = last.next
	}
	last.next = out.next
	return first
}

// resize keeps between an eighth of a node and two nodes a chain. Readers of the old chains go on
// with them.
func (t *table[K, V]) resize() {
	old := *t.buckets.Load()
	want := len(old)
	switch {
	case t.size >= 2*len(old):
		want = 2 * len(old)
	case t.size < len(old)/8 && len(old) > minBuckets:
		want = len(old) / 2
	default:
		return
	}
	b := make([]atomic.Pointer[node[K, V]], want)
	for i := range old {
		for n := old[i].Load(); n != nil; n = n.next {
			p := &b[maphash.Comparable(t.seed, n.key)&uint64(want-1)]
			p.Store(&node[K, V]{next: p.Load(), key: n.key, val: n.val})
		}
	}
	t.buckets.Store(&b)
}

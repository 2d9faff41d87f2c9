package index

import (
	"hash/maphash"
	"iter"
	"sync/atomic"
)

// table is a hash table that any number of goroutines read without a lock while one writes. A key may have several
// values. The nodes of a chain never change once linked in; to remove a node, the writer replaces the nodes before it.
type table[K, V comparable] struct {
	seed    maphash.Seed
	buckets atomic.Pointer[[]atomic.Pointer[node[K, V]]]
	size    int // number of nodes; only the writer reads and writes it
}

type node[K, V comparable] struct {
	next *node[K, V]
	key  K
	val  V
}

// minBuckets is the minimum number of chains, a power of two.
const minBuckets = 16

func newTable[K, V comparable]() *table[K, V] {
	t := &table[K, V]{seed: maphash.MakeSeed()}
	b := make([]atomic.Pointer[node[K, V]], minBuckets)
	t.buckets.Store(&b)
	return t
}

func (t *table[K, V]) bucket(k K) *atomic.Pointer[node[K, V]] {
	b := *t.buckets.Load()
	return &b[maphash.Comparable(t.seed, k)&uint64(len(b)-1)]
}

// get returns a value of k, any one of several.
func (t *table[K, V]) get(k K) (v V, ok bool) {
	for n := t.bucket(k).Load(); n != nil; n = n.next {
		if n.key == k {
			return n.val, true
		}
	}
	return v, false
}

// all yields every value of k as of one point in time.
func (t *table[K, V]) all(k K) iter.Seq[V] {
	return func(yield func(V) bool) {
		for n := t.bucket(k).Load(); n != nil; n = n.next {
			if n.key == k && !yield(n.val) {
				return
			}
		}
	}
}

// each yields every key and value. Values that are added or removed during the iteration may or may not be among them.
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

// keys yields the key of every value.
func (t *table[K, V]) keys() iter.Seq[K] {
	return func(yield func(K) bool) {
		for k := range t.each() {
			if !yield(k) {
				return
			}
		}
	}
}

// add adds a value of k beside its other values.
func (t *table[K, V]) add(k K, v V) {
	t.resize()
	p := t.bucket(k)
	p.Store(&node[K, V]{next: p.Load(), key: k, val: v})
	t.size++
}

// set replaces the only value of k in one step: a reader sees the old value or the new one.
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

// remove removes a value of k.
func (t *table[K, V]) remove(k K, v V) {
	p := t.bucket(k)
	for n := p.Load(); n != nil; n = n.next {
		if n.key == k && n.val == v {
			p.Store(without(p.Load(), n))
			t.size--
			t.resize()
			return
		}
	}
}

// move replaces a value under all its keys: it adds the new one under its keys, and then removes the old one.
func (t *table[K, V]) move(oldKeys []K, old V, keys []K, v V) {
	for _, k := range keys {
		t.add(k, v)
	}
	for _, k := range oldKeys {
		t.remove(k, old)
	}
}

// without returns a chain without one of its nodes: the nodes before it are copies, those after it are shared.
func without[K, V comparable](head, out *node[K, V]) *node[K, V] {
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

// resize doubles the number of chains at two nodes per chain, and halves it at an eighth of a node per chain. Readers of the
// old chains continue with them.
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
	t.rehash(want)
}

// reserve makes room for a number of nodes, which are added soon: otherwise the nodes would be copied each time that the chains double.
func (t *table[K, V]) reserve(nodes int) {
	want := len(*t.buckets.Load())
	for nodes >= 2*want {
		want *= 2
	}
	if want > len(*t.buckets.Load()) {
		t.rehash(want)
	}
}

// rehash sets the number of chains, a power of two.
func (t *table[K, V]) rehash(want int) {
	old := *t.buckets.Load()
	b := make([]atomic.Pointer[node[K, V]], want)
	for i := range old {
		for n := old[i].Load(); n != nil; n = n.next {
			p := &b[maphash.Comparable(t.seed, n.key)&uint64(want-1)]
			p.Store(&node[K, V]{next: p.Load(), key: n.key, val: n.val})
		}
	}
	t.buckets.Store(&b)
}

package store

import (
	"encoding/binary"
	"time"
)

// listLen is the length in bytes of the ID of a search list, which ends the key of an answer found with it.
const listLen = 4

// Copy is a copy of an entry outside of the store, from which the kernel, for example, answers queries.
type Copy interface {
	// Serve begins to answer. It is called with the store locked, while the entry is stored, and does not block.
	Serve()
	// Remove ends the copy. It is called with the store locked when the entry leaves the store, and does not block.
	Remove()
	// Used reports whether it has answered since the last call. It is called with the store locked, and does not block.
	Used() bool
}

// AddCopy adds a copy of an entry, which is removed together with the entry. It returns false if the entry is not stored any
// more.
func (s *Store) AddCopy(e *Entry, c Copy) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.newer == nil {
		return false
	}
	if e.copies == nil {
		e.copies = new([]Copy)
	}
	*e.copies = append(*e.copies, c)
	c.Serve()
	return true
}

// Has reports whether an entry is stored.
func (s *Store) Has(e *Entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.newer != nil
}

// List returns the ID of the search list in the entry's key, 0 without one: the entry answers only clients with the list.
func (e *Entry) List() uint32 {
	if len(e.key) <= keyFlags || e.key[keyFlags]&keyList == 0 {
		return 0
	}
	return binary.BigEndian.Uint32([]byte(e.key[len(e.key)-listLen:]))
}

// copiesUsed reports whether copies have answered since the last call. mu is locked.
func (e *Entry) copiesUsed() (used bool) {
	if e.copies == nil {
		return false
	}
	for _, c := range *e.copies {
		used = c.Used() || used
	}
	return used
}

// DropCopies forgets those copies of an entry for which ended returns true.
func (s *Store) DropCopies(e *Entry, ended func(Copy) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.copies == nil {
		return
	}
	left := (*e.copies)[:0]
	for _, c := range *e.copies {
		if !ended(c) {
			left = append(left, c)
		}
	}
	clear((*e.copies)[len(left):])
	if *e.copies = left; len(left) == 0 {
		e.copies = nil
	}
}

// removeCopies removes the copies of an entry that leaves the store. mu is locked.
func (e *Entry) removeCopies() {
	if e.copies == nil {
		return
	}
	for _, c := range *e.copies {
		c.Remove()
	}
	e.copies = nil
}

// copyEvery is the number of hits after which a copy of an entry may be made: a name that is queried once costs nothing more.
const copyEvery = 4

// replacesCopied is the bit of an entry's hits that is set if the entry has replaced one with a copy, until it is copied.
const replacesCopied = 1 << 31

// inheritCopy makes ToCopy return true at the first hit of an entry that replaces one with a copy.
func (e *Entry) inheritCopy(old *Entry) {
	if old.copies != nil || old.hits.Load()&replacesCopied != 0 {
		e.hits.Or(replacesCopied)
	}
}

// neverCopied is the value of hits of an entry that must have no copy. It lacks replacesCopied: an entry that replaces this one has
// no copy to replace.
const neverCopied = replacesCopied - 1

// NeverCopy makes ToCopy return false from now on, for an entry that must have no copy.
func (e *Entry) NeverCopy() { e.hits.Store(neverCopied) }

// ToCopy counts a hit, and reports whether a copy of the entry may be made now: at every copyEvery-th hit, and at once if the
// entry has replaced one with a copy.
func (e *Entry) ToCopy() bool {
	if e.hits.Load() == neverCopied {
		return false
	}
	hits := e.hits.Add(1)
	return hits%copyEvery == 0 || hits&replacesCopied != 0 && e.hits.And(^uint32(replacesCopied))&replacesCopied != 0
}

// CountCopied counts hits of copies as those of the store, for eviction and for prefetch.
func (e *Entry) CountCopied(hits int64, now time.Duration) {
	e.use()
	if e.Popularity != nil && hits > 0 {
		e.Popularity.Count(now)
		e.Popularity.hits.Add(hits - 1)
	}
}

// Parts are an answer in wire form with the offsets of the fields that a reply changes.
type Parts struct {
	Packed []byte
	// Excess is the number of bytes by which dns.Msg.Len overestimates the length: CoreDNS truncates by dns.Msg.Len.
	Excess int
	// TTLs and Owners are the offsets of the TTLs and of the owner names that are copies of the question's name: two bytes
	// each, big endian.
	TTLs, Owners []byte
	// Count addresses of Size bytes are in random order, Stride bytes apart, the first at First. Glue is set if other records
	// are in random order, too, and Ordered if Answer.Ordered.
	First, Stride, Size, Count int
	Glue, Ordered              bool
}

// Parts returns the parts of the answer without and with compression of names. compressed has no Packed if the entry has
// no compressed answer.
func (e *Entry) Parts() (plain, compressed Parts) {
	plain = e.Plain.parts(int(e.plainExcess))
	if e.compressed != nil {
		compressed = e.compressed.parts(int(e.compressedExcess))
	}
	return plain, compressed
}

func (a *Answer) parts(excess int) Parts {
	return Parts{
		Packed: a.packed, Excess: excess, TTLs: a.ttls, Owners: a.owners,
		First: int(a.shuffled.first), Stride: int(a.shuffled.stride), Size: int(a.shuffled.size), Count: int(a.shuffled.count),
		Glue: a.glueCount > 0, Ordered: a.ordered,
	}
}

package store

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
)

// heardSession is a session whose heartbeats arrive at once, with the clock of a test.
type heardSession struct {
	*vouch.Session
	clock *clock
}

func newSession(c *clock) *heardSession {
	s := &heardSession{vouch.NewSession(c.now), c}
	s.Opened(0, 0)
	s.hear()
	return s
}

func (s *heardSession) hear() { s.Heard(uint64(s.clock.now() / time.Microsecond)) } // #nosec G115 -- positive

// invalidate receives the message that ends handles, all without any.
func (s *heardSession) invalidate(handles ...uint64) {
	vouch.End(s.Invalidate(handles))
}

// vouchedUntil returns a Validity with a time and a voucher for a handle.
func (s *heardSession) vouchedUntil(expires time.Duration, handles ...uint64) validity.Validity {
	return validity.Validity{Expires: expires, Voucher: s.Voucher(handles)}
}

func TestVouchedPatch(t *testing.T) {
	const sec = time.Second
	for name, tt := range map[string]struct {
		limit time.Duration
		fixed bool
		now   time.Duration
		heard bool
		want  [2]uint32 // TTLs, stored as 5 and 60
	}{
		"vouched at once":                     {0, false, 10 * sec, true, [2]uint32{5, 60}},
		"vouched":                             {0, false, 13 * sec, true, [2]uint32{5, 60}},
		"vouched beyond the TTL":              {0, false, 1000 * sec, true, [2]uint32{5, 60}},
		"silent":                              {0, false, 13*sec + 1, false, [2]uint32{2, 2}},
		"silent at the end":                   {0, false, 15*sec - 1, false, [2]uint32{1, 1}},
		"silent since it was found":           {0, false, 15 * sec, false, [2]uint32{0, 0}},
		"TTLs are kept":                       {0, true, 13 * sec, false, [2]uint32{5, 60}},
		"a part of another server":            {40 * sec, false, 13 * sec, true, [2]uint32{5, 27}},
		"a part of another server, near end":  {40 * sec, false, 37*sec + 1, true, [2]uint32{3, 3}},
		"a part of another server, silent":    {40 * sec, false, 13 * sec, false, [2]uint32{2, 2}},
		"a part that a session vouches again": {12 * sec, false, 13 * sec, true, [2]uint32{5, 60}},
	} {
		t.Run(name, func(t *testing.T) {
			c := new(clock)
			s := newSession(c)
			e := &Entry{Stored: 10 * sec, Validity: s.vouchedUntil(15*sec, 1), Limit: tt.limit, FixedTTL: tt.fixed}
			m := message(t, "x.", dns.TypeA, "x. 5 IN A 192.0.2.1")
			m.Extra = append(m.Extra, newRecord(t, "y. 60 IN A 192.0.2.2"))
			if err := e.Fill(m); err != nil {
				t.Fatal(err)
			}
			c.Store(int64(tt.now))
			if tt.heard {
				s.hear()
			}
			query, q := queryOf(t, m)
			p := e.Patch(tt.now)
			reply := unpackMsg(t, e.Plain.AppendReply(nil, query, &q, &p))
			if got := [2]uint32{reply.Answer[0].Header().Ttl, reply.Extra[0].Header().Ttl}; got != tt.want {
				t.Errorf("TTLs %v, want %v", got, tt.want)
			}
		})
	}
}

// TestStaleUntil has entries expire at 5 s and end at 65 s without a session.
func TestStaleUntil(t *testing.T) {
	const sec = time.Second
	for name, tt := range map[string]struct {
		heard []time.Duration
		gone  time.Duration
		now   time.Duration
		want  time.Duration
	}{
		"not beyond the TTL":       {[]time.Duration{sec}, 65 * sec, 10 * sec, 65 * sec},
		"heard beyond the TTL":     {[]time.Duration{100 * sec}, 65 * sec, 120 * sec, 161 * sec},
		"heard now":                {[]time.Duration{100 * sec}, 65 * sec, 100 * sec, 160 * sec},
		"never stale":              {[]time.Duration{100 * sec}, 5 * sec, 120 * sec, 5 * sec},
		"without a time for stale": {[]time.Duration{100 * sec}, 0, 120 * sec, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := new(clock)
			s := newSession(c)
			e := &Entry{Validity: s.vouchedUntil(5*sec, 1), Gone: tt.gone}
			for _, at := range tt.heard {
				c.Store(int64(at))
				s.hear()
			}
			c.Store(int64(tt.now))
			if got := e.StaleUntil(tt.now); got != tt.want {
				t.Errorf("stale until %v, want %v", got, tt.want)
			}
			end := max(tt.want, 5*sec)
			if vouched := e.Vouched(tt.now); e.useless(tt.now) != (tt.now >= end && !vouched) || !e.useless(1000*sec) {
				t.Errorf("useless now %t, and later %t; vouched %t", e.useless(tt.now), e.useless(1000*sec), vouched)
			}
			s.invalidate(1)
			if !e.useless(0) {
				t.Error("an invalidated entry is not useless")
			}
		})
	}
}

// TestInvalidatedEntries has entries that leave the store, and some that have left it before.
func TestInvalidatedEntries(t *testing.T) {
	store, c := newStore(1<<20, true)
	s := newSession(c)
	ks := store.NewKeyspace()
	var called []*Entry
	ks.OnInvalidated(func(e *Entry) { called = append(called, e) })
	entry := func(handles ...uint64) *Entry {
		return &Entry{Validity: s.vouchedUntil(time.Hour, handles...), Cached: true}
	}
	both := put(ks, 1, entry(1, 2))
	second := put(ks, 2, entry(2))
	other := put(ks, 3, entry(3))
	plain := put(ks, 4, &Entry{Validity: validity.Validity{Expires: time.Hour}})
	put(ks, 5, entry(2)) // replaced
	replacing := put(ks, 5, entry(3))
	store.Remove(put(ks, 6, entry(2)))
	dropped := store.NewKeyspace()
	dropped.Drop()
	put(dropped, 7, entry(2))
	put(ks, 8, &Entry{Validity: s.vouchedUntil(time.Hour, 2), StateSize: 2 << 20})

	s.invalidate(1, 2)
	if len(called) != 2 || called[0] != both || called[1] != second {
		t.Errorf("%d entries were removed: %v", len(called), called)
	}
	for n, want := range map[int]*Entry{1: nil, 2: nil, 3: other, 4: plain, 5: replacing, 6: nil} {
		if store.Get(key(ks, n)) != want {
			t.Errorf("entry %d is %v", n, store.Get(key(ks, n)))
		}
	}
	if string(both.Key()) != string(key(ks, 1)) {
		t.Errorf("key %x", both.Key())
	}
	late := entry(3)
	s.invalidate(3)
	called = nil
	put(ks, 9, late) // whose handle has ended
	if store.Get(key(ks, 9)) != nil || len(called) != 1 || late.Fresh(0) {
		t.Errorf("an entry that was invalidated before is stored; %d calls", len(called))
	}
	check(t, store, ks)
	if ks.Len(Success) != 1 {
		t.Errorf("%d entries are left, want 1", ks.Len(Success))
	}
}

// TestEvictedEntriesAreReleased asserts that handles do not refer to entries that were replaced.
func TestEvictedEntriesAreReleased(t *testing.T) {
	const n = 2000
	store, c := newStore(1<<20, false)
	s := newSession(c)
	ks := store.NewKeyspace()
	grown := heapGrowth(func() {
		for i := range n {
			put(ks, 1, &Entry{Validity: s.vouchedUntil(time.Hour, uint64(i)), StateSize: 1, Options: make([]byte, 1<<10)}) // #nosec G115
		}
	})
	if limit := uint64(n * 512); grown > limit {
		t.Errorf("%d bytes after %d entries, the limit is %d", grown, n, limit)
	}
	s.invalidate()
	check(t, store, ks)
}

func TestPopular(t *testing.T) {
	store, c := newStore(1<<20, false)
	ks := store.NewKeyspace()
	e := put(ks, 1, &Entry{Popularity: &Popularity{Amount: 2, Gap: time.Minute}})
	if e.Popular() {
		t.Error("popular without a hit")
	}
	store.Get(key(ks, 1))
	if !e.Popular() {
		t.Error("not popular after a hit")
	}
	e.credit.Store(0) // the clock hand has passed it
	if e.Popularity.Count(c.now()); e.Popular() {
		t.Error("popular after the clock hand has passed it")
	}
	if e.Popularity.Count(c.now()); !e.Popular() {
		t.Error("not popular, although it is to be prefetched")
	}
}

// TestPopularParts has an answer that was made of others: a hit of it makes them popular while they are stored.
func TestPopularParts(t *testing.T) {
	store, c := newStore(1<<20, false)
	s := newSession(c)
	ks := store.NewKeyspace()
	entry := func(handle uint64) *Entry { return &Entry{Validity: s.vouchedUntil(time.Hour, handle)} }
	parts := []*Entry{put(ks, 1, entry(1)), put(ks, 2, entry(2)), put(ks, 3, entry(3))}
	other := put(ks, 4, entry(1))
	plain := put(ks, 5, &Entry{Validity: validity.Validity{Expires: time.Hour}})
	made := new(Entry)
	for _, e := range []*Entry{parts[0], parts[1], plain, parts[2]} {
		copied := e.Validity // as in the Properties of a reply
		made.Join(&copied)
	}
	put(ks, 6, made)
	put(ks, 3, entry(3)) // replaces a part
	if parts[0].Popular() || parts[1].Popular() {
		t.Error("popular without a hit")
	}
	store.Get(key(ks, 6))
	if got := [5]bool{parts[0].Popular(), parts[1].Popular(), parts[2].Popular(), other.Popular(), plain.Popular()}; got != [5]bool{0: true, 1: true} {
		t.Errorf("popular: %v, want the parts that are stored and have a voucher", got)
	}
	// A cache refetches a part before the answer made of it is removed, or after.
	s.invalidate(1)
	if store.Get(key(ks, 6)) != nil || !parts[0].Popular() {
		t.Error("the answer is still stored, or its part is not popular")
	}
	// An answer that was made of one that was made of others.
	again := new(Entry)
	again.Join(&put(ks, 7, entry(4)).Validity)
	outer := new(Entry)
	outer.Join(&put(ks, 8, again).Validity)
	put(ks, 9, outer)
	store.Get(key(ks, 9))
	if inner := store.find(store.hash(key(ks, 7)), key(ks, 7)); !inner.Popular() {
		t.Error("a part of a part is not popular")
	}
}

// TestConcurrentInvalidations puts, finds, evicts and invalidates entries at the same time.
func TestConcurrentInvalidations(t *testing.T) {
	store, c := newStore(40*640, false)
	ks := store.NewKeyspace()
	var sessions [2]*heardSession
	for i := range sessions {
		sessions[i] = newSession(c)
	}
	ks.OnInvalidated(func(e *Entry) {
		if e.Current() || e.Fresh(c.now()) {
			t.Error("an invalidated entry is current")
		}
	})
	var workers sync.WaitGroup
	for i := range uint64(4) {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(i, 9)) // #nosec G404 -- no need for secrecy
			for range 3000 {
				s, n := sessions[r.IntN(2)], r.IntN(60)
				switch r.IntN(6) {
				case 0, 1:
					put(ks, n, &Entry{Validity: s.vouchedUntil(time.Hour, uint64(n%20), uint64(30+n%2)), Cached: n%2 == 0}) // #nosec G115
				case 2:
					s.invalidate(uint64(r.IntN(32))) // #nosec G115
				case 3:
					s.hear()
				default:
					if e := store.Get(key(ks, n)); e != nil && e.Fresh(c.now()) {
						e.Patch(c.now())
					}
				}
			}
		})
	}
	workers.Wait()
	check(t, store, ks)
	for _, s := range sessions {
		s.invalidate()
	}
	check(t, store, ks)
	if n := ks.Len(Success); n != 0 {
		t.Errorf("%d entries are left after everything was invalidated", n)
	}
}

// BenchmarkFresh compares answers with and without a voucher.
func BenchmarkFresh(b *testing.B) {
	c := new(clock)
	s := newSession(c)
	for handles := range uint64(5) {
		v := validity.Validity{Expires: time.Hour}
		var list []uint64
		for n := range handles {
			list = append(list, n)
		}
		v.Voucher = s.Voucher(list)
		e := &Entry{Validity: v}
		b.Run(fmt.Sprintf("%d handles", handles), func(b *testing.B) {
			for b.Loop() {
				if !e.Fresh(1) {
					b.Fatal("not fresh")
				}
				e.Patch(1)
			}
		})
	}
}

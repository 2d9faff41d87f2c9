//go:build amd64 || arm64

package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

const otherWeb = "w3b.shop.svc.cluster.local." // as long as web

// stored stores an entry for a question of type A without offering it, and returns its key.
func (b *bed) stored(name string, e *store.Entry) (key []byte) {
	b.Helper()
	query := question(b, name, dns.TypeA, nil)
	var q wire.Query
	if !q.Parse(query) {
		b.Fatalf("no query: %x", query)
	}
	key = b.keyspace.Key(make([]byte, 0, store.MaxKey), query, &q)
	b.store.Put(b.keyspace, key, e)
	return key
}

// TestOtherRecord gives a question the slot of another question's record, as after a collision of hashes: the program does not answer
// with it.
func TestOtherRecord(t *testing.T) {
	b := newBed(t)
	names := map[string][]byte{}
	for _, name := range []string{web, otherWeb} {
		names[name] = store.KeyName(b.stored(name, address(t, name, nil)))
		b.must(name, address(t, name, nil))
	}
	recordOf := func(name string, listener netip.AddrPort) *record {
		t.Helper()
		k, ok := keyOf(&Question{Name: names[name], Type: dns.TypeA}, b.numbers[listener])
		b.mu.Lock()
		defer b.mu.Unlock()
		if !ok || b.byKey[k] == nil {
			t.Fatalf("no record for %s at %s", name, listener)
		}
		return b.byKey[k]
	}
	own := recordOf(web, listener4)
	hash := own.key.hash(b.control.Seed, len(names[web]))
	for name, other := range map[string]*record{"another name": recordOf(otherWeb, listener4), "another listener": recordOf(web, listener6)} {
		if atomic.StoreUint64(own.slot, own.slotValue(hash)); b.ask(web, nil) != redirected {
			t.Fatal("no answer from its own record")
		}
		atomic.StoreUint64(own.slot, other.slotValue(hash))
		if b.ask(web, nil) == redirected || b.ask(strings.ToUpper(web), nil) == redirected {
			t.Errorf("answered with the record of %s", name)
		}
	}
	// The same record for another type, search list or flag.
	atomic.StoreUint64(own.slot, own.slotValue(hash))
	before := *own.memory
	for name, change := range map[string]func(*answerRecord){
		"type":  func(r *answerRecord) { r.Type = bigEndian(dns.TypeAAAA) },
		"flags": func(r *answerRecord) { r.KeyFlags = flagDO },
		"list":  func(r *answerRecord) { r.List = 5 },
	} {
		if change(own.memory); b.ask(web, nil) == redirected {
			t.Errorf("answered with the record of another key: %s", name)
		}
		if *own.memory = before; b.ask(web, nil) != redirected {
			t.Fatal("no answer from its own record")
		}
	}
}

// TestCountTakenBack counts between the two steps of the program that counts an answer and takes it back, since the record has
// ended.
func TestCountTakenBack(t *testing.T) {
	b := newBed(t)
	b.must(web, address(t, web, nil))
	b.mu.Lock()
	defer b.mu.Unlock()
	for r := range b.records {
		counts := &r.memory.Counts[0]
		atomic.AddUint64(counts, 1)
		b.count(r)
		atomic.AddUint64(counts, ^uint64(0))
		b.count(r)
		atomic.AddUint64(counts, 2)
		b.count(r)
	}
	if got := b.counted.total(); got != 2*uint64(len(b.records)) {
		t.Errorf("%d answers of %d records are counted, want 2 of each", got, len(b.records))
	}
}

// TestLateOffer offers an entry that was replaced: the copy of its successor remains.
func TestLateOffer(t *testing.T) {
	b := newBed(t)
	old, next := address(t, web, nil), address(t, web, nil)
	b.stored(web, old)
	key := b.stored(web, next)
	for _, e := range []*store.Entry{next, old} {
		kit.Must(t, b.offer(e, b.numbers[listener4], key, false))
		if b.ask(web, nil) != redirected {
			t.Error("no answer")
		}
	}
}

// TestListenersOfReloads has more addresses and ports over time than the program can have at once.
func TestListenersOfReloads(t *testing.T) {
	b := newBed(t)
	b.must(web, address(t, web, nil))
	for i := range 100 {
		address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{169, 254, 21, byte(i)}), uint16(1000+i))
		n, err := b.Listen(address)
		if err != nil {
			t.Fatalf("address %d: %v", i, err)
		}
		b.SetLease(n, time.Now().Add(time.Hour))
		b.Unlisten(n)
		b.Unlisten(n)
		if b.Leased(n) {
			t.Errorf("address %d still has a lease", i)
		}
	}
	if b.ask(web, nil) != redirected {
		t.Error("an address that remains has no answers")
	}
	n := b.numbers[listener4]
	b.Unlisten(n)
	b.SetLease(n, time.Now().Add(time.Hour))
	if b.ask(web, nil) == redirected {
		t.Error("an address that was removed has answers")
	}
}

// TestManyClients has more clients over time than there is room for: those that were not offered lately make room.
func TestManyClients(t *testing.T) {
	b := newBed(t)
	lists := new(fixedLists)
	lists.list.Store(3)
	e := address(t, web, nil)
	key := b.stored(web, e)
	offer := func(i int) error {
		o := Offer{
			Entry: e, Listener: b.numbers[listener4], Counter: &b.counted, Client: netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), Lists: lists,
			Question: Question{Name: store.KeyName(key), Type: dns.TypeA, List: 3},
		}
		return b.copy(&o, validity.Now())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range maxClients {
		if err := offer(i); err != nil {
			t.Fatalf("client %d: %v", i, err)
		}
	}
	if offer(maxClients) == nil {
		t.Error("room for more clients than the limit")
	}
	b.ticks += clientTicks - 1
	kit.Must(t, offer(7))
	b.ticks++
	b.verifyClients(validity.Now())
	if len(b.clients) != 1 {
		t.Errorf("%d clients remain, want the one that was offered lately", len(b.clients))
	}
	if err := offer(maxClients); err != nil {
		t.Error(err)
	}
}

// TestRoom fills the arena with long answers: offers are refused while all are used, and copies that are not used make room for as
// many as were refused.
func TestRoom(t *testing.T) {
	b := newBed(t)
	close(b.ended) // the test has the ticks
	b.done.Wait()
	b.ended = make(chan struct{})
	long := func(name string) *store.Entry {
		m := new(dns.Msg)
		m.SetQuestion(name, dns.TypeA)
		m.Response = true
		for i := range 60 {
			m.Answer = append(m.Answer, &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 3600}, A: []byte{10, 0, 0, byte(i)}})
		}
		e := &store.Entry{AnyCase: true, Cached: true, Stored: validity.Now()}
		e.Expires = e.Stored + time.Hour
		kit.Must(t, e.Fill(m))
		return e
	}
	b.store.SetBudget(64 << 20)
	add := func(i int) error {
		name := fmt.Sprintf("n%d.example.org.", i)
		e := long(name)
		return b.offer(e, b.numbers[listener4], b.stored(name, e), false)
	}
	copies := 0
	for add(copies) == nil {
		if copies++; copies > maxEntries {
			t.Fatal("more copies than the limit")
		}
	}
	const more = 100
	refused := func() (n int) {
		for i := range more {
			if add(10000+i) != nil {
				n++
			}
		}
		return n
	}
	live := func() (n int) {
		for r := range b.records {
			if !r.over.Load() {
				n++
			}
		}
		return n
	}
	ticks := func(n int, used bool) {
		for range n {
			for r := range b.records {
				if used {
					r.memory.Counts[0]++
				}
			}
			b.mu.Lock()
			b.collect(validity.Now())
			b.mu.Unlock()
		}
	}
	ticks(idleTicks+1, true)
	if n := refused(); n != more {
		t.Errorf("%d of %d offers are refused while all copies are used", n, more)
	}
	for i := range more / 2 {
		if err := add(i); err != nil { // in place of a copy whose memory is not free yet
			t.Fatalf("offer %d of an answer that was fetched again: %v", i, err)
		}
	}
	ticks(graceTicks+1, true)
	ticks(idleTicks, false) // the refused offers of the first of these ticks are forgotten
	if n := live(); n != copies {
		t.Errorf("%d of %d copies remain without further offers", n, copies)
	}
	refused()
	ticks(1, false)
	if n := copies - live(); n < more/2 || n > 2*more {
		t.Errorf("%d copies make room for %d", n, more)
	}
	ticks(graceTicks+1, false)
	if n := refused(); n > more/10 {
		t.Errorf("%d of %d offers are refused after others have made room", n, more)
	}
}

// TestCheckBudget has budgets which the maps would consume, and which they would not.
func TestCheckBudget(t *testing.T) {
	if err := CheckBudget(store.NewStore(mapBytes + mapBytes/2)); err == nil || !strings.Contains(err.Error(), "budget") {
		t.Errorf("more than half of the budget: %v", err)
	}
	if err := CheckBudget(store.NewStore(2 * mapBytes)); err != nil {
		t.Error(err)
	}
}

// TestBudget counts the memory of the maps and of copies in the budget, and no longer after they end.
func TestBudget(t *testing.T) {
	b := newBed(t)
	e := address(t, web, nil)
	key := b.stored(web, e)
	before := b.store.Bytes()
	kit.Must(t, b.offer(e, b.numbers[listener4], key, false))
	if got := b.store.Bytes() - before; got != copyBytes {
		t.Errorf("%d bytes are reserved for a copy, want %d", got, copyBytes)
	}
	b.closed = true
	kit.Must(t, b.Table.Close())
	if got := before - b.store.Bytes(); got != mapBytes {
		t.Errorf("%d bytes are given back, want %d", got, mapBytes)
	}
}

// TestIndex has as many entries as there is room for: nearly all are found, and those of a window of slots that is full are refused,
// as are further ones, except in place of others.
func TestIndex(t *testing.T) {
	b := newBed(t)
	b.store.SetBudget(64 << 20)
	add := func(i int) error {
		name := fmt.Sprintf("n%d.shop.svc.cluster.local.", i)
		e := address(t, name, nil)
		return b.offer(e, b.numbers[listener4], b.stored(name, e), false)
	}
	copied, answered := 0, 0
	for i := range maxEntries {
		if add(i) == nil {
			copied++
		}
	}
	for i := range maxEntries {
		if b.ask(fmt.Sprintf("n%d.shop.svc.cluster.local.", i), nil) == redirected {
			answered++
		}
	}
	if copied < maxEntries*99/100 || answered < copied-5 { // the tags of some may be equal
		t.Errorf("of %d entries, %d are copied, and %d answered", maxEntries, copied, answered)
	}
	for i := maxEntries; copied < maxEntries; i++ {
		if add(i) == nil {
			copied++
		}
	}
	if add(0) != nil {
		t.Error("an answer that was fetched again is refused in a full table")
	}
	if add(-1) == nil {
		t.Errorf("more than %d entries", maxEntries)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for r := range b.records {
		r.grace = graceTicks
		b.end(r)
	}
	b.collect(validity.Now())
	for i, slot := range b.places.Slots {
		if slot != 0 {
			t.Fatalf("slot %d remains", i)
		}
	}
}

// TestFullWindow has more entries than slots with the same first slot: the last one is refused while all others are used, and the
// idle ones make room for it.
func TestFullWindow(t *testing.T) {
	b := newBed(t)
	close(b.ended) // the test has the ticks
	b.done.Wait()
	b.ended = make(chan struct{})
	b.store.SetBudget(64 << 20)
	var names []string
	for i, first := 0, uint64(slots); len(names) <= probes; i++ {
		name := fmt.Sprintf("n%d.example.org.", i)
		e := address(t, name, nil)
		wire := store.KeyName(b.stored(name, e))
		key, _ := keyOf(&Question{Name: wire, Type: dns.TypeA}, b.numbers[listener4])
		hash := key.hash(b.control.Seed, len(wire)) % slots
		if first == slots {
			first = hash
		}
		if hash == first {
			names = append(names, name)
		}
	}
	offer := func(name string) error {
		e := address(t, name, nil)
		return b.offer(e, b.numbers[listener4], b.stored(name, e), false)
	}
	collect := func(times int) {
		for range times {
			b.mu.Lock()
			b.collect(validity.Now())
			b.mu.Unlock()
		}
	}
	last := names[probes]
	for _, name := range names[:probes] {
		kit.Must(t, offer(name))
	}
	if err := offer(last); !errors.Is(err, errFull) {
		t.Errorf("the first time: %v, want %v", err, errFull)
	}
	for _, name := range names[:probes] { // none was idle, and the refused offer has ended none
		if b.ask(name, nil) != redirected {
			t.Errorf("%s is not answered", name)
		}
	}
	collect(idleTicks + 1)
	if err := offer(last); !errors.Is(err, errFull) {
		t.Errorf("while the others are idle: %v, want %v", err, errFull)
	}
	collect(graceTicks + 1)
	if err := offer(last); err != nil || b.ask(last, nil) != redirected {
		t.Errorf("after the others have made room: %v", err)
	}
}

// fixedGeneration is a Generation that does not advance.
type fixedGeneration struct{}

// Load implements validity.Generation.
func (fixedGeneration) Load() uint64 { return 1 }

// TestByGeneration has an answer that ends with a change of the cluster's data: it is not copied, since the kernel does not see that.
func TestByGeneration(t *testing.T) {
	b := newBed(t)
	e := address(t, web, func(e *store.Entry) { e.DependOn(fixedGeneration{}) })
	if Fits(e) {
		t.Error("the entry fits")
	}
	if err := b.offer(e, b.numbers[listener4], b.stored(web, e), false); err == nil || b.ask(web, nil) == redirected {
		t.Errorf("the entry is copied: %v", err)
	}
}

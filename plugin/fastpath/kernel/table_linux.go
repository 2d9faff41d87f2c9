//go:build amd64 || arm64

package kernel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/coherence"
)

// Bytes is the memory of the maps, which is a part of the store's budget.
const Bytes = int64(arenaLen) + int64(unsafe.Sizeof(answerIndex{})) + maxClients*128

// copyBytes is the memory of a copy outside of the maps, with its counter, which is a part of the budget, too.
const copyBytes = 704

const (
	// tick is the time between two collections of the numbers of answers.
	tick = 250 * time.Millisecond
	// idleTicks is the time in ticks without an answer after which an entry makes room for others.
	idleTicks = 8
	// graceTicks is the time in ticks from the end of a record until its memory is used again: a program that has read it before
	// its end has counted its answer by then.
	graceTicks = 4
	// clientTicks is the time in ticks after which a client's search list is removed: 10 minutes. It is offered again when the
	// client's queries pass.
	clientTicks = 2400
	// maxOffers is the number of entries that wait to be copied; readers drop others.
	maxOffers = 256
)

// Counter counts answers of the kernel for the metrics of the entry's plugins.
type Counter interface{ Count(Answered) }

// Offer is an entry that was served to a client, and may be copied.
type Offer struct {
	Entry    *answers.Entry
	Question Question
	Listener int
	Epoch    uint32 // of the listener, see Clear
	Shuffle  bool   // addresses are in random order
	Counter  Counter
	// Client has the search list of the question, if that has one, and Lists returns it.
	Client netip.Addr
	Lists  Lists
}

// Lists has the search lists of clients.
type Lists interface {
	// ListOf returns the ID of a client's search list, 0 if it is unknown. It does not block.
	ListOf(client netip.Addr) uint32
}

// Table has the copies of entries from which the kernel answers. Its goroutine makes and frees them.
type Table struct {
	objects answerObjects
	control *answerControl
	arena   []byte
	places  *answerIndex
	unmap   []func() error
	clock   clock
	store   *answers.Store

	offers chan Offer
	ended  chan struct{}
	done   sync.WaitGroup

	// The rest belongs to the goroutine, except that tests and metrics lock mu to read it.
	mu        sync.Mutex
	byKey     map[answerKey]*record
	records   map[*record]struct{}
	used      [arenaLen / granule]bool
	next      int // where the search for free granules begins
	unfit     int // the least number of granules in a row that were not free, since some were freed; 0 for none
	missing   int // granules for which there was no room since the last tick
	version   uint32
	sessions  map[*coherence.Session]*sessionCopy
	freed     []int // numbers of sessions that are free again
	last      int   // number of a session
	took      time.Duration
	answered  uint64 // until the last tick
	spent     uint64 // nanoseconds for these
	refused   atomic.Uint64
	listening [maxListeners]netip.AddrPort
	epochs    [maxListeners]uint32
	listener  int // number of the last one: another address gets it as late as possible
	clients   map[netip.Addr]clientList
	ticks     int
}

// clientList is the search list of a client.
type clientList struct {
	lists   Lists
	list    uint32
	offered int // tick of the last offer
}

// sessionCopy is the copy of a session's validity.
type sessionCopy struct{ number, records int }

// record is a copy of an entry.
type record struct {
	table   *Table
	entry   *answers.Entry
	key     answerKey
	memory  *answerRecord
	version uint32  // while it is served
	slot    *uint64 // of the key
	first   int     // granule
	len     int     // in granules
	session *coherence.Session
	counter Counter
	counted [countKinds]uint64
	seen    uint64 // answers until the last call of Used, guarded by the store's mutex
	idle    int    // ticks without an answer
	over    atomic.Bool
	grace   int // ticks since it is over
}

// CheckBudget returns an error if the maps need more than half of a store's budget.
func CheckBudget(store *answers.Store) error {
	if budget := store.Budget(); budget < 2*Bytes {
		return fmt.Errorf("the maps need %d bytes, more than half of the budget of plugin cache, which is %d bytes", Bytes, budget)
	}
	return nil
}

// NewTable loads the program and its maps, for a store whose budget CheckBudget accepts. An error names the step, such as a missing
// capability.
func NewTable(store *answers.Store) (_ *Table, err error) {
	t := &Table{
		store: store, offers: make(chan Offer, maxOffers), ended: make(chan struct{}), byKey: map[answerKey]*record{},
		records: map[*record]struct{}{}, sessions: map[*coherence.Session]*sessionCopy{}, clients: map[netip.Addr]clientList{},
	}
	if t.clock, err = newClock(); err != nil {
		return nil, fmt.Errorf("read the kernel's clock: %w", err)
	}
	if err := loadAnswerObjects(&t.objects, nil); err != nil {
		return nil, loadError(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.closeMaps())
		}
	}()
	if err := t.objects.Program.Put(uint32(0), t.objects.NearsideAnswer); err != nil {
		return nil, fmt.Errorf("set the program of filters: %w", err)
	}
	memory, err := t.mmap(t.objects.Control, int(unsafe.Sizeof(answerControl{})))
	if err != nil {
		return nil, err
	}
	t.control = (*answerControl)(unsafe.Pointer(&memory[0]))
	if t.arena, err = t.mmap(t.objects.Arena, arenaLen); err != nil {
		return nil, err
	}
	if memory, err = t.mmap(t.objects.Places, int(unsafe.Sizeof(answerIndex{}))); err != nil {
		return nil, err
	}
	t.places = (*answerIndex)(unsafe.Pointer(&memory[0]))
	t.control.Seed = rand.Uint64()
	t.store.Reserve(Bytes)
	t.done.Go(t.run)
	return t, nil
}

// loadError adds the operator's remedy to an error of loading.
func loadError(err error) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("load the program: nodecache needs the capability CAP_BPF, and a seccomp profile that permits bpf(2) with it: %w", err)
	case runtime.GOARCH == "arm64":
		return fmt.Errorf("load the program (on arm64 it needs Linux 5.18): %w", err)
	}
	return fmt.Errorf("load the program: %w", err)
}

func (t *Table) mmap(m *ebpf.Map, size int) ([]byte, error) {
	page := os.Getpagesize()
	b, err := unix.Mmap(m.FD(), 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the memory of %s: %w", m, err)
	}
	t.unmap = append(t.unmap, func() error { return unix.Munmap(b) })
	return b, nil
}

// Programs returns what is attached to interfaces.
func (t *Table) Programs() Programs {
	return Programs{Answer: t.objects.NearsideAnswer, Filter: t.objects.NearsideFilter, Tail: t.objects.Program}
}

// EndLeases ends all answers: the program passes all packets on.
func (t *Table) EndLeases() {
	for i := range maxListeners {
		atomic.StoreUint64(&t.control.Until[i], 0)
	}
}

// Close unloads the program. The programs must be detached.
func (t *Table) Close() error {
	t.EndLeases()
	close(t.ended)
	t.done.Wait()
	t.store.Reserve(-Bytes)
	t.mu.Lock() // Statistics may read the counters
	defer t.mu.Unlock()
	return t.closeMaps()
}

func (t *Table) closeMaps() (err error) {
	for _, unmap := range t.unmap {
		err = errors.Join(err, unmap())
	}
	return errors.Join(err, t.objects.Close())
}

// errListeners is the error of a listener, or of a port, above the limit.
var errListeners = errors.New("too many addresses or ports")

// Listen makes the program answer queries to an address, while SetLease permits it, and returns its number.
func (t *Table) Listen(address netip.AddrPort) (number int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	free := -1
	for i := range maxListeners {
		i = (t.listener + 1 + i) % maxListeners
		switch a := t.listening[i]; {
		case a == address:
			return i, nil
		case free < 0 && !a.IsValid():
			free = i
		}
	}
	if free < 0 || !t.addPort(address.Port()) {
		return 0, fmt.Errorf("answer in the kernel at %s: %w: at most %d and %d", address, errListeners, maxListeners, maxPorts)
	}
	atomic.StoreUint64(&t.control.Until[free], 0)
	t.control.Searches[free] = 0
	key := answerListenerKey{Address: addressKey(address.Addr()), Port: bigEndian(address.Port())}
	if err := t.objects.Listeners.Put(key, uint32(free)); err != nil { // #nosec G115 -- below maxListeners
		return 0, fmt.Errorf("answer in the kernel at %s: %w", address, err)
	}
	t.listening[free], t.listener = address, free
	return free, nil
}

// Unlisten ends the answers to an address, whose number may become that of another one.
func (t *Table) Unlisten(number int) {
	t.SetLease(number, time.Time{})
	t.Clear(number)
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.listening[number]
	if !a.IsValid() {
		return
	}
	err := t.objects.Listeners.Delete(answerListenerKey{Address: addressKey(a.Addr()), Port: bigEndian(a.Port())})
	if err == nil || errors.Is(err, ebpf.ErrKeyNotExist) {
		t.listening[number] = netip.AddrPort{} // else the address keeps the number, and has no lease
	}
}

// addPort adds a port, in place of one without a listener if there is no room.
func (t *Table) addPort(port uint16) bool {
	free := -1
	for i := range t.control.Ports {
		switch p := t.control.Ports[i]; {
		case p == bigEndian(port):
			return true
		case free < 0 && (p == 0 || !t.listensOn(p)):
			free = i
		}
	}
	if free >= 0 {
		t.control.Ports[free] = bigEndian(port)
	}
	return free >= 0
}

// listensOn reports whether a listener has a port, in network order.
func (t *Table) listensOn(port uint16) bool {
	return slices.ContainsFunc(t.listening[:], func(a netip.AddrPort) bool { return a.IsValid() && bigEndian(a.Port()) == port })
}

// Leased reports whether SetLease has set an end for a listener that it has not ended.
func (t *Table) Leased(number int) bool { return atomic.LoadUint64(&t.control.Until[number]) != 0 }

// SetLease sets until when the program may answer queries to a listener; the zero time ends its answers. It may be called
// from any goroutine.
func (t *Table) SetLease(listener int, until time.Time) {
	var end uint64
	if !until.IsZero() {
		end = t.clock.kernel(answers.Now() + time.Until(until))
	}
	atomic.StoreUint64(&t.control.Until[listener], end)
}

// Offer offers an entry that was served. It does not block.
func (t *Table) Offer(o Offer) {
	select {
	case t.offers <- o:
	default:
		t.refused.Add(1)
	}
}

// Clear ends all copies of entries for a listener, and returns its next epoch: offers of earlier ones are refused.
func (t *Table) Clear(listener int) (epoch uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r := range t.records {
		if int(r.key.Listener) == listener {
			t.end(r)
		}
	}
	// The search lists are those of the previous configuration. The next offers bring those of the present one.
	t.control.Searches[listener] = 0
	t.endClients()
	t.epochs[listener]++
	return t.epochs[listener]
}

// Used implements answers.Copy.
func (r *record) Used() bool {
	var all uint64
	for kind := range countKinds {
		all += atomic.LoadUint64(&r.memory.Counts[kind])
	}
	used := all != r.seen
	r.seen = all
	return used
}

// Serve implements answers.Copy.
func (r *record) Serve() { atomic.StoreUint32(&r.memory.Version, r.version) }

// Remove implements answers.Copy: when it returns, no packet that arrives is answered from the record.
func (r *record) Remove() {
	r.over.Store(true)
	atomic.SwapUint32(&r.memory.Version, 0)
}

// run makes and frees copies until Close.
func (t *Table) run() {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-t.ended:
			t.endAll()
			return
		case o := <-t.offers:
			t.mu.Lock()
			if err := t.copy(&o, answers.Now()); err != nil {
				t.refused.Add(1)
			}
			t.mu.Unlock()
		case <-ticker.C:
			t.mu.Lock()
			t.collect(answers.Now())
			t.mu.Unlock()
		}
	}
}

// endAll ends all records and counts their last answers.
func (t *Table) endAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r := range t.records {
		t.end(r)
	}
	for s := range t.sessions {
		s.Mirror(nil)
	}
	time.Sleep(time.Millisecond) // for a program that has begun before it was detached
	t.measure()
	for r := range t.records {
		t.count(r)
		t.forget(r)
	}
}

// errFull is the reason why an entry is not copied while all others are in use.
var errFull = errors.New("no room for the entry")

// copy makes a copy of an entry, unless there is one.
func (t *Table) copy(o *Offer, now time.Duration) error {
	key, ok := keyOf(&o.Question, o.Listener)
	if !ok {
		return errUnfit
	}
	if o.Epoch != t.epochs[o.Listener] {
		return nil
	}
	if o.Question.List != 0 {
		if err := t.setClient(o); err != nil {
			return err
		}
	}
	old := t.byKey[key]
	if old != nil && old.entry == o.Entry && !old.over.Load() || !o.Entry.Fresh(now) || !t.store.Has(o.Entry) {
		return nil
	}
	if len(t.records) >= maxEntries {
		t.missing++
		return errFull
	}
	var session *coherence.Session
	s := source{entry: o.Entry, key: key, name: len(o.Question.Name), shuffle: o.Shuffle, clock: t.clock, session: func(one *coherence.Session) (int, bool) {
		session = one
		return t.numberOf(one)
	}}
	var buf [maxRecord]byte
	encoded, err := s.encode(buf[:0])
	if err != nil {
		return err
	}
	n := (len(encoded) + granule - 1) / granule
	at, ok := t.allocate(n)
	if !ok {
		t.missing += n
		return errFull
	}
	hash := key.hash(t.control.Seed, len(o.Question.Name))
	slot := t.slotOf(hash, old)
	if slot == nil {
		t.freeGranules(at, n)
		t.endIdle(hash)
		return errFull
	}
	if t.version = (t.version + 1) % (1 << versionBits); t.version == 0 {
		t.version = 1
	}
	r := &record{
		table: t, entry: o.Entry, key: key, slot: slot, len: n, session: session, counter: o.Counter,
		version: t.version, first: at,
		memory: (*answerRecord)(unsafe.Pointer(&t.arena[at*granule])),
	}
	copy(t.arena[at*granule:], encoded)
	atomic.StoreUint64(slot, r.slotValue(hash))
	if old != nil {
		t.end(old)
	}
	t.byKey[key], t.records[r] = r, struct{}{}
	t.store.Reserve(copyBytes)
	if session != nil {
		t.sessions[session].records++
	}
	if !t.store.AddCopy(o.Entry, r) {
		r.over.Store(true)
	}
	return nil
}

// maxClients is the limit of answer.c.
const maxClients = 1024

// setClient copies the search list of a client.
func (t *Table) setClient(o *Offer) error {
	c := clientList{o.Lists, o.Question.List, t.ticks}
	known, ok := t.clients[o.Client]
	if ok && known.lists == c.lists && known.list == c.list {
		t.clients[o.Client] = c
		return nil
	}
	if !ok && len(t.clients) >= maxClients {
		return errFull
	}
	key := answerClientKey{Address: addressKey(o.Client)}
	if err := t.objects.Clients.Put(key, answerClient{Address: key.Address, List: c.list}); err != nil {
		return fmt.Errorf("add a client: %w", err)
	}
	t.clients[o.Client] = c
	t.control.Searches[o.Listener] = 1
	t.verifyClients(answers.Now())
	return nil
}

// clientsFor is the time for which the search lists of clients are valid after they were verified, at each tick.
const clientsFor = 2 * tick

// endClients removes all clients.
func (t *Table) endClients() {
	for a := range t.clients {
		err := t.objects.Clients.Delete(answerClientKey{Address: addressKey(a)})
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			atomic.StoreUint64(&t.control.ClientsUntil, 0) // until verifyClients has removed it
			continue
		}
		delete(t.clients, a)
	}
}

// verifyClients removes the clients whose search list has changed or is not known any more, and those that were not offered for
// clientTicks. If one cannot be removed, the lists of all end.
func (t *Table) verifyClients(now time.Duration) {
	for a, c := range t.clients {
		if c.lists.ListOf(a) == c.list && t.ticks-c.offered < clientTicks {
			continue
		}
		err := t.objects.Clients.Delete(answerClientKey{Address: addressKey(a)})
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return
		}
		delete(t.clients, a)
	}
	atomic.StoreUint64(&t.control.ClientsUntil, t.clock.kernel(now+clientsFor))
}

// allocate returns the first of n free granules in a row.
func (t *Table) allocate(n int) (at int, ok bool) {
	if t.unfit != 0 && n >= t.unfit {
		return 0, false
	}
	if at, ok = t.search(n); !ok {
		t.unfit = n
	}
	return at, ok
}

// lastGranule is the last one at which a record may begin: the program reads maxRecord bytes.
const lastGranule = (arenaLen - maxRecord) / granule

func (t *Table) search(n int) (at int, ok bool) {
	for i, run := 0, 0; i < 2*lastGranule; i++ {
		at := (t.next + i) % (lastGranule + 1)
		if at == 0 {
			run = 0
		}
		if t.used[at] {
			run = 0
			continue
		}
		if run++; run == n {
			first := at - n + 1
			for j := range n {
				t.used[first+j] = true
			}
			t.next = (at + 1) % (lastGranule + 1)
			return first, true
		}
	}
	return 0, false
}

// end ends a copy of an entry that may remain in the store.
func (t *Table) end(r *record) {
	r.Remove()
	t.store.DropCopies(r.entry, func(c answers.Copy) bool { return c == r })
}

// forget frees a record.
func (t *Table) forget(r *record) {
	if t.byKey[r.key] == r {
		delete(t.byKey, r.key)
		atomic.StoreUint64(r.slot, 0)
	}
	delete(t.records, r)
	t.store.Reserve(-copyBytes)
	if s := t.sessions[r.session]; s != nil {
		s.records--
	}
	t.freeGranules(r.first, r.len)
}

// freeGranules makes n granules free.
func (t *Table) freeGranules(first, n int) {
	t.unfit = 0
	clear(t.used[first : first+n])
}

// slotOf returns the slot of a key in the index: that of the record which had the key, or a free one. It returns nil if there is none.
func (t *Table) slotOf(hash uint64, old *record) *uint64 {
	if old != nil {
		return old.slot
	}
	first := hash % slots
	for i := range t.places.Slots[first : first+probes] {
		if slot := &t.places.Slots[int(first)+i]; *slot == 0 { // #nosec G115 -- within the index
			return slot
		}
	}
	return nil
}

// endIdle ends the copies in the slots of a hash that were not used lately, which are free for a later offer.
func (t *Table) endIdle(hash uint64) {
	first := &t.places.Slots[hash%slots]
	for r := range t.records {
		if at := uintptr(unsafe.Pointer(r.slot)) - uintptr(unsafe.Pointer(first)); at < probes*8 && r.idle >= idleTicks && !r.over.Load() {
			t.end(r)
		}
	}
}

// slotValue returns the value of the record's slot, given the hash of its key.
func (r *record) slotValue(hash uint64) uint64 {
	return (hash>>tagShift|1)<<tagShift | uint64(r.first)<<versionBits | uint64(r.version) // #nosec G115 -- not negative
}

// numberOf returns the number of a session, whose validity is copied from then on.
func (t *Table) numberOf(s *coherence.Session) (number int, ok bool) {
	if known := t.sessions[s]; known != nil {
		return known.number, true
	}
	switch n := len(t.freed); {
	case n > 0:
		number, t.freed = t.freed[n-1], t.freed[:n-1]
	case t.last < maxSessions-1:
		t.last++
		number = t.last
	default:
		return 0, false
	}
	t.sessions[s] = &sessionCopy{number: number}
	copied := &t.control.Sessions[number]
	s.Mirror(func(until time.Duration, lapsed bool) {
		var end uint64
		if until != 0 {
			end = t.clock.kernel(until)
		}
		if lapsed {
			atomic.StoreUint64(&copied.Lapsed, 1)
		} else {
			atomic.StoreUint64(&copied.Lapsed, 0)
		}
		atomic.StoreUint64(&copied.Until, end)
	})
	return number, true
}

// collect counts the answers since the last tick, ends the copies that are not fresh any more or make room for others, and frees
// those that ended.
func (t *Table) collect(now time.Duration) {
	t.ticks++
	t.verifyClients(now)
	t.measure()
	for r := range t.records {
		n := t.count(r)
		if n > 0 {
			r.idle = 0
			t.successor(r).CountCopied(int64(min(n, 1<<32)), now) // #nosec G115 -- bounded
		} else {
			r.idle++
		}
		if r.over.Load() {
			if r.grace++; r.grace > graceTicks {
				t.forget(r)
			}
			continue
		}
		if r.idle >= idleTicks && (t.missing > 0 || !r.entry.Fresh(now)) {
			t.end(r)
			t.missing -= r.len
		}
	}
	t.missing = 0
	for s, c := range t.sessions {
		if c.records == 0 {
			s.Mirror(nil)
			delete(t.sessions, s)
			t.freed = append(t.freed, c.number)
		}
	}
}

// successor returns the entry of the copy that has replaced a record, or the record's: hits of the last tick before that count for
// the prefetch of the new answer.
func (t *Table) successor(r *record) *answers.Entry {
	if next := t.byKey[r.key]; next != nil {
		return next.entry
	}
	return r.entry
}

// measure reads the time that the answers since the last call have taken.
func (t *Table) measure() {
	answered, spent := t.counter(answeredTotal), t.counter(nanosecondsTotal)
	if n := answered - t.answered; n > 0 {
		t.took = time.Duration((spent - t.spent) / n) // #nosec G115 -- nanoseconds
	}
	t.answered, t.spent = answered, spent
}

// count counts the answers of a record since the last call, and returns their number.
func (t *Table) count(r *record) (all uint64) {
	for kind := range countKinds {
		total := atomic.LoadUint64(&r.memory.Counts[kind])
		n := total - r.counted[kind]
		if int64(n) <= 0 { // #nosec G115 -- the program takes an answer back that it does not send; it was counted
			continue
		}
		r.counted[kind] = total
		all += n
		r.counter.Count(Answered{
			Number: n, EDNS: kind&countEDNS != 0, IPv6: kind&countIPv6 != 0, Beyond: kind&countBeyond != 0, Took: t.took,
		})
	}
	return all
}

// counter returns a counter of all processors.
func (t *Table) counter(number uint32) (total uint64) {
	var each []uint64
	if err := t.objects.Counters.Lookup(number, &each); err != nil {
		return 0 // not after a successful load
	}
	for _, n := range each {
		total += n
	}
	return total
}

// Statistics are numbers for metrics.
type Statistics struct {
	Entries  int
	Answered uint64
	Refused  uint64            // offers without room, or of entries without a form for the kernel
	Passed   map[string]uint64 // queries to the listeners that were passed on to the sockets, by reason
}

// Counters of answer.c: the answers, their nanoseconds, and the queries that were passed on.
const (
	answeredTotal = iota
	nanosecondsTotal
	passedNoEntry
	passedNoLease
	passedExpired
	passedQuery
	passedLength
	passedCase
	passedPacket
	passedChecksum
)

// passed are the labels of the reasons to pass a query on.
var passed = [...]string{
	passedNoEntry: "no_entry", passedNoLease: "no_lease", passedExpired: "expired", passedQuery: "query", passedLength: "length",
	passedCase: "case", passedPacket: "packet", passedChecksum: "checksum",
}

// Statistics returns the numbers.
func (t *Table) Statistics() Statistics {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Statistics{Answered: t.counter(answeredTotal), Refused: t.refused.Load(), Passed: map[string]uint64{}}
	for r := range t.records {
		if !r.over.Load() {
			s.Entries++
		}
	}
	for number, label := range passed[passedNoEntry:] {
		s.Passed[label] = t.counter(uint32(passedNoEntry + number)) // #nosec G115 -- a constant
	}
	return s
}

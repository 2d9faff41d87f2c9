//go:build amd64 || arm64

package kernel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
)

// mapBytes is the memory of the maps, which is a part of the store's budget. An entry of a hash map has about 128 bytes.
const mapBytes = int64(arenaLen) + int64(unsafe.Sizeof(answerIndex{})) + maxClients*128

// copyBytes is the memory of a copy outside of the maps, with its counter (measured), which is a part of the budget, too.
const copyBytes = 704

const (
	// collectInterval is the time between two collections of the numbers of answers.
	collectInterval = 250 * time.Millisecond
	// idleTicks is the time in ticks without an answer after which an entry makes room for others.
	idleTicks = 8
	// graceTicks is the time in ticks from the end of a record until its memory is used again: a program that still reads it has
	// finished by then.
	graceTicks = 4
	// clientTicks is the time in ticks after which a client's search list is removed: 10 minutes. It is offered again when the
	// client's queries pass.
	clientTicks = 2400
	// maxOffers is the number of entries that wait to be copied; readers drop others.
	maxOffers = 256
)

// Table has the copies of entries from which the kernel answers. Its goroutine makes and frees them.
type Table struct {
	objects answerObjects
	control *answerControl
	arena   []byte
	places  *answerIndex
	unmap   []func() error
	clock   clock
	store   *store.Store

	offers chan Offer
	ended  chan struct{}
	done   sync.WaitGroup

	// mu guards the rest.
	mu        sync.Mutex
	byKey     map[answerKey]*record
	records   map[*record]struct{}
	used      [arenaLen / granule]bool
	inUse     int // granules
	next      int // where the search for free granules begins
	minFailed int // size in granules of the smallest allocation that failed since some were freed; 0 if none has
	// missingEntries and missingGranules count the entries and granules for which there was no room since the last tick.
	missingEntries, missingGranules int
	version                         uint32
	sessions                        map[*vouch.Session]*sessionCopy
	freed                           []int // numbers of sessions that are free again
	last                            int   // the highest number of a session until now
	took                            time.Duration
	answered                        uint64 // until the last tick
	spent                           uint64 // nanoseconds for these
	refused                         atomic.Uint64
	listening                       [maxListeners]netip.AddrPort
	epochs                          [maxListeners]uint32
	listener                        int // the number that was given last: numbers are used again as late as possible
	clients                         map[netip.Addr]clientList
	ticks                           int
}

// CheckBudget returns an error if the maps need more than half of a store's budget.
func CheckBudget(s *store.Store) error {
	if budget := s.Budget(); budget < 2*mapBytes {
		return fmt.Errorf("budget of cache is %d bytes: answers in the kernel need at least %d", budget, 2*mapBytes)
	}
	return nil
}

// NewTable loads the program and its maps, for a store whose budget CheckBudget accepts. An error names the step, such as a missing
// capability.
func NewTable(s *store.Store) (_ *Table, err error) {
	t := &Table{
		store: s, offers: make(chan Offer, maxOffers), ended: make(chan struct{}), byKey: map[answerKey]*record{},
		records: map[*record]struct{}{}, sessions: map[*vouch.Session]*sessionCopy{}, clients: map[netip.Addr]clientList{},
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
	t.store.Reserve(mapBytes)
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

// Programs returns the programs that are attached to interfaces.
func (t *Table) Programs() Programs {
	return Programs{Answer: t.objects.NearsideAnswer, Filter: t.objects.NearsideFilter, Tail: t.objects.Program}
}

// Close unloads the program. The programs must be detached.
func (t *Table) Close() error {
	t.EndLeases()
	close(t.ended)
	t.done.Wait()
	t.store.Reserve(-mapBytes)
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

// run makes and frees copies until Close.
func (t *Table) run() {
	ticker := time.NewTicker(collectInterval)
	defer ticker.Stop()
	for {
		select {
		case <-t.ended:
			t.endAll()
			return
		case o := <-t.offers:
			t.mu.Lock()
			err := t.copy(&o, validity.Now())
			if err != nil {
				t.refused.Add(1)
			}
			if errors.Is(err, errUnfit) {
				o.Entry.NeverCopy()
			}
			t.mu.Unlock()
		case <-ticker.C:
			t.mu.Lock()
			t.collect(validity.Now())
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

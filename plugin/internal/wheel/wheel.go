// Package wheel runs many deadlines, most of which are removed before they expire, with one timer of the runtime. Input:
// deadlines; output: calls of their owners. Set and Stop take a constant time and allocate nothing; without deadlines the
// runtime's timer does not run. The package is a leaf: it imports nothing of this project.
package wheel

import (
	"math/bits"
	"sync"
	"time"
)

const (
	tick      = time.Millisecond
	levels    = 3
	levelBits = 8 // of the slots of a level
	slots     = 1 << levelBits
	// horizon is the range of all levels in ticks, 4.6 hours. Deadlines beyond it are added again at its end.
	horizon = 1 << (levels * levelBits)
)

// Owner has deadlines.
type Owner interface {
	// Expired is called after a deadline, without a lock, in a goroutine that calls other owners afterwards. The deadline may
	// have been set again meanwhile.
	Expired(now time.Time)
}

// Deadline is a deadline of an owner. It belongs to one Wheel.
type Deadline struct {
	Owner Owner

	next, prev *Deadline // in the slot
	at         int64     // in ticks
	level      uint8
	slot       uint8
	set        bool
}

// Wheel has deadlines in slots of 1 ms, and those further away in slots of 256 ms or 65 s. When a longer slot is due, its
// deadlines move to shorter slots. The methods may be called concurrently.
type Wheel struct {
	start time.Time // of tick 0

	mu    sync.Mutex
	slots [levels][slots]*Deadline
	used  [levels]slotSet
	now   int64 // the last tick whose deadlines have expired
	timer *time.Timer
	armed int64 // the tick at which the timer runs; 0 is never
	due   []Owner
}

// New returns a Wheel without deadlines.
func New() *Wheel { return &Wheel{start: time.Now()} }

// Process is the Wheel of the process.
var Process = New()

// Set sets or changes a deadline, which expires up to 2 ms after the time, never before it. It returns true if the deadline
// was not set: one more call of Expired is due.
func (w *Wheel) Set(d *Deadline, at time.Time) (added bool) {
	ticks := int64((at.Sub(w.start) + tick - 1) / tick)
	w.mu.Lock()
	defer w.mu.Unlock()
	added = !d.set
	if !added {
		w.remove(d)
	}
	d.at, d.set = ticks, true
	if first := w.add(d); w.armed == 0 || first < w.armed {
		w.arm(first)
	}
	return added
}

// Stop removes a deadline. It returns false if the deadline is not set: its owner was called, or is called soon.
func (w *Wheel) Stop(d *Deadline) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !d.set {
		return false
	}
	w.remove(d)
	d.set = false
	return true
}

// add adds a deadline to a slot, and returns the tick at which the slot is due.
func (w *Wheel) add(d *Deadline) (first int64) {
	at := max(d.at, w.now+1)
	at = min(at, w.now+horizon-1)
	level := uint8(0)
	for at-w.now >= 1<<(levelBits*(level+1)) {
		level++
	}
	shift := levelBits * level
	d.level, d.slot = level, uint8(at>>shift) // #nosec G115 -- the lower bits
	head := &w.slots[d.level][d.slot]
	d.prev, d.next = nil, *head
	if d.next != nil {
		d.next.prev = d
	}
	*head = d
	w.used[d.level].add(d.slot)
	return at >> shift << shift
}

func (w *Wheel) remove(d *Deadline) {
	head := &w.slots[d.level][d.slot]
	if d.prev == nil {
		*head = d.next
	} else {
		d.prev.next = d.next
	}
	if d.next != nil {
		d.next.prev = d.prev
	}
	d.next, d.prev = nil, nil
	if *head == nil {
		w.used[d.level].remove(d.slot)
	}
}

// arm makes the timer run at a tick.
func (w *Wheel) arm(at int64) {
	w.armed = at
	wait := time.Until(w.start.Add(time.Duration(at) * tick))
	if w.timer == nil {
		w.timer = time.AfterFunc(wait, w.run)
	} else {
		w.timer.Reset(wait)
	}
}

// run calls the owners of expired deadlines.
func (w *Wheel) run() {
	now := time.Now()
	w.mu.Lock()
	w.armed = 0
	due := w.advance(int64(now.Sub(w.start)/tick), w.due[:0])
	w.due = nil
	if next := w.next(); next > 0 {
		w.arm(next)
	}
	w.mu.Unlock()
	for i, owner := range due {
		owner.Expired(now)
		due[i] = nil
	}
	w.mu.Lock()
	w.due = due
	w.mu.Unlock()
}

// advance removes the deadlines up to a tick, and appends their owners to due.
func (w *Wheel) advance(to int64, due []Owner) []Owner {
	for next := w.next(); next > 0 && next <= to; next = w.next() {
		w.now = next
		for level := levels - 1; level >= 0; level-- {
			shift := levelBits * level
			if next>>shift<<shift == next {
				due = w.empty(level, uint8(next>>shift), due) // #nosec G115 -- the lower bits
			}
		}
	}
	w.now = max(w.now, to)
	return due
}

// empty moves the deadlines of a slot to shorter slots, or appends the owners of expired ones to due.
func (w *Wheel) empty(level int, slot uint8, due []Owner) []Owner {
	for d := w.slots[level][slot]; d != nil; d = w.slots[level][slot] {
		w.remove(d)
		if d.at > w.now {
			w.add(d)
			continue
		}
		d.set = false
		due = append(due, d.Owner)
	}
	return due
}

// next returns the first tick at which a slot is due, or 0.
func (w *Wheel) next() (first int64) {
	for level := range levels {
		shift := levelBits * level
		base := w.now >> shift
		if ahead := w.used[level].ahead(uint8(base)); ahead > 0 { // #nosec G115 -- the lower bits
			if at := (base + ahead) << shift; first == 0 || at < first {
				first = at
			}
		}
	}
	return first
}

// slotSet is the set of a level's slots that have deadlines.
type slotSet [slots / 64]uint64

func (s *slotSet) add(slot uint8)    { s[slot/64] |= 1 << (slot % 64) }
func (s *slotSet) remove(slot uint8) { s[slot/64] &^= 1 << (slot % 64) }

// ahead returns the distance from a slot to the next slot of the set: 1 to 255, 256 for the slot itself, 0 for an empty set.
func (s *slotSet) ahead(slot uint8) int64 {
	from := slot + 1
	for i := range len(s) + 1 {
		word := s[(int(from/64)+i)%len(s)]
		skip := 64*i - int(from%64) // distance to the first slot of the word
		switch i {
		case 0:
			word = word >> (from % 64) << (from % 64)
		case len(s): // the slots before from
			word &= 1<<(from%64) - 1
		}
		if word != 0 {
			return int64(1 + skip + bits.TrailingZeros64(word))
		}
	}
	return 0
}

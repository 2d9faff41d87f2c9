//go:build amd64 || arm64

package kernel

import (
	"sync/atomic"
	"time"
)

// measure sets took, the mean time of the answers since the last call.
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
		if int64(n) <= 0 { // #nosec G115 -- negative if an answer was counted that the program then did not send
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

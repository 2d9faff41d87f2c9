package admission

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/property"
)

// clientAddress returns the address of a client by its number.
func clientAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) // #nosec G115
}

// bed has Places with a fake clock and numbered queries.
type bed struct {
	*Places
	clock   time.Duration
	running map[int]*numbered
	started []int // since the last end
	dropped []int
	logged  []string
}

func newBed(running, waiting int) *bed {
	b := &bed{running: map[int]*numbered{}}
	b.Places = NewPlaces(Limits{running, waiting, 1}, func() time.Duration { return b.clock }, func(line string) { b.logged = append(b.logged, line) })
	return b
}

// numbered is a query of a bed.
type numbered struct {
	Ticket
	bed    *bed
	number int
}

// Run implements Query.
func (n *numbered) Run(*batch.Batch) {
	n.bed.running[n.number] = n
	n.bed.started = append(n.bed.started, n.number)
}

// Drop implements Query.
func (n *numbered) Drop(*batch.Batch) { n.bed.dropped = append(n.bed.dropped, n.number) }

// add adds a query for the plugin chain and reports whether it runs.
func (b *bed) add(q *Queue, number int, from netip.Addr) bool {
	return b.addForm(q, number, from, false)
}

// addForm adds a query, in wire form or for the plugin chain, and reports whether it runs.
func (b *bed) addForm(q *Queue, number int, from netip.Addr, wire bool) bool {
	n := &numbered{bed: b, number: number}
	q.HandOver(new(batch.Batch), &n.Ticket, n, from, wire)
	return b.running[number] != nil
}

// end ends a running query, and returns those that start in its place, in this order.
func (b *bed) end(number int) (started []int) {
	n := b.running[number]
	delete(b.running, number)
	b.started = nil
	var output batch.Batch
	n.Finish(&output)
	output.Flush()
	return b.started
}

// modelQuery is a query in a model.
type modelQuery struct {
	number, queue int
	from          netip.Addr
	arrived       time.Duration
}

// model is a slow queue that evaluates the rules for each query.
type model struct {
	maxRunning, maxWaiting int
	limits                 []int // of the queues
	running, waiting       []modelQuery
	dropped                []int
}

func count(all []modelQuery, which func(modelQuery) bool) (n int) {
	for _, m := range all {
		if which(m) {
			n++
		}
	}
	return n
}

func sameQueue(m modelQuery) func(modelQuery) bool {
	return func(o modelQuery) bool { return o.queue == m.queue }
}

func sameClient(m modelQuery) func(modelQuery) bool {
	return func(o modelQuery) bool { return o.queue == m.queue && o.from == m.from }
}

func (md *model) admits(m modelQuery) bool {
	limit := shareFactor * (md.maxRunning - len(md.running))
	if own := md.limits[m.queue]; own > 0 {
		limit = min(limit, own)
	}
	room := limit - count(md.running, sameQueue(m))
	own := count(md.running, sameClient(m))
	if own == 0 {
		return room > 0
	}
	return own < shareFactor*(room-limit/reservedFraction)
}

func (md *model) expire(now time.Duration) {
	for len(md.waiting) > 0 && now-md.waiting[0].arrived >= maxWait {
		md.drop(0)
	}
}

func (md *model) drop(i int) {
	md.dropped = append(md.dropped, md.waiting[i].number)
	md.waiting = slices.Delete(md.waiting, i, i+1)
}

func (md *model) add(m modelQuery) {
	md.expire(m.arrived)
	if count(md.waiting, sameClient(m)) == 0 && md.admits(m) {
		md.running = append(md.running, m)
		return
	}
	own, inQueue, limit := count(md.waiting, sameClient(m)), count(md.waiting, sameQueue(m)), md.limits[m.queue]
	room := md.maxWaiting - len(md.waiting)
	if limit > 0 {
		room = min(room, limit-inQueue)
	}
	switch {
	case own > 0 && own >= room:
		md.drop(slices.IndexFunc(md.waiting, sameClient(m)))
	case room > 0:
	case limit > 0 && inQueue >= limit:
		md.drop(slices.IndexFunc(md.waiting, sameQueue(m)))
	default:
		md.drop(0)
	}
	md.waiting = append(md.waiting, m)
}

// end ends a running query, and checks the queries that the queue has started; the turns of queues are not in the model.
func (md *model) end(number int, now time.Duration, started []int) error {
	md.running = slices.DeleteFunc(md.running, func(m modelQuery) bool { return m.number == number })
	md.expire(now)
	for _, n := range started {
		at := slices.IndexFunc(md.waiting, func(m modelQuery) bool { return m.number == n })
		if at < 0 || !md.best(md.waiting[at]) || !md.admits(md.waiting[at]) {
			return fmt.Errorf("started %v: %d is not the first that may run", started, n)
		}
		md.running = append(md.running, md.waiting[at])
		md.waiting = slices.Delete(md.waiting, at, at+1)
	}
	for _, m := range md.waiting {
		if md.best(m) && md.admits(m) {
			return fmt.Errorf("started %v, but not %d", started, m.number)
		}
	}
	return nil
}

// best reports whether a query is the first that its queue may start.
func (md *model) best(m modelQuery) bool {
	own := count(md.running, sameClient(m))
	for _, o := range md.waiting {
		if o.queue != m.queue || o.number == m.number {
			continue
		}
		if others := count(md.running, sameClient(o)); others < own || others == own && o.arrived < m.arrived {
			return false
		}
	}
	return true
}

func numbersOf(all []modelQuery) (numbers []int) {
	for _, m := range all {
		numbers = append(numbers, m.number)
	}
	slices.Sort(numbers)
	return numbers
}

// TestQueueModel compares the queue with the model, after each of many random steps.
func TestQueueModel(t *testing.T) {
	property.Seeds(t, 0, 60, func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, 0))
		b := newBed(1+random.IntN(40), 1+random.IntN(40))
		md := &model{maxRunning: b.maxRunning, maxWaiting: b.maxWaiting}
		var queues []*Queue
		for range 1 + random.IntN(3) {
			limit := max(0, random.IntN(30)-10)
			queues, md.limits = append(queues, b.NewQueue(limit)), append(md.limits, limit)
		}
		clients := 1 + random.IntN(20)
		for step := range 2000 {
			b.clock += 1 + time.Duration(random.Int64N(int64(maxWait)/20)) // no two at the same time
			if random.IntN(5) < 3 || len(b.running) == 0 {
				m := modelQuery{number: step, queue: random.IntN(len(queues)), from: clientAddress(random.IntN(1 + random.IntN(clients))), arrived: b.clock}
				md.add(m)
				b.add(queues[m.queue], m.number, m.from)
			} else {
				before := numbersOf(md.running)
				number := before[random.IntN(len(before))]
				if err := md.end(number, b.clock, b.end(number)); err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
			}
			var running []int
			for n := range b.running {
				running = append(running, n)
			}
			slices.Sort(running)
			slices.Sort(md.dropped)
			slices.Sort(b.dropped)
			if want := numbersOf(md.running); !slices.Equal(running, want) || !slices.Equal(b.dropped, md.dropped) {
				t.Fatalf("step %d: %v run and %v are dropped, want %v and %v", step, running, b.dropped, want, md.dropped)
			}
			states := 0
			for _, q := range queues {
				states += len(q.clients)
			}
			if b.waiting != len(md.waiting) || states > len(md.running)+len(md.waiting) {
				t.Fatalf("step %d: %d queries wait, of %d clients; want %d waiting, and at most one client for each query", step, b.waiting, states, len(md.waiting))
			}
			md.dropped, b.dropped = nil, nil
		}
		for len(b.running) > 0 {
			for n := range b.running {
				b.clock += maxWait
				b.end(n)
				break
			}
		}
		for _, q := range queues {
			if len(q.clients) != 0 || q.oldest != nil || len(q.ready) != 0 {
				t.Fatalf("a queue without queries has %d clients", len(q.clients))
			}
		}
	})
}

// fill adds queries of a client until one has to wait, and returns the number of running ones.
func (b *bed) fill(q *Queue, from netip.Addr, first int) (running int) {
	for number := first; ; number++ {
		if !b.add(q, number, from) {
			return number - first
		}
	}
}

// TestShares adds queries that do not end.
func TestShares(t *testing.T) {
	const size = 600
	b := newBed(size, 10*size)
	q := b.NewQueue(0)
	if n := b.fill(q, clientAddress(1), 0); n < size*7/10 {
		t.Errorf("a lone client runs %d of %d queries, want at least seven of ten", n, size)
	}
	if n := b.fill(q, clientAddress(2), 1000); n < size/30 {
		t.Errorf("beside it, another client runs %d at once, want at least one of thirty", n)
	}
	if n := b.fill(b.NewQueue(0), clientAddress(1), 2000); n < size/30 {
		t.Errorf("in another queue, a client runs %d at once, want at least one of thirty", n)
	}
	if len(b.running) > size {
		t.Errorf("%d run, want at most %d", len(b.running), size)
	}
}

// TestManyBusyClients adds the first query of a client beside hundreds of clients that exceed the limit.
func TestManyBusyClients(t *testing.T) {
	const size, busy = 600, 300
	b := newBed(size, 10*size)
	q := b.NewQueue(0)
	random := rand.New(rand.NewPCG(1, 2))
	number := 0
	flood := func() {
		b.clock++
		number++
		b.add(q, number, clientAddress(random.IntN(busy)))
	}
	endOne := func() {
		running := slices.Sorted(maps.Keys(b.running))
		b.end(running[random.IntN(len(running))])
	}
	for range 20 * busy {
		flood()
	}
	for range 20 * busy {
		flood()
		endOne()
	}
	b.add(q, -1, clientAddress(busy))
	if b.running[-1] == nil {
		endOne()
	}
	if b.running[-1] == nil {
		t.Error("the new client does not get the first free place")
	}
	for cl := range maps.Values(q.clients) {
		if cl.running > 3*size/busy {
			t.Errorf("%v runs %d queries, want at most %d", cl.address, cl.running, 3*size/busy)
		}
	}
}

// TestClientsOfOnePrefix adds queries of pods of one node, which share a /64.
func TestClientsOfOnePrefix(t *testing.T) {
	b := newBed(100, 100)
	q := b.NewQueue(0)
	one, other := netip.MustParseAddr("fd00:10::5"), netip.MustParseAddr("fd00:10::6")
	b.fill(q, one, 0)
	if !b.add(q, 1000, other) {
		t.Error("a pod's query waits for those of another pod of its node")
	}
	if b.add(q, 1001, one) {
		t.Error("the busy pod's next query does not wait")
	}
}

// TestFewestRunningFirst has one client with many running queries and one with few, and both have waiting ones: places
// that become free go to the one with few.
func TestFewestRunningFirst(t *testing.T) {
	b := newBed(100, 200)
	q := b.NewQueue(0)
	many := b.fill(q, clientAddress(1), 0)
	few := b.fill(q, clientAddress(2), 1000)
	for i := range 50 {
		b.clock++
		b.add(q, 500+i, clientAddress(1))
		b.add(q, 1500+i, clientAddress(2))
	}
	for i := 0; many-i > few+1; i++ {
		for _, n := range b.end(i) {
			if n < 1000 {
				t.Fatalf("a client with %d running queries gets a place before one with %d", many-i-1, few)
			}
			few++
		}
	}
	if few < many/3 {
		t.Errorf("the client with few runs %d queries in the end, want at least %d", few, many/3)
	}
}

// TestMaxWait has queries that wait too long: they are dropped when another query arrives or ends, not only in their turn.
func TestMaxWait(t *testing.T) {
	b := newBed(1, 10)
	q := b.NewQueue(0)
	if !b.add(q, 0, clientAddress(0)) {
		t.Fatal("the first query does not run")
	}
	b.add(q, 1, clientAddress(1))
	b.clock += maxWait / 2
	b.add(q, 2, clientAddress(2))
	b.clock += maxWait/2 - 1
	b.add(q, 3, clientAddress(3))
	if len(b.dropped) > 0 {
		t.Errorf("%v are dropped too early", b.dropped)
	}
	b.clock++
	b.add(q, 4, clientAddress(4))
	if !slices.Equal(b.dropped, []int{1}) {
		t.Errorf("%v are dropped when a query arrives after %v, want 1", b.dropped, maxWait)
	}
	b.clock += maxWait / 2
	b.end(0)
	if !slices.Equal(b.dropped, []int{1, 2}) || b.running[3] == nil {
		t.Errorf("%v are dropped when a query ends, want 1 and 2; 3 runs: %t", b.dropped, b.running[3] != nil)
	}
	if maxWait >= 2*time.Second {
		t.Errorf("a query waits for %v, after which its resolver has repeated it", maxWait)
	}
}

// TestResize raises the limit: waiting queries run at once.
func TestResize(t *testing.T) {
	b := newBed(1, 10)
	q := b.NewQueue(0)
	b.add(q, 0, clientAddress(0))
	if b.add(q, 1, clientAddress(1)) {
		t.Fatal("a query runs beyond the limit")
	}
	b.Resize(defaultRunning + 1)
	if b.maxRunning != defaultRunning+1 {
		t.Errorf("%d may run, want %d", b.maxRunning, defaultRunning+1)
	}
	if b.running[1] == nil {
		t.Error("the query waits on")
	}
	b.end(0)
	b.end(1)
	b.Resize(5)
	if b.maxRunning != defaultRunning {
		t.Errorf("%d may run, want the default of %d", b.maxRunning, defaultRunning)
	}
}

// TestClientCost checks that a client takes no more memory than clientCost.
func TestClientCost(t *testing.T) {
	const mapEntry = 64 // key, pointer and the free part of a map's group
	if size := unsafe.Sizeof(client{}) + mapEntry; size > clientCost {
		t.Errorf("a client takes %d bytes, more than clientCost, %d", size, clientCost)
	}
}

// BenchmarkQueue adds queries to an idle Queue.
func BenchmarkQueue(b *testing.B) {
	q := newBed(defaultRunning, defaultWaiting).NewQueue(0)
	from := clientAddress(1)
	n, output := new(numbered), new(batch.Batch)
	b.ReportAllocs()
	for b.Loop() {
		if runs, _ := q.add(&n.Ticket, from, false); !runs {
			b.Fatal("a query waits")
		}
		if started := n.end(output); started.first != nil {
			b.Fatal("another query was waiting")
		}
	}
}

// TestDocumentedLimits checks the limits of the process in the README.
func TestDocumentedLimits(t *testing.T) {
	readme := kit.Read(t, "../README.md")
	for _, want := range []string{
		fmt.Sprintf("%d MiB", queryBudget>>20), fmt.Sprintf("%d queries in progress at %d KiB each", defaultRunning, runningCost>>10),
		fmt.Sprintf("Up to %d of the %d", block.MaxBackground, defaultRunning), fmt.Sprintf("%d waiting ones", defaultWaiting), fmt.Sprintf("%g seconds", maxWait.Seconds()),
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("the README lacks %q", want)
		}
	}
}

// TestHighestMaxConcurrent has a max_concurrent above the default limit of the process.
func TestHighestMaxConcurrent(t *testing.T) {
	b := newBed(0, 0)
	b.Resize(5 * defaultRunning)
	q := b.NewQueue(5 * defaultRunning)
	if n := b.fill(q, clientAddress(1), 0); n < 3*defaultRunning {
		t.Errorf("%d queries run, want at least %d", n, 3*defaultRunning)
	}
	b.Resize(new(block.Configuration).MaxConcurrent())
	if !b.add(b.NewQueue(0), -1, clientAddress(2)) {
		t.Error("after a reload to the default limit, a query of another client waits for the old queries")
	}
}

// TestReloadToLowerMaxConcurrent lowers the limit of the process while more queries run: queries of new clients run at
// once, and as the old queries end, the limit falls to that of the configuration.
func TestReloadToLowerMaxConcurrent(t *testing.T) {
	b := newBed(0, 0)
	b.Resize(5 * defaultRunning)
	flooded := b.fill(b.NewQueue(0), clientAddress(1), 0)
	b.Resize(0)
	const otherChains = 10
	number := 1_000_000
	var queues []*Queue
	for i := range otherChains {
		queues = append(queues, b.NewQueue(0))
		if number++; !b.add(queues[i], number, clientAddress(2+i)) {
			t.Errorf("queue %d: the query of a new client waits for old queries", i)
		}
	}
	for old := range flooded {
		for i, q := range queues { // each has a client that exceeds its limit
			number++
			b.add(q, number, clientAddress(2+i))
		}
		b.end(old)
		if b.maxRunning < b.Places.running {
			t.Fatalf("%d queries run with a limit of %d", b.Places.running, b.maxRunning)
		}
		if number++; !b.add(b.NewQueue(0), number, clientAddress(1000)) {
			t.Fatalf("after the end of %d old queries, the query of a new client waits", old+1)
		}
		b.end(number)
	}
	if b.maxRunning != defaultRunning {
		t.Errorf("after the end of the old queries, %d may run, want %d", b.maxRunning, defaultRunning)
	}
}

// TestBackgroundShares has one client with more background queries than the limit. Another client gets places, and so
// does a query in the foreground.
func TestBackgroundShares(t *testing.T) {
	b := newBed(defaultRunning, defaultWaiting)
	q := b.NewQueue(block.MaxBackground)
	var ends []func()
	admit := func(from netip.Addr) (n int) {
		for end, ok := q.TryStart(from); ok; end, ok = q.TryStart(from) {
			ends = append(ends, end)
			n++
		}
		return n
	}
	if n := admit(clientAddress(1)); n < block.MaxBackground/2 || n > block.MaxBackground*4/5 {
		t.Errorf("a lone client has %d background queries, want half of %d to four fifths", n, block.MaxBackground)
	}
	if n := admit(clientAddress(2)); n < block.MaxBackground/30 {
		t.Errorf("beside it, another client has %d, want at least one of thirty", n)
	}
	for i := range 2 * block.MaxBackground {
		admit(clientAddress(3 + i))
	}
	if len(ends) != block.MaxBackground {
		t.Errorf("%d background queries run, want %d", len(ends), block.MaxBackground)
	}
	if n := b.fill(b.NewQueue(0), clientAddress(1), 0); n < defaultRunning/3 {
		t.Errorf("beside background queries, a client runs %d, want at least a third of %d", n, defaultRunning)
	}
	if b.Places.running > defaultRunning {
		t.Errorf("%d queries run, want at most %d", b.Places.running, defaultRunning)
	}
	for _, end := range ends {
		end()
	}
	if q.running != 0 || len(q.clients) != 0 {
		t.Errorf("after the end, %d background queries of %d clients run", q.running, len(q.clients))
	}
}

// TestOverloadWarning drops queries: the first one is logged, and a minute later all since then, with the client that has
// the most queries.
func TestOverloadWarning(t *testing.T) {
	b := newBed(10, 10)
	q := b.NewQueue(6)
	b.add(q, 0, clientAddress(1))
	b.fill(q, clientAddress(2), 1)
	b.clock = time.Hour
	const form = "%d queries dropped for overload since the last such line, their clients get no reply over UDP: client 10.0.0.2 has the most, 4 in progress and 1 waiting; limit 6 in progress (logged once a minute)"
	if got, want := b.warning(q, 1), fmt.Sprintf(form, 1); got != want {
		t.Errorf("the first line is\n%s, want\n%s", got, want)
	}
	b.clock += overloadPause - 1
	if got := b.warning(q, 20); got != "" {
		t.Errorf("a line less than a minute later: %s", got)
	}
	b.clock++
	if got, want := b.warning(q, 3), fmt.Sprintf(form, 23); got != want {
		t.Errorf("the line a minute later is\n%s, want\n%s", got, want)
	}
}

// TestDeadUpstreamInWireForm has one client with ten thousand queries that are not answered, and another client whose query
// is handed to the wire handler at once.
func TestDeadUpstreamInWireForm(t *testing.T) {
	b := newBed(0, 0)
	b.Places = NewPlaces(DefaultLimits, b.now, b.warn)
	q := b.NewQueue(0)
	for i := range 10_000 {
		if !b.addForm(q, i, clientAddress(1), true) {
			t.Fatalf("query %d waits", i)
		}
	}
	if !b.addForm(q, 10_000, clientAddress(2), true) {
		t.Error("the query of another client waits")
	}
	if n := b.fill(b.NewQueue(0), clientAddress(3), 20_000); n < 10 {
		t.Errorf("in a Queue for the plugin chain, another client runs %d queries, want at least 10", n)
	}
}

// TestCapacityOfUpstreams has one client with more queries than the upstreams can have in progress: another client gets a
// share of it, and the plugin chain is not limited by it.
func TestCapacityOfUpstreams(t *testing.T) {
	const capacity = 200
	b := newBed(10_000, 10_000)
	q := b.NewQueue(0)
	q.Capacity = func() int { return capacity }
	number := 0
	add := func(from int, wire bool) bool {
		number++
		return b.addForm(q, number, clientAddress(from), wire)
	}
	flood := 0
	for add(1, true) {
		flood++
	}
	if flood < capacity*7/10 || flood > capacity*9/10 {
		t.Errorf("a lone client has %d queries in progress, want seven to nine of ten of %d", flood, capacity)
	}
	for i := range 10 {
		if !add(2+i, true) {
			t.Errorf("the query of another client waits")
		}
	}
	if !add(1000, false) {
		t.Error("a query in the plugin chain waits for the upstreams")
	}
	var started []int
	for n := range flood / 2 {
		started = append(started, b.end(n+1)...)
	}
	if !slices.Contains(started, flood+1) {
		t.Errorf("after the end of half of the client's queries, %v start, want its next", started)
	}
}

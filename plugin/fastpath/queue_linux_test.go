package fastpath

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/test/property"
)

// clientAddress returns the address of a client by its number.
func clientAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) // #nosec G115
}

// testQueue is a queue of some size with a clock of its own, whose queries are numbered.
type testQueue struct {
	*queue
	clock   time.Duration
	numbers map[*datagram]int
	running map[int]*datagram
	dropped []int
}

func newTestQueue(running, waiting int) *testQueue {
	q := &testQueue{numbers: map[*datagram]int{}, running: map[int]*datagram{}}
	q.queue = newQueue(func() time.Duration { return q.clock })
	q.maxRunning, q.target, q.maxWaiting = running, running, waiting
	return q
}

func (q *testQueue) chain(limit int) *chain {
	c := newChain(limit)
	c.queue = q.queue
	return c
}

// add adds a query and reports whether it runs.
func (q *testQueue) add(c *chain, number int, from netip.Addr) bool {
	d := new(datagram)
	q.numbers[d] = number
	runs, dropped := c.add(d, from)
	if runs {
		q.running[number] = d
	}
	q.drop(dropped)
	return runs
}

// end ends a running query, and returns those that run instead in the order in which they were started.
func (q *testQueue) end(number int) (started []int) {
	d := q.running[number]
	delete(q.running, number)
	next, others, dropped := q.queue.end(d.chain, d.client)
	q.drop(dropped)
	if next == nil {
		return nil
	}
	next.next = others.first
	for d := next; d != nil; d = d.next {
		n := q.numbers[d]
		q.running[n] = d
		started = append(started, n)
	}
	return started
}

func (q *testQueue) drop(l datagramList) {
	for d := l.first; d != nil; d = d.next {
		q.dropped = append(q.dropped, q.numbers[d])
	}
}

// modelQuery is a query of model.
type modelQuery struct {
	number, chain int
	from          netip.Addr
	arrived       time.Duration
}

// model is what a queue does, by looking at each query.
type model struct {
	maxRunning, maxWaiting int
	limits                 []int // of the chains
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

func sameChain(m modelQuery) func(modelQuery) bool {
	return func(o modelQuery) bool { return o.chain == m.chain }
}

func sameClient(m modelQuery) func(modelQuery) bool {
	return func(o modelQuery) bool { return o.chain == m.chain && o.from == m.from }
}

func (md *model) admits(m modelQuery) bool {
	limit := share * (md.maxRunning - len(md.running))
	if own := md.limits[m.chain]; own > 0 {
		limit = min(limit, own)
	}
	room := limit - count(md.running, sameChain(m))
	own := count(md.running, sameClient(m))
	if own == 0 {
		return room > 0
	}
	return own < share*(room-limit/reserved)
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
	own, inChain, limit := count(md.waiting, sameClient(m)), count(md.waiting, sameChain(m)), md.limits[m.chain]
	room := md.maxWaiting - len(md.waiting)
	if limit > 0 {
		room = min(room, limit-inChain)
	}
	switch {
	case own > 0 && own >= room:
		md.drop(slices.IndexFunc(md.waiting, sameClient(m)))
	case room > 0:
	case limit > 0 && inChain >= limit:
		md.drop(slices.IndexFunc(md.waiting, sameChain(m)))
	default:
		md.drop(0)
	}
	md.waiting = append(md.waiting, m)
}

// end ends a running query. Which chain is next in turn is the queue's affair: the model checks what it started.
func (md *model) end(number int, now time.Duration, started []int) error {
	md.running = slices.DeleteFunc(md.running, func(m modelQuery) bool { return m.number == number })
	md.expire(now)
	for _, n := range started {
		at := slices.IndexFunc(md.waiting, func(m modelQuery) bool { return m.number == n })
		if at < 0 || !md.best(md.waiting[at]) || !md.admits(md.waiting[at]) {
			return fmt.Errorf("started %v: it is not the turn of %d", started, n)
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

// best reports whether a query is the first that its chain may start.
func (md *model) best(m modelQuery) bool {
	own := count(md.running, sameClient(m))
	for _, o := range md.waiting {
		if o.chain != m.chain || o.number == m.number {
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
		q := newTestQueue(1+random.IntN(40), 1+random.IntN(40))
		md := &model{maxRunning: q.maxRunning, maxWaiting: q.maxWaiting}
		var chains []*chain
		for range 1 + random.IntN(3) {
			limit := max(0, random.IntN(30)-10)
			chains, md.limits = append(chains, q.chain(limit)), append(md.limits, limit)
		}
		clients := 1 + random.IntN(20)
		for step := range 2000 {
			q.clock += 1 + time.Duration(random.Int64N(int64(maxWait)/20)) // no two at the same time
			if random.IntN(5) < 3 || len(q.running) == 0 {
				m := modelQuery{number: step, chain: random.IntN(len(chains)), from: clientAddress(random.IntN(1 + random.IntN(clients))), arrived: q.clock}
				md.add(m)
				q.add(chains[m.chain], m.number, m.from)
			} else {
				before := numbersOf(md.running)
				number := before[random.IntN(len(before))]
				if err := md.end(number, q.clock, q.end(number)); err != nil {
					t.Fatalf("step %d: %v", step, err)
				}
			}
			var running []int
			for n := range q.running {
				running = append(running, n)
			}
			slices.Sort(running)
			slices.Sort(md.dropped)
			slices.Sort(q.dropped)
			if want := numbersOf(md.running); !slices.Equal(running, want) || !slices.Equal(q.dropped, md.dropped) {
				t.Fatalf("step %d: %v run and %v are dropped, want %v and %v", step, running, q.dropped, want, md.dropped)
			}
			states := 0
			for _, c := range chains {
				states += len(c.clients)
			}
			if q.queue.waiting != len(md.waiting) || states > len(md.running)+len(md.waiting) {
				t.Fatalf("step %d: %d wait, and %d clients are known, want %d and at most as many as queries", step, q.queue.waiting, states, len(md.waiting))
			}
			md.dropped, q.dropped = nil, nil
		}
		for len(q.running) > 0 {
			for n := range q.running {
				q.clock += maxWait
				q.end(n)
				break
			}
		}
		for _, c := range chains {
			if len(c.clients) != 0 || c.oldest != nil || len(c.ready) != 0 {
				t.Fatalf("a chain without queries knows %d clients", len(c.clients))
			}
		}
	})
}

// fill has a client ask until its queries run no more, and returns how many do.
func (q *testQueue) fill(c *chain, from netip.Addr, first int) (running int) {
	for number := first; ; number++ {
		if !q.add(c, number, from) {
			return number - first
		}
	}
}

// TestShares has clients whose queries do not end.
func TestShares(t *testing.T) {
	const size = 600
	q := newTestQueue(size, 10*size)
	c := q.chain(0)
	if n := q.fill(c, clientAddress(1), 0); n < size*7/10 {
		t.Errorf("a lone client runs %d of %d queries, want seven of ten at least", n, size)
	}
	if n := q.fill(c, clientAddress(2), 1000); n < size/30 {
		t.Errorf("beside it, another one runs %d at once, want one of thirty at least", n)
	}
	if n := q.fill(q.chain(0), clientAddress(1), 2000); n < size/30 {
		t.Errorf("in another chain, a client runs %d at once, want one of thirty at least", n)
	}
	if len(q.running) > size {
		t.Errorf("%d run, want %d at most", len(q.running), size)
	}
}

// TestManyBusyClients has a client that asks for the first time beside hundreds with more queries than there is room
// for.
func TestManyBusyClients(t *testing.T) {
	const size, busy = 600, 300
	q := newTestQueue(size, 10*size)
	c := q.chain(0)
	random := rand.New(rand.NewPCG(1, 2))
	number := 0
	flood := func() {
		q.clock++
		number++
		q.add(c, number, clientAddress(random.IntN(busy)))
	}
	endOne := func() {
		running := slices.Sorted(maps.Keys(q.running))
		q.end(running[random.IntN(len(running))])
	}
	for range 20 * busy {
		flood()
	}
	for range 20 * busy {
		flood()
		endOne()
	}
	q.add(c, -1, clientAddress(busy))
	if q.running[-1] == nil {
		endOne()
	}
	if q.running[-1] == nil {
		t.Error("it does not get the first place that is free")
	}
	for cl := range maps.Values(c.clients) {
		if cl.running > 3*size/busy {
			t.Errorf("%v runs %d queries, want %d at most", cl.address, cl.running, 3*size/busy)
		}
	}
}

// TestClientsOfOnePrefix has the pods of a node, which share a /64.
func TestClientsOfOnePrefix(t *testing.T) {
	q := newTestQueue(100, 100)
	c := q.chain(0)
	one, other := netip.MustParseAddr("fd00:10::5"), netip.MustParseAddr("fd00:10::6")
	q.fill(c, one, 0)
	if !q.add(c, 1000, other) {
		t.Error("a pod waits for the queries of another pod of its node")
	}
	if q.add(c, 1001, one) {
		t.Error("the busy pod may run another query")
	}
}

// TestFewestRunningFirst has one client with many running queries and one with few, and both have others that wait:
// the places of those that end go to the one with few.
func TestFewestRunningFirst(t *testing.T) {
	q := newTestQueue(100, 200)
	c := q.chain(0)
	many := q.fill(c, clientAddress(1), 0)
	few := q.fill(c, clientAddress(2), 1000)
	for i := range 50 {
		q.clock++
		q.add(c, 500+i, clientAddress(1))
		q.add(c, 1500+i, clientAddress(2))
	}
	for i := 0; many-i > few+1; i++ {
		for _, n := range q.end(i) {
			if n < 1000 {
				t.Fatalf("a client with %d running queries gets another place, beside one with %d", many-i-1, few)
			}
			few++
		}
	}
	if few < many/3 {
		t.Errorf("%d queries of the one with few run in the end, want %d at least", few, many/3)
	}
}

// TestMaxWait has queries that wait for too long: they go when the next one comes or ends, not only when their turn
// comes.
func TestMaxWait(t *testing.T) {
	q := newTestQueue(1, 10)
	c := q.chain(0)
	if !q.add(c, 0, clientAddress(0)) {
		t.Fatal("the first query does not run")
	}
	q.add(c, 1, clientAddress(1))
	q.clock += maxWait / 2
	q.add(c, 2, clientAddress(2))
	q.clock += maxWait/2 - 1
	q.add(c, 3, clientAddress(3))
	if len(q.dropped) > 0 {
		t.Errorf("%v are dropped before their time", q.dropped)
	}
	q.clock++
	q.add(c, 4, clientAddress(4))
	if !slices.Equal(q.dropped, []int{1}) {
		t.Errorf("%v are dropped when a query comes after %v, want 1", q.dropped, maxWait)
	}
	q.clock += maxWait / 2
	q.end(0)
	if !slices.Equal(q.dropped, []int{1, 2}) || q.running[3] == nil {
		t.Errorf("%v are dropped when a query ends, want 1 and 2; 3 runs: %t", q.dropped, q.running[3] != nil)
	}
	if maxWait >= 2*time.Second {
		t.Errorf("a query waits for %v; its resolver has repeated it then", maxWait)
	}
}

// TestResize has the queries of a larger configuration run at once.
func TestResize(t *testing.T) {
	s := newService(t, func(dns.ResponseWriter, *dns.Msg) {})
	q := newTestQueue(1, 10)
	c := q.chain(0)
	q.add(c, 0, clientAddress(0))
	waiting := query(t, s, newSocket(t), "waiting.")
	if runs, _ := c.add(waiting, clientAddress(1)); runs {
		t.Fatal("a query runs that has no place")
	}
	q.resize(defaultRunning + 1)
	if q.maxRunning != defaultRunning+1 {
		t.Errorf("%d may run, want %d", q.maxRunning, defaultRunning+1)
	}
	q.end(0)
	awaitIdle(t, c, s)
	q.resize(5)
	if q.maxRunning != defaultRunning {
		t.Errorf("%d may run, want the default of %d", q.maxRunning, defaultRunning)
	}
}

// TestWaitingCost holds that a waiting query takes no more memory than it is counted with.
func TestWaitingCost(t *testing.T) {
	const mapEntry = 64 // key, pointer and the free part of a map's group
	if size := unsafe.Sizeof(datagram{}) + unsafe.Sizeof(client{}) + mapEntry + datagramLen; size > waitingCost {
		t.Errorf("a query of %d bytes takes %d with its client, counted are %d", datagramLen, size, waitingCost)
	}
}

// BenchmarkChain hands queries to a chain that has nothing to do.
func BenchmarkChain(b *testing.B) {
	q := newTestQueue(defaultRunning, defaultWaiting)
	c := q.chain(0)
	from := clientAddress(1)
	d := new(datagram)
	b.ReportAllocs()
	for b.Loop() {
		if runs, _ := c.add(d, from); !runs {
			b.Fatal("a query waits")
		}
		if next, _, _ := q.queue.end(d.chain, d.client); next != nil {
			b.Fatal("another query was waiting")
		}
	}
}

// TestDocumentedLimits looks for the limits of the process in the README.
func TestDocumentedLimits(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("%d MiB", queryBudget>>20), fmt.Sprintf("%d queries in work at %d KiB each", defaultRunning, runningCost>>10),
		fmt.Sprintf("Up to %d of the %d", block.MaxBackground, defaultRunning), fmt.Sprintf("%d\nthat wait", defaultWaiting), fmt.Sprintf("%g seconds", maxWait.Seconds()),
	} {
		if !strings.Contains(string(readme), want) {
			t.Errorf("the README lacks %q", want)
		}
	}
}

// TestHighestMaxConcurrent has a configuration with a block whose max_concurrent is more than the process runs by
// default.
func TestHighestMaxConcurrent(t *testing.T) {
	q := newTestQueue(0, 0)
	q.resize(5 * defaultRunning)
	c := q.chain(5 * defaultRunning)
	if n := q.fill(c, clientAddress(1), 0); n < 3*defaultRunning {
		t.Errorf("%d queries run, want %d at least", n, 3*defaultRunning)
	}
	q.resize(new(block.Configuration).MaxConcurrent())
	if !q.add(q.chain(0), -1, clientAddress(2)) {
		t.Error("after a reload to a smaller configuration, a query of another client has to wait for the old queries")
	}
}

// TestReloadToLowerMaxConcurrent has a reload lower the limit of the process while more queries run: queries of new
// clients run at once, and when the old queries end, the limit gets down to that of the configuration.
func TestReloadToLowerMaxConcurrent(t *testing.T) {
	q := newTestQueue(0, 0)
	q.resize(5 * defaultRunning)
	flooded := q.fill(q.chain(0), clientAddress(1), 0)
	q.resize(0)
	const otherChains = 10
	number := 1_000_000
	var chains []*chain
	for i := range otherChains {
		chains = append(chains, q.chain(0))
		if number++; !q.add(chains[i], number, clientAddress(2+i)) {
			t.Errorf("chain %d: the query of a new client waits for old queries", i)
		}
	}
	for old := range flooded {
		for i, c := range chains { // each has a client with more queries than may run
			number++
			q.add(c, number, clientAddress(2+i))
		}
		q.end(old)
		if q.maxRunning < q.queue.running {
			t.Fatalf("%d queries run with a limit of %d", q.queue.running, q.maxRunning)
		}
		if number++; !q.add(q.chain(0), number, clientAddress(1000)) {
			t.Fatalf("after the end of %d old queries, the query of a new client waits", old+1)
		}
		q.end(number)
	}
	if q.maxRunning != defaultRunning {
		t.Errorf("when the old queries have ended, %d may run, want %d", q.maxRunning, defaultRunning)
	}
}

// TestBackgroundShares has one client with more queries in the background than may run. Another client gets places, and
// so does a query that a client waits for.
func TestBackgroundShares(t *testing.T) {
	q := newTestQueue(defaultRunning, defaultWaiting)
	c := q.chain(block.MaxBackground)
	var all []*client
	reserve := func(from netip.Addr) (n int) {
		for cl := c.reserve(from); cl != nil; cl = c.reserve(from) {
			all = append(all, cl)
			n++
		}
		return n
	}
	if n := reserve(clientAddress(1)); n < block.MaxBackground/2 || n > block.MaxBackground*4/5 {
		t.Errorf("a lone client has %d queries in the background, want half of %d to four fifths", n, block.MaxBackground)
	}
	if n := reserve(clientAddress(2)); n < block.MaxBackground/30 {
		t.Errorf("beside it, another one has %d, want one of thirty places at least", n)
	}
	for i := range 2 * block.MaxBackground {
		reserve(clientAddress(3 + i))
	}
	if len(all) != block.MaxBackground {
		t.Errorf("%d queries run in the background, want %d", len(all), block.MaxBackground)
	}
	if n := q.fill(q.chain(0), clientAddress(1), 0); n < defaultRunning/3 {
		t.Errorf("beside queries in the background, a client runs %d, want a third of %d at least", n, defaultRunning)
	}
	if q.queue.running > defaultRunning {
		t.Errorf("%d queries run, want %d at most", q.queue.running, defaultRunning)
	}
	for _, cl := range all {
		q.queue.end(c, cl)
	}
	if c.running != 0 || len(c.clients) != 0 {
		t.Errorf("%d queries of %d clients run in the background after their end", c.running, len(c.clients))
	}
}

// TestWarningOfOverload has queries dropped: the first one is logged, and a minute later all since then, with the client
// that has the most queries.
func TestWarningOfOverload(t *testing.T) {
	q := newTestQueue(10, 10)
	c := q.chain(6)
	q.add(c, 0, clientAddress(1))
	q.fill(c, clientAddress(2), 1)
	q.clock = time.Hour
	const form = "%d queries dropped for overload since the last such line, their clients get no reply: client 10.0.0.2 has the most, 4 in work and 1 that wait; limit 6 in work (logged once a minute)"
	if got, want := c.warning(1), fmt.Sprintf(form, 1); got != want {
		t.Errorf("the first line is\n%s, want\n%s", got, want)
	}
	q.clock += overloadPause - 1
	if got := c.warning(20); got != "" {
		t.Errorf("a line less than a minute later: %s", got)
	}
	q.clock++
	if got, want := c.warning(3), fmt.Sprintf(form, 23); got != want {
		t.Errorf("the line a minute later is\n%s, want\n%s", got, want)
	}
}

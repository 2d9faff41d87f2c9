package fastpath

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

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/property"
)

// clientAddress returns the address of a client by its number.
func clientAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) // #nosec G115
}

// testQueue is a queue with a fake clock and numbered queries.
type testQueue struct {
	*queue
	clock   time.Duration
	numbers map[*request]int
	running map[int]*request
	dropped []int
}

func newTestQueue(running, waiting int) *testQueue {
	q := &testQueue{numbers: map[*request]int{}, running: map[int]*request{}}
	q.queue = newQueue(func() time.Duration { return q.clock }, 1)
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
	d := new(request)
	q.numbers[d] = number
	runs, dropped := c.add(d, from)
	if runs {
		q.running[number] = d
	}
	q.drop(dropped)
	return runs
}

// end ends a running query, and returns those that start in its place, in this order.
func (q *testQueue) end(number int) (started []int) {
	d := q.running[number]
	delete(q.running, number)
	instead, dropped := q.queue.endLocked(d.chain, d.client, d.load)
	q.drop(dropped)
	for d := instead.first; d != nil; d = d.next {
		n := q.numbers[d]
		q.running[n] = d
		started = append(started, n)
	}
	return started
}

func (q *testQueue) drop(l requestList) {
	for d := l.first; d != nil; d = d.next {
		q.dropped = append(q.dropped, q.numbers[d])
	}
}

// modelQuery is a query in a model.
type modelQuery struct {
	number, chain int
	from          netip.Addr
	arrived       time.Duration
}

// model is a slow queue that evaluates the rules for each query.
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
	limit := shareFactor * (md.maxRunning - len(md.running))
	if own := md.limits[m.chain]; own > 0 {
		limit = min(limit, own)
	}
	room := limit - count(md.running, sameChain(m))
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

// end ends a running query, and checks the queries that the queue has started; the turns of chains are not in the model.
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
				t.Fatalf("step %d: %d queries wait, of %d clients; want %d waiting, and at most one client for each query", step, q.queue.waiting, states, len(md.waiting))
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
				t.Fatalf("a chain without queries has %d clients", len(c.clients))
			}
		}
	})
}

// fill adds queries of a client until one has to wait, and returns the number of running ones.
func (q *testQueue) fill(c *chain, from netip.Addr, first int) (running int) {
	for number := first; ; number++ {
		if !q.add(c, number, from) {
			return number - first
		}
	}
}

// TestShares adds queries that do not end.
func TestShares(t *testing.T) {
	const size = 600
	q := newTestQueue(size, 10*size)
	c := q.chain(0)
	if n := q.fill(c, clientAddress(1), 0); n < size*7/10 {
		t.Errorf("a lone client runs %d of %d queries, want at least seven of ten", n, size)
	}
	if n := q.fill(c, clientAddress(2), 1000); n < size/30 {
		t.Errorf("beside it, another client runs %d at once, want at least one of thirty", n)
	}
	if n := q.fill(q.chain(0), clientAddress(1), 2000); n < size/30 {
		t.Errorf("in another chain, a client runs %d at once, want at least one of thirty", n)
	}
	if len(q.running) > size {
		t.Errorf("%d run, want at most %d", len(q.running), size)
	}
}

// TestManyBusyClients adds the first query of a client beside hundreds of clients that exceed the limit.
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
		t.Error("the new client does not get the first free place")
	}
	for cl := range maps.Values(c.clients) {
		if cl.running > 3*size/busy {
			t.Errorf("%v runs %d queries, want at most %d", cl.address, cl.running, 3*size/busy)
		}
	}
}

// TestClientsOfOnePrefix adds queries of pods of one node, which share a /64.
func TestClientsOfOnePrefix(t *testing.T) {
	q := newTestQueue(100, 100)
	c := q.chain(0)
	one, other := netip.MustParseAddr("fd00:10::5"), netip.MustParseAddr("fd00:10::6")
	q.fill(c, one, 0)
	if !q.add(c, 1000, other) {
		t.Error("a pod's query waits for those of another pod of its node")
	}
	if q.add(c, 1001, one) {
		t.Error("the busy pod's next query does not wait")
	}
}

// TestFewestRunningFirst has one client with many running queries and one with few, and both have waiting ones: places
// that become free go to the one with few.
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
		t.Errorf("%v are dropped too early", q.dropped)
	}
	q.clock++
	q.add(c, 4, clientAddress(4))
	if !slices.Equal(q.dropped, []int{1}) {
		t.Errorf("%v are dropped when a query arrives after %v, want 1", q.dropped, maxWait)
	}
	q.clock += maxWait / 2
	q.end(0)
	if !slices.Equal(q.dropped, []int{1, 2}) || q.running[3] == nil {
		t.Errorf("%v are dropped when a query ends, want 1 and 2; 3 runs: %t", q.dropped, q.running[3] != nil)
	}
	if maxWait >= 2*time.Second {
		t.Errorf("a query waits for %v, after which its resolver has repeated it", maxWait)
	}
}

// TestResize raises the limit: waiting queries run at once.
func TestResize(t *testing.T) {
	s := newServer(t, func(dns.ResponseWriter, *dns.Msg) {})
	q := newTestQueue(1, 10)
	c := q.chain(0)
	q.add(c, 0, clientAddress(0))
	waiting := query(t, s, newSocket(t), "waiting.")
	if runs, _ := c.add(waiting, clientAddress(1)); runs {
		t.Fatal("a query runs beyond the limit")
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

// TestWaitingCost checks that a waiting query takes no more memory than waitingCost.
func TestWaitingCost(t *testing.T) {
	const mapEntry = 64 // key, pointer and the free part of a map's group
	if size := unsafe.Sizeof(request{}) + unsafe.Sizeof(client{}) + mapEntry + datagramLen; size > waitingCost {
		t.Errorf("a query of %d bytes takes %d with its client, more than waitingCost, %d", datagramLen, size, waitingCost)
	}
}

// BenchmarkChain adds queries to an idle chain.
func BenchmarkChain(b *testing.B) {
	q := newTestQueue(defaultRunning, defaultWaiting)
	c := q.chain(0)
	from := clientAddress(1)
	d := new(request)
	b.ReportAllocs()
	for b.Loop() {
		if runs, _ := c.add(d, from); !runs {
			b.Fatal("a query waits")
		}
		if started := q.queue.end(new(batch.Batch), d.chain, d.client, d.load); started.first != nil {
			b.Fatal("another query was waiting")
		}
	}
}

// TestDocumentedLimits checks the limits of the process in the README.
func TestDocumentedLimits(t *testing.T) {
	readme := kit.Read(t, "README.md")
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
	q := newTestQueue(0, 0)
	q.resize(5 * defaultRunning)
	c := q.chain(5 * defaultRunning)
	if n := q.fill(c, clientAddress(1), 0); n < 3*defaultRunning {
		t.Errorf("%d queries run, want at least %d", n, 3*defaultRunning)
	}
	q.resize(new(block.Configuration).MaxConcurrent())
	if !q.add(q.chain(0), -1, clientAddress(2)) {
		t.Error("after a reload to the default limit, a query of another client waits for the old queries")
	}
}

// TestReloadToLowerMaxConcurrent lowers the limit of the process while more queries run: queries of new clients run at
// once, and as the old queries end, the limit falls to that of the configuration.
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
		for i, c := range chains { // each has a client that exceeds its limit
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
		t.Errorf("after the end of the old queries, %d may run, want %d", q.maxRunning, defaultRunning)
	}
}

// TestBackgroundShares has one client with more background queries than the limit. Another client gets places, and so
// does a query in the foreground.
func TestBackgroundShares(t *testing.T) {
	q := newTestQueue(defaultRunning, defaultWaiting)
	c := q.chain(block.MaxBackground)
	var all []*client
	admit := func(from netip.Addr) (n int) {
		for cl := c.startBackground(from); cl != nil; cl = c.startBackground(from) {
			all = append(all, cl)
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
	if len(all) != block.MaxBackground {
		t.Errorf("%d background queries run, want %d", len(all), block.MaxBackground)
	}
	if n := q.fill(q.chain(0), clientAddress(1), 0); n < defaultRunning/3 {
		t.Errorf("beside background queries, a client runs %d, want at least a third of %d", n, defaultRunning)
	}
	if q.queue.running > defaultRunning {
		t.Errorf("%d queries run, want at most %d", q.queue.running, defaultRunning)
	}
	for _, cl := range all {
		q.queue.end(new(batch.Batch), c, cl, load{places: 1})
	}
	if c.running != 0 || len(c.clients) != 0 {
		t.Errorf("after the end, %d background queries of %d clients run", c.running, len(c.clients))
	}
}

// TestOverloadWarning drops queries: the first one is logged, and a minute later all since then, with the client that has
// the most queries.
func TestOverloadWarning(t *testing.T) {
	q := newTestQueue(10, 10)
	c := q.chain(6)
	q.add(c, 0, clientAddress(1))
	q.fill(c, clientAddress(2), 1)
	q.clock = time.Hour
	const form = "%d queries dropped for overload since the last such line, their clients get no reply over UDP: client 10.0.0.2 has the most, 4 in progress and 1 waiting; limit 6 in progress (logged once a minute)"
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

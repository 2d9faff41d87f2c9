//go:build linux

package coherence

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kubeapi"
	"github.com/nearside-dns/nearside/test/property"
)

// history is one run of the programs.
type history struct {
	t        testing.TB
	api      *kubeapi.Server
	binaries binaries
	option   string // coherent, or nothing
	zero     int64

	node     *kernelNode // of the first cache, nil without network namespaces
	inKernel bool        // the kernel answers queries of its clients
	replicas []*replica
	caches   []*program
	proxies  []*proxy
	askers   []asker
	clients  []*client

	epochs    []epoch
	fallbacks []fallback
	marks     []mark
	missing   []string // effects of faults

	droppedBefore int   // datagrams, before the present phase
	counted       int64 // when they were counted: later queries are of the present phase
}

// TestHistory runs real programs with faults, and with wall clocks that jump all the time, and compares every answer with the
// states that clusterdns had.
func TestHistory(t *testing.T) {
	b := binaries{
		clusterdns: compile(t, "clusterdns", append(append(recording(t), shortWatchdog()...), jumpingClock(t))...),
		nodecache:  compile(t, "nodecache", jumpingClock(t)),
	}
	property.Seeds(t, 1, 1, func(t *testing.T, seed uint64) {
		c := runHistory(t, b, seed, "coherent", phases)
		t.Log(c.summary())
		for _, w := range slices.Concat(c.unmet(), c.wrong) {
			t.Error(w)
		}
		if c.wrongs > 0 {
			t.Errorf("%d wrong answers:%s", c.wrongs, c.wrongQuestions())
		}
		for _, w := range c.clocks {
			if w.setBack == 0 {
				t.Errorf("the wall clock of %s was not set back", w.program)
			}
		}
		if w := c.unmetByKernel(); w != "" {
			t.Error(w)
		}
		if c.old == 0 {
			t.Error("no answer was of an older state: the history proves nothing")
		}
		if c.checked < minChecked {
			t.Errorf("%d answers checked, want %d", c.checked, minChecked)
		}
	})
}

// minChecked is the minimum number of answers of a history, which has millions. The clients send a fifth of that if each batch
// misses an answer.
const minChecked = 500_000

// runHistory runs the phases and returns the result.
func runHistory(t testing.TB, b binaries, seed uint64, option string, phases []phase) *checker {
	t.Helper()
	h := &history{t: t, api: kubeapi.New(t), binaries: b, option: option, zero: monotonic(), epochs: []epoch{{to: forever}}}
	changes := &changes{Rand: rand.New(rand.NewPCG(seed, 0)), api: h.api}
	changes.fill(t)
	h.node = newKernelNode(t)
	h.startReplica()
	for _, node := range nodes {
		h.startCache(node)
	}
	u, x := newUniverse(), newTexts()
	var stop atomic.Bool
	var all sync.WaitGroup
	h.startClients(u, x, seed, &stop, &all)
	all.Go(func() {
		n, err := changes.run(&stop)
		if err != nil {
			t.Error(err)
		}
		t.Logf("%d changes", n)
	})
	all.Go(func() {
		if err := changes.touch(&stop); err != nil {
			t.Error(err)
		}
	})
	h.fallbacks = []fallback{{h.zero, monotonic() + int64(ttl+time.Second), ttl + transit}} // until the sessions were opened
	for _, p := range phases {
		h.run(p)
	}
	stop.Store(true)
	all.Wait()
	return h.check(u, x)
}

// startClients starts the clients.
func (h *history) startClients(u *universe, x *texts, seed uint64, stop *atomic.Bool, all *sync.WaitGroup) {
	packed := packQueries(u)
	answers := &memo{ttl: uint32(ttl / time.Second), texts: x, known: map[string]int32{}}
	for i, from := range h.sources() {
		c := &client{Rand: rand.New(rand.NewPCG(seed, uint64(i+1))), source: from, packed: packed, answers: answers} // #nosec G115 -- small
		h.clients = append(h.clients, c)
		all.Go(func() { c.run(stop) })
	}
}

// check compares all replies.
func (h *history) check(u *universe, x *texts) *checker {
	c := &checker{missing: h.missing, zero: h.zero, fallbacks: h.fallbacks, callers: []int{0, 1, 2}, marks: h.marks, byKernel: h.inKernel}
	views, clock := make([]view, 0, len(h.replicas)), wallClock{program: "clusterdns"}
	for _, r := range h.replicas {
		r.view.events = readEvents(h.t, r.events)
		r.view.listed = listed(r.view.events)
		views = append(views, r.view)
		clock.read(r.view.events)
	}
	c.clocks = append(c.clocks, clock)
	for i, cache := range h.caches {
		cache.clock.program = fmt.Sprint("cache ", i)
		c.clocks = append(c.clocks, cache.clock)
	}
	start := time.Now()
	c.oracle = newOracle(u, x, h.askers, views, h.epochs)
	h.t.Logf("right answers computed in %s", time.Since(start))
	for _, client := range h.clients {
		c.replies = append(c.replies, client.replies)
	}
	c.checkAll()
	h.t.Logf("checked in %s", time.Since(start))
	return c
}

// phase is a part of a history with one fault.
type phase struct {
	requirements
	// fault begins and ends the fault. Answers may be as old as their TTL from its begin to some time after its end.
	fault func(h *history)
	// strict is set if the fault itself appends the times in which sessions may be lost, which differ.
	strict bool
	// delay is that of connections during the fault, in each direction.
	delay time.Duration
	// calm is the time without fault at the end.
	calm time.Duration
	// want reports effects that are missing, given the increase of metrics.
	want func(caches, servers daemon.Samples) error
}

// run runs one phase.
func (h *history) run(p phase) {
	h.t.Helper()
	caches, servers := h.samples()
	from := monotonic()
	h.marks = append(h.marks, mark{requirements: p.requirements, from: max(h.counted, h.zero)})
	switch {
	case p.strict:
		p.fault(h)
	case p.fault != nil:
		p.fault(h)
		h.awaitSessions()
		after := ttl + 2*p.delay + time.Second
		h.fallbacks = append(h.fallbacks, fallback{from, monotonic() + int64(after), ttl + 2*p.delay + transit})
		time.Sleep(after)
	}
	time.Sleep(p.calm)
	cachesNow, serversNow := h.samples()
	caches, servers = cachesNow.Since(caches), serversNow.Since(servers)
	h.counted = monotonic()
	m, dropped := &h.marks[len(h.marks)-1], h.dropped()
	m.beyond, m.dropped = caches.Sum("nearside_cache_hits_beyond_ttl_total"), max(0, dropped-h.droppedBefore)
	m.inKernel = caches.Sum("nearside_kernel_answered_total")
	h.droppedBefore = dropped
	h.t.Logf("phase %q: %.1f to %.1f:%s", p.name, seconds(from-h.zero), seconds(monotonic()-h.zero), coherence(caches, servers))
	if p.want == nil || h.option == "" {
		return
	}
	if err := p.want(caches, servers); err != nil {
		h.missing = append(h.missing, fmt.Sprintf("phase %q: %v", p.name, err))
	}
}

// sessionsReturn bounds the time for which a cache opens no session after a fault: the pause after connections that the server
// has closed, and the time of a request.
const sessionsReturn = 15 * time.Second

// awaitSessions waits until each cache has a session with a recent heartbeat.
func (h *history) awaitSessions() {
	h.t.Helper()
	if h.option == "" {
		return
	}
	start := time.Now()
	for i, c := range h.caches {
		for !c.hasSession(h.t) {
			if time.Since(start) > sessionsReturn {
				h.t.Fatalf("cache %d has no session %s after the fault", i, sessionsReturn)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	h.t.Logf("sessions %s after the fault", time.Since(start).Round(100*time.Millisecond))
}

func (p *program) hasSession(t testing.TB) bool {
	t.Helper()
	s := p.samples(t)
	age := s.Sum("nearside_forward_coherence_heartbeat_age_seconds")
	return s.Sum("nearside_forward_coherence_sessions") > 0 && age > 0 && age < promise.Seconds()
}

// samples returns the sums of the metrics of all caches, and of all replicas that run.
func (h *history) samples() (caches, servers daemon.Samples) {
	caches, servers = daemon.Samples{}, daemon.Samples{}
	for _, c := range h.caches {
		add(caches, c.samples(h.t))
	}
	for _, r := range h.replicas {
		if r.to == forever {
			add(servers, r.samples(h.t))
		}
	}
	return caches, servers
}

// coherence returns the increase of the metrics about coherence, without labels but for reasons.
func coherence(all ...daemon.Samples) (text string) {
	sums := map[string]float64{}
	for _, samples := range all {
		for key, value := range samples {
			name, labels, _ := strings.Cut(key, "{")
			if strings.Contains(name, "_coherence_") || strings.HasPrefix(name, "coredns_cache_hits_") || strings.HasPrefix(name, "nearside_cache_") ||
				strings.HasPrefix(name, "nearside_kernel_") {
				if _, reason, ok := strings.Cut(labels, `reason="`); ok {
					reason, _, _ = strings.Cut(reason, `"`)
					name += " " + reason
				}
				sums[strings.TrimPrefix(name, "coredns_")] += value
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		text += fmt.Sprintf(" %s %g,", name, sums[name])
	}
	return strings.TrimSuffix(text, ",")
}

func add(sums, more daemon.Samples) {
	for name, value := range more {
		sums[name] += value
	}
}

// beyondTTL reports whether answers were served beyond their TTL.
func beyondTTL(caches, _ daemon.Samples) error {
	if n := caches.Sum("nearside_cache_hits_beyond_ttl_total"); n == 0 {
		return fmt.Errorf("no answer was served beyond its TTL")
	}
	return nil
}

// fellBack reports whether sessions have ended for one of some reasons, and answers were served beyond their TTL.
func fellBack(reasons ...string) func(caches, servers daemon.Samples) error {
	return func(caches, servers daemon.Samples) error {
		for _, reason := range reasons {
			if caches.Sum("nearside_forward_coherence_fallbacks_total", "reason", reason) > 0 {
				return beyondTTL(caches, servers)
			}
		}
		return fmt.Errorf("no fallback: %s", strings.Join(reasons, ", "))
	}
}

// failed reports whether clusterdns has answered queries before it had read the cluster.
func failed(_, servers daemon.Samples) error {
	if servers.Sum("coredns_dns_responses_total", "rcode", "SERVFAIL") <= 0 {
		return fmt.Errorf("no SERVFAIL of a clusterdns that has not read the cluster")
	}
	return nil
}

// both reports the first effect that is missing.
func both(first, second func(caches, servers daemon.Samples) error) func(caches, servers daemon.Samples) error {
	return func(caches, servers daemon.Samples) error {
		return cmp.Or(first(caches, servers), second(caches, servers))
	}
}

// TestWithoutSessions proves that the checker finds old answers: without the option, caches serve each answer until its TTL
// ends. It also proves the model: no answer is older than its TTL.
func TestWithoutSessions(t *testing.T) {
	b := binaries{clusterdns: compile(t, "clusterdns", recording(t)...), nodecache: compile(t, "nodecache")}
	c := runHistory(t, b, 1, "", []phase{{requirements: requirements{"no fault", 1, 0}, calm: 6 * time.Second}})
	t.Log(c.summary())
	if c.wrongs == 0 {
		t.Error("the checker has found no answer older than a second")
	}
	c.fallbacks = []fallback{{to: forever, back: ttl}}
	c.checkAll()
	t.Log(c.summary())
	for _, w := range slices.Concat(c.unmet(), c.wrong) {
		t.Error(w)
	}
}

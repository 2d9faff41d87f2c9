package inkernel

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/property"
)

// loadVariable is the environment variable with the time of TestRandomChanges, by default a few seconds. With it, the clients
// make no pauses.
const loadVariable = "NEARSIDE_LOAD"

// TestRandomChanges has random changes while pods query: pods come and go, nodecache reads other configurations, and is updated
// with a second instance. No answer is wrong, and no query is lost.
func TestRandomChanges(t *testing.T) {
	last, first := 5*time.Second, uint64(1)
	text := os.Getenv(loadVariable)
	if text != "" {
		first = uint64(time.Now().UnixNano()) // #nosec G115 -- not negative
		var err error
		if last, err = time.ParseDuration(text); err != nil {
			t.Fatalf("invalid %s: %v", loadVariable, err)
		}
	}
	seed := property.List(t, first, 1)[0]
	t.Logf("%s=%d", property.Variable, seed)
	c := newChanges(t, seed)
	if text != "" {
		c.load.pause = 0
	}
	c.start(t)
	next := time.Now()
	for end := next.Add(last); time.Now().Before(end) && !t.Failed(); {
		c.step(t)
		if now := time.Now(); now.After(next) {
			t.Logf("%v, %d of the kernel, after %v", c.load, c.kernel, c.done)
			next = now.Add(time.Minute)
		}
		if c.load.failed() {
			break
		}
	}
	c.measure(t)
	c.load.end(t)
	t.Logf("%d answers of the kernel at least, %v", c.kernel, c.done)
	if c.kernel == 0 {
		t.Error("the kernel has answered nothing")
	}
}

// failed reports whether a query was lost or answered wrongly.
func (l *load) failed() bool { return l.wrong.Load()+l.lost.Load() > 0 }

// changes are the random changes of a node under load.
type changes struct {
	*world
	random   *rand.Rand
	instance *instance
	config   config
	max      uint32 // TTL of the configuration, 0 for none
	load     *load
	guests   []guest // pods that come and go
	done     map[string]int

	kernel  int // answers of the kernel, measured before and after each change
	counter int
}

// guest is a pod with its clients.
type guest struct {
	*pod
	clients []*loadClient
}

func newChanges(t *testing.T, seed uint64) *changes {
	t.Helper()
	c := &changes{world: newWorld(t, 2), random: rand.New(rand.NewPCG(seed, 0)), done: map[string]int{}}
	c.config = c.configured(firstPort)
	c.config.metrics = 9153
	c.load = newLoad(t, c.ledger, rule{ports: []int{firstPort}})
	return c
}

// start starts nodecache and the load.
func (c *changes) start(t *testing.T) {
	t.Helper()
	c.instance = c.world.start(t, c.config)
	for _, p := range c.pods {
		c.load.add(p.Namespace, 2, locals...)
	}
	c.load.add(c.Namespace, 1, locals...)
}

// step makes one change, and waits for a random number of queries.
func (c *changes) step(t *testing.T) {
	t.Helper()
	const maxGuests = 5
	all := map[string]func(*testing.T){"reload": c.reload, "update": c.update, "crash": c.crash, "undo": c.undo}
	if len(c.guests) > 0 {
		all["remove"] = c.remove
	}
	if len(c.guests) < maxGuests {
		all["add"] = c.add
	}
	names := []string{"add", "add", "remove", "reload", "update", "crash", "undo"}
	name := names[c.random.IntN(len(names))]
	if all[name] == nil {
		return
	}
	c.measure(t)
	all[name](t)
	c.done[name]++
	c.measure(t)
	c.pause(t, c.load, 1+c.random.IntN(4000))
	c.measure(t)
}

// measure adds the answers of the kernel since the last call. The count begins again with each load of the program.
func (c *changes) measure(t *testing.T) {
	t.Helper()
	n, err := c.instance.kernelAnswers(t)
	if err != nil {
		n = 0
	}
	if n < c.counter {
		c.counter = 0
	}
	c.kernel += n - c.counter
	c.counter = n
}

func (c *changes) add(t *testing.T) {
	t.Helper()
	p := c.addPod(t, shapes[c.random.IntN(len(shapes))])
	c.guests = append(c.guests, guest{p, c.load.add(p.Namespace, 1, locals...)})
}

func (c *changes) remove(t *testing.T) {
	t.Helper()
	n := c.random.IntN(len(c.guests))
	g := c.guests[n]
	c.guests = append(c.guests[:n], c.guests[n+1:]...)
	g.end(t, c.load, g.clients, c.random.IntN(3))
}

// another returns a random configuration and its max. TTL.
func (c *changes) another() (config, uint32) {
	next := c.config
	next.forward = c.ledger.at([]uint16{firstPort, secondPort}[c.random.IntN(2)])
	ttl := []uint32{0, 6, 20}[c.random.IntN(3)]
	options := "serve_stale off"
	if c.random.IntN(2) == 0 {
		options += "\n        prefetch 10 1m 30%"
	}
	next.cache = fmt.Sprintf("{\n        %s\n    }", options)
	if ttl > 0 {
		next.cache = fmt.Sprint(ttl, " ", next.cache)
	}
	next.kernel = []string{"on", "on", "on", "force", "off"}[c.random.IntN(5)]
	next.plugins = nil
	if c.random.IntN(2) == 0 {
		next.plugins = []string{"loadbalance"}
	}
	return next, ttl
}

// change has two configurations at once. During do, answers of both are right, afterwards those of the one that do returns, with
// its max. TTL.
func (c *changes) change(t *testing.T, lossy bool, do func(next config, ttl uint32) (config, uint32)) {
	t.Helper()
	next, ttl := c.another()
	during := rule{ports: []int{int(c.config.forward.Port()), int(next.forward.Port())}, lossy: lossy}
	for _, m := range []uint32{c.max, ttl} {
		if m != 0 && (during.low == 0 || m < during.low) {
			during.low = m
		}
	}
	if c.max != 0 && ttl != 0 {
		during.high = max(c.max, ttl)
	}
	c.load.require(t, during)
	c.config, c.max = do(next, ttl)
	c.load.require(t, rule{ports: []int{int(c.config.forward.Port())}, low: c.max, high: c.max})
}

func (c *changes) reload(t *testing.T) {
	t.Helper()
	c.change(t, false, func(next config, ttl uint32) (config, uint32) {
		c.instance.reload(t, next)
		return next, ttl
	})
}

// beside starts another instance while the present one runs, until it has the leases.
func (c *changes) beside(t *testing.T, next config) *instance {
	t.Helper()
	next.metrics = 9153
	if c.instance.config.metrics == next.metrics {
		next.metrics++
	}
	i := c.world.node.start(t, next)
	i.acquired(t)
	c.pause(t, c.load, 1+c.random.IntN(2000))
	c.measure(t)
	return i
}

// update replaces the instance by another one.
func (c *changes) update(t *testing.T) {
	t.Helper()
	c.change(t, false, func(next config, ttl uint32) (config, uint32) {
		i := c.beside(t, next)
		if code := c.instance.Stop(t); code != 0 {
			t.Errorf("exit code %d", code)
		}
		c.instance, c.counter = i, 0
		return i.config, ttl
	})
}

// crash is an update in which the instance is killed: the queries in its sockets are lost.
func (c *changes) crash(t *testing.T) {
	t.Helper()
	c.change(t, true, func(next config, ttl uint32) (config, uint32) {
		i := c.beside(t, next)
		c.instance.Kill(t)
		c.instance, c.counter = i, 0
		return i.config, ttl
	})
}

// undo is an update that ends with the instance before.
func (c *changes) undo(t *testing.T) {
	t.Helper()
	c.change(t, false, func(next config, _ uint32) (config, uint32) {
		if code := c.beside(t, next).Stop(t); code != 0 {
			t.Errorf("exit code %d", code)
		}
		return c.config, c.max
	})
}

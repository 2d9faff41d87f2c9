package differential

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	goruntime "runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/bundle"
	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
	"github.com/nearside-dns/nearside/test/property"
)

var (
	seeds     = flag.Int("seeds", 8, "number of random clusters")
	rounds    = flag.Int("rounds", 4, "number of states of each cluster: the first, and after updates")
	questions = flag.Int("questions", 300, "number of questions to each variant in a round")
	ourBinary = flag.String("clusterdns", "", "path of the binary under test, instead of one built from the sources")
)

const (
	// maxFailures is the number of reported differences after which the test ends.
	maxFailures = 5
	// syncLimit bounds the time until a server shows an update. The first includes its start.
	syncLimit = time.Minute
)

func TestMain(m *testing.M) { kubeapi.Main(m) }

// TestDifferential asks both servers, in every variant, and fails on what is answered differently without
// being meant to.
func TestDifferential(t *testing.T) {
	stockBinary := controlplane.RequireBinary(t, "coredns")
	binary := *ourBinary
	if binary == "" {
		binary = daemon.ProgramWithoutRace(t, "clusterdns")
	}
	r := newRun(t)
	r.serveAll(t, program{"CoreDNS", stockBinary, ""}, program{"clusterdns", binary, ""})
	began := time.Now()
	r.seeds(t, uint64(*seeds)) // #nosec G115 -- a number of clusters
	r.report(t, time.Since(began))
}

// TestBundle asks the stock CoreDNS and a build of CoreDNS with plugins of nearside.
func TestBundle(t *testing.T) {
	stockBinary := controlplane.RequireBinary(t, "coredns")
	r := newRun(t)
	r.serveAll(t, program{"CoreDNS", stockBinary, ""}, program{"bundle", bundle.Build(t, "../..", bundle.Commands(t, "../..")), ""})
	r.seeds(t, 1)
}

// run is one run of the test.
type run struct {
	api     *kubeapi.Server
	own     []netip.Addr // addresses of this machine
	outside string       // address of the resolver for other names
	pairs   []*pair
	round   int // counts the rounds of all seeds
	fail    func(text string)

	mu       sync.Mutex
	failures int
	asked    map[string]int // questions by variant
	used     map[string]int // allowed differences by name
}

// pair is one variant, served by both servers.
type pair struct {
	*variant
	stock, ours *server
	twins       bool // both are CoreDNS, to test the test itself
}

// program is the server of a variant.
type program struct{ name, binary, corefile string }

// newRun starts the programs that all servers connect to.
func newRun(t *testing.T) *run {
	t.Helper()
	own, err := ownAddresses()
	kit.Must(t, err)
	return &run{api: kubeapi.New(t), own: own, outside: startOutside(t), used: map[string]int{}, asked: map[string]int{}}
}

// serveAll starts both servers of all variants, with their Corefiles.
func (r *run) serveAll(t *testing.T, stock, ours program) {
	t.Helper()
	for _, v := range variants {
		if v.needsOwnAddrs && len(r.own) == 0 {
			t.Logf("without %q: this machine has no address to bind", v.name)
			continue
		}
		stock.corefile, ours.corefile = v.corefile, v.corefile
		r.serve(t, v, stock, ours)
	}
}

// seeds runs n random clusters.
func (r *run) seeds(t *testing.T, n uint64) {
	t.Helper()
	property.Seeds(t, 1, n, func(t *testing.T, seed uint64) {
		r.fail = func(text string) { t.Error(text) }
		kit.Must(t, r.seed(seed))
	})
}

// serve starts both servers of a variant.
func (r *run) serve(t *testing.T, v *variant, stock, ours program) {
	t.Helper()
	host := "127.0.0.1"
	if v.bind {
		host = r.own[0].String()
	}
	one := func(p program) *server {
		return start(t, p.name+" "+v.name, p.binary, host, func(port string) string {
			return write(p.corefile, r.api.URL(), r.outside, port, r.own)
		})
	}
	r.pairs = append(r.pairs, &pair{v, one(stock), one(ours), stock.binary == ours.binary})
}

// seed runs one cluster and its updates. An error is one of the test itself.
func (r *run) seed(seed uint64) error {
	random := rand.New(rand.NewPCG(seed, 0))
	objs := newObjects(random, rand.New(rand.NewPCG(seed, 1)), r.own)
	// One cluster replaces the other at once, or after a moment without any.
	if random.IntN(2) == 0 {
		if err := r.api.Clear(); err != nil {
			return err
		}
	}
	if err := r.api.Replace(objs...); err != nil {
		return err
	}
	for round := range *rounds {
		if round > 0 {
			var changed, deleted []runtime.Object
			changed, deleted, objs = mutated(random, objs)
			if random.IntN(8) == 0 { // the servers miss it, and have to list everything again
				if err := r.api.Expire(); err != nil {
					return err
				}
				r.api.DropWatches("")
			}
			if err := r.api.Delete(deleted...); err != nil {
				return err
			}
			if err := r.api.Put(changed...); err != nil {
				return err
			}
		}
		markers, err := mark(r.api, r.round)
		if err != nil {
			return err
		}
		if err := r.compare(seed, uint64(round), append(slices.Clone(objs), markers...)); err != nil {
			return fmt.Errorf("seed %d, round %d: %w", seed, round, err)
		}
		r.round++
		if r.failures > 0 {
			return nil
		}
	}
	return nil
}

// compare queries every pair, as many at a time as there are processors.
func (r *run) compare(seed, round uint64, objs []runtime.Object) (failed error) {
	var wg sync.WaitGroup
	todo := make(chan int)
	for range goruntime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range todo {
				if err := r.comparePair(r.pairs[i], rand.NewPCG(seed, round<<32|uint64(i)), objs, fmt.Sprintf("seed %d, round %d, variant %q", seed, round, r.pairs[i].name)); err != nil {
					r.mu.Lock()
					failed = err
					r.mu.Unlock()
				}
			}
		})
	}
	for i := range r.pairs {
		todo <- i
	}
	close(todo)
	wg.Wait()
	return failed
}

// comparePair waits until both servers of a variant have synced the objects, and queries them. where is a part of
// reports.
func (r *run) comparePair(p *pair, random rand.Source, objs []runtime.Object, where string) error {
	for _, s := range []*server{p.stock, p.ours} {
		if err := p.awaitMarkers(s, r.round, syncLimit); err != nil {
			return err
		}
	}
	c := newCluster(p.variant, objs, r.own)
	a := asker{Rand: rand.New(random), c: c, p: &c.pools}
	asked, want := 0, *questions
	if p.share > 0 {
		want = want * p.share / 100
	}
	for asked < want {
		q := a.next()
		if p.unpackable(c, q) && a.chance(95) {
			continue // waiting for a missing reply takes its time
		}
		asked++
		if !r.judge(p.ask(c, q), where) {
			break
		}
	}
	r.mu.Lock()
	r.asked[p.name] += asked
	r.mu.Unlock()
	if !p.transfers {
		return nil
	}
	return r.compareTransfers(p, c, a, where)
}

// judge reports a difference. It returns false after maxFailures.
func (r *run) judge(d *difference, where string) bool {
	if d.same() {
		return true
	}
	names := d.explain()
	if len(names) == 0 && d.settles() {
		return true
	}
	return r.found(names, func() string { return where + "\n" + d.describe() })
}

// found counts a difference by the names of its explanation; without any it is an error.
func (r *run) found(names []string, describe func() string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		r.used[name]++
	}
	if len(names) == 0 {
		r.failures++
		if r.failures <= maxFailures {
			r.fail(describe())
		}
	}
	return r.failures < maxFailures
}

// report logs the counts of a run. An allowed difference that was not seen is an error, unless the run was shorter than
// by default: an unused line of the table hides differences.
func (r *run) report(t *testing.T, took time.Duration) {
	total := 0
	for _, p := range r.pairs {
		t.Logf("%8d questions to %s", r.asked[p.name], p.name)
		total += r.asked[p.name]
	}
	t.Logf("%8d questions in %v", total, took.Round(time.Second))
	full := property.Fixed()
	for _, f := range []string{"seeds", "rounds", "questions"} {
		given := flag.Lookup(f)
		full = full && number(given.Value.String()) >= number(given.DefValue)
	}
	for _, e := range entries() {
		t.Logf("%8d differences: %s", r.used[e.name], e.name)
		if r.used[e.name] == 0 && full && r.failures == 0 && (e.seldom == nil || !e.seldom(r)) {
			t.Errorf("allowed, but not seen any more: %s", e.name)
		}
	}
}

// number returns the value of a flag that is a number.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err) // it has been parsed before
	}
	return n
}

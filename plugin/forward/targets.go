package forward

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
)

// targets finds the upstreams that a stanza names, and what becomes of them: files are read again, and
// hosts are looked up again. What was good stays where that fails.
type targets struct {
	at     corefile.Position
	from   string
	named  []*named
	wait   timing
	lookup func(ctx context.Context, name string) (addresses, error)

	mu    sync.Mutex
	given []endpoint // the last that were told
	cut   bool       // whether some were left out of them
}

// named is a TO and the endpoints that it stands for. Only one goroutine uses it, but for the endpoints,
// which targets.mu guards.
type named struct {
	target
	endpoints []endpoint
	known     []netip.Addr // of a host
	failing   bool         // so that it is said once
}

// timing says when to look again.
type timing struct {
	first     time.Duration // for what is done before the start
	file      time.Duration // between two readings of a file
	settle    time.Duration // for which a changed file has to stay the same: it may be half written
	host      time.Duration // between two lookups of a host
	jitter    time.Duration // at most, more than that
	retry     time.Duration // after a lookup that failed, doubled each time
	retryMost time.Duration
}

// newTargets returns those of a stanza. Nothing is looked up before first.
func newTargets(c config) *targets {
	t := &targets{
		at: c.at, from: c.from,
		wait: timing{
			first: 5 * time.Second, file: 5 * time.Second, settle: 200 * time.Millisecond,
			host: 30 * time.Second, jitter: 3 * time.Second, retry: time.Second, retryMost: 30 * time.Second,
		},
		lookup: newLookup(c.resolver),
	}
	for _, to := range c.to {
		n := &named{target: to}
		if !n.changes() {
			n.endpoints = []endpoint{to.endpoint}
		}
		t.named = append(t.named, n)
	}
	return t
}

// changes tells whether a TO may stand for others later.
func (n *named) changes() bool { return n.file != "" || n.host.name != "" }

// first returns the upstreams to begin with. It takes five seconds at most. A host that does not exist is
// an error; what can't be found out now is looked for by watch, and may leave no upstream at all.
func (t *targets) first(ctx context.Context) ([]endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, t.wait.first)
	defer cancel()
	failures := make([]error, len(t.named))
	var all sync.WaitGroup
	for i, n := range t.named {
		all.Go(func() { failures[i] = t.begin(ctx, n) })
	}
	all.Wait()
	for _, err := range failures {
		if err != nil {
			return nil, t.at.Errorf("forward: %v", err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.given = t.combine()
	return slices.Clone(t.given), nil
}

// begin finds what a TO stands for, for the first time.
func (t *targets) begin(ctx context.Context, n *named) error {
	switch {
	case n.file != "":
		found, err := n.read(true)
		if err != nil {
			n.failed(err)
		}
		n.endpoints = found
	case n.host.name != "":
		found, err := t.find(ctx, n)
		if errors.Is(err, errNoHost) {
			return fmt.Errorf("%q is no file, and as a host's name: %w", n.text, err)
		}
		if err != nil {
			n.failed(err)
		}
		n.endpoints = found
	}
	return nil
}

// watch looks for changes until ctx ends, and calls changed with the upstreams after each, once at a time.
// It comes after first, and returns at once if nothing can change.
func (t *targets) watch(ctx context.Context, changed func([]endpoint)) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, n := range t.named {
		switch {
		case n.file != "":
			all.Go(func() { t.followFile(ctx, n, changed) })
		case n.host.name != "":
			all.Go(func() { t.followHost(ctx, n, changed) })
		}
	}
}

// followFile reads a file again and again. It does not ask the kernel to tell of changes: that misses
// some where the file is mounted by itself, or a link leads to it.
func (t *targets) followFile(ctx context.Context, n *named, changed func([]endpoint)) {
	var candidate []endpoint
	for wait := t.wait.file; sleep(ctx, wait); {
		wait = t.wait.file
		found, err := n.read(false)
		switch {
		case err != nil:
			n.failed(err)
			candidate = nil
		case slices.Equal(found, n.endpoints):
			n.recovered()
			candidate = nil
		case slices.Equal(found, candidate):
			n.recovered()
			if _, err := n.read(true); err == nil { // for what it has to say
				t.tell(n, found, changed)
			}
		default:
			candidate, wait = found, t.wait.settle
		}
	}
}

func (t *targets) followHost(ctx context.Context, n *named, changed func([]endpoint)) {
	retry := t.wait.retry
	for {
		wait := t.wait.host + rand.N(t.wait.jitter+1) // #nosec G404 -- it only spreads load
		if n.failing {
			wait, retry = retry, min(2*retry, t.wait.retryMost)
		} else {
			retry = t.wait.retry
		}
		if !sleep(ctx, wait) {
			return
		}
		found, err := t.find(ctx, n)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			n.failed(err)
			continue
		}
		n.recovered()
		t.tell(n, found, changed)
	}
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

var errNoServers = errors.New("it names no server")

// read returns the servers that a file names. Loudly, it says which of them are none.
func (n *named) read(loudly bool) (found []endpoint, err error) {
	servers, ignored, err := readServers(n.file)
	if err != nil {
		return nil, err
	}
	if loudly && len(ignored) > 0 {
		log.Warningf("%s: ignored as servers, since they are no IP addresses: %q", n.file, ignored)
	}
	if len(servers) == 0 {
		return nil, errNoServers
	}
	for _, server := range servers {
		e := n.endpoint
		e.address = net.JoinHostPort(server.String(), ports[e.protocol])
		found = append(found, e)
	}
	return found, nil
}

// find looks up a host. Addresses that are known stay before new ones: servers shuffle their answers.
func (t *targets) find(ctx context.Context, n *named) (found []endpoint, err error) {
	now, err := t.lookup(ctx, n.host.name)
	if err != nil {
		return nil, err
	}
	n.known = now.after(n.known)
	for _, address := range n.known {
		e := n.host.endpoint
		e.address = net.JoinHostPort(address.String(), n.host.port)
		found = append(found, e)
	}
	return found, nil
}

// failed says that a TO is what it was before, once.
func (n *named) failed(err error) {
	if !n.failing {
		kept := "nothing is asked there"
		if len(n.endpoints) > 0 {
			kept = "still asked are " + addressesOf(n.endpoints)
		}
		log.Warningf("upstreams of %s: %v; %s until that is better", n.text, err, kept)
	}
	n.failing = true
}

func (n *named) recovered() {
	if n.failing {
		log.Infof("upstreams of %s are found again", n.text)
	}
	n.failing = false
}

// tell passes on that a TO has other endpoints, if that makes a difference.
func (t *targets) tell(n *named, found []endpoint, changed func([]endpoint)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.endpoints = found
	now := t.combine()
	if slices.Equal(now, t.given) {
		return
	}
	t.given = now
	log.Infof("upstreams of %s are now %s", n.text, addressesOf(found))
	changed(slices.Clone(now))
}

// combine returns the endpoints of all, each once and in the order of the Corefile, but no more than
// there may be. The caller holds mu.
func (t *targets) combine() (all []endpoint) {
	seen := map[endpoint]bool{}
	for _, n := range t.named {
		for _, e := range n.endpoints {
			if !seen[e] {
				seen[e] = true
				all = append(all, e)
			}
		}
	}
	cut := len(all) > maxUpstreams
	if cut && !t.cut {
		log.Warningf("%d upstreams for %s are too many: only the first %d are asked", len(all), t.from, maxUpstreams)
	}
	t.cut = cut
	return all[:min(len(all), maxUpstreams)]
}

func addressesOf(all []endpoint) string {
	texts := make([]string, 0, len(all))
	for _, e := range all {
		texts = append(texts, e.address)
	}
	return strings.Join(texts, ", ")
}

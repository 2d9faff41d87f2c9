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

// targets finds the upstreams of a stanza's TOs: it reads files and looks up hosts periodically. After a failure the last
// upstreams remain.
type targets struct {
	at      corefile.Position
	from    string
	sources []*source
	wait    timing
	lookup  func(ctx context.Context, name string) (addresses, error)

	mu       sync.Mutex
	reported []endpoint // the last upstreams
	cut      bool       // there were more than maxUpstreams
}

// source is a TO and its endpoints. Only one goroutine uses it, except for endpoints, which targets.mu guards.
type source struct {
	target
	endpoints []endpoint
	known     []netip.Addr // of a host
	failing   bool         // the failure is logged
}

// timing are the waits between reads and lookups.
type timing struct {
	first    time.Duration // limit of the lookups at the start
	file     time.Duration // between two reads of a file
	settle   time.Duration // for which a changed file must stay the same: it may be incomplete
	host     time.Duration // between two lookups of a host
	jitter   time.Duration // maximum random addition to host
	retry    time.Duration // after a failed lookup, doubled each time
	maxRetry time.Duration
}

// newTargets returns the targets of a stanza. It looks up nothing.
func newTargets(c config) *targets {
	t := &targets{
		at: c.at, from: c.from,
		wait: timing{
			first: 5 * time.Second, file: 5 * time.Second, settle: 200 * time.Millisecond,
			host: 30 * time.Second, jitter: 3 * time.Second, retry: time.Second, maxRetry: 30 * time.Second,
		},
		lookup: newLookup(c.resolver),
	}
	for _, to := range c.to {
		s := &source{target: to}
		if s.file == "" && s.host.name == "" {
			s.endpoints = []endpoint{to.endpoint}
		}
		t.sources = append(t.sources, s)
	}
	return t
}

// first returns the upstreams at the start, after at most timing.first. A host that does not exist is an error; after
// other failures watch retries, and there may be no upstream yet.
func (t *targets) first(ctx context.Context) ([]endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, t.wait.first)
	defer cancel()
	failures := make([]error, len(t.sources))
	var all sync.WaitGroup
	for i, s := range t.sources {
		all.Go(func() { failures[i] = t.findFirst(ctx, s) })
	}
	all.Wait()
	for _, err := range failures {
		if err != nil {
			return nil, t.at.Errorf("forward: %v", err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reported = t.combine()
	return slices.Clone(t.reported), nil
}

// findFirst finds the endpoints of a TO for the first time.
func (t *targets) findFirst(ctx context.Context, s *source) (err error) {
	var found []endpoint
	switch {
	case s.file != "":
		found, err = s.read(true)
	case s.host.name != "":
		found, err = t.find(ctx, s)
		if errors.Is(err, errNoHost) {
			return fmt.Errorf("%q is neither a file nor a host: %w", s.text, err)
		}
	default:
		return nil
	}
	if err != nil {
		s.failed(err)
	}
	s.endpoints = found
	return nil
}

// watch calls changed with the upstreams after each change, not concurrently, until ctx ends. It is called after first,
// and returns at once if nothing can change.
func (t *targets) watch(ctx context.Context, changed func([]endpoint)) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, s := range t.sources {
		switch {
		case s.file != "":
			all.Go(func() { t.watchFile(ctx, s, changed) })
		case s.host.name != "":
			all.Go(func() { t.watchHost(ctx, s, changed) })
		}
	}
}

// watchFile reads a file periodically. Notifications of the kernel (inotify(7)) miss changes of a file that is a mount
// point or behind a symbolic link.
func (t *targets) watchFile(ctx context.Context, s *source, changed func([]endpoint)) {
	var unsettled []endpoint
	for wait := t.wait.file; sleep(ctx, wait); {
		wait = t.wait.file
		found, err := s.read(false)
		switch {
		case err != nil:
			s.failed(err)
			unsettled = nil
		case slices.Equal(found, s.endpoints):
			s.recovered()
			unsettled = nil
		case slices.Equal(found, unsettled):
			s.recovered()
			if _, err := s.read(true); err == nil { // read logs ignored servers
				t.update(s, found, changed)
			}
		default:
			unsettled, wait = found, t.wait.settle
		}
	}
}

// watchHost looks up a host periodically.
func (t *targets) watchHost(ctx context.Context, s *source, changed func([]endpoint)) {
	retry := t.wait.retry
	for {
		wait := t.wait.host + rand.N(t.wait.jitter+1) // #nosec G404 -- it only spreads load
		if s.failing {
			wait, retry = retry, min(2*retry, t.wait.maxRetry)
		} else {
			retry = t.wait.retry
		}
		if !sleep(ctx, wait) {
			return
		}
		found, err := t.find(ctx, s)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.failed(err)
			continue
		}
		s.recovered()
		t.update(s, found, changed)
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

var errNoServers = errors.New("no nameserver line with an address")

// read returns the servers of a file, and optionally logs those that it ignores.
func (s *source) read(logIgnored bool) (found []endpoint, err error) {
	servers, ignored, err := readServers(s.file)
	if err != nil {
		return nil, err
	}
	if logIgnored && len(ignored) > 0 {
		log.Warningf("%s: ignored nameservers that are no IP addresses: %q", s.file, ignored)
	}
	if len(servers) == 0 {
		return nil, errNoServers
	}
	for _, server := range servers {
		e := s.endpoint
		e.address = net.JoinHostPort(server.String(), ports[e.protocol])
		found = append(found, e)
	}
	return found, nil
}

// find looks up a host. Known addresses stay before new ones: servers shuffle their answers.
func (t *targets) find(ctx context.Context, s *source) (found []endpoint, err error) {
	now, err := t.lookup(ctx, s.host.name)
	if err != nil {
		return nil, err
	}
	s.known = now.after(s.known)
	for _, address := range s.known {
		e := s.host.endpoint
		e.address = net.JoinHostPort(address.String(), s.host.port)
		found = append(found, e)
	}
	return found, nil
}

// failed logs the first of successive failures.
func (s *source) failed(err error) {
	if !s.failing {
		remaining := "none are used"
		if len(s.endpoints) > 0 {
			remaining = "still used are " + addressesOf(s.endpoints)
		}
		log.Warningf("upstreams of %s not found: %v; %s", s.text, err, remaining)
	}
	s.failing = true
}

func (s *source) recovered() {
	if s.failing {
		log.Infof("upstreams of %s found again", s.text)
	}
	s.failing = false
}

// update sets the endpoints of a TO, and reports the upstreams if they differ.
func (t *targets) update(s *source, found []endpoint, changed func([]endpoint)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.endpoints = found
	now := t.combine()
	if slices.Equal(now, t.reported) {
		return
	}
	t.reported = now
	log.Infof("upstreams of %s are now %s", s.text, addressesOf(found))
	changed(slices.Clone(now))
}

// combine returns the first maxUpstreams endpoints of all TOs in the order of the Corefile, without duplicates. The
// caller holds mu.
func (t *targets) combine() (all []endpoint) {
	seen := map[endpoint]bool{}
	for _, s := range t.sources {
		for _, e := range s.endpoints {
			if !seen[e] {
				seen[e] = true
				all = append(all, e)
			}
		}
	}
	cut := len(all) > maxUpstreams
	if cut && !t.cut {
		log.Warningf("%d upstreams for %s, the limit is %d: the others are not used", len(all), t.from, maxUpstreams)
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

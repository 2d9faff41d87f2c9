package apiserver

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

const (
	// quietAfter is how long a watch may say nothing before the server is asked whether all is well.
	// Servers send a bookmark about every minute.
	quietAfter = 90 * time.Second
	// frozenAfter is how long a watch may say nothing after the server answered that question. To
	// answer it, the server brings its watch cache up to date, and so has a bookmark to send.
	frozenAfter = 90 * time.Second
	// lostAfter is how long a watch may be away before it is reported.
	lostAfter = 10 * time.Second
	// lookEvery is how often the watchdog looks.
	lookEvery = 5 * time.Second
	// probeTimeout bounds the question to the server.
	probeTimeout = 10 * time.Second
)

// health is what is known of the watch of one resource.
type health struct {
	now func() time.Time

	mu      sync.Mutex
	current *tracked  // the open watch; nil where there is none
	last    time.Time // of the last word that the index is in step
	moved   time.Time // of the last sign of life, which is more than the last word
	closed  time.Time // when the last watch ended, or the source began, while there is no watch
	failure error     // of the last request that failed
	denied  bool      // it failed for want of the right to make it
	absent  bool      // the server has no such resource: nothing is to be read
	inStep  bool      // a list was taken over once, since the server has the resource
	frozen  bool
	relist  bool // watches are refused until a list has been taken over
}

func newHealth() *health { return &health{now: time.Now} }

// tracked is an open watch whose end is noticed.
type tracked struct {
	watch.Interface
	health *health
}

func (h *health) opened(w watch.Interface) watch.Interface {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.current = &tracked{w, h}
	h.moved = h.now()
	h.denied = false
	return h.current
}

// Stop is called by the reflector at the end of each watch, whoever ended it.
func (t *tracked) Stop() {
	t.Interface.Stop()
	t.health.mu.Lock()
	defer t.health.mu.Unlock()
	if t.health.current == t {
		t.health.current = nil
		t.health.closed = t.health.now()
	}
}

// active notes a sign of life that is not yet word of being in step: an object of a list.
func (h *health) active() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moved = h.now()
}

// heard notes word that the index is in step.
func (h *health) heard() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = h.now()
	h.moved = h.last
	h.frozen = false
}

// synced notes that a list was taken over.
func (h *health) synced() {
	h.heard()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inStep = true
	h.absent = false
	h.relist = false
}

// missing notes word that the server has no such resource.
func (h *health) missing() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = h.now()
	h.absent = true
	h.inStep, h.denied, h.frozen, h.relist = false, false, false, false
	h.closed = time.Time{} // there is no watch to be missed
}

// appears notes that the server has the resource, which is to be read, and reports whether that is news after word that
// it has not.
func (h *health) appears() (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	news, h.absent = h.absent, false
	if news {
		h.closed = h.now()
	}
	return news
}

// isMissing reports whether the last word is that the server has no such resource.
func (h *health) isMissing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.absent
}

// hasRead reports whether a list was taken over once, since the server has the resource.
func (h *health) hasRead() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inStep
}

// status tells of a frozen watch as long as the server answers: when it is away, all servers of names
// are in the same case, and none would be left.
func (h *health) status(resource string) source.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return source.Status{
		Resource: resource,
		Synced:   h.inStep || h.absent,
		Heard:    h.last,
		Frozen:   h.frozen && h.awayFor() < lostAfter,
		Denied:   h.denied,
	}
}

// begins notes that the source runs, and has no watch yet.
func (h *health) begins() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = h.now()
}

// failed notes why a request failed. If it was for want of the right to make it, the resource can be there, whatever
// was known before.
func (h *health) failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failure = err
	h.denied = h.denied || isDenied(err) // until it is answered
	h.absent = h.absent && !h.denied
	if h.current == nil && h.closed.IsZero() {
		h.closed = h.now()
	}
}

// listsAnew reports whether the next list is to come from what the server itself has to read from its
// database, not from the cache behind a frozen watch.
func (h *health) listsAnew() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.relist
}

// silence returns the open watch and for how long it has said nothing; nil where none is open.
func (h *health) silence() (*tracked, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == nil {
		return nil, 0
	}
	return h.current, h.now().Sub(h.moved)
}

// freeze ends a watch that tells nothing any more, and has everything listed anew. It does nothing if
// the watch has ended by itself meanwhile.
func (h *health) freeze(w *tracked) {
	h.mu.Lock()
	if h.current != w {
		h.mu.Unlock()
		return
	}
	h.frozen, h.relist = true, true
	h.mu.Unlock()
	w.Interface.Stop()
}

// away returns for how long there has been no watch, 0 where one is open, and what failed last.
func (h *health) away() (time.Duration, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.awayFor(), h.failure
}

func (h *health) awayFor() time.Duration {
	if h.current != nil || h.closed.IsZero() {
		return 0
	}
	return h.now().Sub(h.closed)
}

// watchdog tells a frozen watch from a quiet one and a lost API server from both. Quiet for long, it
// asks the server a question that a working server can only answer when its watches are up to date.
// If the watch stays silent although the server answered, the watch is frozen: it is replaced, and
// the resource is out of step until a list has been taken over. If the server does not answer, it is
// away: what is known stays in use.
func (r *resource) watchdog(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var state watching
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.look(ctx, &state)
		}
	}
}

// meanwhile says what is done without a watch, after everything has been read once and before.
type meanwhile struct{ known, unread string }

func meanwhileFor(name string, o source.Options) meanwhile {
	m := meanwhile{"answering from what is known", "answering SERVFAIL until it has been read"}
	switch {
	case name == source.Nodes:
		m.unread = "answering without them until they have been read, with SERVFAIL where a policy leaves nothing to see"
	case name == source.ServiceImports:
		m.unread = "answering names of clusterset zones with SERVFAIL until they have been read"
	case name == source.ClusterProperties:
		m = meanwhile{"taking the ID of this cluster for what it was", "the ID of this cluster is not known until they have been read"}
	case o.PodsOnly:
		m = meanwhile{"what is known of them is used for a few minutes", "no search path is expanded until they have been read"}
	}
	return m
}

// watching is what the watchdog remembers from look to look.
type watching struct {
	answered time.Duration // the silence at which the server answered; 0 if it was not asked
	mute     bool          // it has been reported that the server does not answer
	lost     bool          // the loss of the API server has been reported
}

func (r *resource) look(ctx context.Context, state *watching) {
	r.reportLoss(state)
	w, silent := r.health.silence()
	switch {
	case silent < quietAfter:
		state.answered, state.mute = 0, false
	case state.answered == 0:
		err := r.probe(ctx)
		if err == nil {
			state.answered, state.mute = silent, false
			return
		}
		if !state.mute {
			r.log.Warningf("%s: the watch has said nothing for %s, and the API server %s does not answer: %v; %s",
				r.name, silent.Round(time.Second), r.host, err, r.meanwhile.known)
		}
		state.mute = true
	case silent > state.answered+frozenAfter:
		r.log.Errorf("%s: the watch is frozen: nothing for %s, though the API server %s answers; listing anew", r.name, silent.Round(time.Second), r.host)
		watchesFrozen.WithLabelValues(r.name).Inc()
		state.answered = 0
		r.health.freeze(w)
	}
}

// probe asks for one object in a way that the server answers from its newest state.
func (r *resource) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, err := r.get(ctx, metav1.ListOptions{Limit: 1})
	return err
}

// reportLoss logs once that the API server is away, and once that it is back.
func (r *resource) reportLoss(state *watching) {
	away, failure := r.health.away()
	switch {
	case away > lostAfter && !state.lost:
		state.lost = true
		meanwhile := r.meanwhile.known
		if !r.health.status(r.name).Synced {
			meanwhile = r.meanwhile.unread
		}
		r.log.Warningf("%s: no watch on the API server %s for %s; %s; last error: %v", r.name, r.host, away.Round(time.Second), meanwhile, failure)
	case away == 0 && state.lost:
		state.lost = false
		if r.health.isMissing() {
			r.log.Infof("%s: the API server %s answers again", r.name, r.host)
			return
		}
		r.log.Infof("%s: watching the API server %s again", r.name, r.host)
	}
}

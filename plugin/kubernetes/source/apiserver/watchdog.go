package apiserver

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

const (
	// quietAfter is the time without events after which the server is probed. Servers send a bookmark about every minute.
	quietAfter = 90 * time.Second
	// frozenAfter is the time without events after the server has answered a probe. To answer it, the server updates its
	// watch cache, and so has a bookmark to send.
	frozenAfter = 90 * time.Second
	// lostAfter is the time without a watch after which that is logged.
	lostAfter = 10 * time.Second
	// waitFor is the time without a watch for which a watch, instead of a list, is requested again from a server that answers with errors.
	waitFor = 2 * time.Minute
	// checkEvery is the interval of the watchdog's checks.
	checkEvery = 5 * time.Second
	// probeTimeout bounds a probe.
	probeTimeout = 10 * time.Second
)

// health is the state of the watch of one resource.
type health struct {
	now func() time.Time

	mu      sync.Mutex
	current *tracked  // the open watch; nil if there is none
	last    time.Time // of the last list, event or bookmark
	moved   time.Time // of the last sign of life, such as an object of a list that is not complete
	closed  time.Time // when the last watch ended, or the source began, while there is no watch
	failure error     // of the last request that failed
	denied  bool      // it failed because the account lacks the permission
	absent  bool      // the server does not have the resource
	inStep  bool      // a list has been stored since the server has the resource
	frozen  bool
	relist  bool // watches are refused until a list has been stored
	endless bool // a streamed list did not end: the next list is not streamed

	behind  time.Time // since when changes may be missing, zero while a watch reports them
	probed  time.Time // when the server last answered a probe
	unheard bool      // the server has not answered the last probe

	pauses      pauses        // before a request is repeated
	unreachable bool          // the last request had no answer
	backoff     wait.Backoff  // the present pauses
	pause       time.Duration // after the next request without progress
	notBefore   time.Time     // when the next list or watch may be requested
}

func newHealth() *health { return &health{now: time.Now} }

// tracked is an open watch that reports its end to health.
type tracked struct {
	watch.Interface
	health *health
	opened time.Time
	behind time.Time // that of health before
	list   bool      // it began with a list, which has not been stored
}

// opened records that a watch is open. list is true if it begins with a list: changes may be missing until that is complete, and
// after a long time without a watch until an event or a bookmark arrives, since the server sends the changes of that time first.
func (h *health) opened(w watch.Interface, list bool) watch.Interface {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moved = h.now()
	uncertain := h.isUncertain()
	h.current = &tracked{w, h, h.moved, h.behind, list}
	h.denied, h.unheard = false, false
	if !list && !uncertain {
		h.behind = time.Time{}
	}
	return h.current
}

// Stop is called by the reflector at the end of each watch.
func (t *tracked) Stop() {
	t.Interface.Stop()
	t.health.mu.Lock()
	defer t.health.mu.Unlock()
	if t.health.current == t {
		t.health.current = nil
		t.health.closed = t.health.now()
		t.health.fallsBehind(t)
		t.health.watchEnds(t)
	}
}

// active records an object of a list, which is a sign of life before the list is complete.
func (h *health) active() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.moved = h.now()
}

// heard records a list, an event or a bookmark.
func (h *health) heard() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = h.now()
	h.moved = h.last
	h.frozen, h.unheard = false, false
	h.catchesUp()
}

// synced records that a list has been stored.
func (h *health) synced() {
	h.heard()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inStep = true
	h.absent = false
	h.relist, h.endless = false, false
	h.progresses()
	if h.current != nil {
		h.current.list = false
	}
}

// missing records that the server does not have the resource.
func (h *health) missing() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = h.now()
	h.absent = true
	h.inStep, h.denied, h.frozen, h.relist = false, false, false, false
	h.closed, h.behind = time.Time{}, time.Time{} // no watch is expected
}

// appears records that the server has the resource, and reports whether it did not have it before.
func (h *health) appears() (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	news, h.absent = h.absent, false
	if news {
		h.closed = h.now()
		h.behind = h.closed
	}
	return news
}

// isMissing reports whether the server does not have the resource.
func (h *health) isMissing() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.absent
}

// hasRead reports whether a list has been stored since the server has the resource.
func (h *health) hasRead() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inStep
}

// mayWait reports whether the records are those of a list, and the watch ended not long ago: a list may then wait for a server in trouble.
func (h *health) mayWait() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.inStep && h.awayFor() < waitFor
}

// status reports a frozen watch only while the server answers: when it is away, all replicas of the DNS server have no
// watch, and if all were unready none would answer.
func (h *health) status(resource string) source.Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	return source.Status{
		Resource: resource,
		Synced:   h.inStep || h.absent,
		Heard:    h.last,
		Frozen:   h.frozen && h.awayFor() < lostAfter,
		Denied:   h.denied,

		Uncertain: h.isUncertain(),
	}
}

// begins records that the source runs, and has no watch yet.
func (h *health) begins() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.progresses()
	h.closed = h.now()
	h.behind = h.closed
}

// failed records the error of a request. If the account lacks the permission, the resource may exist, even if it did not
// before.
func (h *health) failed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failure = err
	h.denied = h.denied || isDenied(err) // until a request succeeds
	h.absent = h.absent && !h.denied
	if h.current == nil && h.closed.IsZero() {
		h.closed = h.now()
		h.behind = h.closed
	}
}

// listsAnew reports whether the next list must be read from the server's database, not from the cache behind a frozen
// watch.
func (h *health) listsAnew() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.relist
}

// silence returns the open watch and the time since its last sign of life; nil if none is open.
func (h *health) silence() (*tracked, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.current == nil {
		return nil, 0
	}
	return h.current, h.now().Sub(h.moved)
}

// freeze ends a frozen watch, and forces a new list. It does nothing if the watch has ended by itself.
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

// away returns the time without a watch, 0 if one is open, and the last error.
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

// watchdog distinguishes a frozen watch, a quiet one, and a lost API server. If a watch has been quiet for long, it probes
// the server with a request that a working server can only answer when its watches are up to date. If the watch stays
// quiet although the server has answered, the watch is frozen: it is replaced, and the resource is not in step until a new
// list has been stored. If the server does not answer, it is away: the records stay in use.
func (r *resource) watchdog(ctx context.Context) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	var state watching
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.check(ctx, &state)
		}
	}
}

// consequence is the effect of a missing watch on answers, for log lines: after the first complete list, and before it.
type consequence struct{ synced, unsynced string }

func consequenceFor(name string, o source.Options) consequence {
	c := consequence{"answering from the last known state", "answering SERVFAIL until it has been read"}
	switch {
	case name == source.Nodes:
		c.unsynced = "callers may be unknown until they have been read, and empty topology results return SERVFAIL"
	case name == source.ServiceImports:
		c.unsynced = "answering names of clusterset zones with SERVFAIL until they have been read"
	case name == source.ClusterProperties:
		c = consequence{"using the last known ID of this cluster", "the ID of this cluster is not known until they have been read"}
	case o.PodsOnly:
		c = consequence{"their last known state is used for a few minutes", "no search path is expanded until they have been read"}
	}
	return c
}

// watching is the state of the watchdog between its checks.
type watching struct {
	answered time.Duration // the silence at which the server answered a probe; 0 if it was not probed
	mute     bool          // it has been logged that the server does not answer
	lost     bool          // the loss of the API server has been logged
}

func (r *resource) check(ctx context.Context, state *watching) {
	r.reportLoss(state)
	w, silent := r.health.silence()
	switch {
	case silent < quietAfter:
		state.answered, state.mute = 0, false
	case state.answered == 0:
		err := r.probe(ctx)
		r.health.wasProbed(err)
		if err == nil {
			state.answered, state.mute = silent, false
			return
		}
		if !state.mute {
			r.log.Warningf("%s: no event of the watch for %s, and the API server %s does not answer: %v; %s",
				r.name, silent.Round(time.Second), r.host, err, r.consequence.synced)
		}
		state.mute = true
	case silent > state.answered+frozenAfter:
		r.log.Errorf("%s: the watch is frozen: nothing for %s, though the API server %s answers; listing again", r.name, silent.Round(time.Second), r.host)
		watchesFrozen.WithLabelValues(r.name).Inc()
		state.answered = 0
		r.health.freeze(w)
	}
}

// probe lists one object, in a way that the server answers from its newest state.
func (r *resource) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, err := r.request(metav1.ListOptions{Limit: 1}, r.acceptList).Do(ctx).Get()
	return err
}

// reportLoss logs once that the API server is away, and once that it is back.
func (r *resource) reportLoss(state *watching) {
	away, failure := r.health.away()
	switch {
	case away > lostAfter && !state.lost:
		state.lost = true
		effect := r.consequence.synced
		if !r.health.status(r.name).Synced {
			effect = r.consequence.unsynced
		}
		r.log.Warningf("%s: no watch on the API server %s for %s; %s; last error: %v", r.name, r.host, away.Round(time.Second), effect, failure)
	case away == 0 && state.lost:
		state.lost = false
		if r.health.isMissing() {
			r.log.Infof("%s: the API server %s answers again", r.name, r.host)
			return
		}
		r.log.Infof("%s: watching the API server %s again", r.name, r.host)
	}
}

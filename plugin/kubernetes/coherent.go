package kubernetes

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// offering offers sessions to node caches while a configuration with option coherent serves. Heartbeats depend on its
// handler from the first to the last answer.
type offering struct {
	k        *Kubernetes
	registry *push.Registry

	mu       sync.Mutex
	ended    bool
	withdraw func() // nil without an offer
}

// begin is called before the handler answers. obstacle is the reason why no session can be accepted, "" without one.
func (o *offering) begin(obstacle string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended { // a signal has ended the process during the start
		return
	}
	views.add(o.k)
	switch {
	case !o.k.coherent:
	case obstacle != "":
		log.Warningf("coherent has no effect: %s; node caches use TTLs", obstacle)
	default:
		o.withdraw = o.registry.Offer(views.areLive)
	}
}

// end is called when the configuration has ended.
func (o *offering) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	if o.withdraw != nil {
		o.withdraw()
	}
	views.remove(o.k)
}

// sessionObstacle returns the reason why no session can carry answers of a server block, "" without one. It is called when
// the configuration starts.
func sessionObstacle(e block.Eligibility) string {
	if runtime.GOOS != "linux" {
		return "the fast path, which carries the sessions, needs Linux"
	}
	switch {
	case e.Prevented != "":
		return "no fast path, which carries the sessions, for this server block: " + e.Prevented
	case !e.ByGeneration:
		return "plugin " + e.Silent + " may answer before kubernetes, and its changes are not notified"
	}
	return ""
}

// views are the views of the cluster from which this process answers. A heartbeat is for all answers of a session, so that
// all views count, also of blocks without option coherent.
var views handlers

// handlers are handlers that answer queries.
type handlers struct {
	mu      sync.Mutex
	all     []*Kubernetes
	stopped time.Time // when the views ceased to be live, zero while they are
	lines   []func()  // to be logged, in this order
}

// maxLines is the number of log lines that wait while the output of the process is blocked. Further ones are omitted.
const maxLines = 16

// report has a line logged by another goroutine: the caller notifies sessions, and must not wait. The mutex is locked.
func (v *handlers) report(line func()) {
	if len(v.lines) == maxLines {
		return
	}
	if v.lines = append(v.lines, line); len(v.lines) == 1 {
		go v.writeLines()
	}
}

// writeLines logs lines until none is left.
func (v *handlers) writeLines() {
	for line := v.lineAfter(0); line != nil; line = v.lineAfter(1) {
		line()
	}
}

// lineAfter removes a number of logged lines, and returns the next line, nil without one.
func (v *handlers) lineAfter(logged int) func() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.lines = v.lines[logged:]; len(v.lines) == 0 {
		return nil
	}
	return v.lines[0]
}

func (v *handlers) add(k *Kubernetes) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = append(v.all, k)
}

func (v *handlers) remove(k *Kubernetes) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all = slices.DeleteFunc(v.all, func(other *Kubernetes) bool { return other == k })
}

// areLive reports whether all views are current as far as the sources can know. It is called for each heartbeat, and waits for
// nothing.
func (v *handlers) areLive() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, k := range v.all {
		if reason := k.outdated(); reason != "" {
			if v.stopped.IsZero() {
				v.stopped = time.Now()
				v.report(func() { log.Warningf("coherent: no heartbeats to node caches, which use TTLs: %s", reason) })
			}
			return false
		}
	}
	if !v.stopped.IsZero() {
		away := time.Since(v.stopped).Round(time.Second)
		v.report(func() {
			log.Infof("coherent: the view of the cluster is current again after %s: heartbeats continue", away)
		})
		v.stopped = time.Time{}
	}
	return true
}

// outdated returns the reason why answers may be outdated, "" without one. The source reads only resources that answers
// depend on, so that each of them counts.
func (k *Kubernetes) outdated() string {
	for _, s := range k.status() {
		if state := unlive(s); state != "" {
			return fmt.Sprintf("%s: %s", s.Resource, state)
		}
	}
	return ""
}

// unlive returns the reason why the records of a resource may be outdated, "" without one.
func unlive(s source.Status) string {
	switch {
	case s.Denied:
		return "the API server refuses access"
	case !s.Synced:
		return "not synced"
	case s.Frozen:
		return "the watch is frozen"
	case s.Uncertain:
		return "the source does not answer, changes may be missing"
	}
	return ""
}

package apiserver

import "time"

// probeEnds is the silence of an open watch after which a probe has been answered or has failed, if the watchdog runs.
const probeEnds = quietAfter + checkEvery + probeTimeout

// isUncertain reports whether changes of the cluster may be missing: there has been no watch for long, or the open one has
// been silent for long and the server does not answer. Short gaps between two watches are usual: the server ends each watch
// after some minutes. The mutex is locked, as in fallsBehind and catchesUp.
func (h *health) isUncertain() bool {
	now := h.now()
	switch {
	case !h.behind.IsZero():
		return now.Sub(h.behind) > lostAfter
	case h.current == nil: // the server does not have the resource
		return false
	case h.unheard:
		return true
	}
	return now.Sub(h.moved) > probeEnds && now.Sub(h.probed) > probeEnds
}

// fallsBehind records the end of a watch. A short watch without any event does not prove that changes were reported, as
// behind a proxy that accepts watches while the server is away.
func (h *health) fallsBehind(t *tracked) {
	switch now := h.now(); {
	case !h.behind.IsZero():
	case !t.behind.IsZero() && !h.last.After(t.opened) && now.Sub(t.opened) < lostAfter:
		h.behind = t.behind
	default:
		h.behind = now
	}
}

// catchesUp records a complete list, an event or a bookmark. After a list, changes may be missing again until a watch is
// open.
func (h *health) catchesUp() {
	h.behind = time.Time{}
	if h.current == nil {
		h.behind = h.last
	}
}

// wasProbed records the result of a probe.
func (h *health) wasProbed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.unheard = err != nil
	if err == nil {
		h.probed = h.now()
	}
}

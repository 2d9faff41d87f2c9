package apiserver

import (
	"context"
	"net/http"
	"time"
)

// shortWatch is the time for which a watch must be open to count as progress.
const shortWatch = time.Second

// client-go 0.37 repeats some watches without a pause, and its rate limiter does not count watches: a streamed list that is answered with
// 410 or a version that is too large, or that ends before the list does, and a watch that ends at once after an event. So a watch without
// progress makes the next one wait, whatever its error is. Only a stored list, or a watch that lasts, ends that.

// watchFailed records a watch without progress. The next one may follow at once, as from another version; each further one waits longer.
func (h *health) watchFailed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stalls()
}

// watchEnds records the end of an open watch. The mutex is locked, as in stalls and progresses.
func (h *health) watchEnds(t *tracked) {
	if !t.list && h.now().Sub(t.opened) >= shortWatch {
		h.progresses()
		return
	}
	h.stalls()
}

func (h *health) stalls() {
	h.notBefore = h.now().Add(h.pause)
	h.pause = h.backoff.Step()
}

func (h *health) progresses() { h.pause, h.backoff, h.notBefore = 0, h.repeats, time.Time{} }

// untilWatch returns the time until a watch may be requested, not positive without a pause, and whether it repeats one without
// progress.
func (h *health) untilWatch() (wait time.Duration, repeats bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.notBefore.Sub(h.now()), !h.notBefore.IsZero()
}

// awaitTurn waits until a watch may be requested, and returns an error if ctx ends first. The first watch of a resource, and one after
// progress, passes no limiter, as in client-go: the start would wait for the others of the process.
func (r *resource) awaitTurn(ctx context.Context, host string) error {
	d, repeats := r.health.untilWatch()
	if !repeats {
		return nil
	}
	if d > 0 {
		pause := time.NewTimer(d)
		defer pause.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		}
	}
	began := time.Now()
	err := r.client.GetRateLimiter().Wait(ctx)
	rateLimiterDuration.WithLabelValues(http.MethodGet, labelValue(host)).Observe(time.Since(began).Seconds())
	return err
}

package apiserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// shortWatch is the time for which a watch must be open to count as progress.
const shortWatch = time.Second

// reflectorPause is the pause of client-go's reflector after each failure, with jitter up to its double. Its own pauses grow to 60 s also
// while the API server cannot be reached, and it makes none before some watches, which its rate limiter does not count: a streamed list
// that is answered with 410 or a version that is too large, or that ends before the list does, and a watch that ends at once after an
// event. So a request without progress makes the next one wait, by its error. Only a stored list, or a watch that lasts, ends that.
var reflectorPause = wait.Backoff{Duration: 50 * time.Millisecond, Jitter: 1}

// pauses are those before a list or a watch is repeated. They double, with jitter.
type pauses struct {
	away    wait.Backoff // without an answer: no change is seen in the last of them although the API server is back
	refused wait.Backoff // after an answer: other clients have it too
}

// pauses returns the pauses before a list or a watch is repeated.
func (p pace) pauses() pauses {
	all := wait.Backoff{Duration: p.retry, Factor: 2, Jitter: 1, Steps: 10}
	away, refused := all, all
	away.Cap, refused.Cap = p.maxAway, p.maxRefused
	return pauses{away, refused}
}

// requestFailed records a list or a watch without progress. The next one may follow at once, as from another version; each further one
// waits longer.
func (h *health) requestFailed(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stalls(err)
}

// watchEnds records the end of an open watch. The mutex is locked, as in stalls and progresses.
func (h *health) watchEnds(t *tracked) {
	if !t.list && h.now().Sub(t.opened) >= shortWatch {
		h.progresses()
		return
	}
	h.stalls(nil)
}

// stalls makes the next request wait after an error, nil if the API server has answered. Without Retry-After, the first one of a kind
// has no pause.
func (h *health) stalls(err error) {
	var status apierrors.APIStatus
	if away := err != nil && !errors.As(err, &status); away != h.unreachable {
		h.progresses()
		h.unreachable = away
		if away {
			h.backoff = h.pauses.away
		}
	}
	pause := h.pause
	h.pause = h.backoff.Step()
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
		pause = max(pause, wait.Jitter(time.Duration(seconds)*time.Second, 1))
	}
	h.notBefore = h.now().Add(pause)
}

func (h *health) progresses() {
	h.unreachable, h.pause, h.backoff, h.notBefore = false, 0, h.pauses.refused, time.Time{}
}

// untilRequest returns the time until a list or a watch may be requested, not positive without a pause, and whether it repeats one without
// progress.
func (h *health) untilRequest() (wait time.Duration, repeats bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.notBefore.Sub(h.now()), !h.notBefore.IsZero()
}

// awaitPause waits until a list or a watch may be requested, and returns an error if ctx ends first. The first request of a resource, and one
// after progress, passes no limiter, as watches in client-go: the start would wait for the others of the process.
func (r *resource) awaitPause(ctx context.Context, host string) error {
	d, repeats := r.health.untilRequest()
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

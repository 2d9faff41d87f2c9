//go:build linux

package coherence

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// wallClock observes the wall clock of a program.
type wallClock struct {
	program   string
	transport http.RoundTripper // of requests, nil for the default one
	last      time.Time
	setBack   int // the number of times
}

// show records a time that the clock showed after the last one.
func (w *wallClock) show(at time.Time) {
	if at.Before(w.last) {
		w.setBack++
	}
	w.last = at
}

// read records the times at which a clusterdns made changes.
func (w *wallClock) read(events []event) {
	for _, e := range events {
		w.show(time.Unix(e.Wall, 0))
	}
}

// RoundTrip implements http.RoundTripper for requests to the program, whose response has the time of its clock.
func (w *wallClock) RoundTrip(r *http.Request) (*http.Response, error) {
	transport := w.transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if at, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		w.show(at)
	}
	return response, nil
}

// TestWallClock checks that a clock which is set back is noticed, in changes and in responses.
func TestWallClock(t *testing.T) {
	for _, tc := range []struct {
		hours []int64
		want  int
	}{{[]int64{1, 1, 2}, 0}, {[]int64{1, 2, 1, 2, 2, 1}, 2}} {
		var read, scraped wallClock
		var hour atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", time.Unix(3600*hour.Load(), 0).UTC().Format(http.TimeFormat))
		}))
		p := &program{metrics: strings.TrimPrefix(server.URL, "http://")}
		var events []event
		for _, n := range tc.hours {
			events = append(events, event{Wall: 3600 * n})
			hour.Store(n)
			p.samples(t)
		}
		server.Close()
		read.read(events)
		if scraped = p.clock; read.setBack != tc.want || scraped.setBack != tc.want {
			t.Errorf("%v: set back %d and %d times, want %d", tc.hours, read.setBack, scraped.setBack, tc.want)
		}
	}
}

// Package zipkin is a Zipkin collector for tests. Input is requests of the Zipkin API, version 2; output is the spans, and the
// tree of a trace as text.
package zipkin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// Span is a span as it is sent.
type Span struct {
	TraceID, ID, ParentID string
	Name, Kind            string
	Shared                bool
	Timestamp, Duration   int64 // in microseconds
	Tags                  map[string]string
	Annotations           []struct{ Value string }
	LocalEndpoint         struct {
		ServiceName, IPv4, IPv6 string
		Port                    int
	}
}

// Collector is a running collector.
type Collector struct {
	// URL is that of the collector, without the path of the API.
	URL string

	mu       sync.Mutex
	changed  chan struct{} // closed at the next change
	spans    []Span
	requests int
	status   int
	held     chan struct{} // requests wait until it is closed; nil for none
	ended    int           // requests whose client has not waited
}

// path is that of the API.
const path = "/api/v2/spans"

// New returns a collector that runs until the end of the test.
func New(t testing.TB) *Collector {
	t.Helper()
	return NewAt(t, "127.0.0.1:0")
}

// NewAt is New at an address.
func NewAt(t testing.TB, address string) *Collector {
	t.Helper()
	l, err := net.Listen("tcp", address)
	kit.Must(t, err)
	c := &Collector{changed: make(chan struct{}), status: http.StatusAccepted}
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: c, ReadHeaderTimeout: patience}}
	server.Start()
	t.Cleanup(func() {
		c.Release()
		server.Close()
	})
	c.URL = server.URL
	return c
}

// Address returns the host and port.
func (c *Collector) Address() string { return strings.TrimPrefix(c.URL, "http://") }

// ServeHTTP implements http.Handler.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var spans []Span
	if err := json.NewDecoder(r.Body).Decode(&spans); err != nil || r.Method != http.MethodPost || r.URL.Path != path || r.Header.Get("Content-Type") != "application/json" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	held, status := c.held, c.status
	c.requests++
	c.change()
	c.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-r.Context().Done():
			c.mu.Lock()
			defer c.mu.Unlock()
			c.ended++
			c.change()
			return
		}
	}
	if status == http.StatusAccepted {
		c.mu.Lock()
		c.spans = append(c.spans, spans...)
		c.change()
		c.mu.Unlock()
	}
	w.WriteHeader(status)
}

func (c *Collector) change() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Answer sets the status of the next replies. Only spans of requests with the status 202 count.
func (c *Collector) Answer(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.status = status
}

// Hold has the next requests wait for their replies until Release.
func (c *Collector) Hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held = make(chan struct{})
}

// Release ends Hold.
func (c *Collector) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held != nil {
		close(c.held)
		c.held = nil
	}
}

// State is the requests that a collector has received, and their spans.
type State struct {
	Spans    []Span
	Requests int
	Ended    int // held requests whose client has not waited
}

// patience bounds the wait for spans.
const patience = 30 * time.Second

// Await waits until the received requests satisfy a condition.
func (c *Collector) Await(t testing.TB, what string, enough func(State) bool) State {
	t.Helper()
	end := time.After(patience)
	for {
		c.mu.Lock()
		s, changed := State{slices.Clone(c.spans), c.requests, c.ended}, c.changed
		c.mu.Unlock()
		if enough(s) {
			return s
		}
		select {
		case <-changed:
		case <-end:
			t.Fatalf("collector: no %s in %d requests with %d spans:\n%s", what, s.Requests, len(s.Spans), Tree(s.Spans))
		}
	}
}

// Roots returns the spans without a parent that have a tag.
func (s State) Roots(tag, value string) (all []Span) {
	for _, span := range s.Spans {
		if span.ParentID == "" && span.Tags[tag] == value {
			all = append(all, span)
		}
	}
	return all
}

// Traces waits for a number of traces whose root has a tag, and returns the spans of each, in the order in which the traces begin.
func (c *Collector) Traces(t testing.TB, number int, tag, value string) (traces [][]Span) {
	t.Helper()
	s := c.Await(t, fmt.Sprintf("%d traces of %s", number, value), func(s State) bool { return len(s.Roots(tag, value)) >= number })
	roots := s.Roots(tag, value)
	slices.SortStableFunc(roots, func(a, b Span) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
	for _, root := range roots {
		traces = append(traces, slices.DeleteFunc(slices.Clone(s.Spans), func(span Span) bool { return span.TraceID != root.TraceID }))
	}
	return traces
}

// Tree returns spans as text: a line for each with its name and tags, below its parent and indented. Spans whose parent is
// missing are marked.
func Tree(spans []Span) string {
	children := map[string][]Span{}
	known := map[string]bool{"": true}
	for _, s := range spans {
		known[s.ID] = true
	}
	for _, s := range spans {
		parent := s.ParentID
		if !known[parent] {
			s.Name, parent = "without parent "+s.ParentID+": "+s.Name, ""
		}
		children[parent] = append(children[parent], s)
	}
	var text strings.Builder
	var add func(parent, indent string)
	add = func(parent, indent string) {
		below := children[parent]
		slices.SortStableFunc(below, func(a, b Span) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
		for _, s := range below {
			fmt.Fprintf(&text, "%s%s", indent, s.Name)
			for _, tag := range slices.Sorted(maps.Keys(s.Tags)) {
				fmt.Fprintf(&text, " %s=%s", tag, s.Tags[tag])
			}
			text.WriteString("\n")
			add(s.ID, indent+"  ")
		}
	}
	add("", "")
	return text.String()
}

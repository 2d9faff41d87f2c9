package expand

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// result is the result of an expansion.
type result int

const (
	success   result = iota
	noData           // a candidate exists, without data of the queried type
	nameError        // no candidate exists
	failure          // no candidate has data, and queries for some have failed
)

var resultNames = [...]string{"success", "nodata", "nxdomain", "failure"}

// Metrics counts the expansions of a plugin by result and server.
type Metrics struct {
	expansions *prometheus.CounterVec
	saved      *prometheus.CounterVec
	// Found counts expansions that have found a name, by server; it may be nil.
	Found *prometheus.CounterVec

	counters sync.Map // *counter by counterKey
}

// counterKey are all labels of a counter.
type counterKey struct {
	server string
	labels expansionLabels
}

// NewMetrics registers and returns the counters of a plugin. It must be called once for a subsystem.
func NewMetrics(subsystem string) *Metrics {
	return &Metrics{
		expansions: promauto.NewCounterVec(prometheus.CounterOpts{
			Namespace: "nearside", Subsystem: subsystem, Name: "expansions_total",
			Help: "Queries answered by walking the candidates of a search list, by outcome (success, nodata, nxdomain, failure) and position of the candidate that was found, from 0; bare: the bare name, none: no candidate.",
		}, []string{"server", "outcome", "position"}),
		saved: promauto.NewCounterVec(prometheus.CounterOpts{
			Namespace: "nearside", Subsystem: subsystem, Name: "queries_saved_total",
			Help: "Queries that clients would have sent before the one for the name that was found.",
		}, []string{"server"}),
	}
}

// expansionLabels are the metric labels of an expansion.
type expansionLabels struct {
	result   result
	found    bool // a candidate was found
	position int  // of the candidate
	bare     bool // the candidate is the bare name
}

func (o *outcome) labels() expansionLabels {
	return expansionLabels{o.result, o.owner != "", o.position, o.bare}
}

// counter counts expansions with the same labels on one server.
type counter struct {
	expansions, saved, found prometheus.Counter
	position                 float64
}

// Inc counts an expansion.
func (c *counter) Inc() {
	c.expansions.Inc()
	if c.position > 0 {
		c.saved.Add(c.position)
	}
	if c.found != nil {
		c.found.Inc()
	}
}

// counter returns the counter of a server for expansions with some labels.
func (m *Metrics) counter(server string, labels expansionLabels) *counter {
	key := counterKey{server, labels}
	if known, ok := m.counters.Load(key); ok {
		return known.(*counter)
	}
	c := m.newCounter(server, labels)
	m.counters.Store(key, c)
	return c
}

func (m *Metrics) newCounter(server string, labels expansionLabels) *counter {
	position := "none"
	c := &counter{saved: m.saved.WithLabelValues(server)}
	if labels.found {
		c.position = float64(labels.position)
		if position = strconv.Itoa(labels.position); labels.bare {
			position = "bare"
		}
		if m.Found != nil {
			c.found = m.Found.WithLabelValues(server)
		}
	}
	c.expansions = m.expansions.WithLabelValues(server, resultNames[labels.result], position)
	return c
}

// First returns the counter of a server for expansions that find the first candidate.
func (m *Metrics) First(server string) store.Counter {
	return m.counter(server, expansionLabels{result: success, found: true})
}

// hitCounter counts the hits of a stored answer as expansions. It implements store.ServerCounter.
type hitCounter struct {
	metrics  *Metrics
	labels   expansionLabels
	counters atomic.Pointer[[]serverCounter]
}

type serverCounter struct {
	server  string
	counter *counter
}

// Counter implements store.ServerCounter.
func (h *hitCounter) Counter(server string) store.Counter {
	var known []serverCounter
	if all := h.counters.Load(); all != nil {
		known = *all
	}
	for _, s := range known {
		if s.server == server {
			return s.counter
		}
	}
	c := h.metrics.counter(server, h.labels)
	known = append(slices.Clip(known), serverCounter{server, c})
	h.counters.Store(&known) // a concurrent addition may be lost; the next hit repeats it
	return c
}

package expand

import (
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// result is what an expansion came to.
type result int

const (
	success   result = iota
	noData           // the name exists that was found, without data of the type asked for
	nameError        // no candidate exists
	failure          // no candidate has data, and some could not be asked
)

var resultNames = [...]string{"success", "nodata", "nxdomain", "failure"}

// Results counts what expansions of a plugin come to, on each server.
type Results struct {
	expansions *prometheus.CounterVec
	saved      *prometheus.CounterVec
	// Also counts those that have found a name, by server, if it is there.
	Also *prometheus.CounterVec
}

// NewResults returns the counters of a plugin, which are made once in a process.
func NewResults(subsystem string) *Results {
	return &Results{
		expansions: promauto.NewCounterVec(prometheus.CounterOpts{
			Namespace: "nearside", Subsystem: subsystem, Name: "expansions_total",
			Help: "Queries that were answered by trying the names of a search list, by outcome (success, nodata, nxdomain, failure) and the place in the list of the name that was found, from 0; bare is the name as such, and none that none was found.",
		}, []string{"server", "outcome", "position"}),
		saved: promauto.NewCounterVec(prometheus.CounterOpts{
			Namespace: "nearside", Subsystem: subsystem, Name: "queries_saved_total",
			Help: "Queries that clients would have sent before the one for the name that was found.",
		}, []string{"server"}),
	}
}

// came is what an expansion came to, as it is counted.
type came struct {
	result   result
	found    bool // a name of the list was
	position int  // of that
	bare     bool // it is the last one
}

func (o *outcome) came() came { return came{o.result, o.owner != "", o.position, o.bare} }

// counter counts expansions that come to the same.
type counter struct {
	expansions, saved, also prometheus.Counter
	position                float64
}

// Inc counts one.
func (c *counter) Inc() {
	c.expansions.Inc()
	if c.position > 0 {
		c.saved.Add(c.position)
	}
	if c.also != nil {
		c.also.Inc()
	}
}

// on returns what counts on a server.
func (x *Results) on(server string, what came) *counter {
	position := "none"
	c := &counter{saved: x.saved.WithLabelValues(server)}
	if what.found {
		c.position = float64(what.position)
		if position = strconv.Itoa(what.position); what.bare {
			position = "bare"
		}
		if x.Also != nil {
			c.also = x.Also.WithLabelValues(server)
		}
	}
	c.expansions = x.expansions.WithLabelValues(server, resultNames[what.result], position)
	return c
}

// First returns what counts on a server that the first name of the list was found.
func (x *Results) First(server string) answers.Counter {
	return x.on(server, came{result: success, found: true})
}

// kept counts how often an answer is given that is kept. It implements store.ServerCounter.
type kept struct {
	results *Results
	what    came
	servers atomic.Pointer[[]onServer] // those that have given it
}

type onServer struct {
	server  string
	counter *counter
}

// On implements store.ServerCounter.
func (k *kept) On(server string) answers.Counter {
	var known []onServer
	if all := k.servers.Load(); all != nil {
		known = *all
	}
	for _, s := range known {
		if s.server == server {
			return s.counter
		}
	}
	c := k.results.on(server, k.what)
	known = append(slices.Clip(known), onServer{server, c})
	k.servers.Store(&known) // if another is lost that came meanwhile, it comes again
	return c
}

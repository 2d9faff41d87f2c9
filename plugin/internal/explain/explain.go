// Package explain records how one query is answered, step by step, for the command explain of both programs. Plugins add steps to the
// trace in the context of a query; other queries have none. It imports no other package of the project.
package explain

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Query is a query to explain.
type Query struct {
	Name   string // fully qualified
	Type   uint16
	Client netip.Addr // whose query it would be
	TCP    bool
	// Node and Zone are those of the caller option (package caller) that the query has, "" for none. The option of an explained query is
	// to be trusted, whatever the client's address: the query is from this machine.
	Node, Zone string
}

// Step is an event on the way of a query.
type Step struct {
	At     time.Duration // since the query
	Plugin string        // or part of the program
	Text   string
}

// Trace has the steps of a query. The methods of a nil Trace, that of an ordinary query, do nothing.
type Trace struct {
	query Query
	began time.Time

	mu    sync.Mutex
	steps []Step
}

// New returns a trace of a query that begins now.
func New(q Query) *Trace { return &Trace{query: q, began: time.Now()} }

// Query returns the query that is explained, the zero Query for an ordinary one.
func (t *Trace) Query() Query {
	if t == nil {
		return Query{}
	}
	return t.query
}

// Add adds a step.
func (t *Trace) Add(plugin, format string, args ...any) {
	if t == nil {
		return
	}
	s := Step{At: time.Since(t.began), Plugin: plugin, Text: fmt.Sprintf(format, args...)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.steps = append(t.steps, s)
}

// Steps returns the steps in their order.
func (t *Trace) Steps() []Step {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Step(nil), t.steps...)
}

type traceKey struct{}

// With returns a context with a trace.
func With(ctx context.Context, t *Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// From returns the trace in a context, nil without one.
func From(ctx context.Context) *Trace {
	t, _ := ctx.Value(traceKey{}).(*Trace)
	return t
}

// Explanation is how a query is answered.
type Explanation struct {
	Query  Query
	Server string // address of the listener
	Zone   string // of the server block, "" for none
	Steps  []Step
	Took   time.Duration
	Reply  *dns.Msg // nil for no reply
	// FastPath is the comparison with the answer from the store: the same bytes, or the reason for the difference.
	FastPath string
}

// Lister is a plugin that knows the search lists of clients.
type Lister interface {
	// SearchListOf returns the suffixes of a client's search list and their origin, or nil and the reason why the list is unknown.
	SearchListOf(client netip.Addr) (suffixes []string, origin string)
}

// Server explains queries. The fast path is one; see Register.
type Server interface {
	// Explain returns the explanation of a query by each listener whose server blocks may be meant.
	Explain(ctx context.Context, q Query) ([]Explanation, error)
	// SearchListOf returns the search list of a client as Lister does, by the first server block that has a Lister.
	SearchListOf(client netip.Addr) (suffixes []string, origin string)
}

var (
	serverMu sync.Mutex
	server   Server
)

// Register sets the server of the process. It is called in init.
func Register(s Server) {
	serverMu.Lock()
	defer serverMu.Unlock()
	server = s
}

// Registered returns the server of the process, nil without one.
func Registered() Server {
	serverMu.Lock()
	defer serverMu.Unlock()
	return server
}

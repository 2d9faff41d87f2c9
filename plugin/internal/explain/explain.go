// Package explain records how one query is answered, step by step, for the command explain of both programs. Plugins add steps to the
// trace in the context of a query; other queries have none. It imports CoreDNS, and no other package of the project.
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
	Client netip.Addr // the client that would send the query
	TCP    bool
	// Node and Zone are the names in the query's caller option (package caller), "" for none. The option of an explained query is to
	// be trusted, whatever the client's address: the query is from this machine.
	Node, Zone string
}

// Step is an event on the way of a query.
type Step struct {
	At     time.Duration // since the trace began
	Plugin string        // or part of the program
	Text   string
}

// Trace has the steps of a query. An ordinary query has a nil Trace, of which Query, Add and Steps do nothing.
type Trace struct {
	query Query
	began time.Time

	mu    sync.Mutex
	steps []Step
	open  []*span // of the plugins that have received the query and have not returned
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
	s := Step{Plugin: plugin, Text: fmt.Sprintf(format, args...)}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.At = time.Since(t.began) // with the lock: steps are in the order of their times
	t.steps = append(t.steps, s)
}

// Elapsed returns the time since the trace began.
func (t *Trace) Elapsed() time.Duration { return time.Since(t.began) }

// Describe describes a reply: its code and the number of its records.
func Describe(m *dns.Msg) string {
	return fmt.Sprintf("%s, %d records", dns.RcodeToString[m.Rcode], len(m.Answer))
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
	Took   time.Duration // from the beginning of the trace to the end of the query
	Reply  *dns.Msg      // nil for no reply
	// FastPath is the comparison with the answer that the store had before the query: the same bytes, or the reason for the difference.
	FastPath string
}

// SearchListProvider is a plugin that knows the search lists of clients.
type SearchListProvider interface {
	// SearchListOf returns the suffixes of a client's search list, the option ndots of its resolver, and their origin; or nil and the reason
	// why the list is unknown.
	SearchListOf(client netip.Addr) (suffixes []string, ndots int, origin string)
}

// Server explains queries. The fast path is one; see Register.
type Server interface {
	// Explain returns an explanation of a query for each server block to which a listener dispatches the name.
	Explain(ctx context.Context, q Query) ([]Explanation, error)
	// SearchListOf returns the search list of a client as SearchListProvider does: by the server block of a name, otherwise by the first
	// block that knows it, in the order of listeners and zones.
	SearchListOf(client netip.Addr, name string) (suffixes []string, ndots int, origin string)
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

// Package transport carries queries to one upstream server and its answers back: over TCP and TLS connections that
// many queries share (RFC 7766 section 6.2.1.1), over UDP, or by a function. Input: packed queries; output:
// packed answers whose id and question were checked, including the case of the name. It is independent of plugins and
// records: it may import neither CoreDNS nor package dns.
package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Carrier sends queries to an upstream. Its methods may be called concurrently.
type Carrier interface {
	// Send sends a query. The call is sent to its channel exactly once, unless it is cancelled.
	Send(*Call)
	// Cancel ends a call. It may be in its channel already.
	Cancel(*Call)
	// Late reports that a call has waited for longer than a working upstream needs.
	Late(*Call)
	// Close closes the connections after the queries in flight. Further queries are sent on connections that close
	// after them.
	Close()
}

// Call is a query in flight. A call is used once.
type Call struct {
	Query    []byte       // packed, with one question; not changed, and its id not used
	Deadline time.Time    // of an answer
	Done     chan<- *Call // with room for the call
	// Alone requests a connection without other queries, for a transfer of many messages. The first message is the answer.
	Alone bool

	Reply []byte // with the id of the query
	Err   error  // the reason for no reply

	question int       // length of header and question in bytes
	earlier  *Call     // whose connection is avoided; nil once the call is sent
	avoid    *conn     // the last connection of the call
	flights  []*flight // the connections of the call
	first    [1]*flight
	socket   *socket            // of the call, over UDP
	cancel   context.CancelFunc // of a Func
	waits    bool               // for room on a connection
	moves    int                // lost connections
	ended    bool
}

// Elsewhere makes a call avoid the connection of an earlier call to the same upstream.
func (c *Call) Elsewhere(earlier *Call) { c.earlier = earlier }

// ErrBusy reports that a limit of queries in flight to the upstream is reached.
var ErrBusy = errors.New("too many queries in flight")

// ErrWrongAnswer is the error of a Func that receives an answer to another question.
var ErrWrongAnswer = errors.New("answer to another question")

var (
	errQuery  = errors.New("not a query with one question")
	errClosed = errors.New("connection closed before the answer")
)

// Metrics are the metrics of a carrier.
type Metrics struct {
	Connections prometheus.Gauge    // open
	InFlight    prometheus.Gauge    // queries sent and not answered
	Depth       prometheus.Observer // queries on a connection, including the one that is sent
	Hits        prometheus.Counter  // queries on an existing connection
	Misses      prometheus.Counter  // queries on a new connection
	Late        prometheus.Counter  // answers to cancelled queries
	Single      prometheus.Counter  // changes to one query per connection
	Sent        prometheus.Counter  // packets
	Received    prometheus.Counter  // packets

	Dropped map[string]prometheus.Counter // answers, by each of DropReasons
}

// Reasons to drop an answer. An early one was received on an idle UDP socket, which is closed then; it counts once,
// however many there were.
const (
	WrongID       = "id"
	WrongQuestion = "question"
	WrongCase     = "case"
	Malformed     = "malformed"
	Early         = "early"
)

// DropReasons returns all reasons to drop an answer.
func DropReasons() []string { return []string{WrongID, WrongQuestion, WrongCase, Malformed, Early} }

// prepare reports whether the query has one question.
func (c *Call) prepare() bool {
	c.question = questionEnd(c.Query)
	return c.question > 0
}

// finish sends the call to its channel. The caller holds the carrier's mutex.
func (c *Call) finish(reply []byte, err error) {
	if c.ended {
		return
	}
	c.ended = true
	if reply != nil {
		copy(reply, c.Query[:2])
	}
	c.Reply, c.Err = reply, err
	c.Done <- c
}

// setID sets the id of a message, RFC 1035 section 4.1.1.
func setID(message []byte, id uint16) { binary.BigEndian.PutUint16(message, id) }

// Package transport carries queries to one upstream server and its answers back: over TCP and TLS connections that
// many queries share (RFC 7766 section 6.2.1.1), over UDP, or by a function. Input: packed queries; output:
// packed answers whose id and question were checked, over UDP including the case of the name. It is independent of plugins and
// records: it may import neither CoreDNS nor package dns.
package transport

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// Carrier sends queries to an upstream. Its methods may be called concurrently, and call no Owner before they return.
type Carrier interface {
	// Send sends a query, possibly when the batch is flushed. After an error the call has ended. Otherwise its owner is
	// called exactly once, unless the call is cancelled before.
	Send(b *batch.Batch, call *Call) error
	// Cancel ends a call: its owner is not called, and the call may be reused. Cancel returns false if the call has ended
	// already: its owner was called, or is called soon.
	Cancel(*Call) bool
	// Capacity returns the number of queries that should be in flight at most. A server that needs one connection for each
	// query has less than others.
	Capacity() int
	// Late tells the Carrier that a call has waited for longer than a working upstream needs.
	Late(*Call)
	// Close closes the connections after the queries in flight. Further queries are sent on connections that close
	// after them.
	Close()
}

// Owner receives the ends of its calls.
type Owner interface {
	// Ended is called from any goroutine when a call has an answer or an error, without a lock of the carrier. The carrier
	// does not use the call any more. Its Reply is valid until Ended returns, and may be changed. The batch belongs to the
	// calling goroutine, which flushes it soon.
	Ended(b *batch.Batch, call *Call)
}

// Call is a query in flight. It may be reused after its end, with its fields reset.
type Call struct {
	Query    []byte    // packed, with one question; not changed, and its id not used
	Deadline time.Time // of an answer, for carriers with a goroutine for each query
	Owner    Owner
	// Alone requests a connection without other queries: for a transfer of many messages, of which the first is the answer, and
	// for a query because of which the server may close the connection. Such a close shows nothing about the server.
	Alone bool
	// AnyCase accepts a reply over UDP whose question has another case; the query has the name in lower case. Over other transports,
	// which are hard to forge, such a reply is always accepted.
	AnyCase bool
	// Signed is set for a query with a signature: signatures cover the names of query and reply, whose case is not changed.
	Signed bool

	Reply []byte // with the id of the query; only for Owner.Ended
	// Voucher is the voucher of the handles in the reply, or that of WithoutSession for a query sent before a session was open;
	// nil without either. It is only for Owner.Ended.
	Voucher *vouch.Voucher
	// CaseChanged reports that the server has sent a reply whose question had another case. In Reply, it has the case of the query.
	CaseChanged bool
	Err         error // the reason for no reply

	question int       // length of header and question in bytes
	earlier  *Call     // whose connection is avoided; nil once the call is sent
	avoid    *conn     // the last connection of the call
	flights  []*flight // the connections of the call
	first    [1]*flight
	socket   *socket // of the call, over UDP
	task     *task   // of the call, of a carrier with a goroutine for each query
	waits    bool    // for room on a connection
	moves    int     // lost connections
	delays   int     // connections that the server has ended by a Retry Delay message
	ended    bool
}

// Elsewhere makes a call avoid the connection of an earlier call to the same upstream.
func (c *Call) Elsewhere(earlier *Call) { c.earlier = earlier }

// flightOn returns the flight of the call on a connection, or nil.
func (c *Call) flightOn(connection *conn) *flight {
	if i := slices.IndexFunc(c.flights, func(f *flight) bool { return f.conn == connection }); i >= 0 {
		return c.flights[i]
	}
	return nil
}

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
	Case        prometheus.Counter  // replies whose question has another case, unless their query has AnyCase
	Sent        prometheus.Counter  // packets
	Received    prometheus.Counter  // packets

	Dropped map[string]prometheus.Counter // answers, by each of DropReasons
}

// Reasons to drop an answer. Early answers are those received on an idle UDP socket, which is closed then; they count once,
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
	c.question = wire.QuestionEnd(c.Query)
	return c.question > 0
}

// end ends a call with a reply or an error. The caller holds the carrier's mutex, and calls the owner after unlocking it,
// unless end returns false: the call has ended before.
func (c *Call) end(reply []byte, err error) bool {
	if c.ended {
		return false
	}
	c.ended = true
	if reply != nil {
		copy(reply, c.Query[:2])
	}
	c.Reply, c.Err = reply, err
	return true
}

// restoreCase gives the question of a reply the case of the query.
func (c *Call) restoreCase(reply []byte) {
	if !c.Signed {
		copy(reply[wire.HeaderLen:c.question], c.Query[wire.HeaderLen:])
	}
}

// setID sets the id of a message, RFC 1035 section 4.1.1.
func setID(message []byte, id uint16) { binary.BigEndian.PutUint16(message, id) }

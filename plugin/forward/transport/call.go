// Package transport carries queries to one upstream server and its answers back. In go packed queries;
// out come packed answers that have been checked: id, question, and the name's letters as they were
// asked. Queries share TCP and TLS connections (RFC 7766 section 6.2.1.1), and have a UDP socket each. It
// knows no plugins and no records: it may import neither CoreDNS nor package dns.
package transport

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Carrier is a way to an upstream. Its methods may be called by many at once.
type Carrier interface {
	// Send sends a query. The call comes back by its channel, exactly once unless it is cancelled.
	Send(*Call)
	// Cancel gives a call up. It may have come back, or come back just now.
	Cancel(*Call)
	// Late tells that a call has waited longer than an upstream that works needs.
	Late(*Call)
	// Close lets queries on their way end, and keeps no connection after them. Queries that are sent
	// nevertheless are carried.
	Close()
}

// Call is a query on its way. A call is used once.
type Call struct {
	Query    []byte       // packed, with one question; it is not changed, and its id not used
	Deadline time.Time    // of an answer
	Done     chan<- *Call // has room for the call
	// Alone asks for a connection that no other query uses, for answers of many messages. The first of
	// them is the answer.
	Alone bool

	Reply []byte // of the same id as the query
	Err   error  // why there is no reply

	question int       // length of the question with the header, in bytes
	earlier  *Call     // it takes another connection than this, until it is sent
	not      *conn     // a connection that it was on in vain
	flights  []*flight // where it is now
	first    [1]*flight
	socket   *socket // where it is now, over UDP
	waits    bool    // for room on a connection
	moved    int     // how many connections it was on that were lost
	ended    bool
}

// Elsewhere has a call take another connection than an earlier one to the same upstream, if it can.
func (c *Call) Elsewhere(earlier *Call) { c.earlier = earlier }

// ErrBusy tells that an upstream has as many queries as it may.
var ErrBusy = errors.New("too many queries on their way to it")

// ErrWrongAnswer is for a Func whose answer is none to the query.
var ErrWrongAnswer = errors.New("its answer is to another question")

var (
	errQuery  = errors.New("not a query with one question")
	errClosed = errors.New("the connection was closed before the answer")
)

// Metrics are what is counted of a carrier.
type Metrics struct {
	Connections prometheus.Gauge    // open
	InFlight    prometheus.Gauge    // queries that are sent and not answered
	Depth       prometheus.Observer // queries on a connection, with the one that is sent
	Hits        prometheus.Counter  // queries that found a connection
	Misses      prometheus.Counter  // queries that needed a new one
	Late        prometheus.Counter  // answers to queries that are given up
	Single      prometheus.Counter  // changes to one query per connection
	Sent        prometheus.Counter  // packets
	Received    prometheus.Counter  // packets

	DroppedID, DroppedQuestion, DroppedCase, DroppedMalformed prometheus.Counter // answers
	DroppedEarly                                              prometheus.Counter // sockets closed with answers that came before the query
}

// drop counts an answer that is none.
func (m *Metrics) drop(v verdict) {
	switch v {
	case wrongID:
		m.DroppedID.Inc()
	case wrongQuestion:
		m.DroppedQuestion.Inc()
	case wrongCase:
		m.DroppedCase.Inc()
	case malformed:
		m.DroppedMalformed.Inc()
	}
}

// prepare looks at the query.
func (c *Call) prepare() bool {
	c.question = questionEnd(c.Query)
	return c.question > 0
}

// finish hands the call back. Whoever calls it holds what guards the call.
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

// setID puts an id into a message, RFC 1035 section 4.1.1.
func setID(message []byte, id uint16) { binary.BigEndian.PutUint16(message, id) }

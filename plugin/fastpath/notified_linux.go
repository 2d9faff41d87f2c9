package fastpath

import (
	"bytes"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// notified is the destination of the replies to queries with a request for notification on a connection with a session.
type notified struct{ *connection }

// answer implements destination. The answer has handles unless it depends on the client's address.
func (n *notified) answer(b *batch.Batch, r *request, e *store.Entry, p *store.Patch) bool {
	if form := n.appendEntry(b, r, e, p); form != nil {
		r.countOverTCP(e, form)
		return true
	}
	return n.connection.answer(b, r, e, p)
}

// appendEntry appends the answer of an entry with handles to the output, and returns its form, nil if it has no handles.
func (n *notified) appendEntry(b *batch.Batch, r *request, e *store.Entry, p *store.Patch) *store.Answer {
	c := n.connection
	c.mu.Lock()
	defer c.mu.Unlock()
	l := lookup{route: r.route, entry: e, query: r.Query, unnamed: r.unnamed}
	form := c.appendNotified(r.server, &l, r.Packed, nil, p, &c.random)
	if form != nil {
		b.Add(c)
	}
	return form
}

// notifiedReply is the destination of the plugin chain's reply to a query with a request for notification.
type notifiedReply struct {
	*connection
	server *server
	query  []byte
	since  time.Duration
	name   []byte // in the question of the client, if the plugin chain gets it in lower case
}

// newNotifiedReply returns the destination of the reply to a request, which may be reused.
func newNotifiedReply(c *connection, r *request) *notifiedReply {
	return &notifiedReply{connection: c, server: r.server, query: append([]byte(nil), r.query...), since: validity.Now()}
}

// lowerCase changes the question to lower case, if its server block stores answers: a reply to a question with upper-case letters
// is not stored, and would have no handles. The client gets its question as it is.
func (n *notifiedReply) lowerCase(m *dns.Msg) {
	var q wire.Query
	if !q.Parse(n.query) || !q.Upper {
		return
	}
	var buf [store.MaxKey]byte
	lower := store.KeyName(store.AppendKey(buf[:0], 0, n.query, &q))
	if rt := n.server.routes.find(lower); rt == nil || rt.keyspace == 0 {
		return
	}
	name := q.Name(n.query)
	n.name = append([]byte(nil), name...)
	copy(name, lower)
	m.Question[0].Name = strings.ToLower(m.Question[0].Name)
}

// restore changes the question of a message back to the case of the client. Without a question, as after a failure to pack the
// reply, it changes nothing.
func (n *notifiedReply) restore(message []byte) {
	if end := wire.HeaderLen + len(n.name); len(message) > end && bytes.EqualFold(message[wire.HeaderLen:end], n.name) {
		copy(message[wire.HeaderLen:], n.name)
	}
}

// send implements destination. If the chain has stored the reply, the stored form is sent, with handles, also if that has ended
// meanwhile: without handles, the client would use the reply until its TTL ends.
func (n *notifiedReply) send(reply []byte, mayWait bool) error {
	if n.sendStored(reply, mayWait) {
		return nil
	}
	n.restore(reply)
	return n.connection.send(reply, mayWait)
}

// sendStored sends the stored answer with handles, and reports whether there is one. The chain has counted the reply.
func (n *notifiedReply) sendStored(reply []byte, mayWait bool) bool {
	c, now := n.connection, validity.Now()
	l := lookup{waited: true, reply: reply, since: n.since} // if queries wait for the name, this one has
	if !isResult(reply) || !n.find(&l, reply, now) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if mayWait {
		c.awaitSpace()
	}
	p := l.entry.Patch(now)
	n.restore(n.query)
	if c.appendNotified(n.server, &l, n.query, nil, &p, &c.random) == nil {
		return false
	}
	c.flush()
	return true
}

// isResult reports whether a reply is complete, and no failure.
func isResult(reply []byte) bool {
	if len(reply) < wire.HeaderLen || reply[wire.FlagsAt]&wire.TC != 0 {
		return false
	}
	code := int(reply[wire.RcodeAt] & wire.RcodeMask)
	return code == dns.RcodeSuccess || code == dns.RcodeNameError
}

// find finds the stored answer. A reply without the option of package searchlist is stored as the answer to the name alone.
func (n *notifiedReply) find(l *lookup, reply []byte, now time.Duration) bool {
	if l.find(n.server, n.query, n.client, now) {
		return true
	}
	_, listed := wire.MessageOption(reply, wire.OptionSearchList)
	l.single = l.query.Search != nil && !listed
	return l.single && l.find(n.server, n.query, n.client, now)
}

package transport

import (
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// keepAliveDoubt is the time without edns-tcp-keepalive after a query with it has failed, in which the server is checked.
const keepAliveDoubt = 5 * time.Second

// extension is the state of edns-tcp-keepalive, which is added to the first query of a connection: old servers and firewalls refuse
// it, drop the query or reset the connection (RFC 7828 section 3.2.1 lets servers ignore it).
type extension struct {
	omittedUntil time.Time
	accepted     bool // a query with the option was answered
}

// isExtended reports whether edns-tcp-keepalive was added to a query.
func (f *flight) isExtended() bool { return f.number == 1 && f.conn.extended }

// doubtKeepAlive omits edns-tcp-keepalive while the server is checked: the client's query may be the reason for the failure.
func (p *Pool) doubtKeepAlive(now time.Time) {
	if now.Before(p.omittedUntil) {
		return
	}
	p.omittedUntil, p.accepted = now.Add(keepAliveDoubt), false
	if p.CheckKeepAlive != nil {
		go p.CheckKeepAlive()
	}
}

// KeepAliveChecked records whether the server answers queries with edns-tcp-keepalive as it answers others. If it does not, the option
// is omitted for a while.
func (p *Pool) KeepAliveChecked(accepts bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.accepted = accepts; accepts {
		return
	}
	p.omittedUntil = p.now().Add(p.maxSerial)
	go p.Log("does not answer queries with edns-tcp-keepalive: it gets none for " + p.maxSerial.String())
}

// repeatPlain sends a query without edns-tcp-keepalive if the answer refuses it with the option. SERVFAIL and REFUSED of a
// server that accepts the option have other reasons.
func (c *conn) repeatPlain(f *flight, message []byte, now time.Time) bool {
	p, call := c.pool, f.call
	rcode := message[wire.RcodeAt] & wire.RcodeMask
	switch {
	case !f.isExtended():
		return false
	case !isRefusal(rcode):
		p.accepted = true
		return false
	case p.accepted && (rcode == servFail || rcode == refusal):
		return false
	}
	p.doubtKeepAlive(now)
	c.refused = true
	c.observe(f, message, now)
	c.remove(f)
	p.spareFlights.put(f)
	switch {
	case len(call.flights) > 0: // a copy
	case c.retired || p.limit > 0 && c.sent >= p.limit:
		p.reassign(call)
	default:
		c.put(call)
	}
	return true
}

// lostByKeepAlive reports whether the server may have closed the connection because of edns-tcp-keepalive.
func (c *conn) lostByKeepAlive() bool {
	f := c.byID[c.firstID]
	if unanswered := f != nil && f.isExtended() && c.answered == 0; !unanswered {
		return c.refused
	}
	c.pool.doubtKeepAlive(c.pool.now())
	return true
}

// checkFirst sends a copy without edns-tcp-keepalive of the first query of a connection, which waits for long.
func (p *Pool) checkFirst(c *conn, wait time.Duration, now time.Time) {
	f := c.byID[c.firstID]
	if p.accepted || f == nil || !f.isExtended() || f.call == nil || len(f.call.flights) > 1 || now.Sub(latest(c.opened, f.sent)) < wait {
		return
	}
	p.doubtKeepAlive(now)
	if other := p.openEscape(); other != nil {
		other.put(f.call)
	}
}

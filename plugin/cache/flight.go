package cache

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// outcome is what has come of asking the next plugin.
type outcome struct {
	reply      *dns.Msg            // as clients see it but for what is theirs, without an OPT record; nil if nothing was written
	options    []dns.EDNS0         // of the reply, that clients get
	entry      *answers.Entry      // what is kept of it, nil if nothing
	properties *answers.Properties // what the next plugin said that the reply hangs on; nil if nothing
	code       int                 // what the next plugin returned
	err        error
	// private tells that the reply holds only for who asked: it hangs on something besides its TTL, and is
	// not kept.
	private bool
	// renews tells that the reply takes the place of an answer that has expired.
	renews bool
	// abandoned tells that there is no reply because the client that asked is gone.
	abandoned bool
}

// flight is a question on its way to the next plugin, and who waits for the reply.
type flight struct {
	key     string
	started time.Duration
	limit   int           // of a reply over UDP, in bytes
	waiting int           // guarded by flights.mu
	done    chan struct{} // made for the first who waits; guarded by flights.mu, and for them without it
	out     outcome       // once done is closed; nobody changes it then
}

// flights are those of a block. A question has two at most: one over UDP, and one for clients of TCP,
// whose reply is whole and good for both.
type flights struct {
	mu  sync.Mutex
	all map[string]*flight
}

// maxFlightKey is the greatest length of a flight's key in bytes.
const maxFlightKey = answers.MaxKey + 1

// flightKey appends to dst what queries have in common that share a reply. The RD flag is not in what
// answers are kept under, but a resolver may refuse one and answer the other.
func (a *asked) flightKey(dst []byte, udp bool) []byte {
	transport := byte('t')
	if udp {
		transport = 'u'
	}
	if a.q.RD {
		transport -= 'a' - 'A'
	}
	return append(append(dst, a.key...), transport)
}

// join returns the flight for a query, and whether the caller has to fly it. Those who only wait are
// counted.
func (f *flights) join(a *asked, now time.Duration) (*flight, bool) {
	var buf [maxFlightKey]byte
	f.mu.Lock()
	defer f.mu.Unlock()
	key := a.flightKey(buf[:0], false)
	if flying := f.all[string(key)]; flying != nil {
		flying.wait()
		return flying, false
	}
	if a.udp {
		key = a.flightKey(buf[:0], true)
		if flying := f.all[string(key)]; flying != nil {
			flying.wait()
			return flying, false
		}
	}
	if f.all == nil {
		f.all = map[string]*flight{}
	}
	flying := &flight{key: string(key), started: now, limit: a.q.Limit()}
	f.all[flying.key] = flying
	return flying, true
}

// land gives an outcome to those who wait. The reply stays the caller's: the others get a copy.
func (f *flights) land(flying *flight, out outcome) {
	f.mu.Lock()
	delete(f.all, flying.key)
	waiting := flying.waiting
	done := flying.done
	f.mu.Unlock()
	if waiting > 0 && out.entry == nil && out.reply != nil {
		out.reply = out.reply.Copy()
	}
	flying.out = out
	if done != nil {
		close(done)
	}
}

// wait counts one who waits. flights.mu is held.
func (f *flight) wait() {
	f.waiting++
	if f.done == nil {
		f.done = make(chan struct{})
	}
}

// attend lets the caller of join wait for its own flight as well.
func (f *flights) attend(flying *flight) {
	f.mu.Lock()
	defer f.mu.Unlock()
	flying.wait()
}

// errPanicked is what those get who wait for a flight that has ended in a panic.
var errPanicked = errors.New("the plugin that was asked has panicked")

// shares reports whether the outcome of a flight, which has landed, is one for this query as well.
func (a *asked) shares(flying *flight) bool {
	out := &flying.out
	if out.abandoned || out.private || out.entry != nil && !out.entry.Current() {
		return false
	}
	return out.reply == nil || !out.reply.Truncated || a.q.Limit() == flying.limit
}

// share answers a query with the outcome of a flight.
func (c *Cache) share(ctx context.Context, w dns.ResponseWriter, a *asked, flying *flight) (int, error) {
	out := &flying.out
	switch {
	case out.reply == nil && out.err != nil:
		return out.code, out.err
	case out.entry != nil:
		return c.give(ctx, w, a.msg, a.query, a.q, out.entry, out.entry.Patch(c.now()))
	case out.reply == nil:
		return out.code, out.err
	}
	m := out.reply.Copy()
	a.tailor(m)
	a.adapt(m, out.options)
	if _, err := write(w, m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return out.code, out.err
}

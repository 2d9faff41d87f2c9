package coherence

import (
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
)

const (
	// parts is the number of parts of the sessions. The heartbeats of the parts are sent one after another, so that those of
	// a large cluster delay queries and invalidations by less than a millisecond.
	parts = 250
	step  = HeartbeatInterval / parts

	// atOnce is the number of heartbeats that are sent without a pause. Fewer sessions need fewer wake-ups than one a step.
	atOnce = 64
	// maxAtOnce is the number of messages after which the notifier pauses: its goroutine does not wait, and may have the only
	// processor of the process.
	maxAtOnce = 2 * atOnce
	rest      = 50 * time.Microsecond

	// chunk is the number of subscriptions that end while the registry is locked. A message has the handles of a chunk.
	chunk = dso.MaxInvalidated
	// maxPending is the number of handles for which a session retains memory.
	maxPending = 8
)

// notifier is the goroutine that sends messages to the sessions of a Registry, in an order: changes that were known at the
// time of a heartbeat's clock are sent before the heartbeat.
type notifier struct {
	*Registry
	steps    int64 // done
	affected []affected
	conns    []Conn
	message  []byte
}

// affected is a session with pending handles, and its connection.
type affected struct {
	subscriber *Subscriber
	conn       Conn
}

func newNotifier(r *Registry) *notifier {
	return &notifier{Registry: r, steps: int64(r.now() / step)}
}

// run runs until there are no sessions.
func (n *notifier) run() {
	pause := pauses[0]
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-n.wake:
			n.invalidate()
		case <-tick.C:
			sessions := n.remaining()
			if sessions == 0 {
				return
			}
			n.beat()
			if p := pauseOf(sessions); p != pause {
				pause = p
				tick.Reset(pause)
			}
		}
	}
}

// pauses are the times between two calls of beat. The interval is a multiple of each, so that it varies little.
var pauses = [...]time.Duration{50 * time.Millisecond, 25 * time.Millisecond, 10 * time.Millisecond, 5 * time.Millisecond, 2 * time.Millisecond}

// pauseOf returns the pause for a number of sessions.
func pauseOf(sessions int) time.Duration {
	for _, pause := range pauses {
		if time.Duration(sessions)*pause <= atOnce*HeartbeatInterval {
			return pause
		}
	}
	return step
}

// remaining returns the number of sessions. Without any, the notifier is to end.
func (n *notifier) remaining() (sessions int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	sessions = n.count()
	n.running = sessions > 0
	return sessions
}

// beat sends the heartbeats that are due. After a delay of the process those of several parts are, some of them at the next
// call.
func (n *notifier) beat() {
	clock := n.clock()
	due := int64(time.Duration(clock) * time.Microsecond / step) // #nosec G115 -- since a start
	n.invalidate()
	live := n.live()
	sent := 0
	for n.steps = max(n.steps, due-parts); n.steps < due && sent < maxAtOnce; n.steps++ {
		if live {
			sent += n.beatPart(int(n.steps%parts), clock)
		}
	}
}

// beatPart sends the heartbeats of a part, and returns their number.
func (n *notifier) beatPart(part int, clock uint64) (sent int) {
	n.mu.Lock()
	for _, s := range n.sessions[part] {
		n.conns = append(n.conns, s.conn)
	}
	n.mu.Unlock()
	n.message = dso.AppendHeartbeat(n.message[:0], clock)
	for _, c := range n.conns {
		c.Push(n.message)
	}
	sent = len(n.conns)
	clear(n.conns)
	n.conns = n.conns[:0]
	return sent
}

// invalidate sends the handles of the Generations that have advanced to their subscribers, and all handles after Revoke.
func (n *notifier) invalidate() {
	n.mu.Lock()
	advanced, revoked := n.advanced, n.revoked
	n.advanced, n.revoked = nil, false
	n.mu.Unlock()
	if revoked {
		n.revoke()
	}
	for len(advanced) > 0 {
		advanced = advanced[n.collect(advanced):]
		n.send()
	}
}

// collect ends the subscriptions to the first of some topics, and returns their number.
func (n *notifier) collect(advanced []*topic) (done int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for ended := 0; done < len(advanced) && ended < chunk; done++ {
		t := advanced[done]
		t.queued = false
		ended += 1 + len(t.subscribers)
		for _, s := range t.subscribers {
			s.forget(t)
			if len(s.pending) == 0 {
				n.affected = append(n.affected, affected{s, s.conn})
			}
			s.pending = append(s.pending, t.number)
		}
		t.subscribers = nil
	}
	return done
}

// send sends the pending handles.
func (n *notifier) send() {
	for i, a := range n.affected {
		if i%maxAtOnce == maxAtOnce-1 {
			time.Sleep(rest)
		}
		s := a.subscriber
		n.message = dso.AppendInvalidate(n.message[:0], s.pending)
		a.conn.Push(n.message)
		n.invalidations.Add(uint64(len(s.pending)))
		if s.pending = s.pending[:0]; cap(s.pending) > maxPending {
			s.pending = nil
		}
	}
	clear(n.affected)
	n.affected = n.affected[:0]
}

// revoke ends all subscriptions and invalidates all handles. Subscriptions may be made meanwhile: they end in the client, and
// remain here until their Generation advances.
func (n *notifier) revoke() {
	n.mu.Lock()
	var all []*Subscriber
	for _, part := range n.sessions {
		all = append(all, part...)
	}
	n.mu.Unlock()
	n.message = dso.AppendInvalidate(n.message[:0], nil)
	for _, s := range all {
		if c := n.revokeOne(s); c != nil {
			c.Push(n.message)
		}
	}
}

// revokeOne ends the subscriptions of a session, and returns its connection, nil if it is closed.
func (n *notifier) revokeOne(s *Subscriber) Conn {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !s.closed {
		s.drop()
	}
	return s.conn
}

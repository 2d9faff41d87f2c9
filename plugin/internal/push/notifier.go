package push

import (
	"slices"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
)

const (
	// parts is the number of parts into which sessions are divided. Heartbeats are sent to one part after the other, so that
	// they delay queries and invalidations by less than a millisecond in a large cluster.
	parts = 250
	step  = HeartbeatInterval / parts

	// atOnce is the number of heartbeats that may be due after a pause: with few sessions, pauses are longer than a step,
	// to save wake-ups.
	atOnce = 64
	// maxAtOnce is the number of heartbeats, or of notified sessions, after which the notifier pauses: its goroutine does not
	// block, and may occupy the only processor of the process.
	maxAtOnce = 2 * atOnce
	rest      = 50 * time.Microsecond

	// chunk is the number of subscriptions that end before the registry is unlocked for other goroutines. Subscriptions to one
	// Generation end together.
	chunk = 4096
	// maxPending is the number of handles for which a session retains memory.
	maxPending = 8
)

// notifier is the goroutine that sends messages to the sessions of a Registry, in order: before a heartbeat, a session receives
// all changes that were known at the clock of the heartbeat.
type notifier struct {
	*Registry
	steps    int64      // done
	affected []affected // in the order in which they are notified
	conns    []Conn
	message  []byte
}

// affected is a session that is to be notified, and its connection.
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

// pauses are the times between two calls of beat. HeartbeatInterval is a multiple of each, so that the time
// between heartbeats varies little.
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

// remaining returns the number of sessions. Without sessions, the notifier has to end.
func (n *notifier) remaining() (sessions int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	sessions = n.count()
	n.running = sessions > 0
	return sessions
}

// beat sends the heartbeats that are due. After a delay of the process, the heartbeats of several parts are due, some of
// which the next call sends.
func (n *notifier) beat() { n.beatDue(n.invalidate()) }

// beatDue sends some of the heartbeats that are due at a clock, or omits the due ones if the view is not live. It reports
// whether more are due.
func (n *notifier) beatDue(clock uint64, live bool) (more bool) {
	due := int64(time.Duration(clock) * time.Microsecond / step) // #nosec G115 -- since a start
	sent := 0
	for n.steps = max(n.steps, due-parts); n.steps < due && sent < maxAtOnce; n.steps++ {
		if live {
			sent += n.beatPart(int(n.steps%parts), clock)
		}
	}
	return n.steps < due
}

// beatPart sends the heartbeats of a part, and returns their number. An affected session gets its heartbeat from send, behind
// the invalidations.
func (n *notifier) beatPart(part int, clock uint64) (sent int) {
	n.mu.Lock()
	for _, s := range n.sessions[part] {
		if s.late = s.affected; !s.affected {
			n.conns = append(n.conns, s.conn)
		}
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

// invalidate sends the handles of the Generations that have advanced to their subscribers, and after Revoke an invalidation of all
// handles. Meanwhile it sends the heartbeats that are due. It returns a clock, and whether the view was live then: all changes
// that were known at that time have been sent.
func (n *notifier) invalidate() (clock uint64, live bool) {
	for {
		clock, live = n.clock(), n.live()
		n.collect()
		began := n.now()
		n.send(clock, live)
		if len(n.affected) == 0 {
			return clock, live
		}
		// Heartbeats get as much time as invalidations: on a busy machine they could need all time, and delay the invalidations.
		sent := n.now()
		for n.beatDue(clock, live) && n.now()-sent < sent-began {
			time.Sleep(rest)
		}
		time.Sleep(rest)
	}
}

// collect ends the subscriptions to the Generations that have advanced. A session gets all their handles at once. Handles need
// less memory than the subscriptions did.
func (n *notifier) collect() {
	n.mu.Lock()
	advanced, revoked := n.advanced, n.revoked
	n.advanced, n.revoked = nil, false
	if revoked {
		for _, part := range n.sessions {
			for _, s := range part {
				s.revoked = true
				n.affect(s)
			}
		}
	}
	n.mu.Unlock()
	for len(advanced) > 0 {
		advanced = advanced[n.collectSome(advanced):]
	}
}

// collectSome ends the subscriptions to the first topics, of about chunk subscriptions, and returns the number of these topics.
func (n *notifier) collectSome(advanced []*topic) (done int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for ended := 0; done < len(advanced) && ended < chunk; done++ {
		t := advanced[done]
		t.queued = false
		ended += 1 + len(t.subscribers)
		for _, s := range t.subscribers {
			s.forget(t)
			s.pending = append(s.pending, t.number)
			n.affect(s)
		}
		t.subscribers = nil
	}
	return done
}

// affect adds a session to the affected ones, once. The mutex is locked.
func (n *notifier) affect(s *Subscriber) {
	if !s.affected {
		s.affected = true
		n.affected = append(n.affected, affected{s, s.conn})
	}
}

// send notifies the first maxAtOnce affected sessions.
func (n *notifier) send(clock uint64, live bool) {
	some := n.affected[:min(len(n.affected), maxAtOnce)]
	for _, a := range some {
		s := a.subscriber
		if s.revoked {
			n.revoke(a)
		}
		for handles := range slices.Chunk(s.pending, dso.MaxInvalidated) {
			n.message = dso.AppendInvalidate(n.message[:0], handles)
			a.conn.Push(n.message)
		}
		n.invalidations.Add(uint64(len(s.pending)))
		if s.late && live {
			n.message = dso.AppendHeartbeat(n.message[:0], clock)
			a.conn.Push(n.message)
		}
		if s.pending = s.pending[:0]; cap(s.pending) > maxPending {
			s.pending = nil
		}
		s.affected, s.revoked, s.late = false, false, false
	}
	n.affected = slices.Delete(n.affected, 0, len(some))
}

// revoke ends all subscriptions of a session and invalidates all handles. Subscriptions may be made meanwhile: they end in the
// client, and remain here until their Generation advances.
func (n *notifier) revoke(a affected) {
	n.drop(a.subscriber)
	a.subscriber.pending = nil
	n.message = dso.AppendInvalidate(n.message[:0], nil)
	a.conn.Push(n.message)
}

// drop ends all subscriptions of a session.
func (n *notifier) drop(s *Subscriber) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !s.closed {
		s.drop()
	}
}

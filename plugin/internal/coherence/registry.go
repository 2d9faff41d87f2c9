package coherence

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
)

// Generation counts the changes of data that answers depend on.
type Generation interface {
	Load() uint64
	// Watch sets the watcher, whose Advanced is called after each change, unless there is one already. It returns the watcher.
	Watch(w interface{ Advanced() }) interface{ Advanced() }
}

// Conn is the connection of a session in the server.
type Conn interface {
	// Push sends a DSO message behind all that was sent before. It does not block: a connection whose client does not read is
	// closed.
	Push(message []byte)
}

// Limits of subscriptions. An answer beyond them has no handles: its TTL applies.
const (
	maxPerSession    = 1 << 15
	maxSubscriptions = 8 << 20
)

// HeartbeatInterval is the time between two heartbeats of a session.
const HeartbeatInterval = 250 * time.Millisecond

// Registry records which sessions have answers that depend on which Generations.
type Registry struct {
	instance uint64
	epoch    time.Time

	mu            sync.Mutex
	numbers       uint64 // of handles
	sessions      map[*Subscriber]struct{}
	subscriptions int
	advanced      []*topic
	offers        map[*offer]struct{}
	running       bool
	wake          chan struct{}
}

// Process is the registry of the process.
var Process = NewRegistry()

// NewRegistry returns a registry without sessions.
func NewRegistry() *Registry {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return &Registry{
		instance: binary.BigEndian.Uint64(b[:]), epoch: time.Now(),
		sessions: map[*Subscriber]struct{}{}, offers: map[*offer]struct{}{}, wake: make(chan struct{}, 1),
	}
}

type offer struct{ live func() bool }

// Offer makes the registry accept sessions until the returned function is called. Heartbeats are sent while live returns true,
// and so do the live functions of all other offers.
func (r *Registry) Offer(live func() bool) (withdraw func()) {
	o := &offer{live}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.offers[o] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.offers, o)
	}
}

// Offers reports whether sessions are accepted.
func (r *Registry) Offers() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.offers) > 0
}

// Opening returns the response to a Session request.
func (r *Registry) Opening() dso.Opening { return dso.Opening{Instance: r.instance, Clock: r.clock()} }

func (r *Registry) clock() uint64 { return uint64(time.Since(r.epoch) / time.Microsecond) } // #nosec G115 -- positive

// topic is a Generation with subscribers. Its number is the handle of all of them.
type topic struct {
	registry    *Registry
	number      uint64
	subscribers []*Subscriber // some may have ended
	queued      bool
	waiters     waiters
}

// Advanced implements the watcher of a Generation.
func (t *topic) Advanced() {
	t.callWaiters()
	r := t.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.queued || len(t.subscribers) == 0 {
		return
	}
	t.queued = true
	r.advanced = append(r.advanced, t)
	r.notify()
}

func (r *Registry) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Subscriber is a session in the server.
type Subscriber struct {
	registry *Registry
	conn     Conn
	topics   map[*topic]struct{} // nil after the end
	pending  []uint64            // of the goroutine that notifies
}

// Open begins a session.
func (r *Registry) Open(c Conn) *Subscriber {
	s := &Subscriber{registry: r, conn: c, topics: map[*topic]struct{}{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sessions[s] = struct{}{}
	if !r.running {
		r.running = true
		go r.run()
	}
	return s
}

// Close ends the session.
func (s *Subscriber) Close() {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subscriptions -= len(s.topics)
	s.topics = nil
	delete(r.sessions, s)
}

// Subscribe subscribes to a Generation, and returns its handle, 0 if a limit is reached or the session has ended. The caller
// then checks whether the Generation has advanced since its answer was made: if so, it sends the handle and after it an
// invalidation of its own. The connection is locked against Push until the answer is in its output, so that no invalidation
// overtakes the answer.
func (s *Subscriber) Subscribe(g Generation) (handle uint64) {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	t, ours := g.Watch(r.newTopic()).(*topic)
	if !ours || t.registry != r || s.topics == nil {
		return 0
	}
	if _, has := s.topics[t]; has {
		return t.number
	}
	if len(s.topics) >= maxPerSession || r.subscriptions >= maxSubscriptions {
		return 0
	}
	s.topics[t] = struct{}{}
	r.subscriptions++
	t.add(s)
	return t.number
}

// newTopic returns a topic with the next number. Numbers may remain unused.
func (r *Registry) newTopic() *topic {
	r.numbers++
	return &topic{registry: r, number: r.numbers}
}

// add adds a subscriber. Before the slice grows, those that have ended are removed.
func (t *topic) add(s *Subscriber) {
	if len(t.subscribers) == cap(t.subscribers) {
		live := t.subscribers[:0]
		for _, other := range t.subscribers {
			if _, has := other.topics[t]; has {
				live = append(live, other)
			}
		}
		clear(t.subscribers[len(live):])
		t.subscribers = live
	}
	t.subscribers = append(t.subscribers, s)
}

// Revoke invalidates all answers of all sessions.
func (r *Registry) Revoke() {
	r.mu.Lock()
	all := make([]*Subscriber, 0, len(r.sessions))
	for s := range r.sessions {
		r.subscriptions -= len(s.topics)
		clear(s.topics)
		all = append(all, s)
	}
	r.mu.Unlock()
	message := dso.AppendInvalidate(nil, nil)
	for _, s := range all {
		s.conn.Push(message)
	}
}

// run notifies the sessions of changes, and sends heartbeats, until the process ends.
func (r *Registry) run() {
	tick := time.NewTicker(HeartbeatInterval)
	defer tick.Stop()
	var message []byte
	for {
		beats := false
		select {
		case <-r.wake:
		case <-tick.C:
			beats = true
		}
		clock := r.clock() // before the changes are collected: the heartbeat vouches for the time before
		r.invalidate()
		if beats && r.live() {
			message = dso.AppendHeartbeat(message[:0], clock)
			for _, s := range r.all() {
				s.conn.Push(message)
			}
		}
	}
}

func (r *Registry) live() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range r.offers {
		if !o.live() {
			return false
		}
	}
	return len(r.offers) > 0
}

func (r *Registry) all() []*Subscriber {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]*Subscriber, 0, len(r.sessions))
	for s := range r.sessions {
		all = append(all, s)
	}
	return all
}

// invalidate sends the handles of the Generations that have advanced to their subscribers.
func (r *Registry) invalidate() {
	r.mu.Lock()
	var affected []*Subscriber
	for _, t := range r.advanced {
		t.queued = false
		for _, s := range t.subscribers {
			if _, has := s.topics[t]; !has {
				continue
			}
			delete(s.topics, t)
			r.subscriptions--
			if len(s.pending) == 0 {
				affected = append(affected, s)
			}
			s.pending = append(s.pending, t.number)
		}
		t.subscribers = nil
	}
	clear(r.advanced)
	r.advanced = r.advanced[:0]
	r.mu.Unlock()
	var message []byte
	for _, s := range affected {
		for rest := s.pending; len(rest) > 0; {
			n := min(len(rest), dso.MaxInvalidated)
			message = dso.AppendInvalidate(message[:0], rest[:n])
			s.conn.Push(message)
			rest = rest[n:]
		}
		s.pending = nil
	}
}

package push

import (
	"net/netip"
	"slices"
)

// topic is a Generation with subscribers. Its number is the handle for all subscribers. The registry's mutex guards it.
type topic struct {
	registry    *Registry
	number      uint64 // 0 before the first subscription
	subscribers []*Subscriber
	queued      bool // in Registry.advanced
	waiters     waiters
}

// topicOf returns the topic of a Generation, nil if it has a watcher that is not the registry's.
func (r *Registry) topicOf(g Generation) *topic {
	unused := r.spare.Get().(*topic)
	t, ours := g.Watch(unused).(*topic)
	if t != unused {
		r.spare.Put(unused)
	}
	if !ours || t.registry != r {
		return nil
	}
	return t
}

// Advanced implements the watcher of a Generation. Sessions are notified first: calls of Waiters take longer.
func (t *topic) Advanced() {
	t.queue()
	t.callWaiters()
}

// queue makes the notifier end the subscriptions to the topic.
func (t *topic) queue() {
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

// Subscriber is a session in the server. The registry's mutex guards it.
type Subscriber struct {
	registry *Registry
	conn     Conn
	source   *source
	part     int // of Registry.sessions
	position int // in the part
	// topics are the subscriptions, with the index of the session in the topic's subscribers.
	topics map[*topic]int32
	// maxTopics is the maximum length of topics since the map was made: the memory of a map never shrinks.
	maxTopics int
	closed    bool

	// These fields belong to the notifier.
	affected bool     // in its list
	revoked  bool     // it invalidates all handles
	late     bool     // it sends a heartbeat behind the handles
	pending  []uint64 // handles that it sends next
}

// source is the address of clients with sessions.
type source struct {
	address                 netip.Addr
	sessions, subscriptions int
}

// Open begins a session with a client.
func (r *Registry) Open(c Conn, client netip.Addr) *Subscriber {
	s := &Subscriber{registry: r, conn: c}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.source = r.sources[client]; s.source == nil {
		s.source = &source{address: client}
		r.sources[client] = s.source
	}
	s.source.sessions++
	r.revoked = r.revoked && r.count() > 0 // this session has no answers from before
	for i := range r.sessions {
		if len(r.sessions[i]) < len(r.sessions[s.part]) {
			s.part = i
		}
	}
	s.position = len(r.sessions[s.part])
	r.sessions[s.part] = append(r.sessions[s.part], s)
	if !r.running {
		r.running = true
		go newNotifier(r).run()
	}
	return s
}

// Close ends the session. It may be called more than once.
func (s *Subscriber) Close() {
	r := s.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.closed {
		return
	}
	s.drop()
	part := r.sessions[s.part]
	last := part[len(part)-1]
	part[s.position], last.position = last, s.position
	r.sessions[s.part] = shortened(part)
	if s.source.sessions--; s.source.sessions == 0 {
		delete(r.sources, s.source.address)
	}
	s.closed, s.conn = true, nil
}

// drop removes all subscriptions.
func (s *Subscriber) drop() {
	s.count(-len(s.topics))
	for t, i := range s.topics {
		t.remove(i)
	}
	s.topics, s.maxTopics = nil, 0
}

// count adds n to the numbers of subscriptions.
func (s *Subscriber) count(n int) {
	s.source.subscriptions += n
	s.registry.subscriptions += n
}

// remove removes a subscriber, given its index, but not the topic from the subscriber's topics.
func (t *topic) remove(i int32) {
	if last := len(t.subscribers) - 1; int(i) != last {
		moved := t.subscribers[last]
		t.subscribers[i] = moved
		moved.topics[t] = i
	}
	t.subscribers = shortened(t.subscribers)
}

// shortened removes the last element, and releases memory if little of it is used.
func shortened(all []*Subscriber) []*Subscriber {
	all[len(all)-1] = nil
	all = all[:len(all)-1]
	switch {
	case len(all) == 0:
		return nil
	case cap(all) > 64 && len(all) < cap(all)/4:
		return slices.Clone(all)
	}
	return all
}

// Subscribe subscribes to a Generation, and returns its handle, 0 if a limit is reached or the session has ended. The caller
// then checks whether the Generation has advanced since its answer was made: if so, it sends the handle and after it an
// invalidation of its own. The connection is locked against Push until the answer is in its output, so that no invalidation
// overtakes the answer.
func (s *Subscriber) Subscribe(g Generation) (handle uint64) {
	r := s.registry
	t := r.topicOf(g)
	r.mu.Lock()
	defer r.mu.Unlock()
	if t == nil || s.closed {
		return 0
	}
	if _, has := s.topics[t]; has {
		return t.number
	}
	free := r.perProcess - r.subscriptions
	switch {
	case len(s.topics) >= r.perSession:
		r.refused[SessionLimit].Add(1)
		return 0
	case free <= 0:
		r.refused[ProcessLimit].Add(1)
		return 0
	case s.source.subscriptions > free/sourceFraction:
		r.refused[SourceLimit].Add(1)
		return 0
	}
	s.add(t)
	return t.number
}

// Unsubscribe ends the subscription to a Generation, if there is one. The connection is locked until an invalidation of the handle
// is in its output.
func (s *Subscriber) Unsubscribe(g Generation) {
	r := s.registry
	t := r.topicOf(g)
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, has := s.topics[t]; has {
		t.remove(i)
		s.forget(t)
	}
}

func (s *Subscriber) add(t *topic) {
	r := s.registry
	if t.number == 0 {
		r.numbers++
		t.number = r.numbers
	}
	if s.topics == nil {
		s.topics = map[*topic]int32{}
	}
	s.topics[t] = int32(len(t.subscribers)) // #nosec G115 -- at most the number of sessions
	t.subscribers = append(t.subscribers, s)
	s.maxTopics = max(s.maxTopics, len(s.topics))
	s.count(1)
}

// forget removes a topic from the session's topics, but not the session from the topic's subscribers.
func (s *Subscriber) forget(t *topic) {
	delete(s.topics, t)
	s.count(-1)
	switch n := len(s.topics); {
	case n == 0:
		s.topics, s.maxTopics = nil, 0
	case s.maxTopics > 64 && n < s.maxTopics/4:
		smaller := make(map[*topic]int32, n)
		for t, i := range s.topics {
			smaller[t] = i
		}
		s.topics, s.maxTopics = smaller, n
	}
}

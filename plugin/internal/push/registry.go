package push

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
)

// Generation counts the changes of data that answers depend on.
type Generation interface {
	Load() uint64
	// Watch sets the watcher, whose Advanced is called after each change, unless there is one already. It returns the watcher.
	// A change that Load shows before Watch has returned need not be reported. Watch locks nothing that is locked during a
	// call of Advanced.
	Watch(w interface{ Advanced() }) interface{ Advanced() }
}

// Conn is the connection of a session in the server.
type Conn interface {
	// Push sends a DSO message behind all that was sent before, and does not retain it. It does not block: a connection whose
	// client does not read is closed. A call may be in progress when Subscriber.Close returns.
	Push(message []byte)
}

// Limits of subscriptions. An answer beyond a limit has no handles: its TTL applies.
const (
	maxPerSession = 1 << 15
	// sourceFraction is the divisor of the free subscriptions of the process: a source may have this share, so that a new source
	// gets some, however many sources there are. A single source, such as a NAT, gets a fifth of all.
	sourceFraction = 4
)

// HeartbeatInterval is the time between two heartbeats of a session.
const HeartbeatInterval = 250 * time.Millisecond

// Registry records which sessions have answers that depend on which Generations.
type Registry struct {
	instance uint64
	now      func() time.Duration // since a start
	wake     chan struct{}
	spare    sync.Pool // of topics without a Generation
	counters

	perSession int // limit of subscriptions

	// A connection calls methods that lock mu while it is locked itself: with mu locked, no method of a Conn is called.
	mu            sync.Mutex
	numbers       uint64 // last handle
	sessions      [parts][]*Subscriber
	sources       map[netip.Addr]*source
	subscriptions int
	perProcess    int // limit of subscriptions
	advanced      []*topic
	revoked       bool
	offers        []*offer // replaced, never changed
	running       bool
}

// Process is the registry of the process.
var Process = NewRegistry()

// NewRegistry returns a registry without sessions.
func NewRegistry() *Registry {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	epoch := time.Now()
	r := &Registry{
		instance: binary.BigEndian.Uint64(b[:]), now: func() time.Duration { return time.Since(epoch) }, wake: make(chan struct{}, 1),
		perSession: maxPerSession, perProcess: maxSubscriptions, sources: map[netip.Addr]*source{},
	}
	r.spare.New = func() any { return &topic{registry: r} }
	return r
}

type offer struct{ live func() bool }

// Offer makes the registry accept sessions until the returned function is called. Heartbeats are sent while the live functions
// of all offers return true. Offer sets the limit of subscriptions by the present memory limit.
func (r *Registry) Offer(live func() bool) (withdraw func()) {
	o := &offer{live}
	limit := subscriptionsIn(memoryLimit(memlimit.FromCgroup))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.perProcess = limit
	r.offers = append(slices.Clone(r.offers), o)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.offers = slices.DeleteFunc(slices.Clone(r.offers), func(other *offer) bool { return other == o })
	}
}

// Offers reports whether sessions are accepted.
func (r *Registry) Offers() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.offers) > 0
}

// live reports whether the view of the cluster is current.
func (r *Registry) live() bool {
	r.mu.Lock()
	offers := r.offers
	r.mu.Unlock()
	for _, o := range offers {
		if !o.live() {
			return false
		}
	}
	return len(offers) > 0
}

// Opening returns the response to a Session request.
func (r *Registry) Opening() dso.Opening { return dso.Opening{Instance: r.instance, Clock: r.clock()} }

func (r *Registry) clock() uint64 { return uint64(r.now() / time.Microsecond) } // #nosec G115 -- positive

// Revoke invalidates all answers of all sessions, before the next heartbeat.
func (r *Registry) Revoke() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revoked = true
	r.notify()
}

func (r *Registry) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// counters are the numbers of Statistics that no lock guards.
type counters struct {
	invalidations atomic.Uint64
	refused       [refuseReasons]atomic.Uint64
	closed        [closeReasons]atomic.Uint64
}

// RefuseReason is the limit because of which an answer has no handles.
type RefuseReason int

// The limits.
const (
	SessionLimit RefuseReason = iota // subscriptions of a session
	SourceLimit                      // subscriptions of all sessions with clients of one address: a quarter of the free ones
	ProcessLimit                     // subscriptions of all sessions
	refuseReasons
)

func (r RefuseReason) String() string { return [...]string{"session", "source", "process"}[r] }

// CloseReason is the reason for which the server closed a session.
type CloseReason int

// The reasons.
const (
	Unread    CloseReason = iota // the client did not read
	Silent                       // the client sent nothing for too long
	Malformed                    // the client sent a message that RFC 8490 forbids
	closeReasons
)

func (c CloseReason) String() string { return [...]string{"unread", "silent", "malformed"}[c] }

// CountClosed counts a session that the server closed.
func (r *Registry) CountClosed(reason CloseReason) { r.closed[reason].Add(1) }

// Statistics are the numbers of a Registry, for metrics.
type Statistics struct {
	Sessions, Subscriptions int
	Live                    bool   // heartbeats are sent
	Invalidations           uint64 // handles sent
	// Refused are the subscriptions beyond a limit.
	Refused [refuseReasons]uint64
	// Closed are the sessions that the server closed.
	Closed [closeReasons]uint64
}

// Statistics returns the numbers.
func (r *Registry) Statistics() (s Statistics) {
	s.Live = r.live()
	s.Invalidations = r.invalidations.Load()
	for i := range s.Refused {
		s.Refused[i] = r.refused[i].Load()
	}
	for i := range s.Closed {
		s.Closed[i] = r.closed[i].Load()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Sessions, s.Subscriptions = r.count(), r.subscriptions
	return s
}

// count returns the number of sessions. mu is locked.
func (r *Registry) count() (n int) {
	for _, part := range r.sessions {
		n += len(part)
	}
	return n
}

package push

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// model is a Registry in plain sets.
type model struct {
	t          *testing.T
	r          *Registry
	n          *notifier
	random     *rand.Rand
	sessions   []*modelSession
	generation []*generation
	handles    map[*generation]uint64
	advanced   map[*generation]bool
	revoked    bool
}

type modelSession struct {
	*Subscriber
	conn       *conn
	subscribed map[*generation]bool
}

// TestModel compares a Registry with the model in random operations.
func TestModel(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			r, n := newManual()
			m := &model{
				t: t, r: r, n: n, random: rand.New(rand.NewPCG(seed, 1)), handles: map[*generation]uint64{}, advanced: map[*generation]bool{},
			}
			for range 60 {
				m.generation = append(m.generation, new(generation))
			}
			for range 3000 {
				m.operate()
			}
			m.check()
			for len(m.sessions) > 0 {
				m.close(0)
			}
			m.checkEmpty()
		})
	}
}

func (m *model) operate() {
	switch n := m.random.IntN(100); {
	case n < 6:
		m.open()
	case n < 9 && len(m.sessions) > 0:
		m.close(m.random.IntN(len(m.sessions)))
	case n < 15 && len(m.sessions) > 0:
		s, g := m.sessions[m.random.IntN(len(m.sessions))], m.any()
		s.Unsubscribe(g)
		delete(s.subscribed, g)
	case n < 75 && len(m.sessions) > 0:
		m.subscribe(m.sessions[m.random.IntN(len(m.sessions))], m.any())
	case n < 90:
		g := m.any()
		for _, s := range m.sessions {
			m.advanced[g] = m.advanced[g] || s.subscribed[g]
		}
		g.Advance()
	case n < 91:
		m.revoked = true
		m.r.Revoke()
	default:
		m.check()
	}
}

func (m *model) any() *generation { return m.generation[m.random.IntN(len(m.generation))] }

func (m *model) open() {
	s := &modelSession{conn: &conn{t: m.t}, subscribed: map[*generation]bool{}}
	m.revoked = m.revoked && len(m.sessions) > 0
	s.Subscriber = m.r.Open(s.conn, netip.Addr{})
	m.sessions = append(m.sessions, s)
}

func (m *model) close(i int) {
	s := m.sessions[i]
	s.Close()
	s.Close()
	m.sessions = slices.Delete(m.sessions, i, i+1)
	if s.Subscribe(m.any()) != 0 {
		m.t.Fatal("a session that has ended was subscribed")
	}
	if stream := s.conn.take(); len(stream) > 0 {
		m.t.Fatalf("stream %v", stream)
	}
}

func (m *model) subscribe(s *modelSession, g *generation) {
	handle := s.Subscribe(g)
	if known := m.handles[g]; handle == 0 || known != 0 && known != handle {
		m.t.Fatalf("handle %d, earlier %d", handle, known)
	}
	for other, h := range m.handles {
		if other != g && h == handle {
			m.t.Fatalf("handle %d is that of two Generations", h)
		}
	}
	m.handles[g] = handle
	s.subscribed[g] = true
}

// check runs the notifier, and compares the streams and the numbers with those of the model. A subscription that was made
// between a change with subscribers and the notification is notified of it as well.
func (m *model) check() {
	m.n.invalidate()
	subscriptions := 0
	for _, s := range m.sessions {
		var want []uint64
		for g := range s.subscribed {
			if m.advanced[g] && !m.revoked {
				want = append(want, m.handles[g])
			}
			if m.advanced[g] || m.revoked {
				delete(s.subscribed, g)
			}
		}
		slices.Sort(want)
		subscriptions += len(s.subscribed)
		if got, all := invalidated(s.conn.take()); all != m.revoked || !slices.Equal(got, want) {
			m.t.Fatalf("handles %v, all %t; want %v, %t", got, all, want, m.revoked)
		}
	}
	clear(m.advanced)
	m.revoked = false
	if got := m.r.Statistics(); got.Subscriptions != subscriptions || got.Sessions != len(m.sessions) {
		m.t.Fatalf("%+v, want %d sessions and %d subscriptions", got, len(m.sessions), subscriptions)
	}
}

// checkEmpty checks that nothing refers to the sessions.
func (m *model) checkEmpty() {
	if s := m.r.Statistics(); s.Sessions != 0 || s.Subscriptions != 0 {
		m.t.Errorf("%+v", s)
	}
	for _, g := range m.generation {
		if w := g.Watch(nil); w != nil && w.(*topic).subscribers != nil {
			m.t.Error("a topic has subscribers")
		}
	}
	for _, part := range m.r.sessions {
		if part != nil {
			m.t.Error("a part has sessions")
		}
	}
}

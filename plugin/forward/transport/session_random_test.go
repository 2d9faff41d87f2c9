package transport

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/property"
)

// modelAnswer is an answer and what a naive model knows of it.
type modelAnswer struct {
	*vouch.Voucher
	stored
	session int // number of the session
	handles []uint64
	ended   bool
}

// model is a server whose messages are in random order, and the answers that it has sent.
type model struct {
	*coherentBed
	r       *rand.Rand
	c       *session
	number  int           // of the session
	beat    time.Duration // when the last heartbeat of the session was made, 0 for none
	queries int
	answers []*modelAnswer
}

// handles returns 1 to 4 different handles of 8.
func (m *model) handles() (all []uint64) {
	for _, n := range m.r.Perm(8)[:1+m.r.IntN(dso.MaxHandles)] {
		all = append(all, uint64(n+1))
	}
	return all
}

// query returns the next query of the connection. It responds to Session requests before it.
func (m *model) query() []byte {
	m.t.Helper()
	for {
		q := m.c.query()
		if !dso.IsDSO(q) {
			return q
		}
		m.c.respond(m.opening(q))
	}
}

// step sends some messages in one or several writes. The last is an answer: when it has arrived, all are processed.
func (m *model) step() {
	m.t.Helper()
	var out []byte
	put := func(message []byte) { out = append(out, frame(message)...) }
	var arriving []*sent
	var expected []*modelAnswer
	for n := 1 + m.r.IntN(6); n > 0; n-- {
		switch what := m.r.IntN(10); {
		case what < 4 || n == 1:
			m.queries++
			s := m.send(fmt.Sprintf("n%s.example.", letters(m.queries)))
			a := &modelAnswer{session: m.number, handles: m.handles()}
			put(answerWith(m.query(), a.handles...))
			arriving, expected = append(arriving, s), append(expected, a)
		case what < 7:
			ended := m.handles()
			if m.r.IntN(8) == 0 {
				ended = nil
			}
			put(dso.AppendInvalidate(nil, ended))
			for _, a := range slices.Concat(m.answers, expected) {
				one := func(h uint64) bool { return slices.Contains(a.handles, h) }
				a.ended = a.ended || a.session == m.number && (ended == nil || slices.ContainsFunc(ended, one))
			}
		default: // made up to two seconds ago, and delayed since then
			late := time.Duration(m.r.IntN(4)) * 700 * time.Millisecond
			put(dso.AppendHeartbeat(nil, m.serverClock()-uint64(late/time.Microsecond)))
			m.beat = max(m.beat, m.Coherence.Now()-late)
		}
	}
	for len(out) > 0 {
		n := 1 + m.r.IntN(len(out))
		kit.Send(m.t, m.c, out[:n])
		out = out[n:]
	}
	for i, s := range arriving {
		s.wait()
		if s.Err != nil || s.Voucher == nil {
			m.t.Fatalf("voucher %v and error %v", s.Voucher, s.Err)
		}
		expected[i].Voucher = s.Voucher
		s.Voucher.Attach(expected[i])
	}
	m.answers = append(m.answers, expected...)
	if len(m.answers) > 100 {
		m.answers = m.answers[50:]
	}
}

// check compares the vouchers with the model.
func (m *model) check() {
	m.t.Helper()
	for _, a := range m.answers {
		now := m.Coherence.Now()
		vouches := a.Vouches(now)
		if a.Ended() != a.ended || (a.stored.ended.Load() > 0) != a.ended {
			m.t.Fatalf("answer with handles %d of session %d, now %d: ended %t, reported %d times, want %t", a.handles, a.session, m.number,
				a.Ended(), a.stored.ended.Load(), a.ended)
		}
		if vouches && (a.ended || a.session != m.number || now >= m.beat+vouch.Silence) {
			m.t.Fatalf("an answer of session %d, now %d, is vouched for %v after the last heartbeat; ended: %t", a.session, m.number, now-m.beat, a.ended)
		}
	}
}

// vouchesAgain waits until fresh heartbeats vouch for all answers of the session that have not ended.
func (m *model) vouchesAgain() {
	m.t.Helper()
	kit.Eventually(m.t, "vouching for all answers that have not ended", func() bool {
		m.c.respond(dso.AppendHeartbeat(nil, m.serverClock()))
		m.beat = m.Coherence.Now()
		s := m.send("sync.example.")
		m.c.respond(answer(m.query()))
		s.answered()
		now := m.Coherence.Now()
		return !slices.ContainsFunc(m.answers, func(a *modelAnswer) bool { return a.session == m.number && !a.ended && !a.Vouches(now) })
	})
}

// next replaces the connection.
func (m *model) next() {
	if m.c != nil {
		m.c.close()
		becomes(m.t, "sessions", m.Coherence.Sessions, 0)
	}
	m.number++
	m.c = m.begin()
	m.beat = m.Coherence.Now()
}

// TestSession_Random compares random interleavings of answers, invalidations, delayed heartbeats, passing time and lost
// connections with a naive model.
func TestSession_Random(t *testing.T) {
	property.Seeds(t, 0, 6, func(t *testing.T, seed uint64) {
		m := &model{coherentBed: newCoherent(t, newServer(t), 100, 1), r: rand.New(rand.NewPCG(seed, 18))}
		m.next()
		for range 150 {
			switch m.r.IntN(12) {
			case 0:
				m.clock.skip(time.Duration(m.r.IntN(3000)) * time.Millisecond)
			case 1:
				m.vouchesAgain()
			case 2:
				if m.r.IntN(3) == 0 {
					m.next()
				}
			default:
				m.step()
			}
			m.check()
		}
		m.vouchesAgain()
	})
}

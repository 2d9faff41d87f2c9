package push

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/vouch"
)

// timedConn is a Conn on which a message takes a time, on the clock of the registry.
type timedConn struct {
	conn
	now   *time.Duration
	after func() // called after each message

	until  time.Duration // the session vouches for answers until this time
	silent bool          // it has vouched for nothing for a time
}

func (c *timedConn) Push(b []byte) {
	c.conn.Push(b)
	m := c.stream[len(c.stream)-1]
	if m.heartbeat {
		*c.now += 30 * time.Microsecond
		c.silent = c.silent || *c.now > c.until
		c.until = time.Duration(m.clock)*time.Microsecond + vouch.Silence
	} else {
		*c.now += time.Millisecond
	}
	c.after()
}

// TestCoalescing has sessions with more subscriptions than end with the registry locked, to Generations that advance together:
// each gets one message.
func TestCoalescing(t *testing.T) {
	const sessions, changes = 100, 200
	r, n := newManual()
	generations := make([]generation, changes)
	conns := make([]*conn, sessions)
	for i := range conns {
		conns[i] = &conn{t: t}
		s := r.Open(conns[i], netip.Addr{})
		for k := range generations {
			s.Subscribe(&generations[k])
		}
	}
	for i := range generations {
		generations[i].Advance()
	}
	n.invalidate()
	for i, c := range conns {
		if stream := c.take(); len(stream) != 1 || len(stream[0].handles) != changes {
			t.Fatalf("session %d has %d messages, want one with %d handles", i, len(stream), changes)
		}
	}
	if got := r.Statistics().Invalidations; got != sessions*changes {
		t.Errorf("%d handles were sent, want %d", got, sessions*changes)
	}
}

// TestHeartbeatsMeanwhile has a change that takes half of a second to send to all sessions, and further changes meanwhile, for
// seconds: the sessions receive heartbeats in between, each behind the changes that were known at its clock.
func TestHeartbeatsMeanwhile(t *testing.T) {
	const sessions = 500
	for name, change := range map[string]func(r *Registry, g []generation){
		"changes": func(_ *Registry, g []generation) { g[0].Advance() },
		"reload":  func(r *Registry, _ []generation) { r.Revoke() },
	} {
		t.Run(name, func(t *testing.T) {
			r, n := newManual()
			now := time.Hour
			r.now = func() time.Duration { return now }
			n.steps = int64(now / step)
			r.Offer(func() bool { return true })
			r.perProcess = maxSubscriptions
			generations := make([]generation, 100)
			advanced := map[uint64]uint64{} // by handle, on the server's clock; 0 is the handle of Revoke
			handles := make([]uint64, len(generations))
			sent := 0
			after := func() { // a change after every 50th message
				if sent++; sent%50 == 0 && sent/50 < len(generations) {
					advanced[handles[sent/50]] = r.clock()
					generations[sent/50].Advance()
				}
			}
			conns := make([]*timedConn, sessions)
			for i := range conns {
				conns[i] = &timedConn{conn: conn{t: t}, now: &now, after: after, until: now + vouch.Silence}
				s := r.Open(conns[i], netip.Addr{})
				for k := range generations {
					handles[k] = s.Subscribe(&generations[k])
				}
			}
			advanced[handles[0]], advanced[0] = r.clock(), r.clock()
			change(r, generations)
			n.invalidate()
			t.Logf("sent within %v", now-time.Hour)
			for i, c := range conns {
				if c.silent || now > c.until || now > time.Hour+2*HeartbeatInterval && c.until == time.Hour+vouch.Silence {
					t.Fatalf("session %d has received no heartbeat for a time", i)
				}
				if err := checkOrder(c.stream, handles, advanced, name == "reload"); err != nil {
					t.Fatalf("session %d: %v", i, err)
				}
			}
		})
	}
}

// checkOrder checks that each change is sent, once, and before the first heartbeat with a later clock.
func checkOrder(stream []message, handles []uint64, advanced map[uint64]uint64, revoked bool) error {
	got := map[uint64]int{}
	for _, m := range stream {
		switch {
		case m.heartbeat:
			for h, at := range advanced {
				if (h != 0 || revoked) && at < m.clock && got[h] == 0 && !(revoked && got[0] > 0) {
					return fmt.Errorf("a heartbeat of %d precedes the change of %d at %d", m.clock, h, at)
				}
			}
		case len(m.handles) == 0:
			got[0]++
		}
		for _, h := range m.handles {
			got[h]++
		}
	}
	for h, n := range got {
		if n > 1 || h != 0 && !slices.Contains(handles, h) || h == 0 && !revoked {
			return fmt.Errorf("handle %d is invalidated %d times", h, n)
		}
	}
	if revoked && got[0] != 1 || !revoked && len(got) != len(advanced)-1 {
		return fmt.Errorf("%d handles are invalidated", len(got))
	}
	return nil
}

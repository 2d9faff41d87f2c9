package validity

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/test/property"
)

// generation is a Generation that a test advances.
type generation struct{ atomic.Uint64 }

// clock is the time of a test.
type clock struct{ atomic.Int64 }

func (c *clock) now() time.Duration { return time.Duration(c.Load()) }

// heardSession is a session whose heartbeats arrive at once, with the clock of a test.
type heardSession struct {
	*vouch.Session
	clock *clock
}

func newSession(c *clock) *heardSession {
	s := &heardSession{vouch.NewSession(c.now), c}
	s.Opened(0, 0)
	s.hear()
	return s
}

func (s *heardSession) hear() { s.Heard(uint64(s.clock.now() / time.Microsecond)) } // #nosec G115 -- positive

// invalidate receives the message that ends handles, all without any.
func (s *heardSession) invalidate(handles ...uint64) {
	vouch.End(s.Invalidate(handles))
}

// vouchedUntil returns a Validity with a time and a voucher for a handle.
func (s *heardSession) vouchedUntil(expires time.Duration, handles ...uint64) Validity {
	return Validity{Expires: expires, Voucher: s.Voucher(handles)}
}

func TestVouchedValidity(t *testing.T) {
	const sec = time.Second
	for name, tt := range map[string]struct {
		change         func(c *clock, s *heardSession, v *Validity)
		fresh, current bool // at the end of change
	}{
		"within the time":         {func(*clock, *heardSession, *Validity) {}, true, true},
		"beyond the time, heard":  {func(c *clock, s *heardSession, _ *Validity) { c.Store(int64(100 * sec)); s.hear() }, true, true},
		"beyond the time, silent": {func(c *clock, _ *heardSession, _ *Validity) { c.Store(int64(5 * sec)) }, false, true},
		"silent within the time":  {func(c *clock, _ *heardSession, _ *Validity) { c.Store(int64(4 * sec)) }, true, true},
		"heard again": {func(c *clock, s *heardSession, _ *Validity) {
			c.Store(int64(50 * sec))
			s.hear()
			c.Add(int64(sec - 1))
		}, true, true},
		"lost beyond the time":               {func(c *clock, s *heardSession, _ *Validity) { c.Store(int64(6 * sec)); s.hear(); s.Close() }, false, true},
		"lost within the time":               {func(_ *clock, s *heardSession, _ *Validity) { s.Close() }, true, true},
		"invalidated within the time":        {func(_ *clock, s *heardSession, _ *Validity) { s.invalidate(1) }, false, false},
		"another handle was invalidated":     {func(_ *clock, s *heardSession, _ *Validity) { s.Voucher([]uint64{3}); s.invalidate(3) }, true, true},
		"the second handle":                  {func(_ *clock, s *heardSession, _ *Validity) { s.invalidate(2) }, false, false},
		"everything":                         {func(_ *clock, s *heardSession, _ *Validity) { s.invalidate() }, false, false},
		"ended":                              {func(_ *clock, _ *heardSession, v *Validity) { v.End() }, false, false},
		"until a time, heard":                {func(c *clock, s *heardSession, v *Validity) { v.Until(20 * sec); c.Store(int64(20 * sec)); s.hear() }, false, true},
		"until a time, heard before":         {func(c *clock, s *heardSession, v *Validity) { v.Until(20 * sec); c.Store(int64(20*sec - 1)); s.hear() }, true, true},
		"until a time that has passed":       {func(_ *clock, _ *heardSession, v *Validity) { v.Until(0) }, true, true}, // Expires is 0
		"until a time before, not any later": {func(c *clock, _ *heardSession, v *Validity) { v.Until(1); v.Until(20 * sec); c.Store(1) }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := new(clock)
			s := newSession(c)
			v := s.vouchedUntil(5*sec, 1, 2)
			if name == "until a time that has passed" {
				v.Expires = 0
			}
			tt.change(c, s, &v)
			if v.Fresh(c.now()) != tt.fresh || v.Current() != tt.current {
				t.Errorf("fresh %t, current %t; want %t, %t", v.Fresh(c.now()), v.Current(), tt.fresh, tt.current)
			}
		})
	}
}

// joinedPart is a part of a joined answer.
type joinedPart struct {
	Validity
	session *heardSession // or nil
}

// TestJoinVouched joins random validities, some with vouchers, and compares with a naive model: a joined answer is fresh
// before all times have passed, or while all sessions vouch for the parts that have one, and the other parts have not expired.
func TestJoinVouched(t *testing.T) {
	property.Seeds(t, 0, 2000, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1)) // #nosec G404 -- no need for secrecy
		c := new(clock)
		sessions := []*heardSession{newSession(c), newSession(c)}
		var joined Validity
		var parts []joinedPart
		for range 1 + r.IntN(4) {
			var p joinedPart
			switch r.IntN(4) {
			case 0:
				p.Until(time.Duration(1+r.IntN(20)) * time.Second)
				joined.Until(p.Expires)
				parts = append(parts, p)
				continue
			case 1:
				p.Until(time.Duration(1+r.IntN(20)) * time.Second)
			default:
				p.session = sessions[r.IntN(2)*r.IntN(2)]
				p.Validity = p.session.vouchedUntil(time.Duration(1+r.IntN(20))*time.Second, uint64(1+r.IntN(4)), uint64(1+r.IntN(4)))
			}
			if r.IntN(5) == 0 {
				p.DependOn(new(generation))
			}
			joined.Join(&p.Validity)
			parts = append(parts, p)
		}
		for range 30 {
			switch s := sessions[r.IntN(2)]; r.IntN(12) {
			case 0:
				s.invalidate(uint64(1 + r.IntN(8)))
			case 1:
				s.Close()
			case 2, 3, 4, 5:
				s.hear()
			default:
				c.Add(int64(r.IntN(1500)) * int64(time.Millisecond))
			}
			now := c.now()
			checkJoined(t, &joined, parts, now)
		}
	})
}

func checkJoined(t *testing.T, joined *Validity, parts []joinedPart, now time.Duration) {
	t.Helper()
	inTime, vouched, current, all := true, true, true, true
	for _, p := range parts {
		passed := p.Expires != 0 && now >= p.Expires
		inTime = inTime && !passed
		if p.session != nil {
			vouched = vouched && p.session.Vouches(now)
		} else {
			vouched = vouched && !passed
		}
		current = current && p.Current()
		all = all && p.Fresh(now)
	}
	want := current && (inTime || vouched)
	if got := joined.Fresh(now); got != want {
		t.Fatalf("fresh at %v: %t, want %t (in time %t, vouched %t, current %t); %d parts, joined %+v", now, got, want, inTime, vouched, current, len(parts), joined)
	}
	if want && !all {
		t.Fatalf("fresh at %v, although a part is not", now)
	}
}

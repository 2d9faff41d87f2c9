package vouch

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// entry is a Dependent.
type entry struct {
	name        string
	gone        bool
	mu          sync.Mutex
	invalidated int
	then        func() // the result of Invalidated
}

func (e *entry) Invalidated() func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.invalidated++
	return e.then
}

func (e *entry) Stored() bool { return !e.gone }

// live returns a session that vouches.
func live(t *testing.T) (*Session, *clocks) {
	t.Helper()
	c := new(clocks)
	s := newSession(c)
	s.Heard(c.server())
	return s, c
}

// TestVoucher ends handles and sessions of vouchers: ended means that the answer must not be served at all.
func TestVoucher(t *testing.T) {
	tests := map[string]struct {
		end            func(s *Session, c *clocks)
		ended, vouches bool
	}{
		"nothing":              {func(*Session, *clocks) {}, false, true},
		"first handle":         {func(s *Session, _ *clocks) { s.Invalidate([]uint64{1}) }, true, false},
		"last handle":          {func(s *Session, _ *clocks) { s.Invalidate([]uint64{9, 2}) }, true, false},
		"another handle":       {func(s *Session, _ *clocks) { s.Invalidate([]uint64{3}) }, false, true},
		"all":                  {func(s *Session, _ *clocks) { s.Invalidate(nil) }, true, false},
		"closed":               {func(s *Session, _ *clocks) { s.Close() }, false, false},
		"retired":              {func(s *Session, _ *clocks) { s.Retire() }, false, false},
		"invalidated, closed":  {func(s *Session, _ *clocks) { s.Invalidate([]uint64{1}); s.Close() }, true, false},
		"silent":               {func(_ *Session, c *clocks) { c.truth += Silence }, false, false},
		"silent and heard":     {func(s *Session, c *clocks) { c.truth += 3 * Silence; s.Heard(c.server()) }, false, true},
		"handle known again":   {func(s *Session, _ *clocks) { s.Invalidate([]uint64{1}); s.Voucher([]uint64{1}) }, true, false},
		"invalidated, too old": {func(s *Session, c *clocks) { s.Invalidate(nil); c.truth += Silence }, true, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s, c := live(t)
			v := s.Voucher([]uint64{1, 2})
			tt.end(s, c)
			if v.Ended() != tt.ended || v.Vouches(c.client()) != tt.vouches {
				t.Errorf("ended %t, vouches %t", v.Ended(), v.Vouches(c.client()))
			}
			if lapsed := name == "retired"; v.Lapsed() != lapsed {
				t.Errorf("lapsed %t", !lapsed)
			}
		})
	}
	t.Run("after the end", func(t *testing.T) {
		s, c := live(t)
		old := s.Voucher([]uint64{1})
		s.Invalidate([]uint64{1})
		if v := s.Voucher([]uint64{1}); v.Ended() || !v.Vouches(c.client()) || !old.Ended() {
			t.Error("an answer behind the invalidation has ended")
		}
	})
	t.Run("none", func(t *testing.T) {
		s, c := live(t)
		var v *Voucher
		if v.Ended() || v.Vouches(0) || v.LastVouched(time.Hour) != 0 || s.Voucher(nil) != nil {
			t.Error("no voucher vouches")
		}
		v.Attach(new(entry))
		if s.Close(); s.Voucher([]uint64{1}) != nil || s.Vouches(c.client()) {
			t.Error("a closed session vouches")
		}
	})
}

func TestLastVouched(t *testing.T) {
	s, c := live(t)
	v, now := s.Voucher([]uint64{1}), c.client()
	if got := v.LastVouched(now); got != now {
		t.Errorf("%s, want %s", got, now)
	}
	if got := v.LastVouched(now + time.Hour); got != now+Silence {
		t.Errorf("%s, want %s", got, now+Silence)
	}
	if got := Join(v, 0, nil, now-time.Second).LastVouched(now); got != now-time.Second {
		t.Errorf("%s, want the limit", got)
	}
	if s.Close(); v.LastVouched(now+time.Hour) != now {
		t.Error("the end of the session is not the last time at which it vouched")
	}
}

// TestJoin joins vouchers of two answers with their expiry.
func TestJoin(t *testing.T) {
	first, c := live(t)
	second, _ := live(t)
	now := c.client()
	one, two := first.Voucher([]uint64{1, 2}), second.Voucher([]uint64{1})
	tests := map[string]struct {
		joined  *Voucher
		until   time.Duration // 0 for never
		handles int
	}{
		"two vouchers, their TTLs do not count": {Join(one, now-1, two, now-1), now + Silence, 3},
		"one without TTL":                       {Join(one, 0, nil, 0), now + Silence, 2},
		"one without voucher":                   {Join(one, 0, nil, now+5), now + 5, 2},
		"the other without voucher":             {Join(nil, now+7, two, now+5), now + 7, 1},
		"one expired, without voucher":          {Join(nil, now, two, 0), 0, 1},
		"three, limits of two":                  {Join(Join(one, 0, nil, now+9), 0, nil, now+3), now + 3, 2},
		"three, a later limit":                  {Join(Join(one, 0, nil, now+3), 0, nil, now+9), now + 3, 2},
		"limit is kept":                         {Join(nil, now+9, Join(one, 0, nil, now+4), now+1), now + 4, 2},
		"the same twice":                        {Join(one, 0, one, 0), now + Silence, 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tt.joined.Vouches(now); got != (tt.until != 0) {
				t.Errorf("vouches now: %t", got)
			}
			if tt.until != 0 && (!tt.joined.Vouches(tt.until-1) || tt.joined.Vouches(tt.until)) {
				t.Errorf("not until %s", tt.until)
			}
			if len(tt.joined.handles) != tt.handles {
				t.Errorf("%d handles, want %d", len(tt.joined.handles), tt.handles)
			}
		})
	}
	if Join(nil, 1, nil, 2) != nil {
		t.Error("a voucher of none")
	}
	t.Run("one ends", func(t *testing.T) {
		joined := Join(one, 0, two, 0)
		if second.Invalidate([]uint64{1}); !joined.Ended() || joined.Vouches(now) || one.Ended() || !one.Vouches(now) {
			t.Error("the answer of both has not ended, or the first has")
		}
	})
	t.Run("no alias", func(t *testing.T) {
		a := first.Voucher([]uint64{11, 12, 13})
		b, d := Join(a, 0, first.Voucher([]uint64{14}), 0), Join(a, 0, first.Voucher([]uint64{15}), 0)
		if first.Invalidate([]uint64{15}); b.Ended() || !d.Ended() || a.Ended() {
			t.Error("vouchers share handles")
		}
	})
}

// TestAttach invalidates answers that depend on handles.
func TestAttach(t *testing.T) {
	s, _ := live(t)
	entries := make([]*entry, 4)
	for i, handles := range [][]uint64{{1}, {1, 2}, {2}, {3}} {
		entries[i] = &entry{name: fmt.Sprint(i)}
		s.Voucher(handles).Attach(entries[i])
	}
	names := func(dependents []Dependent) (all []string) {
		for _, d := range dependents {
			all = append(all, d.(*entry).name)
		}
		slices.Sort(all)
		return all
	}
	v := s.Voucher([]uint64{1, 3})
	for _, step := range []struct {
		handles []uint64
		want    string
	}{{[]uint64{1, 99}, "[0 1]"}, {[]uint64{1}, "[]"}, {nil, "[1 2 3]"}, {nil, "[]"}} {
		if got := fmt.Sprint(names(s.Invalidate(step.handles))); got != step.want {
			t.Errorf("handles %v: %s, want %s", step.handles, got, step.want)
		}
	}
	late := new(entry)
	if v.Attach(late); late.invalidated == 0 {
		t.Error("an answer that has ended is stored")
	}
	if s.Len() != 0 {
		t.Errorf("%d handles", s.Len())
	}
}

// TestAttachClosed checks that handles of a closed session retain nothing, and that the answers have not ended.
func TestAttachClosed(t *testing.T) {
	s, _ := live(t)
	v := s.Voucher([]uint64{1})
	v.Attach(new(entry))
	s.Close()
	late := new(entry)
	v.Attach(late)
	if late.invalidated != 0 || v.Ended() || len(v.handles[0].dependents) != 0 || s.Len() != 0 || len(s.Invalidate(nil)) != 0 {
		t.Errorf("%d dependents of a closed session", len(v.handles[0].dependents))
	}
}

// TestCompact checks that answers which are not stored any more are not retained, and that the others are.
func TestCompact(t *testing.T) {
	s, _ := live(t)
	stored := map[*entry]bool{}
	for i := range 1000 {
		e := &entry{gone: i%10 != 0 || i > 100}
		stored[e] = !e.gone
		s.Voucher([]uint64{5}).Attach(e)
	}
	h := s.Voucher([]uint64{5}).handles[0]
	if n := len(h.dependents); n > 2*11+minCompact {
		t.Errorf("%d dependents of 11 that are stored", n)
	}
	found := 0
	for _, d := range s.Invalidate([]uint64{5}) {
		if stored[d.(*entry)] {
			found++
		}
	}
	if found != 11 {
		t.Errorf("%d of 11 stored answers are invalidated", found)
	}
}

// TestConcurrent attaches answers while handles are invalidated: each ends.
func TestConcurrent(t *testing.T) {
	s, c := live(t)
	const answers = 2000
	entries := make([]entry, answers)
	vouchers := make([]*Voucher, answers)
	var wg sync.WaitGroup
	queue := make(chan int, 16)
	for range 4 {
		wg.Go(func() {
			for i := range queue {
				vouchers[i].Attach(&entries[i])
				_ = vouchers[i].Vouches(c.client())
			}
		})
	}
	for i := range answers { // the reader of the connection
		vouchers[i] = s.Voucher([]uint64{uint64(i % 7), 100}) // #nosec G115 -- small
		queue <- i
		if i%3 == 0 {
			End(s.Invalidate([]uint64{uint64(i % 7)})) // #nosec G115 -- small
		}
	}
	close(queue)
	wg.Wait()
	End(s.Invalidate(nil))
	for i := range entries {
		if !vouchers[i].Ended() || entries[i].invalidated == 0 {
			t.Fatalf("answer %d has not ended", i)
		}
	}
}

// TestEndTogether has answers that end together: all are removed before anything follows.
func TestEndTogether(t *testing.T) {
	s, _ := live(t)
	var entries [5]*entry
	followed := 0
	for i := range entries {
		entries[i] = &entry{}
		if i != 2 {
			entries[i].then = func() {
				followed++
				for _, e := range entries {
					if e.invalidated != 1 {
						t.Error("an answer is fetched again before all are removed")
					}
				}
			}
		}
		s.Voucher([]uint64{uint64(i)}).Attach(entries[i])
	}
	End(s.Invalidate(nil))
	if followed != 4 {
		t.Errorf("%d calls, want 4", followed)
	}
}

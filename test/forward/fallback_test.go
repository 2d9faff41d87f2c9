//go:build linux

package forward

import (
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestFallback has upstreams whose TCP fails and whose UDP works.
func TestFallback(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]rogue.Behaviour{
		"refuses":        {Refuse: true, OverUDP: rogue.Well()},
		"black hole":     {BlackHole: true, OverUDP: rogue.Well()},
		"does not read":  {Deaf: true, OverUDP: rogue.Well()},
		"never answers":  {Drop: 1, OverUDP: rogue.Well()},
		"resets at once": {CloseAtOnce: true, Reset: true, OverUDP: rogue.Well()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rogueServer(t, b)
			s := start(t, zone(forward(r.Addr, "force_tcp", "fallback udp")))
			load{tcp: 4}.run(s).wantRight(t)
			if got := r.Counts().UDP; got == 0 {
				t.Error("no queries over UDP")
			}
			if all := s.scrape(t); all.Sum(fallbacks, "to", r.Addr, "reason", "udp") == 0 {
				t.Errorf("fallbacks are not counted; metrics:\n%s", like(all, "nearside_forward_"))
			}
			wantConnections(t, r, single)
		})
	}
}

// TestFallbackBack checks that queries use TCP again after it recovers.
func TestFallbackBack(t *testing.T) {
	t.Parallel()
	r := rogueServer(t, rogue.Behaviour{Refuse: true, OverUDP: rogue.Well()})
	s := start(t, zone(forward(r.Addr, "force_tcp", "fallback udp")))
	load{queries: 50}.run(s).wantRight(t)
	r.Behave(rogue.Behaviour{})
	kit.Within(t, 40*time.Second, "a query over TCP", func() bool {
		load{queries: 1}.run(s).wantRight(t)
		time.Sleep(200 * time.Millisecond)
		return r.Counts().TCP > 0
	})
	load{queries: 50}.run(s).wantRight(t)
}

// TestNoFallback checks that no query is sent over UDP without the option.
func TestNoFallback(t *testing.T) {
	t.Parallel()
	r := rogueServer(t, rogue.Behaviour{Refuse: true, OverUDP: rogue.Well()})
	s := start(t, zone(forward(r.Addr, "force_tcp", "timeout 1s")))
	if right, _ := (load{queries: 50, wait: time.Second + margin}).run(s).wantRcode(t, 2); right > 0 {
		t.Errorf("%d right answers without TCP, want none", right)
	}
	if got := r.Counts().UDP; got > 0 {
		t.Errorf("%d queries over UDP, want none", got)
	}
}

// TestUDP queries misbehaving servers over UDP.
func TestUDP(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]answerable{
		"well":           {behaviour: rogue.Behaviour{Delay: delay}},
		"out of order":   {behaviour: rogue.Behaviour{Shuffle: 2 * delay}},
		"loses some":     {behaviour: rogue.Behaviour{Drop: 0.3}, options: []string{"max_connect_attempts 0", "read_timeout 200ms"}},
		"wrong ids":      {behaviour: rogue.Behaviour{Wrong: rogue.WrongID, Delay: delay}, metric: []string{dropped, "proto", "udp", "reason", "id"}},
		"wrong question": {behaviour: rogue.Behaviour{Wrong: rogue.WrongQuestion}, metric: []string{dropped, "proto", "udp", "reason", "question"}},
		"garbage":        {behaviour: rogue.Behaviour{Wrong: rogue.Empty | rogue.Short | rogue.Noise}, metric: []string{dropped, "proto", "udp"}},
		"truncates": {
			behaviour: rogue.Behaviour{Delay: delay, OverUDP: &rogue.Behaviour{Truncate: true}},
			metric:    []string{fallbacks, "reason", "truncated"}},
		"truncates, TCP closes after each": {
			behaviour: rogue.Behaviour{CloseAfter: 1, OverUDP: &rogue.Behaviour{Truncate: true}},
			metric:    []string{fallbacks, "reason", "truncated"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rogueServer(t, c.behaviour)
			s := start(t, zone(forward(r.Addr, append(c.options, "prefer_udp")...)))
			load{tcp: 4}.run(s).wantRight(t)
			if all := s.scrape(t); len(c.metric) > 0 && all.Sum(c.metric[0], c.metric[1:]...) == 0 {
				t.Errorf("metric %q is 0; metrics:\n%s", c.metric, like(all, "nearside_forward_"))
			}
			counts := r.Counts()
			if counts.UDP < 300 {
				t.Errorf("%d queries over UDP, want at least 300", counts.UDP)
			}
			if truncates := len(c.metric) > 1 && c.metric[0] == fallbacks; (counts.TCP > 0) != truncates {
				t.Errorf("%d queries over TCP, want some: %t", counts.TCP, truncates)
			}
		})
	}
}

// TestFollowsClient checks that without force_tcp and prefer_udp the upstream is queried over the client's protocol.
func TestFollowsClient(t *testing.T) {
	t.Parallel()
	r := rogueServer(t, rogue.Behaviour{Delay: delay})
	s := start(t, zone(forward(r.Addr)))
	load{tcp: 3}.run(s).wantRight(t)
	if c := r.Counts(); c.TCP < 100 || c.TCP > 100+second || c.UDP != 200 {
		t.Errorf("%d queries over TCP and %d over UDP, want 100 and 200", c.TCP, c.UDP)
	}
	wantConnections(t, r, pipelined)
}

// TestUDPLossBeside loses datagrams of one upstream: with the default number of attempts, the other one answers.
func TestUDPLossBeside(t *testing.T) {
	t.Parallel()
	lossy, good := rogueServer(t, rogue.Behaviour{Drop: 0.5}), rogueServer(t, rogue.Behaviour{})
	s := start(t, zone(forward(lossy.Addr+" "+good.Addr, "prefer_udp")))
	load{}.run(s).wantRight(t)
}

package apiserver

import (
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// healthSteps are a health and its clock.
type healthSteps struct {
	*health
	at   time.Time
	open watch.Interface
}

func newHealthSteps() *healthSteps {
	s := &healthSteps{health: newHealth(), at: time.Unix(1000, 0)}
	s.now = func() time.Time { return s.at }
	s.begins()
	return s
}

func (s *healthSteps) wait(d time.Duration) { s.at = s.at.Add(d) }
func (s *healthSteps) watch()               { s.open = s.opened(watch.NewEmptyWatch(), false) }
func (s *healthSteps) stream()              { s.open = s.opened(watch.NewEmptyWatch(), true) }
func (s *healthSteps) end()                 { s.open.Stop() }

// watching lists by a stream and watches.
func (s *healthSteps) watching() {
	s.stream()
	s.synced()
}

// TestUncertain asserts from which time on changes of the cluster may be missing.
func TestUncertain(t *testing.T) {
	const long, short = lostAfter + time.Second, lostAfter - time.Second
	away := errors.New("connection refused")
	tests := map[string]struct {
		steps func(s *healthSteps)
		want  bool
	}{
		"watching":                  {func(s *healthSteps) { s.watching(); s.wait(long) }, false},
		"no watch for a short time": {func(s *healthSteps) { s.watching(); s.end(); s.wait(short) }, false},
		"no watch for long":         {func(s *healthSteps) { s.watching(); s.end(); s.failed(away); s.wait(long) }, true},
		"watching again":            {func(s *healthSteps) { s.watching(); s.end(); s.wait(long); s.watch(); s.wait(long) }, true},
		"watching again, an event":  {func(s *healthSteps) { s.watching(); s.end(); s.wait(long); s.watch(); s.heard() }, false},
		"watching again soon":       {func(s *healthSteps) { s.watching(); s.end(); s.wait(short); s.watch() }, false},
		"a list that takes long": {func(s *healthSteps) {
			s.watching()
			s.end()
			s.wait(short)
			s.stream()
			s.active()
			s.wait(short)
		}, true},
		"a list that took long": {func(s *healthSteps) { s.watching(); s.end(); s.stream(); s.wait(long); s.synced() }, false},
		"lists that break off": {func(s *healthSteps) {
			s.watching()
			s.end()
			s.wait(short)
			s.stream()
			s.end()
			s.wait(short)
		}, true},
		"a list without a watch": {func(s *healthSteps) { s.synced(); s.wait(long) }, true},
		"a watch after a list":   {func(s *healthSteps) { s.synced(); s.wait(short); s.watch(); s.wait(long) }, false},
		"watches that end at once": {func(s *healthSteps) {
			s.watching()
			s.end()
			s.wait(short)
			s.watch()
			s.end()
			s.wait(short)
		}, true},
		"a short watch with an event": {func(s *healthSteps) {
			s.watching()
			s.end()
			s.wait(short)
			s.watch()
			s.wait(1)
			s.heard()
			s.end()
			s.wait(short)
		}, false},
		"a long watch without events": {func(s *healthSteps) {
			s.watching()
			s.end()
			s.wait(short)
			s.watch()
			s.wait(long)
			s.end()
			s.wait(short)
		}, false},
		"silent":                             {func(s *healthSteps) { s.watching(); s.wait(quietAfter) }, false},
		"silent, an answered probe":          {func(s *healthSteps) { s.watching(); s.wait(quietAfter); s.wasProbed(nil); s.wait(long) }, false},
		"silent, an unanswered probe":        {func(s *healthSteps) { s.watching(); s.wait(quietAfter); s.wasProbed(away) }, true},
		"silent, answered later":             {func(s *healthSteps) { s.watching(); s.wait(quietAfter); s.wasProbed(away); s.wasProbed(nil) }, false},
		"an event after an unanswered probe": {func(s *healthSteps) { s.watching(); s.wait(quietAfter); s.wasProbed(away); s.heard() }, false},
		"a watch after an unanswered probe":  {func(s *healthSteps) { s.watching(); s.wait(quietAfter); s.wasProbed(away); s.end(); s.watch() }, false},
		"silent, and no watchdog":            {func(s *healthSteps) { s.watching(); s.wait(probeEnds + 1) }, true},
		"silent, probed, and no watchdog":    {func(s *healthSteps) { s.watching(); s.wait(quietAfter); s.wasProbed(nil); s.wait(probeEnds + 1) }, true},
		"missing":                            {func(s *healthSteps) { s.failed(away); s.missing(); s.wait(time.Hour) }, false},
		"missing, checks fail":               {func(s *healthSteps) { s.missing(); s.wait(time.Hour); s.failed(away); s.wait(long) }, true},
		"missing, checks succeed again":      {func(s *healthSteps) { s.missing(); s.failed(away); s.wait(long); s.missing() }, false},
		"missing, and served now":            {func(s *healthSteps) { s.missing(); s.wait(time.Hour); s.appears(); s.wait(long) }, true},
		"frozen, no list since":              {func(s *healthSteps) { s.watching(); s.freeze(s.current); s.end(); s.wait(long) }, true},
		"frozen, and listed": {func(s *healthSteps) {
			s.watching()
			s.freeze(s.current)
			s.end()
			s.wait(long)
			s.synced()
			s.watch()
		}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newHealthSteps()
			tt.steps(s)
			if got := s.status(source.Services).Uncertain; got != tt.want {
				t.Errorf("uncertain: %t, want %t", got, tt.want)
			}
		})
	}
}

// TestUncertain_Server stops an API server from answering, and lets it answer again.
func TestUncertain_Server(t *testing.T) {
	start := func(t *testing.T) (*kubeapi.Server, *Source, *index.Index, *clock) {
		api, c := kubeapi.New(t), new(clock)
		api.Put(namespace("shop"), service("web", "10.96.0.1", nil))
		s, ix := run(t, api, source.Options{}, c)
		kit.Eventually(t, "synced", func() bool { return synced(s) })
		return api, s, ix, c
	}
	uncertain := func(s *Source) bool { return status(s, source.Services).Uncertain }

	t.Run("silent", func(t *testing.T) {
		api, s, _, c := start(t)
		r, state := theResource(s, source.Services), new(watching)
		api.Freeze("services", true)
		api.Refuse(true)
		c.advance(quietAfter - time.Second)
		r.check(t.Context(), state)
		if uncertain(s) {
			t.Fatal("uncertain before the server was probed")
		}
		c.advance(2 * time.Second)
		r.check(t.Context(), state)
		if !uncertain(s) {
			t.Fatal("certain, though the probe was not answered")
		}
		api.Refuse(false)
		r.check(t.Context(), state)
		if uncertain(s) {
			t.Error("uncertain, though the probe was answered")
		}
	})

	t.Run("away", func(t *testing.T) {
		api, s, ix, c := start(t)
		r := theResource(s, source.Services)
		api.Refuse(true)
		api.DropWatches("services")
		kit.Eventually(t, "the end of the watch", func() bool { w, _ := r.health.silence(); return w == nil })
		c.advance(lostAfter + time.Second)
		if !uncertain(s) {
			t.Fatal("certain without a watch")
		}
		api.Refuse(false)
		api.Put(service("web", "10.96.0.2", nil))
		kit.Eventually(t, "the update", func() bool { return hasIP(ix, "web", "10.96.0.2") })
		kit.Eventually(t, "certain", func() bool { return !uncertain(s) })
	})
}

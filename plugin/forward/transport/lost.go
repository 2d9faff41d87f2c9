package transport

import (
	"sync"
	"sync/atomic"

	"github.com/nearside-dns/nearside/plugin/internal/coherence"
)

// LostSessions are the sessions of some pools that were lost: no message reports the end of their answers. When a query is answered
// in another session, they can be fetched again, and lapse.
type LostSessions struct {
	some atomic.Bool // all is not empty
	mu   sync.Mutex
	all  []*coherence.Session // each had answers since the last call of lapse: there are no more than connections
}

func (l *LostSessions) add(s *coherence.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, s)
	l.some.Store(true)
}

// lapse ends the freshness of their answers, and forgets them.
func (l *LostSessions) lapse() {
	if !l.some.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.all {
		s.Retire()
	}
	l.all = nil
	l.some.Store(false)
}

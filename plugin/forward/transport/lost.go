package transport

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearside-dns/nearside/plugin/internal/vouch"
)

// LostSessions are the sessions of some pools that were lost: no message reports the end of their answers. When another session
// works, the answers lapse, since they can be fetched again.
type LostSessions struct {
	some atomic.Bool // all is not empty
	mu   sync.Mutex
	all  []*vouch.Session // each had answers since the last call of lapse: there are no more than connections
	// without is the voucher of the answers that were received while no session was open, like those of a lost session.
	without *vouch.Voucher
}

// voucher returns the voucher of an answer that is received while no session is open: nothing vouches for it.
func (l *LostSessions) voucher(now func() time.Duration) *vouch.Voucher {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.without == nil {
		s := vouch.NewSession(now)
		l.without = s.Voucher([]uint64{1})
		s.Close()
		l.all = append(l.all, s)
		l.some.Store(true)
	}
	return l.without
}

func (l *LostSessions) add(s *vouch.Session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, s)
	l.some.Store(true)
}

// lapse makes the answers of the lost sessions lapse, and forgets the sessions.
func (l *LostSessions) lapse() {
	if !l.some.Load() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.all {
		s.Retire()
	}
	l.all, l.without = nil, nil
	l.some.Store(false)
}

package cache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/property"
)

// TestCoherentAtRandom compares a cache with a model, for random changes of the upstream's data, silences and queries.
func TestCoherentAtRandom(t *testing.T) {
	property.Seeds(t, 0, 60, func(t *testing.T, seed uint64) {
		inBubble(t, "model", func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3)) // #nosec G404 -- no need for secrecy
			b := newCoherentCache(t, "cache {\nserve_stale off\nservfail 0\n}")
			m := &coherentModel{coherentCache: b, t: t}
			b.upstream(m.answer)
			for range 80 {
				switch r.IntN(8) {
				case 0, 1, 2:
					m.query()
				case 3:
					time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
				case 4:
					b.pass(time.Duration(r.IntN(8000)) * time.Millisecond)
				case 5:
					b.hear()
				case 6:
					m.change()
				case 7:
					if r.IntN(4) == 0 {
						b.session.Close()
						b.open()
						m.lost = true
					}
				}
			}
		})
	})
}

// coherentModel is a naive model of the answer that a cache has stored, and the upstream.
type coherentModel struct {
	*coherentCache
	t        *testing.T
	version  int // of the data
	stored   int // version, 0 without an answer
	received time.Duration
	lost     bool // the session of the stored answer
	queries  int
}

// modelTTL is the TTL of the upstream's replies in seconds.
const modelTTL = 5

func (m *coherentModel) answer(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	giveVoucher(ctx, r, m.session, uint64(m.version+1)) // #nosec G115 -- positive
	return 0, w.WriteMsg(replyTo(m.t, r, address(m.version+1, modelTTL)))
}

// change changes the data, and receives the invalidation. A popular answer is fetched again in wire form.
func (m *coherentModel) change() {
	e := m.entry("w. A")
	refetch := m.wire && e != nil && m.stored == m.version+1 && !m.lost && e.Popular()
	m.version++
	m.invalidate(uint64(m.version)) // #nosec G115 -- positive
	synctest.Wait()
	switch {
	case refetch:
		m.fetched()
	case m.stored != 0 && !m.lost:
		m.stored = 0
	}
}

// fetched records a query to the upstream.
func (m *coherentModel) fetched() {
	m.queries++
	m.stored, m.received, m.lost = m.version+1, m.now(), false
}

func (m *coherentModel) query() {
	m.t.Helper()
	ttl, vouched := modelTTL, m.session.Vouches(m.now()) && !m.lost
	age := m.now() - m.received
	switch {
	case m.stored == 0, !vouched && age >= modelTTL*time.Second:
		m.fetched()
	case !vouched:
		ttl -= int(age / time.Second)
	}
	m.want("w. A", address(m.stored, ttl))
	if got := m.coherentCache.received(); got != m.queries {
		m.t.Fatalf("the upstream received %d queries, want %d", got, m.queries)
	}
}

// TestInvalidationRacesWithHits changes data while queries are answered: a query that begins after an invalidation was received
// never gets older data.
func TestInvalidationRacesWithHits(t *testing.T) {
	for _, form := range []string{"chain", inWireForm} {
		t.Run(form, func(t *testing.T) {
			b := newCoherentCache(t, "cache")
			var mu sync.Mutex
			version, received := 1, atomic.Int64{}
			b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				mu.Lock()
				giveVoucher(ctx, r, b.session, uint64(version)) // #nosec G115 -- positive
				text := fmt.Sprintf("NOERROR; %s 5 IN A 192.0.%d.%d", r.Question[0].Name, version/256, version%256)
				mu.Unlock()
				return 0, w.WriteMsg(replyTo(t, r, text))
			})
			stop := make(chan struct{})
			var readers sync.WaitGroup
			for i := range 4 {
				readers.Go(func() {
					for n := 0; ; n++ {
						select {
						case <-stop:
							return
						default:
						}
						atLeast := received.Load()
						reply := b.query(fmt.Sprintf("w%d. A", (i+n)%3))
						if len(reply.Answer) != 1 {
							t.Errorf("no answer: %v", reply)
							return
						}
						ip := reply.Answer[0].(*dns.A).A.To4()
						if got := int64(ip[2])<<8 | int64(ip[3]); got < atLeast {
							t.Errorf("version %d, although %d was invalidated", got, atLeast-1)
							return
						}
					}
				})
			}
			for range 100 {
				b.hear()
				mu.Lock()
				version++
				old := uint64(version - 1) // #nosec G115 -- positive
				mu.Unlock()
				b.invalidate(old)
				received.Store(int64(old) + 1) // #nosec G115 -- small
				time.Sleep(100 * time.Microsecond)
			}
			close(stop)
			readers.Wait()
		})
	}
}

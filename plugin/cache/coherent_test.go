package cache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/coherence"
	"github.com/nearside-dns/nearside/test/property"
)

// coherentCache is a cache with an upstream that vouches for its replies over a session.
type coherentCache struct {
	*testCache
	session *coherence.Session
	opened  time.Duration // the zero of the upstream's clock
}

func newCoherentCache(t *testing.T, corefile string) *coherentCache {
	t.Helper()
	b := &coherentCache{testCache: newTestCache(t, corefile)}
	b.open()
	return b
}

// open opens a new session.
func (b *coherentCache) open() {
	b.session, b.opened = coherence.NewSession(b.now), b.now()
	b.session.Opened(b.opened, 0)
	b.hear()
}

// hear receives a heartbeat.
func (b *coherentCache) hear() {
	b.session.Heard(uint64((b.now() - b.opened) / time.Microsecond)) // #nosec G115 -- positive
}

// pass lets time pass while the session is heard four times a second.
func (b *coherentCache) pass(d time.Duration) {
	for end := b.now() + d; b.now() < end; {
		time.Sleep(min(coherence.HeartbeatInterval, end-b.now()))
		b.hear()
	}
}

// vouched sets the reply of the upstream, with handles.
func (b *coherentCache) vouched(text string, handles ...uint64) {
	reply := func(w dns.ResponseWriter, r *dns.Msg) (int, error) {
		m := replyTo(b.t, r, text)
		return m.Rcode, w.WriteMsg(m)
	}
	session := b.session
	b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		vouch(ctx, r, session, handles...)
		return reply(w, r)
	})
}

// vouch sets the voucher of a reply, as plugin forward does.
func vouch(ctx context.Context, r *dns.Msg, s *coherence.Session, handles ...uint64) {
	if p := answers.PropertiesOf(ctx, r); p != nil {
		p.Voucher = s.Voucher(handles)
	}
}

// invalidate receives the message that ends handles, all without any.
func (b *coherentCache) invalidate(handles ...uint64) {
	for _, d := range b.session.Invalidate(handles) {
		d.Invalidated()
	}
}

// address is the reply with an address of w., by the last number and the TTL.
func address(last, ttl int) string {
	return fmt.Sprintf("NOERROR; w. %d IN A 192.0.2.%d", ttl, last)
}

func TestBeyondTTL(t *testing.T) {
	for name, tt := range map[string]struct{ query, reply string }{
		"address":     {"w. A", address(1, 5)},
		"NXDOMAIN":    {"w. A", denial("NXDOMAIN", 5, 5)},
		"NODATA":      {"w. AAAA", denial("NOERROR", 5, 5)},
		"search list": {"w.a. A +search:a.,b.", "NXDOMAIN tried:; authority; . 5 IN SOA ns. root. 1 2 3 4 5; additional; OPT tried:"},
	} {
		inBubble(t, name, func(t *testing.T) {
			b := newCoherentCache(t, "cache")
			reply := tt.reply
			if text, tried := strings.CutSuffix(reply, "; additional; OPT tried:"); tried {
				b.vouched(text, 1, 2)
			} else {
				b.vouched(reply, 1, 2)
			}
			want := strings.Replace(reply, " tried:;", ";", 1)
			b.want(tt.query, want)
			for _, passed := range []time.Duration{time.Second, 3 * time.Second, time.Second, 20 * time.Second, time.Hour} {
				b.pass(passed)
				b.want(tt.query, want) // with the TTL of the reply
			}
			b.wantQueries(1)
			n := b.counters("")
			if hits, beyond := value(t, n.hits[0])+value(t, n.hits[1]), value(t, n.beyondTTL); hits != 5 || beyond != 3 {
				t.Errorf("%v hits, %v of them beyond the TTL; want 5 and 3", hits, beyond)
			}
		})
	}
}

// TestSilence has a session that falls silent: the TTL of the answer applies from its receipt.
func TestSilence(t *testing.T) {
	inBubble(t, "before the TTL", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched(address(1, 5), 1)
		b.query("w. A")
		b.pass(2 * time.Second)
		time.Sleep(time.Second - 1) // a second after the last heartbeat
		b.want("w. A", address(1, 5))
		time.Sleep(1)
		b.want("w. A", address(1, 2))
		b.hear()
		b.want("w. A", address(1, 5))
		time.Sleep(2*time.Second - 1)
		b.want("w. A", address(1, 1))
		b.wantQueries(1)
		time.Sleep(1)
		b.want("w. A", address(1, 5))
		b.wantQueries(2)
	})
	inBubble(t, "after the TTL", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched(address(1, 5), 1)
		b.query("w. A")
		b.pass(time.Minute)
		time.Sleep(time.Second)
		b.want("w. A", address(1, 5))
		b.wantQueries(2)
	})
	inBubble(t, "lost", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched(address(1, 5), 1)
		b.query("w. A")
		b.pass(time.Second)
		b.session.Close()
		b.want("w. A", address(1, 4))
		time.Sleep(4 * time.Second)
		b.open()
		b.vouched(address(2, 5), 1)
		b.want("w. A", address(2, 5))
		b.pass(time.Minute)
		b.want("w. A", address(2, 5))
		b.wantQueries(2)
	})
	inBubble(t, "keepttl", func(t *testing.T) {
		b := newCoherentCache(t, "cache {\nkeepttl\n}")
		b.vouched(address(1, 5), 1)
		b.query("w. A")
		time.Sleep(3 * time.Second)
		b.want("w. A", address(1, 5))
		b.wantQueries(1)
	})
}

// TestFailureIsNotVouched has failures with handles: they end after their time.
func TestFailureIsNotVouched(t *testing.T) {
	inBubble(t, "SERVFAIL", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched("SERVFAIL", 1)
		b.query("w. A")
		b.pass(5*time.Second - 1)
		b.query("w. A")
		b.wantQueries(1)
		b.pass(1)
		b.query("w. A")
		b.wantQueries(2)
	})
}

// TestInvalidated has an upstream whose data change: the answer is not served again, not even stale.
func TestInvalidated(t *testing.T) {
	for name, tt := range map[string]struct {
		corefile string
		after    time.Duration
		silent   time.Duration // before the invalidation
		handles  []uint64
	}{
		"before the TTL":        {"cache", time.Second, 0, []uint64{2}},
		"after the TTL":         {"cache", time.Minute, 0, []uint64{1, 2}},
		"everything":            {"cache", time.Minute, 0, nil},
		"after silence":         {"cache", time.Second, 2 * time.Minute, []uint64{1}},
		"with serve_stale":      {"cache {\nserve_stale\n}", time.Minute, 2 * time.Minute, []uint64{1}},
		"with verify":           {"cache {\nserve_stale 1h verify\n}", time.Minute, 2 * time.Minute, []uint64{1}},
		"positive is preferred": {"cache {\nserve_stale 1h verify\nserve_stale_policy prefer_positive\n}", time.Minute, 0, []uint64{1}},
	} {
		inBubble(t, name, func(t *testing.T) {
			b := newCoherentCache(t, tt.corefile)
			b.vouched(address(1, 5), 1, 2)
			b.query("w. A")
			b.pass(tt.after)
			time.Sleep(tt.silent)
			b.fails()
			b.invalidate(tt.handles...)
			if b.entry("w. A") != nil {
				t.Error("the answer is still stored")
			}
			b.want("w. A", "nothing")
			b.wantQueries(2)
			time.Sleep(10 * time.Second) // the failure is stored
			b.vouched(denial("NXDOMAIN", 5, 5), 3)
			b.want("w. A", denial("NXDOMAIN", 5, 5))
			if n := b.counters(""); value(t, n.invalidated) != 1 {
				t.Errorf("%v answers were invalidated, want 1", value(t, n.invalidated))
			}
		})
	}
}

// TestInvalidatedWhileStale has a session invalidate a stale answer while a query waits for the upstream: the client waits on.
func TestInvalidatedWhileStale(t *testing.T) {
	for _, reply := range []string{address(2, 5), "SERVFAIL"} {
		inBubble(t, strings.Fields(reply)[0], func(t *testing.T) {
			b := newCoherentCache(t, "cache")
			b.vouched(address(1, 5), 1)
			b.query("w. A")
			time.Sleep(time.Minute)
			b.slowly(3*time.Second, reply)
			time.AfterFunc(time.Second, func() { b.invalidate(1) })
			b.want("w. A", reply)
		})
	}
}

// TestStaleAfterSilence has an answer that a session has vouched for during hours: it is served stale for as long as one that
// was just received.
func TestStaleAfterSilence(t *testing.T) {
	inBubble(t, "silent", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched(address(1, 5), 1)
		b.query("w. A")
		b.pass(3 * time.Hour)
		b.fails()
		time.Sleep(time.Hour)
		b.want("w. A", "NOERROR; w. 30 IN A 192.0.2.1")
		time.Sleep(time.Second)
		b.want("w. A", "nothing")
		n := b.counters("")
		if got := value(t, n.stale); got != 1 {
			t.Errorf("%v stale answers, want 1", got)
		}
	})
}

// TestPrefetchOfVouched has a popular answer, which is prefetched only once no session vouches for it.
func TestPrefetchOfVouched(t *testing.T) {
	inBubble(t, "popular", func(t *testing.T) {
		b := newCoherentCache(t, "cache {\nprefetch 1\n}")
		b.vouched(address(1, 10), 1)
		b.query("w. A")
		b.pass(9 * time.Second)
		b.want("w. A", address(1, 10))
		b.pass(time.Minute)
		b.want("w. A", address(1, 10))
		synctest.Wait()
		b.wantQueries(1)
		b.invalidate()
		b.query("w. A")
		seen := b.received()
		b.session.Close()
		time.Sleep(9500 * time.Millisecond)
		b.want("w. A", address(1, 1))
		synctest.Wait()
		b.wantQueries(seen + 1)
	})
}

// TestListDenialsAreVouched has an upstream deny a search list: the denials of the candidates are as valid as the whole.
func TestListDenialsAreVouched(t *testing.T) {
	inBubble(t, "search list", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		const reply = "NXDOMAIN tried:; authority; . 5 IN SOA ns. root. 1 2 3 4 5"
		b.vouched(reply, 1)
		b.query("w.a. A +search:a.,b.")
		b.pass(time.Minute)
		denied := "NXDOMAIN; authority; . 5 IN SOA ns. root. 1 2 3 4 5"
		for _, candidate := range []string{"w.a. A", "w.b. A"} {
			b.want(candidate, denied)
		}
		b.wantQueries(1)
		b.invalidate(1)
		if n := b.space.Len(answers.Denial); n != 0 {
			t.Errorf("%d denials are still stored", n)
		}
	})
}

// TestInvalidatedOnTheWay has a session invalidate an answer between its receipt and its storage.
func TestInvalidatedOnTheWay(t *testing.T) {
	inBubble(t, "not stored", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			last := b.received()
			vouch(ctx, r, b.session, 7)
			if last == 1 {
				time.Sleep(time.Second) // queries of others wait
				b.invalidate(7)
			}
			return 0, w.WriteMsg(replyTo(t, r, address(last, 5)))
		})
		var others sync.WaitGroup
		others.Go(func() { b.want("w. A", address(1, 5)) })
		synctest.Wait()
		for range 3 {
			others.Go(func() { b.want("w. A", address(2, 5)) })
		}
		others.Wait()
		b.want("w. A", address(2, 5))
		b.wantQueries(2)
	})
}

// wireOnly is inBubble for queries in wire form alone.
func wireOnly(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name+" "+inWireForm, func(t *testing.T) { synctest.Test(t, test) })
}

// TestRefetch has a session invalidate answers: popular ones are fetched again, with the same question.
func TestRefetch(t *testing.T) {
	for name, tt := range map[string]struct {
		query   string
		hits    int
		refetch bool
	}{
		"popular":            {"w. A", 1, true},
		"served once":        {"w. A", 0, false},
		"DO, CD":             {"w. A +do +cd", 3, true},
		"search list":        {"w.a. A +search:a.,b.", 1, true},
		"another type":       {"w. TXT", 1, true},
		"upper case":         {"W. A", 1, true},
		"without RD, served": {"w. A", 2, true},
	} {
		wireOnly(t, name, func(t *testing.T) {
			b := newCoherentCache(t, "cache")
			b.vouched("NXDOMAIN tried:a.; authority; . 5 IN SOA ns. root. 1 2 3 4 5", 1)
			if !strings.Contains(tt.query, "search") {
				b.vouched(denial("NXDOMAIN", 5, 5), 1)
			}
			for range tt.hits + 1 {
				b.query(tt.query)
			}
			b.pass(time.Minute)
			b.invalidate(1)
			synctest.Wait()
			want := 1
			if tt.refetch {
				want++
			}
			b.wantQueries(want)
			if got := value(t, b.counters("").refetches); got != float64(want-1) {
				t.Errorf("%v refetches, want %d", got, want-1)
			}
			if n := refetching.Load(); n != 0 {
				t.Errorf("%d refetches are in progress", n)
			}
			b.query(tt.query)
			b.wantQueries(2)
			first, last := b.seen[0], b.seen[len(b.seen)-1]
			if !strings.EqualFold(first.Question[0].Name, last.Question[0].Name) || first.Question[0].Qtype != last.Question[0].Qtype ||
				first.CheckingDisabled != last.CheckingDisabled || !last.RecursionDesired {
				t.Errorf("refetched with\n%v, the first query was\n%v", last, first)
			}
			b.invalidate(1)
			synctest.Wait()
			b.wantQueries(2 + map[bool]int{true: 1}[tt.refetch]) // served once after the refetch
		})
	}
	chainOnly(t, "not through the plugin chain", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched(address(1, 5), 1)
		b.query("w. A")
		b.query("w. A")
		b.invalidate(1)
		synctest.Wait()
		b.wantQueries(1)
	})
}

// TestRefetchIsBounded has many popular answers invalidated at once.
func TestRefetchIsBounded(t *testing.T) {
	wireOnly(t, "many", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched("NOERROR; w. 5 IN A 192.0.2.1", 1)
		const n = maxRefetching + 40
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			vouch(ctx, r, b.session, 1)
			return 0, w.WriteMsg(replyTo(t, r, fmt.Sprintf("NOERROR; %s 5 IN A 192.0.2.1", r.Question[0].Name)))
		})
		for i := range n {
			b.query(fmt.Sprintf("w%d. A", i))
			b.query(fmt.Sprintf("w%d. A", i))
		}
		b.wantQueries(n)
		b.slowly(time.Second, "SERVFAIL")
		b.invalidate(1)
		synctest.Wait()
		b.wantQueries(n + maxRefetching)
		c := b.counters("")
		if got := [3]float64{value(t, c.refetches), value(t, c.skipped), value(t, c.invalidated)}; got != [3]float64{maxRefetching, 40, n} {
			t.Errorf("refetches, skipped and invalidated %v, want %d, 40 and %d", got, maxRefetching, n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if left := refetching.Load(); left != 0 {
			t.Errorf("%d refetches are in progress", left)
		}
	})
}

// TestRefetchJoined has a query wait for the answer that is being refetched.
func TestRefetchJoined(t *testing.T) {
	wireOnly(t, "joined", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched(address(1, 5), 1)
		b.query("w. A")
		b.query("w. A")
		b.slowly(time.Second, address(2, 5))
		b.invalidate(1)
		b.want("w. A", address(2, 5))
		b.wantQueries(2)
	})
}

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
	vouch(ctx, r, m.session, uint64(m.version+1)) // #nosec G115 -- positive
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
			version, told := 1, atomic.Int64{}
			b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				mu.Lock()
				vouch(ctx, r, b.session, uint64(version)) // #nosec G115 -- positive
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
						atLeast := told.Load()
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
				told.Store(int64(old) + 1) // #nosec G115 -- small
				time.Sleep(100 * time.Microsecond)
			}
			close(stop)
			readers.Wait()
		})
	}
}

package cache

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// coherentCache is a cache with an upstream that vouches for its replies over a session.
type coherentCache struct {
	*testCache
	session *vouch.Session
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
	b.session, b.opened = vouch.NewSession(b.now), b.now()
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
		time.Sleep(min(push.HeartbeatInterval, end-b.now()))
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
		giveVoucher(ctx, r, session, handles...)
		return reply(w, r)
	})
}

// giveVoucher sets the voucher of a reply, as plugin forward does.
func giveVoucher(ctx context.Context, r *dns.Msg, s *vouch.Session, handles ...uint64) {
	if p := store.PropertiesOf(ctx, r); p != nil {
		p.Voucher = s.Voucher(handles)
	}
}

// invalidate receives the message that ends handles, all without any.
func (b *coherentCache) invalidate(handles ...uint64) {
	vouch.End(b.session.Invalidate(handles))
}

// address is the reply with an address of w., by the last number and the TTL.
func address(last, ttl int) string {
	return fmt.Sprintf("NOERROR; w. %d IN A 192.0.2.%d", ttl, last)
}

func TestBeyondTTL(t *testing.T) {
	const unpacked = "cache {\ndisable success other.\n}" // no reply is read in wire form
	for name, tt := range map[string]struct{ query, reply, corefile string }{
		"address":              {"w. A", address(1, 5), "cache"},
		"address, as message":  {"w. A", address(1, 5), unpacked},
		"NXDOMAIN":             {"w. A", denial("NXDOMAIN", 5, 5), "cache"},
		"NXDOMAIN, as message": {"w. A", denial("NXDOMAIN", 5, 5), unpacked},
		"NODATA":               {"w. AAAA", denial("NOERROR", 5, 5), "cache"},
		"search list":          {"w.a. A +search:a.,b.", "NXDOMAIN tried:; authority; . 5 IN SOA ns. root. 1 2 3 4 5; additional; OPT tried:", "cache"},
	} {
		inBubble(t, name, func(t *testing.T) {
			b := newCoherentCache(t, tt.corefile)
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
	for name, corefile := range map[string]string{
		"default": "cache", "verify": "cache {\nserve_stale 1h verify\n}", "verify in time": "cache {\nserve_stale 1h verify 2s\n}",
	} {
		for _, reply := range []string{address(2, 5), "SERVFAIL"} {
			inBubble(t, name+" "+strings.Fields(reply)[0], func(t *testing.T) {
				b := newCoherentCache(t, corefile)
				b.vouched(address(1, 5), 1)
				b.query("w. A")
				time.Sleep(time.Minute)
				b.slowly(3*time.Second, reply)
				time.AfterFunc(time.Second, func() { b.invalidate(1) })
				b.want("w. A", reply)
			})
		}
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

// TestStaleAfterLoss is TestStaleAfterSilence for a session whose connection ends.
func TestStaleAfterLoss(t *testing.T) {
	inBubble(t, "lost", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched(address(1, 5), 1)
		b.query("w. A")
		b.pass(3 * time.Hour)
		b.session.Close()
		b.fails()
		b.want("w. A", "NOERROR; w. 30 IN A 192.0.2.1")
		time.Sleep(59 * time.Minute)
		b.want("w. A", "NOERROR; w. 30 IN A 192.0.2.1")
		time.Sleep(2 * time.Minute)
		b.want("w. A", "nothing")
	})
}

// TestPropertiesOfVouched has a plugin in front of the cache, which reads the properties of the reply.
func TestPropertiesOfVouched(t *testing.T) {
	chainOnly(t, "lifetime", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched(address(1, 5), 1)
		b.query("w. A")
		b.pass(time.Minute)
		properties := func() store.Properties {
			r := query("w. A")
			ctx, recorded := store.Record(context.Background(), r)
			if _, err := b.ServeDNS(ctx, new(client), r); err != nil {
				t.Fatal(err)
			}
			return recorded.Properties
		}
		if p := properties(); p.Lifetime != 5*time.Second || p.Voucher == nil || p.Expires >= b.now() {
			t.Errorf("properties beyond the TTL: %+v", p)
		}
		b.invalidate()
		properties()
		b.session.Close()
		time.Sleep(2 * time.Second)
		if p := properties(); p.Lifetime != 3*time.Second {
			t.Errorf("properties after the end of the session: %+v", p)
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
		b.slowly(time.Second, denied) // popular denials are fetched again
		b.invalidate(1)
		if n := b.space.Len(store.Denial); n != 0 {
			t.Errorf("%d denials are still stored", n)
		}
		time.Sleep(2 * time.Second)
	})
}

// TestInvalidatedOnTheWay has a session invalidate an answer between its receipt and its storage.
func TestInvalidatedOnTheWay(t *testing.T) {
	inBubble(t, "not stored", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			last := b.received()
			giveVoucher(ctx, r, b.session, 7)
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

// TestTwoCaches has a cache in front of one whose answers a session vouches for.
func TestTwoCaches(t *testing.T) {
	chainOnly(t, "in the chain", func(t *testing.T) {
		back, front := newCoherentCache(t, "cache"), newTestCache(t, "cache")
		front.upstream(back.ServeDNS)
		back.vouched(address(1, 5), 1)
		back.query("w. A")
		back.pass(3 * time.Second)
		front.want("w. A", address(1, 5))
		back.pass(time.Minute)
		front.want("w. A", address(1, 5))
		front.wantQueries(1)
		back.invalidate(1)
		back.vouched(address(2, 5), 2)
		front.want("w. A", address(2, 5))
		front.wantQueries(2)
		back.pass(3 * time.Second)
		front.invalidatedEntries(t, 1)
		back.session.Close()
		front.want("w. A", address(2, 2)) // from the receipt of the other cache
	})
	chainOnly(t, "beyond the TTL", func(t *testing.T) {
		back, front := newCoherentCache(t, "cache"), newTestCache(t, "cache")
		front.upstream(back.ServeDNS)
		back.vouched(address(1, 5), 1)
		back.query("w. A")
		back.pass(3 * time.Hour)
		front.want("w. A", address(1, 5))
		e, now := front.entry("w. A"), front.now()
		if lifetime := e.Lifetime(now); lifetime < 0 {
			t.Errorf("lifetime %v", lifetime)
		}
		if until, want := e.StaleUntil(now), back.entry("w. A").StaleUntil(now); until != want {
			t.Errorf("stale until %v, that of the other cache until %v", until, want)
		}
	})
	chainOnly(t, "late", func(t *testing.T) {
		back, front := newCoherentCache(t, "cache"), newTestCache(t, "cache")
		front.upstream(back.ServeDNS)
		back.vouched(address(1, 5), 1)
		back.query("w. A")
		back.pass(4 * time.Second)
		front.query("w. A")
		back.session.Close()
		time.Sleep(time.Second)
		back.open()
		back.vouched(address(2, 5), 2)
		front.want("w. A", address(2, 5))
	})
}

// invalidatedEntries checks the number of entries that a session has invalidated.
func (b *testCache) invalidatedEntries(t *testing.T, want float64) {
	t.Helper()
	if got := value(t, b.counters("").invalidated); got != want {
		t.Errorf("%v answers were invalidated, want %v", got, want)
	}
}

// TestLapsed has a session that is retired while both ends work: the answer is fetched again for the next query, and served until
// its TTL ends if that fails.
func TestLapsed(t *testing.T) {
	for _, corefile := range []string{"cache", "cache {\nserve_stale off\n}", "cache {\nserve_stale 1h verify\n}"} {
		inBubble(t, corefile, func(t *testing.T) {
			b := newCoherentCache(t, corefile)
			b.vouched(address(1, 30), 1)
			b.want("w. A", address(1, 30))
			b.pass(time.Minute)
			b.want("w. A", address(1, 30))
			b.wantQueries(1)
			b.vouched(address(2, 30), 1)
			b.invalidate(1)
			b.want("w. A", address(2, 30))
			b.pass(10 * time.Second)
			b.session.Retire()
			b.fails()
			b.want("w. A", address(2, 20))
			b.open()
			time.Sleep(defaultStale.recheck / 2)
			b.vouched(address(3, 30), 1)
			if !strings.Contains(corefile, "verify") {
				b.want("w. A", address(2, 5)) // the upstream is not queried for a while after the failure
			}
			if strings.Contains(corefile, "off") {
				time.Sleep(5 * time.Second) // until the TTL ends
				b.want("w. A", address(3, 30))
				b.pass(time.Hour)
				b.want("w. A", address(3, 30))
			}
		})
	}
	inBubble(t, "immediate", func(t *testing.T) {
		b := newCoherentCache(t, "cache {\nserve_stale\n}")
		b.vouched(address(1, 30), 1)
		b.query("w. A")
		b.session.Retire()
		b.open()
		b.vouched(address(2, 30), 1)
		b.want("w. A", address(1, 30))
		synctest.Wait()
		b.want("w. A", address(2, 30))
		b.wantQueries(2)
		if n := value(t, b.counters("").stale); n != 0 {
			t.Errorf("%v stale answers, although their TTL has not expired", n)
		}
	})
	inBubble(t, "works", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched(address(1, 30), 1)
		b.want("w. A", address(1, 30))
		b.session.Retire()
		b.open()
		b.vouched(address(2, 30), 1)
		b.want("w. A", address(2, 30))
		b.want("w. A", address(2, 30))
		b.wantQueries(2)
	})
}

// TestTTLOfLapsedEndsMeanwhile has the TTL of a lapsed answer end between any two readings of the clock for one query, while the
// upstream fails: with serve_stale off, no client gets a stale answer, nor the TTL of one.
func TestTTLOfLapsedEndsMeanwhile(t *testing.T) {
	for name, failedBefore := range map[string]bool{"first failure": false, "after a failure": true} {
		inBubble(t, name, func(t *testing.T) {
			const readings = 20 // more than a query causes
			for end := range int64(readings) {
				b := newCoherentCache(t, "cache {\nserve_stale off\n}")
				begin := b.now()
				ends := begin + 20*time.Second
				var n, now atomic.Int64 // readings; the time is fixed
				now.Store(int64(begin))
				b.Cache.now = func() time.Duration {
					if at := time.Duration(now.Load()); at < ends-1 || n.Add(1) <= end {
						return at
					}
					return ends
				}
				b.vouched(address(1, 20), 1)
				b.query("w. A")
				b.session.Retire()
				b.fails()
				if failedBefore {
					b.want("w. A", address(1, 20))
				}
				now.Store(int64(ends - 1))
				switch got := brief(b.query("w. A +edns")); strings.TrimSuffix(got, "; additional; OPT") {
				case "nothing", "SERVFAIL", address(1, 1), address(1, 0):
				default:
					t.Errorf("the TTL ends after %d readings: %s", end, got)
				}
				if stale := value(t, b.counters("").stale); stale > 0 {
					t.Errorf("the TTL ends after %d readings: %v stale answers", end, stale)
				}
				synctest.Wait()
				if n.Load() >= readings {
					t.Fatalf("%d readings", n.Load())
				}
			}
		})
	}
}

// TestLapsedWhileSlow has a lapsed answer, and an upstream that does not answer: a client waits for as long as for a stale answer,
// and gets none whose TTL ends meanwhile if stale answers are off.
func TestLapsedWhileSlow(t *testing.T) {
	const ttl = 30
	lapsed := func(t *testing.T, corefile string, passed time.Duration) *coherentCache {
		b := newCoherentCache(t, corefile)
		b.vouched(address(1, ttl), 1)
		b.query("w. A")
		b.pass(passed)
		b.session.Retire()
		return b
	}
	waits := func(b *coherentCache, want time.Duration, reply string) {
		b.t.Helper()
		start := b.now()
		b.want("w. A", reply)
		if got := b.now() - start; got != want {
			b.t.Errorf("the client waited for %s, want %s", got, want)
		}
	}
	for _, corefile := range []string{"cache", "cache {\nserve_stale off\n}"} {
		inBubble(t, corefile, func(t *testing.T) {
			b := lapsed(t, corefile, time.Second)
			b.slowly(4800*time.Millisecond, "SERVFAIL")
			waits(b, defaultStale.timeout, address(1, ttl-2))
			waits(b, 0, address(1, ttl-2))
			time.Sleep(10 * time.Second)
			waits(b, 0, address(1, ttl-12))
			b.wantQueries(2)
			if n := value(t, b.counters("").stale); n != 0 {
				t.Errorf("%v stale answers, although their TTL has not expired", n)
			}
		})
		for _, reply := range []string{address(2, ttl), "SERVFAIL"} {
			inBubble(t, corefile+", expired meanwhile, "+reply[:7], func(t *testing.T) {
				b := lapsed(t, corefile, (ttl-1)*time.Second)
				b.slowly(3*time.Second, reply)
				if strings.Contains(corefile, "off") {
					waits(b, 3*time.Second, reply)
				} else {
					waits(b, defaultStale.timeout, staleA)
				}
				time.Sleep(3 * time.Second) // until the query to the upstream ends
			})
		}
	}
}

// TestLateReply has a reply without a voucher, or one that was invalidated, as of an attempt on another connection, after one with a
// voucher: the vouched answer remains.
func TestLateReply(t *testing.T) {
	inBubble(t, "late", func(t *testing.T) {
		b := newCoherentCache(t, "cache")
		b.vouched(address(1, 5), 1)
		b.want("w. A", address(1, 5))
		var q wire.Query
		packed, ok := store.QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), query("w. A"))
		if !ok {
			t.Fatal("no key")
		}
		key := b.space.Key(nil, packed, &q)
		late := func() *store.Entry {
			e := b.newEntry(&facts{class: response.NoError, positive: true, lifetime: time.Minute, properties: &noProperties}, nil)
			kit.Must(t, e.Fill(replyTo(t, query("w. A"), address(2, 60))))
			return e
		}
		if b.put(key, late(), false) {
			t.Error("the reply replaced a vouched answer")
		}
		older := late()
		older.Voucher = olderVoucher(b.now)
		if b.put(key, older, false) {
			t.Error("the reply from before the session replaced a vouched answer")
		}
		ended := late()
		ended.Voucher = b.session.Voucher([]uint64{2})
		b.invalidate(2)
		if b.put(key, ended, false) {
			t.Error("the invalidated reply replaced a vouched answer")
		}
		b.want("w. A", address(1, 5))
		b.session.Close()
		if !b.put(key, late(), false) {
			t.Error("the reply did not replace an answer whose session is closed")
		}
		b.want("w. A", address(2, 60))
	})
}

// olderVoucher returns the voucher of an answer that was received while no session was open.
func olderVoucher(now func() time.Duration) *vouch.Voucher {
	s := vouch.NewSession(now)
	v := s.Voucher([]uint64{1})
	s.Close()
	return v
}

// TestOlderThanSession has an answer from before the first session: its TTL applies, and another process may restore it.
func TestOlderThanSession(t *testing.T) {
	inBubble(t, "older", func(t *testing.T) {
		b := newTestCache(t, "cache")
		v := olderVoucher(b.now)
		b.upstream(func(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
			if p := store.PropertiesOf(ctx, r); p != nil {
				p.Voucher = v
			}
			m := replyTo(t, r, address(1, 30))
			return m.Rcode, w.WriteMsg(m)
		})
		b.want("w. A", address(1, 30))
		time.Sleep(29 * time.Second)
		b.want("w. A", address(1, 1))
		if !isRestorable(b.entry("w. A"), b.now()) {
			t.Error("the answer is not restored by another process")
		}
		b.wantQueries(1)
		time.Sleep(time.Second)
		b.want("w. A", address(1, 30))
		b.wantQueries(2)
	})
}

// TestEndedBeforeStored has a popular answer that is invalidated before it is stored: the next one, which arrives at once, does
// not wait for the lock under which the answer is stored.
func TestEndedBeforeStored(t *testing.T) {
	b := newCoherentCache(t, "cache")
	b.SetExchanger(immediate{}, nil)
	b.upstream(func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) { return dns.RcodeServerFailure, nil })
	b.query("w. A") // the metrics of a server
	var q wire.Query
	packed, ok := store.QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), query("x. A"))
	if !ok {
		t.Fatal("no key")
	}
	e := b.newEntry(&facts{class: response.NoError, positive: true, lifetime: time.Minute, properties: &noProperties, voucher: b.session.Voucher([]uint64{1})}, nil)
	e.Popularity = new(store.Popularity) // without a hit, as popular as required
	kit.Must(t, e.Fill(replyTo(t, query("x. A"), "NOERROR; x. 60 IN A 192.0.2.1")))
	b.invalidate(1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.put(b.space.Key(nil, packed, &q), e, false)
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("deadlock")
	}
	if n := value(t, b.counters("").refetches); n != 1 {
		t.Errorf("%v queries for the next answer, want 1", n)
	}
}

// immediate is an Exchanger that calls the Receiver before Exchange returns.
type immediate struct{}

// Capacity implements wirechain.Exchanger.
func (immediate) Capacity() int { return 1 }

// Exchange implements wirechain.Exchanger.
func (immediate) Exchange(b *batch.Batch, _ *wire.Query, packed []byte, _ bool, r wirechain.Receiver) bool {
	m := new(dns.Msg)
	if m.Unpack(packed) != nil {
		return false
	}
	m.SetReply(m)
	m.Answer = []dns.RR{&dns.A{
		Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(192, 0, 2, 2),
	}}
	reply, err := m.Pack()
	r.Receive(b, parsedReply(reply), nil, dns.RcodeSuccess, err)
	return true
}

package expand

import (
	"context"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// storedBackend answers from entries, as plugin cache does, in both forms. It has entries for all names that are queried.
type storedBackend struct {
	t       *testing.T
	entries map[string]*store.Entry
	uncache bool // the replies have no time: no cache stores them
	queries int
}

func (*storedBackend) Name() string { return "backend" }

// ServeDNS implements plugin.Handler.
func (w *storedBackend) ServeDNS(ctx context.Context, rw dns.ResponseWriter, r *dns.Msg) (int, error) {
	w.queries++
	e := w.entries[r.Question[0].Name]
	var q wire.Query
	packed, _ := store.QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), r)
	p := e.Patch(validity.Now())
	m, err := e.Message(packed, q, &p)
	kit.Must(w.t, err)
	if properties := store.PropertiesOf(ctx, r); properties != nil {
		properties.Validity, properties.Lifetime = e.Validity, e.Lifetime(validity.Now())
		if w.uncache {
			properties.Expires = 0
		}
	}
	return dns.RcodeSuccess, rw.WriteMsg(m)
}

// ServeWire implements wirechain.Handler.
func (w *storedBackend) ServeWire(b *batch.Batch, q *wirechain.Request) {
	name, _, err := dns.UnpackDomainName(q.Packed, wire.HeaderLen)
	kit.Must(w.t, err)
	if w.uncache {
		q.Pass(b, q, nil)
		return
	}
	w.queries++
	e := w.entries[name]
	q.Answer(b, q, e, e.Patch(validity.Now()))
}

// store adds the entry of a reply that was received a time ago.
func (w *storedBackend) store(name string, f fact, ago time.Duration, v *vouch.Voucher) {
	w.t.Helper()
	stored := validity.Now() - ago
	e := &store.Entry{Stored: stored, Validity: validity.Validity{Expires: stored + time.Duration(f.ttl)*time.Second, Voucher: v}}
	kit.Must(w.t, e.Fill(replyOf(query(name, dns.TypeA), name, f)))
	w.entries[name] = e
}

// part is the reply for a candidate.
type part struct {
	replyKind
	ttl    uint32
	ago    time.Duration // of the receipt
	handle uint64        // 0 without a voucher
}

// TestVouchedParts joins replies, for some of which a session vouches that has received them long ago.
func TestVouchedParts(t *testing.T) {
	denied := part{replyNXDOMAIN, 5, time.Hour, 1}
	const minute = time.Minute
	for name, tt := range map[string]struct {
		search   [4]part // for the candidates with a suffix
		bare     part
		uncached bool
		alias    uint32 // TTL, 0 without an answer
		ttl      uint32 // of the last record
		limit    time.Duration
		stored   bool
	}{
		"all vouched":                {[4]part{denied, denied, denied, denied}, part{replyData, 30, time.Hour, 2}, false, 5, 31, 0, true},
		"nothing has data":           {[4]part{denied, denied, denied, denied}, denied, false, 0, 5, 0, true},
		"data of another server":     {[4]part{denied, denied, denied, denied}, part{replyData, 60, 20 * time.Second, 0}, false, 5, 41, 40 * time.Second, true},
		"denial of another server":   {[4]part{denied, {replyNXDOMAIN, 63, minute, 0}, denied, denied}, part{replyData, 30, time.Hour, 2}, false, 3, 31, 3 * time.Second, true},
		"a vouched denial with more": {[4]part{{replyNXDOMAIN, 20, time.Hour, 3}, denied, denied, denied}, part{replyData, 3, time.Hour, 2}, false, 3, 4, 0, true},
		"no cache":                   {[4]part{denied, denied, denied, denied}, part{replyData, 30, time.Hour, 2}, true, 0, 31, 0, false},
	} {
		for _, form := range []string{"chain", "wire"} {
			t.Run(name+", "+form, func(t *testing.T) {
				s := vouchingSession(t)
				w := &storedBackend{t: t, entries: map[string]*store.Entry{}, uncache: tt.uncached}
				for i, candidate := range []string{first, second, third, fourth, bareName} {
					p := append(tt.search[:], tt.bare)[i]
					var v *vouch.Voucher
					if p.handle != 0 {
						v = s.Voucher([]uint64{p.handle, 9})
					}
					w.store(candidate, fact{replyKind: p.replyKind, ttl: p.ttl}, p.ago, v)
				}
				x := newExpander(newBackend(nil))
				x.Next = w
				r := query(first, dns.TypeA)
				ask := func() *dns.Msg {
					if form == "wire" {
						got, _ := sendWire(t, x, r, &podQuestion)
						return got.Msg
					}
					return send(t, x, r, &podQuestion).Msg
				}
				checkTTLs(t, ask(), tt.alias, tt.ttl)
				queries, last := w.queries, tt.ttl
				if tt.limit > 0 {
					last = min(last, uint32(tt.limit/time.Second)) // #nosec G115 -- small
				}
				checkTTLs(t, ask(), tt.alias, last)
				if stored := w.queries == queries; stored != tt.stored {
					t.Fatalf("stored %t, want %t", stored, tt.stored)
				}
				if tt.stored {
					checkVouchedEntry(t, x.key(r, &podQuestion).fresh(), tt.limit, s)
					if x.key(r, &podQuestion).fresh() != nil {
						t.Error("the answer is fresh after a part was invalidated")
					}
				}
			})
		}
	}
}

// vouchingSession returns a session that vouches for answers for two minutes.
func vouchingSession(t *testing.T) *vouch.Session {
	t.Helper()
	const ahead = 2 * time.Minute
	s := vouch.NewSession(func() time.Duration { return validity.Now() + ahead })
	s.Opened(validity.Now()+ahead, 0)
	if !s.Heard(0) || !s.Vouches(validity.Now()+ahead) {
		t.Fatal("the session does not vouch")
	}
	return s
}

// checkTTLs checks the TTLs of the first and the last record of a reply: those of an alias and of data, or of a denial. They may
// be less by two seconds, since time passes.
func checkTTLs(t *testing.T, m *dns.Msg, alias, last uint32) {
	t.Helper()
	if len(m.Answer) == 0 {
		if alias != 0 || !near(m.Ns[0].Header().Ttl, last) {
			t.Fatalf("got %v, want an alias with TTL %d, or a denial with TTL %d", m, alias, last)
		}
		return
	}
	if n := len(m.Answer); !near(m.Answer[0].Header().Ttl, alias) || !near(m.Answer[n-1].Header().Ttl, last) {
		t.Fatalf("TTLs %d and %d, want %d and %d", m.Answer[0].Header().Ttl, m.Answer[n-1].Header().Ttl, alias, last)
	}
}

func near(got, want uint32) bool { return got <= want && want <= got+2 }

// checkVouchedEntry checks the validity of a joined entry, with the time until which a part without a voucher is valid, or 0.
// It invalidates a part.
func checkVouchedEntry(t *testing.T, e *store.Entry, limit time.Duration, s *vouch.Session) {
	t.Helper()
	now := validity.Now()
	if e == nil || !e.Fresh(now) || e.Fresh(now+10*time.Minute) {
		t.Fatalf("the entry is %+v", e)
	}
	if limit == 0 && !e.Fresh(now+time.Minute) || limit != 0 && e.Fresh(now+limit) {
		t.Errorf("fresh after a minute %t, after %v %t", e.Fresh(now+time.Minute), limit, e.Fresh(now+limit))
	}
	if p := e.Patch(now + limit/2); (p.Max != 0) != (limit != 0) || limit != 0 && (time.Duration(p.Max)*time.Second < limit/2-2*time.Second || time.Duration(p.Max)*time.Second > limit/2+time.Second) {
		t.Errorf("TTLs are not above %d, half of the limit is %v", p.Max, limit/2)
	}
	vouch.End(s.Invalidate([]uint64{1}))
	if e.Fresh(now) {
		t.Error("the answer is fresh after a part was invalidated")
	}
}

// TestVouchedPartsFallBack has a session end: the joined answer is valid as long as its parts by their TTLs.
func TestVouchedPartsFallBack(t *testing.T) {
	for name, tt := range map[string]struct {
		ago   time.Duration
		fresh bool
	}{"TTL has not passed": {2 * time.Second, true}, "TTL has passed": {6 * time.Second, false}} {
		t.Run(name, func(t *testing.T) {
			s := vouchingSession(t)
			w := &storedBackend{t: t, entries: map[string]*store.Entry{}}
			for _, candidate := range []string{first, second, third, fourth} {
				w.store(candidate, fact{replyKind: replyNXDOMAIN, ttl: 5}, tt.ago, s.Voucher([]uint64{1}))
			}
			w.store(bareName, fact{replyKind: replyData, ttl: 60}, 0, nil)
			x := newExpander(newBackend(nil))
			x.Next = w
			r := query(first, dns.TypeA)
			send(t, x, r, &podQuestion)
			k := x.key(r, &podQuestion)
			if k.fresh() == nil {
				t.Fatal("the answer is not stored")
			}
			s.Close()
			e := k.fresh()
			if (e != nil) != tt.fresh {
				t.Fatalf("fresh %t after the end of the session, want %t", e != nil, tt.fresh)
			}
			if e != nil {
				if p := e.Patch(validity.Now()); !near(p.Max, 3) || p.Max == 0 {
					t.Errorf("TTLs are not above %d, want 3", p.Max)
				}
			}
		})
	}
}

// TestPartsArePopular has replies that are stored, of which an answer is made: with a hit of the answer they are popular, so that a
// cache fetches them again when their session invalidates them.
func TestPartsArePopular(t *testing.T) {
	for _, form := range []string{"chain", "wire"} {
		t.Run(form, func(t *testing.T) {
			s := vouchingSession(t)
			w := &storedBackend{t: t, entries: map[string]*store.Entry{}}
			x := newExpander(newBackend(nil))
			x.Next = w
			for i, candidate := range []string{first, second, third, fourth, bareName} {
				f := fact{replyKind: replyNXDOMAIN, ttl: 5}
				if candidate == bareName {
					f.replyKind = replyData
				}
				w.store(candidate, f, time.Hour, s.Voucher([]uint64{uint64(i) + 1})) // #nosec G115 -- small
				store.Shared.Put(x.Block.Keyspace, []byte{byte(i)}, w.entries[candidate])
			}
			r := query(first, dns.TypeA)
			for hits := range 2 {
				if form == "wire" {
					sendWire(t, x, r, &podQuestion)
				} else {
					send(t, x, r, &podQuestion)
				}
				for candidate, e := range w.entries {
					if e.Popular() != (hits > 0) {
						t.Errorf("%s is popular: %t, after %d hits", candidate, e.Popular(), hits)
					}
				}
			}
			if w.queries != len(w.entries) {
				t.Errorf("%d queries, want %d: the answer is not stored", w.queries, len(w.entries))
			}
		})
	}
}

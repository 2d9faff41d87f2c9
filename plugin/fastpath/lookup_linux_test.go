package fastpath

import (
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// hitBench returns a server with one stored answer, and a query for it in wire form.
func hitBench(b *testing.B, e *store.Entry) (s *server, packed []byte) {
	b.Helper()
	keyspace := store.Shared.NewKeyspace()
	b.Cleanup(keyspace.Drop)
	s = &server{routes: routes{byZone: map[string]*route{}}}
	counting := &counters{server: "dns://:53", zone: ".", cache: newCountedCache()}
	for _, zone := range []string{"cluster.local.", "in-addr.arpa.", "ip6.arpa.", "."} { // as in the Corefile of a node's cache
		s.routes.add(zone, &route{keyspace: keyspace.ID(), counters: counting})
	}
	reply := addressReply("web.default.svc.cluster.local.", 1)
	kit.Must(b, e.Fill(reply))
	packed, err := new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA).SetEdns0(1232, false).Pack()
	var q wire.Query
	if err != nil || !q.Parse(packed) {
		b.Fatalf("no query: %v", err)
	}
	store.Shared.Put(keyspace, keyspace.Key(nil, packed, &q), e)
	return s, packed
}

// BenchmarkHit measures the lookup of an answer, the reply to the client, and its count in the metrics of plugins.
func BenchmarkHit(b *testing.B) {
	for name, entry := range hitEntries(b) {
		b.Run(name, func(b *testing.B) {
			s, packed := hitBench(b, entry)
			client := netip.MustParseAddr("10.1.2.3")
			l, out := &lookup{}, make([]byte, 0, 4<<10)
			now := validity.Now()
			b.ReportAllocs()
			for b.Loop() {
				if !l.find(s, packed, client, now) {
					b.Fatal("no hit")
				}
				p := l.entry.Patch(now)
				out = l.entry.Plain.AppendReply(out[:0], packed, &l.query, &p)
				l.count()
			}
		})
	}
}

// hitEntries are entries of plugin cache, without the answer.
func hitEntries(t testing.TB) map[string]*store.Entry {
	now := validity.Now()
	s := heardSession(t)
	vouched := func(expires time.Duration, handles ...uint64) *store.Entry {
		return &store.Entry{Cached: true, Stored: now - time.Hour, Validity: validity.Validity{Expires: expires, Voucher: s.Voucher(handles)}}
	}
	popular := vouched(now-time.Second, 1, 2)
	popular.Popularity = &store.Popularity{Amount: 1, Gap: time.Minute}
	return map[string]*store.Entry{
		"within TTL":           {Cached: true, Stored: now, Validity: validity.Validity{Expires: now + time.Hour}},
		"vouched, within TTL":  vouched(now+time.Hour, 1, 2),
		"vouched, beyond TTL":  vouched(now-time.Second, 1, 2),
		"vouched, 4 handles":   vouched(now-time.Second, 1, 2, 3, 4),
		"vouched, and popular": popular,
	}
}

// heardSession returns a session that vouches for answers until the end of the test.
func heardSession(t testing.TB) *vouch.Session {
	t.Helper()
	const ahead = time.Hour
	s := vouch.NewSession(func() time.Duration { return validity.Now() + ahead }) // so that no heartbeats are necessary
	s.Opened(validity.Now()+ahead, 0)
	if !s.Heard(0) || !s.Vouches(validity.Now()+ahead/2) {
		t.Fatal("the session does not vouch")
	}
	return s
}

// TestDispatchedVouchedHit has a query of a plugin for an answer whose TTL has passed: the hit is counted.
func TestDispatchedVouchedHit(t *testing.T) {
	b := newWireBed(t, 0, nil)
	now := validity.Now()
	e := &store.Entry{Cached: true, Validity: validity.Validity{Expires: now - time.Second, Voucher: heardSession(t).Voucher([]uint64{1})}}
	b.store(t, e, addressReply("hit.test.", 1))
	packed, err := new(dns.Msg).SetQuestion("hit.test.", dns.TypeA).Pack()
	q := &wirechain.Request{Packed: packed, Client: clientAddress(1), Answerer: discard{}}
	if err != nil || !q.Parse(packed) {
		t.Fatalf("the query is not ordinary: %v", err)
	}
	if !b.server.Dispatch(new(batch.Batch), q) {
		t.Error("the answer is not used")
	}
	if hits, beyond := valueOf(t, b.cache.Hits[0]), valueOf(t, b.cache.BeyondTTL); hits != 1 || beyond != 1 {
		t.Errorf("%v hits, %v of them beyond the TTL; want 1 and 1", hits, beyond)
	}
}

// TestVouchedHits has answers whose TTL has passed: they are hits without allocations while a session vouches for them, which
// are counted, and are not prefetched. Once invalidated, they are no hits.
func TestVouchedHits(t *testing.T) {
	s := heardSession(t)
	now := validity.Now()
	for name, tt := range map[string]struct {
		expires    time.Duration
		popularity *store.Popularity
		beyond     float64 // hits of ten
	}{
		"within the TTL":      {now + time.Hour, nil, 0},
		"beyond the TTL":      {now - time.Second, nil, 10},
		"beyond, popular":     {now - time.Second, &store.Popularity{Amount: 1, Gap: time.Minute}, 10},
		"within, popular now": {now + time.Hour, &store.Popularity{Amount: 1, Gap: time.Minute}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, false)
			e := &store.Entry{
				Cached: true, Stored: now - time.Hour, Popularity: tt.popularity,
				Validity: validity.Validity{Expires: tt.expires, Voucher: s.Voucher([]uint64{1, 2})},
			}
			b.store(t, e, addressReply("hit.test.", 1))
			query := new(dns.Msg).SetQuestion("hit.test.", dns.TypeA)
			packed := kit.Pack(t, query)
			hit := b.answering(t, packed)
			for range 9 {
				hit()
			}
			b.query(t, query)
			if ttl := b.receive(t).Answer[0].Header().Ttl; ttl != addressReply("hit.test.", 1).Answer[0].Header().Ttl {
				t.Errorf("TTL %d", ttl)
			}
			if got := valueOf(t, b.cache.BeyondTTL); got != tt.beyond {
				t.Errorf("%v hits beyond the TTL, want %v", got, tt.beyond)
			}
			if got := valueOf(t, b.cache.Hits[0]); got != 10 {
				t.Errorf("%v hits, want 10", got)
			}
			if got := testing.AllocsPerRun(200, hit); got != 0 {
				t.Errorf("%v allocations per hit", got)
			}
			handedOver := valueOf(t, b.listener.server.Load().metrics.handedOver)
			vouch.End(s.Invalidate([]uint64{2}))
			b.query(t, query)
			if valueOf(t, b.listener.server.Load().metrics.handedOver) != handedOver+1 {
				t.Error("an invalidated answer is a hit")
			}
			b.receive(t)
		})
	}
}

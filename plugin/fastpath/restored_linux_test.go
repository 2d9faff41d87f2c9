package fastpath

import (
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestRestoredHits has an answer that was received before the start of the process: its TTL continues, its extended error is sent to
// clients with EDNS, and its hits are counted. Its first query is for the cache, which fetches it again.
func TestRestoredHits(t *testing.T) {
	const hour = 3600
	b := newBed(t, false)
	now := validity.Now()
	e := &store.Entry{
		Cached: true, Costly: true, Restored: true, Stored: now - hour*time.Second, Popularity: &store.Popularity{Amount: 1},
		Options:  []byte{0, byte(dns.EDNS0EDE), 0, 2, 0, byte(dns.ExtendedErrorCodeStaleAnswer)},
		Validity: validity.Validity{Expires: now + hour*time.Second},
	}
	reply := addressReply("hit.test.", 1)
	reply.Answer[0].Header().Ttl = 2 * hour
	b.store(t, e, reply)
	query := new(dns.Msg).SetQuestion("hit.test.", dns.TypeA)
	packed := kit.Pack(t, query)
	var l lookup
	if l.find(b.listener.server.Load(), packed, clientAddress(1), now) {
		t.Error("the first query is answered without the cache")
	}
	e.Popularity.Refreshing.Store(true)
	for _, edns := range []bool{false, true} {
		if edns {
			query.SetEdns0(1232, false)
		}
		b.query(t, query)
		m := b.receive(t)
		if ttl := m.Answer[0].Header().Ttl; ttl > hour || ttl < hour-60 {
			t.Errorf("TTL %d, want %d", ttl, hour)
		}
		if opt := m.IsEdns0(); (opt != nil) != edns || edns && (len(opt.Option) != 1 || opt.Option[0].String() != "3 (Stale Answer): ()") {
			t.Errorf("OPT record %v", opt)
		}
	}
	if hits, restored := valueOf(t, b.cache.Hits[0]), valueOf(t, b.cache.Restored); hits != 2 || restored != 2 {
		t.Errorf("%v hits, %v of them restored; want 2 and 2", hits, restored)
	}
}

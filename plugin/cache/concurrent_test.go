package cache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestConcurrent has many clients at once, a fast clock, an upstream that sometimes fails, and a small store. Each reply
// matches its question, and no two clients share a message.
func TestConcurrent(t *testing.T) {
	for _, options := range []string{
		"success 1024\nprefetch 1 1m 90%", "serve_stale 10s", "serve_stale 10s verify 1ms 5s 1s",
		"serve_stale 10s verify\nserve_stale_policy prefer_positive", "serve_stale off\nservfail 0", "keepttl",
	} {
		t.Run(options, func(t *testing.T) { testConcurrent(t, newTestCache(t, "cache {\n"+options+"\n}")) })
	}
}

func testConcurrent(t *testing.T, b *testCache) {
	b.store = store.NewStore(1 << 20)
	b.space = b.store.NewKeyspace()
	b.limit()
	var clock atomic.Int64
	clock.Store(int64(time.Hour))
	b.now = func() time.Duration { return time.Duration(clock.Load()) }
	b.Next = plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		q := r.Question[0]
		switch rand.IntN(8) { // #nosec G404 -- no need for secrecy
		case 0:
			return dns.RcodeServerFailure, errUpstream
		case 1:
			return 0, w.WriteMsg(replyTo(t, r, denial("NXDOMAIN", 5, 5)))
		case 2:
			return 0, w.WriteMsg(replyTo(t, r, "REFUSED"))
		}
		return 0, w.WriteMsg(replyTo(t, r, fmt.Sprintf("NOERROR; %s 5 IN TXT %q", q.Name, strings.ToLower(q.Name))))
	})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				clock.Add(int64(time.Millisecond))
				b.queryAtRandom()
			}
		})
	}
	wg.Wait()
	kit.Eventually(t, "the end of all refreshes", func() bool {
		free, release := takeBackground()
		release()
		return free == places
	})
	b.flights.mu.Lock()
	defer b.flights.mu.Unlock()
	if n := len(b.flights.all); n != 0 {
		t.Errorf("%d flights do not end", n)
	}
	if b.store.Bytes() > b.store.Budget() {
		t.Errorf("%d bytes are stored, the budget is %d", b.store.Bytes(), b.store.Budget())
	}
}

// queryAtRandom sends a random query, and checks the reply.
func (b *testCache) queryAtRandom() {
	name := fmt.Sprintf("n%d.example.", rand.IntN(40)) // #nosec G404
	if rand.IntN(4) == 0 {                             // #nosec G404
		name = strings.ToUpper(name)
	}
	if rand.IntN(10) == 0 { // #nosec G404
		name = fmt.Sprintf("x%d.%s", rand.IntN(1e6), name) // #nosec G404
	}
	w, r := &client{tcp: rand.IntN(4) == 0}, query(name+" TXT") // #nosec G404
	if code, _ := b.ServeDNS(context.Background(), w, r); w.reply == nil {
		if code != dns.RcodeServerFailure {
			b.t.Errorf("%s: no reply, code %d", name, code)
		}
		return
	}
	if w.reply.Id != r.Id || w.reply.Question[0] != r.Question[0] {
		b.t.Errorf("%s: the reply is to %v", name, w.reply.Question)
	}
	for _, rr := range w.reply.Answer {
		txt := rr.(*dns.TXT)
		if txt.Hdr.Ttl > 5 && b.stale.ttl == 0 || txt.Txt[0] != strings.ToLower(name) || !strings.EqualFold(txt.Hdr.Name, name) {
			b.t.Errorf("%s: the record is %s", name, txt)
		}
		txt.Txt[0] = "changed"
	}
}

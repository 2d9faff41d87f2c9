package cache

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	_ "github.com/nearside-dns/nearside/plugin/fastpath" // limits background queries per client
	"github.com/nearside-dns/nearside/plugin/internal/block"
)

// places is the maximum number of background queries in the process.
const places = 256

// takeBackground reserves all free places for background queries, and returns their number and a function that releases
// them.
func takeBackground() (taken int, end func()) {
	var ends []func()
	for {
		end, ok := block.StartBackground(&net.UDPAddr{IP: net.IPv4(10, 0, byte(len(ends)>>8), byte(len(ends)))})
		if !ok {
			break
		}
		ends = append(ends, end)
	}
	return len(ends), func() {
		for _, end := range ends {
			end()
		}
	}
}

// wantBackgroundFree checks that no background query is running.
func wantBackgroundFree(t *testing.T) {
	t.Helper()
	taken, end := takeBackground()
	end()
	if taken != places {
		t.Errorf("%d places in the background are free, want %d", taken, places)
	}
}

// queryFrom is query for a client with an address.
func (b *testCache) queryFrom(address net.IP, text string) *dns.Msg {
	w := &client{from: address}
	if _, err := b.serve(w, query(text)); err != nil && !errors.Is(err, errUpstream) {
		b.t.Errorf("%s: %v", text, err)
	}
	return w.reply
}

// TestExpiredNamesOfOneClient has one client query a thousand expired names that the upstream no longer answers. A query of
// another client for an expired name still gets a new answer.
func TestExpiredNamesOfOneClient(t *testing.T) {
	for _, c := range []struct{ name, option string }{
		{"immediate", "serve_stale"},
		{"verify", "serve_stale 1h verify 1s"},
		{"on failure", ""},
	} {
		inBubble(t, c.name, func(t *testing.T) {
			names, places := 1000, places
			b := newTestCache(t, "cache {\n"+c.option+"\n}")
			b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				return 0, w.WriteMsg(replyTo(t, r, "NOERROR; "+a(r.Question[0].Name, 60)))
			})
			if b.wire && c.option == "" { // which queries in wire form have another limit for
				names, places = 2*maxVerifying, maxVerifying
			}
			b.query("w. A")
			for i := range names {
				b.query(fmt.Sprintf("dead%d. A", i))
			}
			time.Sleep(60 * time.Second)
			b.upstream(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
				if strings.HasPrefix(r.Question[0].Name, "dead") {
					time.Sleep(5 * time.Second)
					return dns.RcodeServerFailure, errUpstream
				}
				return 0, w.WriteMsg(replyTo(t, r, "NOERROR; w. 60 IN A 192.0.2.2"))
			})
			before := b.received()
			var asking sync.WaitGroup
			for i := range names {
				asking.Go(func() { b.queryFrom(net.IPv4(192, 0, 2, 10), fmt.Sprintf("dead%d. A", i)) })
			}
			synctest.Wait()
			if n := b.received() - before; n < 50 || n > places {
				t.Errorf("%d names of one client are fetched at once, want 50 to %d", n, places)
			}
			b.queryFrom(net.IPv4(192, 0, 2, 11), "w. A")
			synctest.Wait()
			if got := brief(b.queryFrom(net.IPv4(192, 0, 2, 11), "w. A")); got != "NOERROR; w. 60 IN A 192.0.2.2" {
				t.Errorf("the other client got %s, want the new answer", got)
			}
			asking.Wait()
			time.Sleep(10 * time.Second)
			wantBackgroundFree(t)
		})
	}
}

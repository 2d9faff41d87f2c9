package external

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// storing has a handler store its answers, and returns a lookup of the stored answer to a query.
func storing(e *External) (lookup func(text string) *store.Entry) {
	own := store.NewStore(1 << 20)
	e.space = own.NewKeyspace()
	e.space.ByGeneration.Store(true)
	return func(text string) *store.Entry {
		owner, qtype, _ := strings.Cut(text, " ")
		var q wire.Query
		packed, ok := store.QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), test.Case{Qname: owner, Qtype: dns.StringToType[qtype]}.Msg())
		if !ok {
			return nil
		}
		return own.Get(e.space.Key(make([]byte, 0, store.MaxKey), packed, &q))
	}
}

// TestStored asserts which answers are stored until the cluster changes, and that a change ends them.
func TestStored(t *testing.T) {
	for _, tc := range []struct {
		name, ask string
		stored    bool
	}{
		{"addresses", "web.shop.example.org A", true},
		{"SRV", "web.shop.example.org SRV", true},
		{"no records of the type", "web.shop.example.org TXT", true},
		{"no such Service", "none.shop.example.org A", true},
		{"a namespace", "shop.example.org A", true},
		{"PTR", "1.2.0.192.in-addr.arpa PTR", true},
		{"no such address", "8.2.0.192.in-addr.arpa PTR", true},
		{"the CNAME of a host", "host.shop.example.org CNAME", true},
		{"upper case", "WEB.shop.example.org A", false},
		{"a host, whose records are another server's", "host.shop.example.org A", false},
		{"the serial", "example.org SOA", false},
		{"the server", "ns1.dns.example.org A", false},
		{"NS", "example.org NS", false},
		{"DS", "web.shop.example.org DS", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, c := serving(t, "k8s_external example.org in-addr.arpa")
			lookup := storing(e)
			ask(t, context.Background(), e, tc.ask)
			entry := lookup(tc.ask)
			if (entry != nil) != tc.stored {
				t.Fatalf("stored: %t, want %t", entry != nil, tc.stored)
			}
			if entry == nil {
				return
			}
			if !entry.Fresh(validity.Now()) {
				t.Error("the answer is not fresh")
			}
			c.number++
			if entry.Fresh(validity.Now()) {
				t.Error("the answer is fresh after a change of the cluster")
			}
		})
	}
}

func TestNotStored(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*External, *cluster)
	}{
		{"another plugin may change answers", func(e *External, _ *cluster) { e.late = true }},
		{"no fast path", func(e *External, _ *cluster) { e.space.ByGeneration.Store(false) }},
		{"not synced", func(_ *External, c *cluster) { c.unsynced = true }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, c := serving(t, "k8s_external example.org")
			lookup := storing(e)
			tc.change(e, c)
			ask(t, context.Background(), e, "web.shop.example.org A")
			if lookup("web.shop.example.org A") != nil {
				t.Error("stored")
			}
		})
	}
}

// TestProperties asserts the validity of answers that a cache in front receives.
func TestProperties(t *testing.T) {
	byCluster := store.Properties{}
	byCluster.DependOn(new(generation))
	until := store.Properties{}
	until.Until(validity.Now() + time.Hour)
	vouched := store.Properties{}
	vouched.Voucher = new(vouch.Voucher)
	const block = "k8s_external example.org {\nfallthrough\n}"
	for _, tc := range []struct {
		name, ask    string
		next         store.Properties // of the next plugin's reply
		unsynced     bool
		byGeneration bool          // the cluster alone ends the answer
		foreign      bool          // its TTL ends it as well
		ends         bool          // a change of the cluster ends it
		min, max     time.Duration // time until it ends by itself; 0 for never
		serial       bool
	}{
		{name: "addresses", ask: "web.shop.example.org A", byGeneration: true, ends: true},
		{name: "upper case", ask: "WEB.shop.example.org A", byGeneration: true, ends: true},
		{name: "a denial", ask: "web.shop.example.org TXT", byGeneration: true, ends: true, serial: true},
		{name: "a host", ask: "host.shop.example.org A", foreign: true, ends: true, min: 4 * time.Second, max: 5 * time.Second},
		{name: "the server", ask: "ns1.dns.example.org A"},
		{name: "passed on to another server", ask: "none.shop.example.org A", foreign: true, ends: true, max: time.Nanosecond},
		{name: "passed on to a cache", ask: "none.shop.example.org A", next: until, foreign: true, ends: true, min: time.Minute, max: time.Hour},
		{name: "passed on to a server with a session", ask: "none.shop.example.org A", next: vouched, foreign: true, ends: true},
		{name: "passed on to kubernetes", ask: "none.shop.example.org A", next: byCluster, byGeneration: true, ends: true},
		{name: "passed on before the first sync", ask: "none.shop.example.org A", next: byCluster, unsynced: true, foreign: true, max: time.Nanosecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, c := serving(t, block)
			e.Next, c.unsynced = &next{tc.next}, tc.unsynced
			owner, qtype, _ := strings.Cut(tc.ask, " ")
			r := test.Case{Qname: owner, Qtype: dns.StringToType[qtype]}.Msg()
			before := validity.Now()
			ctx, recorded := store.Record(context.Background(), r)
			exchange(t, ctx, e, r)
			p := &recorded.Properties
			if p.ByGeneration() != tc.byGeneration || p.Foreign != tc.foreign || (p.Serial != nil) != tc.serial {
				t.Errorf("by generation: %t, foreign: %t, serial: %v", p.ByGeneration(), p.Foreign, p.Serial)
			}
			if left := p.Expires - before; p.Expires == 0 != (tc.max == 0) || p.Expires != 0 && (left < tc.min || p.Expires > validity.Now()+tc.max) {
				t.Errorf("the answer ends in %s, want %s to %s", left, tc.min, tc.max)
			}
			if p.Voucher == nil != (tc.next.Voucher == nil) {
				t.Errorf("voucher %v", p.Voucher)
			}
			current := p.Validity
			current.Voucher = nil
			if current.Current() == tc.unsynced { // nothing is to be stored before the first sync
				t.Errorf("the answer is current before a change: %t", current.Current())
			}
			c.number++
			if current.Current() == (tc.ends || tc.unsynced) {
				t.Errorf("a change of the cluster ends the answer: %t", !current.Current())
			}
		})
	}
}

// TestEndOfAChain asserts that no cache stores a reply without the records of its host, whose lookup was one too many.
func TestEndOfAChain(t *testing.T) {
	e, c := serving(t, "k8s_external example.org")
	for n := range c.targets {
		if n.Service == "host" {
			c.targets[n][0].Host, c.targets[n][1].Host = "host.shop.example.org.", "host.shop.example.org."
		}
	}
	last := &recording{t: t, handler: e}
	e.upstream = last
	ask(t, context.Background(), e, "host.shop.example.org A")
	if len(last.ended) != maxDepth || slices.Contains(last.ended, false) {
		t.Errorf("ended validities, from the innermost query: %v, want all %d", last.ended, maxDepth)
	}
}

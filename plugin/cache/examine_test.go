package cache

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin/pkg/response"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// wireOptionsTested are options of caches that make entries differ.
var wireOptionsTested = []string{
	"", "keepttl", "prefetch 1 1m 30%", "servfail 10s", "servfail 0",
	"success 1024 100 10\ndenial 1024 60 0", "success 1024 4\ndenial 1024 10 20",
	"serve_stale off", "serve_stale 1h immediate", "serve_stale 1h verify\nserve_stale_policy prefer_positive",
	"disable denial a.example",
}

// newWireCache returns a cache with a constant clock and a small store.
func newWireCache(t testing.TB, zone, options string) *Cache {
	t.Helper()
	controller := caddy.NewTestController("dns", "cache {\n"+options+"\n}")
	controller.ServerBlockKeys = []string{zone}
	c, err := parse(controller)
	kit.Must(t, err)
	c.store = store.NewStore(1 << 20)
	c.space = c.store.NewKeyspace()
	c.now = func() time.Duration { return 1000 * time.Second }
	c.zonesLabel = "wire"
	return c
}

// wireQueryOf returns a query in wire form.
func wireQueryOf(t testing.TB, m *dns.Msg) (packed []byte, q wire.Query) {
	t.Helper()
	packed, err := m.Pack()
	if err != nil || !q.Parse(packed) {
		t.Fatalf("%v: not an ordinary query (%v)", m, err)
	}
	return packed, q
}

// packReply packs a reply.
func packReply(t testing.TB, m *dns.Msg, compress bool) []byte {
	t.Helper()
	m.Compress = compress
	b, err := m.Pack()
	if err != nil {
		t.Fatalf("%v: %v", m, err)
	}
	return b
}

// parsedReply returns a reply as plugin forward passes it on.
func parsedReply(b []byte) *wire.Reply {
	r := new(wire.Reply)
	r.Parse(b)
	return r
}

// voucherFor returns a voucher for two of three replies, nil for the others.
func voucherFor(reply []byte) *vouch.Voucher {
	if len(reply)%3 == 0 {
		return nil
	}
	return vouch.NewSession(validity.Now).Voucher([]uint64{1, 2})
}

// readReply reads a reply as the cache does. It returns false for an invalid one.
func readReply(m *wire.Reply, reply []byte) bool {
	if m.Parse(reply) {
		return true
	}
	message := new(dns.Msg)
	return message.Unpack(reply) == nil && len(message.Question) == 1 && new(clientQuery).readMessage(m, message)
}

// checkRead asserts that a reply is judged and stored as by package dns. It reports whether the reply is stored without being
// unpacked.
func checkRead(t testing.TB, c *Cache, packed, reply []byte) bool {
	t.Helper()
	q, slow := &clientQuery{packed: packed, counters: c.counters("")}, &clientQuery{packed: packed, counters: c.counters("")}
	if !q.Parse(packed) || !slow.Parse(packed) {
		t.Fatalf("query %x: not an ordinary query", packed)
	}
	q.key = c.space.Key(nil, packed, &q.Query)
	slow.key = q.key
	before := string(reply)
	m, message := new(wire.Reply), new(dns.Msg)
	if !readReply(m, reply) {
		return false
	}
	if message.Unpack(m.Message) != nil { // package dns packs some records in a form that it does not read
		message = new(dns.Msg)
		if err := message.Unpack(reply); err != nil {
			t.Fatalf("accepted an invalid reply %x: %v", reply, err)
		}
	}
	v := voucherFor(reply)
	got := c.examine(q, m, &noProperties, v)
	recorded := new(store.Recorded)
	recorded.Voucher = v
	want := c.slowExamine(slow, message, recorded)
	if string(reply) != before {
		t.Fatalf("the reply was changed:\n%x\n%x", before, reply)
	}
	describe := func(class response.Type, forAll, cacheable, matches, once, renews, alone bool, options []byte, f *facts) string {
		return fmt.Sprintf("class %v, for all %t, cacheable %t, matches %t, once %t, renews %t, name alone %t, options %x, positive %t, lifetime %v, voucher %p",
			class, forAll, cacheable, matches, once, renews, alone, options, f.positive, f.lifetime, f.voucher)
	}
	facts := describe(got.class, got.forAll, got.cacheable, got.matches, got.isForOnce(), c.renews(&got), got.nameAlone, got.options, &got.facts)
	slowFacts := describe(want.class, want.forAll, slowCacheable(want.msg, want.class), slow.slowMatches(want.msg), want.slowForOnce(),
		c.slowRenews(slow, want.msg, want.class), want.query != slow, slowPackOptions(want.options), &want.facts)
	if facts != slowFacts {
		t.Fatalf("query %x\nreply %x\n%v\ngot  %s\nwant %s", packed, reply, want.msg, facts, slowFacts)
	}
	key := want.query.key
	entry, slowEntry := c.entryFor(&got, key, nil), c.slowEntry(&want)
	if entry != nil && slowEntry != nil && !m.Ordinary {
		slowEntry.AnyCase = false // of types whose names are not known
	}
	if !reflect.DeepEqual(entry, slowEntry) {
		t.Fatalf("query %x\nreply %x\n%v\ngot  %+v\nwant %+v", packed, reply, want.msg, entry, slowEntry)
	}
	if entry == nil {
		return false
	}
	if got.class == response.NameError && q.Search != nil && m.Ordinary {
		checkStored(t, c, packed, &got, &want)
	}
	return m.Ordinary && !m.Escapes
}

// checkStored asserts that storing a reply to a query with a search list stores the same entries as the slow version.
func checkStored(t testing.TB, c *Cache, packed []byte, got *upstreamReply, want *slowReply) {
	t.Helper()
	stored := func(put func()) string {
		c.store = store.NewStore(1 << 20)
		c.space = c.store.NewKeyspace()
		got.query.key = c.space.Key(nil, packed, &got.query.Query)
		want.query.key = c.space.Key(nil, packed, &want.query.Query)
		put()
		return describeStored(t, c, packed)
	}
	fast := stored(func() {
		if c.storeReply(got, nil) == nil {
			t.Fatal("not stored")
		}
	})
	slow := stored(func() {
		if c.slowStore(want) != nil {
			c.slowStoreDenials(want)
		}
	})
	if fast != slow {
		t.Fatalf("query %x\nreply %v\ngot\n%s\nwant\n%s", packed, want.msg, fast, slow)
	}
}

// describeStored describes the entries for a query with a search list and for each of its candidates.
func describeStored(t testing.TB, c *Cache, packed []byte) string {
	t.Helper()
	text := fmt.Sprintf("%d entries, %d denials\n", c.space.Len(store.Success), c.space.Len(store.Denial))
	m := kit.Unpack(t, packed)
	data, _ := searchlist.OptionOf(m)
	suffixes, _ := searchlist.ParseSuffixes(data)
	name := m.Question[0].Name
	names := []string{name}
	if len(suffixes) > 0 && searchlist.Base(name, suffixes[0]) != "" {
		names = append(names, searchlist.Candidates(searchlist.Base(name, suffixes[0]), suffixes)...)
	}
	for i := range 2 * len(names) {
		single := *m
		if i%2 == 1 {
			single = *searchlist.WithoutOption(m)
		}
		single.Question = []dns.Question{{Name: names[i/2], Qtype: m.Question[0].Qtype, Qclass: m.Question[0].Qclass}}
		var q wire.Query
		query, ok := store.QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), &single)
		if !ok {
			continue
		}
		if e := c.store.Get(c.space.Key(nil, query, &q)); e != nil {
			state := e.State.(*entryState)
			text += fmt.Sprintf("%s: %x %d %v %v %v %v %v %v %v %x %v %v %v %d\n", names[i/2], e.Plain.AppendReply(nil, query, &q, new(store.Patch)),
				e.CountedLen(), e.AnyCase, e.Kind, e.Expires, e.Bounds, e.Voucher,
				e.Gone, e.FixedTTL, e.Options, e.Popularity == nil, state.positive, state.failure, e.StateSize)
		}
	}
	return text
}

const (
	nodes = "www.example. 300 IN CNAME Edge.cdn.example.; edge.CDN.example. 60 IN CNAME lb.cdn.example."
	glue  = "ns1.example. 3600 IN A 192.0.2.53; ns2.example. 3600 IN AAAA 2001:db8::53"
)

// ordinaryReplies are replies that every cache receives, in the form of replyTo.
var ordinaryReplies = []struct{ name, query, reply string }{
	{"address", "www.example. A", "NOERROR; " + a("www.example.", 300)},
	{"address, question and owner in mixed case", "wWw.eXample. A", "NOERROR; " + a("WWW.example.", 300)},
	{"authoritative address", "www.example. A", "AA NOERROR; " + a("www.example.", 5)},
	{"validated address", "www.example. A +do", "AD NOERROR; " + a("www.example.", 300)},
	{"addresses with different TTLs", "www.example. A", "NOERROR; " + a("www.example.", 300) + "; www.example. 20 IN A 192.0.2.2; www.example. 400 IN A 192.0.2.3"},
	{"TTL below the minimum", "www.example. A", "NOERROR; " + a("www.example.", 1)},
	{"TTL above the maximum", "www.example. A", "NOERROR; " + a("www.example.", 86400)},
	{"IPv6 addresses", "www.example. AAAA", "NOERROR; www.example. 60 IN AAAA 2001:db8::1; www.example. 60 IN AAAA 2001:db8::2"},
	{"aliases", "www.example. A", "NOERROR; " + nodes + "; lb.cdn.example. 20 IN A 192.0.2.1; lb.cdn.example. 20 IN A 192.0.2.2"},
	{"aliases in reverse order", "www.example. A", "NOERROR; lb.cdn.example. 20 IN A 192.0.2.1; edge.cdn.example. 60 IN CNAME lb.cdn.example.; www.example. 300 IN CNAME edge.cdn.example."},
	{"alias to a name in upper case", "www.example. A", "NOERROR; www.example. 60 IN CNAME Other.EXAMPLE.; oTHER.example. 60 IN A 192.0.2.1"},
	{"alias below DNAME", "www.old.example. A", "NOERROR; old.example. 60 IN DNAME new.example.; www.old.example. 60 IN CNAME www.new.example.; www.new.example. 60 IN A 192.0.2.1"},
	{"query for an alias", "www.example. CNAME", "NOERROR; www.example. 60 IN CNAME other.example."},
	{"aliases to a name without the type", "www.example. AAAA", "NOERROR; " + nodes + "; authority; cdn.example. 900 IN SOA ns.cdn.example. host.cdn.example. 1 2 3 4 60"},
	{"alias to a nonexistent name", "www.example. A", "NXDOMAIN; www.example. 60 IN CNAME gone.example.; authority; example. 900 IN SOA ns.example. host.example. 1 2 3 4 60"},
	{"nonexistent name", "www.example. A", denial("NXDOMAIN", 900, 60)},
	{"nonexistent name, SOA minimum above its TTL", "www.example. A", denial("NXDOMAIN", 30, 3600)},
	{"name without the type", "www.example. AAAA", denial("NOERROR", 900, 60)},
	{"no data and no SOA record", "www.example. AAAA", "NOERROR"},
	{"delegation", "www.sub.example. A", "NOERROR; authority; sub.example. 3600 IN NS ns1.example.; sub.example. 3600 IN NS ns2.example.; additional; " + glue},
	{"name servers", "example. NS", "NOERROR; example. 3600 IN NS NS1.example.; example. 3600 IN NS ns2.example.; additional; " + glue},
	{"mail", "example. MX", "NOERROR; example. 60 IN MX 10 mx1.example.; example. 60 IN MX 20 mx2.example.; additional; mx1.example. 60 IN A 192.0.2.25"},
	{"text", "example. TXT", `NOERROR; example. 60 IN TXT "v=spf1 -all"; example. 60 IN TXT "a" "b \"quoted\" \\ \000\255" ""`},
	{"service", "_http._tcp.example. SRV", "NOERROR; _http._tcp.example. 60 IN SRV 0 1 80 web-0.example.; additional; web-0.example. 60 IN A 192.0.2.1"},
	{"reverse", "1.0/25.2.0.192.in-addr.arpa. PTR", "NOERROR; 1.0/25.2.0.192.in-addr.arpa. 60 IN PTR www.example."},
	{"start of authority", "example. SOA", "NOERROR; example. 60 IN SOA ns.example. host.example. 1 2 3 4 60; authority; example. 60 IN NS ns.example."},
	{"HTTPS parameters", "www.example. HTTPS", `NOERROR; www.example. 60 IN HTTPS 1 . alpn="h2,h3" port=8443 ipv4hint=192.0.2.1,192.0.2.2 ech="YWJj" ipv6hint=2001:db8::1`},
	{"HTTPS alias", "www.example. HTTPS", "NOERROR; www.example. 60 IN HTTPS 0 svc.example."},
	{"CAA", "example. CAA", `NOERROR; example. 60 IN CAA 0 issue "ca.example"`},
	{"ANY", "example. ANY", "NOERROR; example. 60 IN A 192.0.2.1; example. 60 IN MX 10 mx.example."},
	{"signatures", "www.example. A +do", "EDNS NOERROR; " + a("www.example.", 300) +
		"; www.example. 300 IN RRSIG A 8 2 300 20300101000000 20200101000000 1 example. YWJj; www.example. 20 IN RRSIG AAAA 8 2 300 20300101000000 20200101000000 1 example. YWI="},
	{"delegation signer", "example. DS +do", "EDNS NOERROR; example. 60 IN DS 1 8 2 00ff; example. 60 IN RRSIG DS 8 2 300 20300101000000 20200101000000 1 . YWJj"},
	{"unknown type", "example. ANY", `NOERROR; example. 60 IN TYPE65280 \# 2 abcd`},
	{"root", ". NS", "NOERROR; . 60 IN NS a.root-servers.net.; . 60 IN NS b.root-servers.net."},
	{"failure", "www.example. A", "SERVFAIL"},
	{"not implemented", "www.example. A", "NOTIMP"},
	{"EDNS", "www.example. A +edns", "EDNS NOERROR; " + a("www.example.", 300)},
	{"glue around the OPT record", "example. NS +edns", "NOERROR; example. 60 IN NS ns.example.; additional; ns.example. 60 IN A 192.0.2.1; OPT; ns.example. 30 IN A 192.0.2.2"},
	{"extended error", "www.example. A +edns", "EDE:22:text SERVFAIL"},
	{"many extended errors, one with a long text", "www.example. A +edns", "EDE:1:a EDE:2:" + strings.Repeat("x", 300) + " EDE:3: EDE:4:d EDE:5:e NXDOMAIN; authority; example. 60 IN SOA ns.example. host.example. 1 2 3 4 60"},
	{"extended errors with texts of the maximum length and above", "www.example. A +edns", "EDE:1:" + strings.Repeat("x", 255) + " EDE:2:" + strings.Repeat("x", 256) + " SERVFAIL"},
	{"cookie, padding and NSID", "www.example. A +edns", "COOKIE NOERROR; " + a("www.example.", 300)},
	{"search list tried", "www.a.example. A +search:a.example.,b.example.", "tried:a.example. NOERROR; " + a("www.a.example.", 300)},
	{"search list not tried", "www.a.example. A +search:a.example.,b.example.", "NOERROR; " + a("www.a.example.", 300)},
	{"alias to a candidate", "www.a.example. A +search:a.example.,b.example.", "tried:b.example. NOERROR; www.a.example. 30 IN CNAME www.b.example.; " + a("www.b.example.", 300)},
	{"search list without data", "www.a.example. A +search:a.example.,b.example.", "tried " + denial("NXDOMAIN", 900, 60)},
	{"search option without a list", "www.a.example. A +edns", "tried:a.example. NOERROR; " + a("www.a.example.", 300)},
	{"longer than 512 bytes", "www.example. A", "NOERROR; " + numbered("www.example. 60 IN A 192.0.2.%d", 30)},
	{"services longer than 512 bytes", "_x._tcp.web.default.svc.cluster.local. SRV", "NOERROR; " +
		numbered("_x._tcp.web.default.svc.cluster.local. 30 IN SRV 0 1 80 Pod-%[1]d.web.default.svc.cluster.local.", 100) + "; additional; " +
		numbered("pod-%[1]d.web.default.svc.cluster.local. 30 IN A 10.0.0.%[1]d", 100)},
	{"aliases and authority longer than 512 bytes", "www.example. A", "NOERROR; " + nodes + "; " + numbered("lb.cdn.example. 20 IN A 192.0.2.%d", 8) +
		"; authority; " + numbered("cdn.example. 900 IN NS ns%d.Cdn.example.", 6) + "; additional; " + numbered("ns%[1]d.cdn.example. 900 IN A 192.0.2.%[1]d", 6)},
	{"mail longer than 512 bytes", "example. MX", "NOERROR; " + numbered("example. 60 IN MX %[1]d mail-%[1]d.a-rather-long-name.example.", 12)},
	{"text longer than 512 bytes", "example. TXT", `NOERROR; example. 60 IN TXT "` + strings.Repeat("x", 200) + `" "` + strings.Repeat(`\"`, 200) + `" "` + strings.Repeat("y", 200) + `"`},
}

// numbered returns n records, in which format has a number from 1 on.
func numbered(format string, n int) string {
	records := make([]string, n)
	for i := range records {
		records[i] = fmt.Sprintf(format, i+1)
	}
	return strings.Join(records, "; ")
}

// unusualReplies are unpacked by package dns, or not stored.
var unusualReplies = []struct{ name, query, reply string }{
	{"truncated", "www.example. A", "TC NOERROR; " + a("www.example.", 300)},
	{"refused", "www.example. A", "REFUSED"},
	{"TTL of 0", "www.example. A", "NOERROR; " + a("www.example.", 0)},
	{"query without RD", "www.example. A +norec", "NOERROR; " + a("www.example.", 300)},
	{"transfer", "example. AXFR", "NOERROR; example. 60 IN SOA ns.example. host.example. 1 2 3 4 60"},
	{"other data", "www.example. A", "NOERROR; " + a("other.example.", 300)},
	{"loop of aliases", "www.example. A", "NOERROR; www.example. 60 IN CNAME b.example.; b.example. 60 IN CNAME www.example."},
	{"two aliases", "www.example. A", "NOERROR; www.example. 60 IN CNAME b.example.; www.example. 60 IN CNAME c.example.; " + a("b.example.", 60)},
	{"nonexistent name without SOA", "www.example. A", "NXDOMAIN"},
	{"nonexistent name with data", "www.example. A", "NXDOMAIN; " + a("www.example.", 300) + "; authority; example. 60 IN SOA ns.example. host.example. 1 2 3 4 60"},
	{"expired signature", "www.example. A +do", "DO NOERROR; " + a("www.example.", 300) + "; www.example. 300 IN RRSIG A 8 2 300 20200102000000 20200101000000 1 example. YWJj"},
	{"TSIG", "www.example. A", "NOERROR; " + a("www.example.", 300) + "; additional; TSIG"},
	{"two OPT records", "www.example. A +edns", "NOERROR; " + a("www.example.", 300) + "; additional; OPT; OPT"},
	{"OPT record in the answer", "www.example. A +edns", "NOERROR; " + a("www.example.", 300) + "; OPT"},
	{"client subnet", "www.example. A +edns", "ECS NOERROR; " + a("www.example.", 300)},
	{"EDNS version 1", "www.example. A +edns", "VERSION NOERROR; " + a("www.example.", 300)},
	{"extended code", "www.example. A +edns", "EDNS BADCOOKIE; " + a("www.example.", 300)},
	{"search list tried twice", "www.a.example. A +search:a.example.", "tried:a.example. tried:a.example. NOERROR; " + a("www.a.example.", 300)},
	{"other search list", "www.a.example. A +search:a.example.", "tried:c.example. NOERROR; " + a("www.a.example.", 300)},
	{"name with escapes", `a\.b.example. A`, `NOERROR; a\.b.example. 60 IN A 192.0.2.1`},
	{"text with escapes in CAA", "example. CAA", `NOERROR; example. 60 IN CAA 0 issue "a\\b"`},
	{"type with names of its own", "example. RP", "NOERROR; example. 60 IN RP a.example. b.example."},
	{"class CHAOS", "www.example. A", "NOERROR; www.example. 60 CH A 192.0.2.1; " + a("www.example.", 60)},
	{"too many names to compress", "www.example. SRV", "NOERROR; " + numbered("www.example. 60 IN SRV 0 0 1 n%d.", 385)},
	{"longer than pointers reach", "www.example. AAAA", "NOERROR; " + numbered("www.example. 60 IN AAAA 2001:db8::%x", 500)},
}

// wireReplyTo is replyTo with words for records and options that have no text.
func wireReplyTo(t testing.TB, r *dns.Msg, text string) *dns.Msg {
	t.Helper()
	var options []dns.EDNS0
	words, edns, do, version := strings.Fields(strings.Split(text, ";")[0]), false, false, uint8(0)
	for _, word := range words {
		code, data, _ := strings.Cut(strings.TrimPrefix(word, "EDE:"), ":")
		var option dns.EDNS0
		switch {
		case strings.HasPrefix(word, "EDE:"):
			info := uint16(0)
			if _, err := fmt.Sscan(code, &info); err != nil {
				t.Fatal(err)
			}
			option = &dns.EDNS0_EDE{InfoCode: info, ExtraText: data}
		case word == "ECS":
			option = &dns.EDNS0_SUBNET{Family: 1, SourceNetmask: 24, SourceScope: 24, Address: []byte{192, 0, 2, 0}}
		case word == "COOKIE":
			options = append(options, &dns.EDNS0_NSID{Nsid: "6e73"}, &dns.EDNS0_COOKIE{Cookie: "0123456789abcdef"})
			option = &dns.EDNS0_PADDING{Padding: make([]byte, 100)}
		case word == "VERSION":
			version = 1
		case word == "DO":
			do = true
		case word != "EDNS":
			continue
		}
		edns = true
		if option != nil {
			options = append(options, option)
		}
		text = strings.Replace(text, word, "", 1)
	}
	text = strings.ReplaceAll(text, "; OPT", "; . 1232 CLASS1232 TYPE41 \\# 0")
	text = strings.ReplaceAll(text, "; TSIG", "; key. 0 CLASS255 TYPE250 \\# 0")
	m := replyTo(t, r, text)
	if edns {
		if m.IsEdns0() == nil {
			m.SetEdns0(1232, do)
		}
		m.IsEdns0().SetVersion(version)
		m.IsEdns0().Option = append(m.IsEdns0().Option, options...)
	}
	return m
}

// TestExamine judges replies with many options of the cache as package dns does. Ordinary replies have to be stored without package
// dns with the default options.
func TestExamine(t *testing.T) {
	caches := map[string]*Cache{}
	for _, options := range wireOptionsTested {
		caches[options] = newWireCache(t, ".", options)
	}
	check := func(t *testing.T, query *dns.Msg, reply []byte, ordinary bool) {
		t.Helper()
		packed, _ := wireQueryOf(t, query)
		for options, c := range caches {
			ok := checkRead(t, c, packed, reply)
			if options == "" && ordinary && !ok {
				t.Error("it is not stored, or was unpacked")
			}
		}
	}
	for _, tt := range ordinaryReplies {
		t.Run(tt.name, func(t *testing.T) {
			for _, compress := range []bool{false, true} {
				check(t, query(tt.query), packReply(t, wireReplyTo(t, query(tt.query), tt.reply), compress), true)
			}
		})
	}
	for _, tt := range unusualReplies {
		t.Run(tt.name, func(t *testing.T) {
			check(t, query(tt.query), packReply(t, wireReplyTo(t, query(tt.query), tt.reply), true), false)
		})
	}
	malformed := packReply(t, wireReplyTo(t, query("www.example. A"), "EDNS NOERROR; "+nodes+"; lb.cdn.example. 20 IN A 192.0.2.1"), true)
	t.Run("cut off", func(t *testing.T) {
		for n := range malformed {
			check(t, query("www.example. A"), malformed[:n:n], false)
		}
	})
	t.Run("trailing byte", func(t *testing.T) {
		check(t, query("www.example. A"), append(malformed[:len(malformed):len(malformed)], 0), false)
	})
	t.Run("other question", func(t *testing.T) { check(t, query("xxx.example. A"), malformed, false) })
	t.Run("other type", func(t *testing.T) { check(t, query("www.example. AAAA"), malformed, false) })
	t.Run("query instead of a reply", func(t *testing.T) { check(t, query("www.example. A"), changed(malformed, 2, 0x80), false) })
	t.Run("other opcode", func(t *testing.T) { check(t, query("www.example. A"), changed(malformed, 2, 0x20), false) })
}

// changed returns a copy of a message with some bits of a byte inverted.
func changed(b []byte, at int, bits byte) []byte {
	b = append([]byte(nil), b...)
	b[at] ^= bits
	return b
}

// TestClasses asserts the classes of some replies, without the slow version.
func TestClasses(t *testing.T) {
	c := newWireCache(t, ".", "")
	for name, class := range map[string]response.Type{
		"address": response.NoError, "aliases": response.NoError, "aliases to a name without the type": response.NoData,
		"alias to a nonexistent name": response.NameError, "nonexistent name": response.NameError, "name without the type": response.NoData,
		"no data and no SOA record": response.NoError, "delegation": response.Delegation, "failure": response.ServerError,
	} {
		for _, tt := range ordinaryReplies {
			if tt.name != name {
				continue
			}
			packed, q := wireQueryOf(t, query(tt.query))
			m := parsedReply(packReply(t, wireReplyTo(t, query(tt.query), tt.reply), true))
			r := c.examine(&clientQuery{Query: q, packed: packed}, m, &noProperties, nil)
			if !m.Ordinary || r.class != class {
				t.Errorf("%s: class %v, want %v", name, r.class, class)
			}
		}
	}
}

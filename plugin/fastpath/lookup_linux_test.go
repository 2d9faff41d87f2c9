package fastpath

import (
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
)

// hitBench returns a server with one stored answer, and a query for it in wire form.
func hitBench(b *testing.B, e *answers.Entry) (s *server, packed []byte) {
	b.Helper()
	keyspace := answers.Shared.NewKeyspace()
	b.Cleanup(keyspace.Drop)
	s = &server{routes: routes{byZone: map[string]*route{}}}
	counting := &counters{server: "dns://:53", zone: ".", cache: newCountedCache()}
	for _, zone := range []string{"cluster.local.", "in-addr.arpa.", "ip6.arpa.", "."} { // as in the Corefile of a node's cache
		s.routes.add(zone, &route{keyspace: keyspace.ID(), counters: counting})
	}
	reply := addressReply("web.default.svc.cluster.local.", 1)
	if err := e.Fill(reply); err != nil {
		b.Fatal(err)
	}
	packed, err := new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA).SetEdns0(1232, false).Pack()
	var q answers.Query
	if err != nil || !q.Parse(packed) {
		b.Fatalf("no query: %v", err)
	}
	answers.Shared.Put(keyspace, keyspace.Key(nil, packed, &q), e)
	return s, packed
}

// BenchmarkHit measures the lookup of an answer, the reply to the client, and its count in the metrics of plugins.
func BenchmarkHit(b *testing.B) {
	for name, entry := range hitEntries(b) {
		b.Run(name, func(b *testing.B) {
			s, packed := hitBench(b, entry)
			client := netip.MustParseAddr("10.1.2.3")
			l, out := &lookup{}, make([]byte, 0, 4<<10)
			now := answers.Now()
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
func hitEntries(testing.TB) map[string]*answers.Entry {
	now := answers.Now()
	return map[string]*answers.Entry{
		"within TTL": {Cached: true, Stored: now, Validity: answers.Validity{Expires: now + time.Hour}},
	}
}

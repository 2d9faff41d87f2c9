package fastpath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/block/wirechain"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// wireAnswerer is a wirechain.Handler that answers even ids at once and odd ones in another goroutine, in one batch; it passes
// names of the zone chain to the plugin chain.
type wireAnswerer struct {
	t     *testing.T
	entry *store.Entry
}

func (a *wireAnswerer) ServeWire(b *batch.Batch, q *wirechain.Request) {
	if !q.TCP {
		a.t.Error("the query is not marked as one over TCP")
	}
	switch {
	case string(q.Packed[wire.HeaderLen:][:6]) == "\x05chain":
		q.Pass(b, q, nil)
	case q.Packed[1]%2 == 0:
		q.Answer(b, q, a.entry, a.entry.Patch(validity.Now()))
	default:
		go func() {
			var own batch.Batch
			q.Answer(&own, q, a.entry, a.entry.Patch(validity.Now()))
			own.Flush()
		}()
	}
}

// storedEntry returns an entry with the answer for a name, and stores it in a keyspace.
func storedEntry(t testing.TB, keyspace *store.Keyspace, name string) *store.Entry {
	t.Helper()
	reply, e := addressReply(name, 3), &store.Entry{}
	kit.Must(t, e.Fill(reply))
	e.Expires = validity.Now() + time.Hour
	var q wire.Query
	packed, ok := store.QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), new(dns.Msg).SetQuestion(name, dns.TypeA))
	if !ok {
		t.Fatal("no key")
	}
	store.Shared.Put(keyspace, keyspace.Key(nil, packed, &q), e)
	return e
}

// withRoute returns the configuration of a server with one route for all names.
func withRoute(t *testing.T, keyspace *store.Keyspace, wire wirechain.Handler) func(*server) {
	return func(s *server) {
		s.routes = routes{byZone: map[string]*route{}}
		counting := &counters{server: s.Addr, zone: ".", plugin: "next", dns: true}
		s.routes.add(".", &route{keyspace: keyspace.ID(), byGeneration: true, counters: counting, queue: s.process.places.NewQueue(0), wire: wire})
	}
}

// TestWireOverTCP has stored answers, answers of wire handlers and replies of the plugin chain on one connection, with and
// without edns-tcp-keepalive.
func TestWireOverTCP(t *testing.T) {
	keyspace := store.Shared.NewKeyspace()
	defer keyspace.Drop()
	storedEntry(t, keyspace, "stored.example.")
	other := store.Shared.NewKeyspace()
	defer other.Drop()
	handler := &wireAnswerer{t: t, entry: storedEntry(t, other, "wire.example.")}
	l, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		reply := addressReply(m.Question[0].Name, 1)
		reply.Id = m.Id
		_ = w.WriteMsg(reply)
	}, withRoute(t, keyspace, handler))
	m := l.server.Load().metrics
	counters := map[string]prometheus.Counter{"answered": m.answered, "handed over": m.handedOver}
	before := map[string]float64{}
	for name, counter := range counters {
		before[name] = valueOf(t, counter)
	}
	conn := dialTCP(t, address)
	keepAlive := func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE}}
	}
	addresses := map[string]int{"stored.example.": 3, "wire.example.": 3, "chain.example.": 1}
	var all []byte
	id := uint16(0)
	for range 50 {
		for _, name := range []string{"stored.example.", "wire.example.", "chain.example."} {
			all = append(append(all, framed(t, id, name)...), framed(t, id+1, name, keepAlive)...)
			id += 2
		}
	}
	kit.Send(t, conn, all)
	seen := map[uint16]bool{}
	for range id {
		m, err := readFrame(conn)
		if err != nil {
			t.Fatalf("after %d of %d answers: %v", len(seen), id, err)
		}
		seen[m.Id] = true
		if len(m.Answer) != addresses[m.Question[0].Name] {
			t.Errorf("%s has %d addresses", m.Question[0].Name, len(m.Answer))
		}
		opt := m.IsEdns0()
		if m.Id%2 == 0 {
			if opt != nil {
				t.Errorf("answer without EDNS has %v", opt)
			}
			continue
		}
		if opt == nil || len(opt.Option) != 1 || opt.Option[0].(*dns.EDNS0_TCP_KEEPALIVE).Timeout != 100 {
			t.Errorf("%s: %v, want an idle timeout of 10 seconds", m.Question[0].Name, opt)
		}
	}
	if len(seen) != int(id) {
		t.Errorf("%d of %d answers", len(seen), id)
	}
	kit.Eventually(t, "all end", func() bool { return valueOf(t, m.inFlight) == 0 })
	for name, counter := range counters { // stored answers are counted after they are sent
		want := map[string]float64{"answered": 100, "handed over": 200}[name]
		kit.Eventually(t, fmt.Sprintf("%v queries are counted as %s", want, name), func() bool { return valueOf(t, counter)-before[name] == want })
	}
}

// streamPair returns a connection of a poller that does not run, with the client's descriptor.
func streamPair(t testing.TB, s *server) (p *poller, c *connection, client int) {
	t.Helper()
	p, err := newPoller()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.epoll.Close() })
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{process: s.process, address: s.Addr}
	l.server.Store(s)
	c = newConnection(l, pair[0], netip.MustParseAddrPort("127.0.0.1:5353"))
	c.poller, c.source = p, new(source)
	t.Cleanup(func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) })
	return p, c, pair[1]
}

// TestHitsOverTCPAllocateNothing answers pipelined queries from the store.
func TestHitsOverTCPAllocateNothing(t *testing.T) {
	keyspace := store.Shared.NewKeyspace()
	defer keyspace.Drop()
	storedEntry(t, keyspace, "stored.example.")
	s := newServer(t, echo)
	withRoute(t, keyspace, nil)(s)
	p, c, client := streamPair(t, s)
	const queries = 20
	var all []byte
	for i := range queries {
		all = append(all, framed(t, uint16(i), "stored.example.", func(m *dns.Msg) { m.SetEdns0(1232, false) })...)
	}
	buf := make([]byte, 1<<16)
	exchange := func() {
		if _, err := unix.Write(client, all); err != nil {
			t.Fatal(err)
		}
		p.serve(c, unix.EPOLLIN|unix.EPOLLOUT)
		n, err := unix.Read(client, buf)
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		for b := buf[:n]; len(b) > 2; count++ {
			b = b[2+binary.BigEndian.Uint16(b):]
		}
		if count != queries {
			t.Fatalf("%d answers by one call, want %d", count, queries)
		}
	}
	exchange()
	var n float64
	for range 5 { // goroutines of other tests may allocate meanwhile
		if n = testing.AllocsPerRun(100, exchange); n == 0 {
			return
		}
	}
	t.Errorf("%v allocations for %d queries", n, queries)
}

// FuzzInput splits bytes in two places: the queries found are the same as in the whole.
func FuzzInput(f *testing.F) {
	f.Add([]byte("\x00\x03abc\x00\x00\x00\x01x\xff\xff1"), 1, 6)
	f.Add([]byte("\x00"), 0, 0)
	f.Fuzz(func(t *testing.T, b []byte, first, second int) {
		first = max(0, min(first, len(b)))
		second = max(first, min(second, len(b)))
		queries := func(parts ...[]byte) (all []string) {
			var in input
			for _, data := range parts {
				for {
					var query []byte
					if query, data = in.next(data); query == nil {
						break
					}
					all = append(all, string(query))
				}
				if len(data) != 0 {
					t.Fatalf("%d bytes are left", len(data))
				}
			}
			if n := len(in.bytes); n >= 2 && n >= 2+int(binary.BigEndian.Uint16(in.bytes)) {
				t.Fatal("a complete query is retained")
			}
			return all
		}
		whole, split := queries(b), queries(b[:first], b[first:second], b[second:])
		if fmt.Sprintf("%q", whole) != fmt.Sprintf("%q", split) {
			t.Errorf("split at %d and %d: %q, want %q", first, second, split, whole)
		}
	})
}

package fastpath

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// countedCache is a fake of plugin cache.
type countedCache struct {
	block.CacheCounters
}

func newCountedCache() *countedCache {
	c := &countedCache{}
	for _, counter := range []*prometheus.Counter{&c.Requests, &c.Misses, &c.Hits[0], &c.Hits[1], &c.BeyondTTL, &c.Restored} {
		*counter = prometheus.NewCounter(prometheus.CounterOpts{Name: "counter"})
	}
	return c
}

func (c *countedCache) Counters(string) block.CacheCounters { return c.CacheCounters }
func (c *countedCache) Borders() []string                   { return nil }
func (c *countedCache) Covers(string) bool                  { return true }

// bed is a reader with one client, and a server block for all names whose answers are counted.
type bed struct {
	*reader
	client   *net.UDPConn
	keyspace *store.Keyspace
	cache    *countedCache
}

// newBed returns a bed whose reader runs only when read is called.
func newBed(t *testing.T, shuffle bool) *bed {
	t.Helper()
	b := &bed{keyspace: store.Shared.NewKeyspace(), cache: newCountedCache()}
	t.Cleanup(func() { b.keyspace.Drop() })
	s := newServer(t, func(w dns.ResponseWriter, m *dns.Msg) {
		if err := w.WriteMsg(new(dns.Msg).SetRcode(m, dns.RcodeRefused)); err != nil {
			t.Error(err)
		}
	})
	s.routes = routes{byZone: map[string]*route{}}
	counting := &counters{server: s.Addr, zone: ".", plugin: "next", dns: true, cache: b.cache}
	s.routes.add(".", &route{keyspace: b.keyspace.ID(), shuffle: shuffle, counters: counting, queue: s.process.places.NewQueue(1)})
	s.queue = s.process.places.NewQueue(1)
	l := &listener{process: s.process, address: s.Addr}
	l.server.Store(s)
	b.reader = newReader(l, newSocket(t))
	var err error
	if b.client, err = net.DialUDP("udp", nil, b.socket.conn.LocalAddr().(*net.UDPAddr)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.client.Close() })
	return b
}

// store stores an answer to a question.
func (b *bed) store(t *testing.T, e *store.Entry, reply *dns.Msg) {
	t.Helper()
	b.storeFor(t, e, reply, &dns.Msg{Question: reply.Question})
}

// storeFor stores the answer to a query.
func (b *bed) storeFor(t *testing.T, e *store.Entry, reply, query *dns.Msg) {
	t.Helper()
	kit.Must(t, e.Fill(reply))
	var q wire.Query
	packed, ok := store.QueryFromMsg(&q, make([]byte, 0, wire.MaxQuery), query)
	if !ok {
		t.Fatal("no key")
	}
	store.Shared.Put(b.keyspace, b.keyspace.Key(nil, packed, &q), e)
}

// query sends a query and runs the reader once.
func (b *bed) query(t *testing.T, m *dns.Msg) {
	t.Helper()
	packed, err := m.Pack()
	if err == nil {
		_, err = b.client.Write(packed)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.read(t)
}

// read runs the reader once.
func (b *bed) read(t *testing.T) {
	t.Helper()
	kit.Must(t, b.socket.raw.Control(func(fd uintptr) { b.step(fd) }))
}

// answering returns a function that sends a query, runs the reader once and receives the answer, without allocations of its own.
func (b *bed) answering(t *testing.T, packed []byte) func() {
	t.Helper()
	drain := make([]byte, dns.MaxMsgSize)
	kit.Must(t, b.client.SetReadDeadline(time.Now().Add(patience)))
	step := func(fd uintptr) { b.step(fd) }
	return func() {
		kit.Send(t, b.client, packed)
		kit.Must(t, b.socket.raw.Control(step))
		if _, err := b.client.Read(drain); err != nil {
			t.Fatal(err)
		}
	}
}

// receive returns the next answer that the client receives.
func (b *bed) receive(t *testing.T) *dns.Msg {
	t.Helper()
	buf := make([]byte, dns.MaxMsgSize)
	kit.Must(t, b.client.SetReadDeadline(time.Now().Add(patience)))
	n, err := b.client.Read(buf)
	m := new(dns.Msg)
	if err == nil {
		err = m.Unpack(buf[:n])
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// addressReply returns a reply with a number of addresses.
func addressReply(name string, count int) *dns.Msg {
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	m.Response, m.Authoritative = true, true
	for i := range count {
		m.Answer = append(m.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30},
			A:   net.IPv4(10, 0, byte(i>>8), byte(i)), // #nosec G115
		})
	}
	return m
}

func TestHitAllocatesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		records int
		shuffle bool
		entry   *store.Entry
		glue    int // records of the additional section
	}{
		"by generation":    {1, false, &store.Entry{}, 0},
		"of a cache":       {1, false, &store.Entry{Cached: true, Stored: validity.Now(), Validity: validity.Validity{Expires: validity.Now() + time.Hour}}, 0},
		"many addresses":   {20, true, &store.Entry{}, 0},
		"glue":             {1, true, &store.Entry{}, 20},
		"with popularity":  {1, false, &store.Entry{Validity: validity.Validity{Expires: validity.Now() + time.Hour}, Popularity: &store.Popularity{Amount: 5, Gap: time.Minute, From: validity.Now() + time.Hour}}, 0},
		"with error codes": {1, false, &store.Entry{Options: []byte{0, 15, 0, 2, 0, 3}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, c.shuffle)
			reply := addressReply("hit.test.", c.records)
			reply.Extra = addressReply("glue.test.", c.glue).Answer
			b.store(t, c.entry, reply)
			query := new(dns.Msg).SetQuestion("hit.test.", dns.TypeA).SetEdns0(1232, false)
			packed := kit.Pack(t, query)
			before := valueOf(t, b.listener.server.Load().metrics.answered)
			hit := b.answering(t, packed)
			hit() // looks up the counters
			if got := testing.AllocsPerRun(200, hit); got != 0 {
				t.Errorf("%v allocations per hit", got)
			}
			if got := valueOf(t, b.listener.server.Load().metrics.answered) - before; got != 202 {
				t.Errorf("%v were hits, want 202", got)
			}
		})
	}
}

func TestBatchesAreAnswered(t *testing.T) {
	b := newBed(t, false)
	b.store(t, &store.Entry{}, addressReply("hit.test.", 1))
	const rounds = 3*batchLen + 1
	for range rounds {
		packed, err := new(dns.Msg).SetQuestion("hit.test.", dns.TypeA).Pack()
		if err == nil {
			_, err = b.client.Write(packed)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b.read(t)
	for i := range rounds {
		if m := b.receive(t); len(m.Answer) != 1 {
			t.Fatalf("answer %d: %v", i, m)
		}
	}
}

// TestLongAnswers has more bytes of answers in a batch than one system call sends.
func TestLongAnswers(t *testing.T) {
	b := newBed(t, false)
	b.store(t, &store.Entry{}, addressReply("long.test.", 500))
	kit.Must(t, b.client.SetReadBuffer(4<<20))
	query := new(dns.Msg).SetQuestion("long.test.", dns.TypeA).SetEdns0(16<<10, false)
	packed := kit.Pack(t, query)
	const rounds = 20 // of some 8 KB each
	for range rounds {
		kit.Send(t, b.client, packed)
	}
	before := valueOf(t, b.listener.server.Load().metrics.handedOver)
	b.read(t)
	for i := range rounds {
		if m := b.receive(t); len(m.Answer) != 500 {
			t.Fatalf("answer %d has %d records", i, len(m.Answer))
		}
	}
	if got := valueOf(t, b.listener.server.Load().metrics.handedOver) - before; got != 0 {
		t.Errorf("%v were handed over", got)
	}
}

func TestHandedOver(t *testing.T) {
	now := validity.Now()
	for name, c := range map[string]struct {
		entry *store.Entry
		query *dns.Msg
		hit   bool
	}{
		"stored":      {&store.Entry{}, question("hit.test."), true},
		"not stored":  {&store.Entry{}, question("miss.test."), false},
		"DS":          {&store.Entry{}, new(dns.Msg).SetQuestion("hit.test.", dns.TypeDS), false},
		"other type":  {&store.Entry{}, new(dns.Msg).SetQuestion("hit.test.", dns.TypeAAAA), false},
		"expired":     {&store.Entry{Validity: validity.Validity{Expires: now}, Gone: now + time.Hour}, question("hit.test."), false},
		"upper case":  {&store.Entry{}, question("HIT.test."), false},
		"any case":    {&store.Entry{AnyCase: true}, question("HIT.test."), true},
		"DO":          {&store.Entry{}, question("hit.test.").SetEdns0(1232, true), false},
		"EDNS option": {&store.Entry{}, withOption(), false},
		"popular":     {&store.Entry{Validity: validity.Validity{Expires: now + time.Hour}, Popularity: &store.Popularity{Amount: 1}}, question("hit.test."), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, false)
			b.store(t, c.entry, addressReply("hit.test.", 1))
			b.query(t, c.query)
			if m := b.receive(t); (m.Rcode == dns.RcodeSuccess) != c.hit {
				t.Errorf("hit %t, want %t: %v", !c.hit, c.hit, m)
			}
		})
	}
}

func question(name string) *dns.Msg { return new(dns.Msg).SetQuestion(name, dns.TypeA) }

func withOption() *dns.Msg {
	m := question("hit.test.").SetEdns0(1232, false)
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "24a5ac1223344556"})
	return m
}

// counting is the plugin prometheus in front of one that answers.
func counting(answer func(dns.ResponseWriter, *dns.Msg) error) *metrics.Metrics {
	m := metrics.New("127.0.0.1:0")
	m.AddZone(".")
	m.Next = behindCounting(answer)
	return m
}

// behindCounting is a plugin that returns the codes and errors that the plugins of this module return.
type behindCounting func(dns.ResponseWriter, *dns.Msg) error

func (behindCounting) Name() string { return "next" }

func (b behindCounting) ServeDNS(_ context.Context, w dns.ResponseWriter, m *dns.Msg) (int, error) {
	if err := b(w, m); err != nil {
		return dns.RcodeServerFailure, err
	}
	return dns.RcodeSuccess, nil
}

// counts returns a line for each metric of plugin prometheus for a server, without the durations and the server's name.
func counts(t *testing.T, server string) (lines []string) {
	t.Helper()
	all, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range all {
		if !strings.HasPrefix(family.GetName(), "coredns_dns_") {
			continue
		}
		for _, m := range family.GetMetric() {
			labels, own := "", false
			for _, l := range m.GetLabel() {
				if l.GetName() == "server" {
					own = l.GetValue() == server
				} else {
					labels += " " + l.String()
				}
			}
			value := m.GetCounter().String()
			if h := m.GetHistogram(); h != nil {
				if value = fmt.Sprint(h.GetSampleCount()); !strings.Contains(family.GetName(), "duration") {
					value += fmt.Sprint(" ", h.GetSampleSum(), h.GetBucket())
				}
			}
			if own {
				lines = append(lines, family.GetName()+labels+" "+regexp.MustCompile(` *created_timestamp:\{[^}]*\}`).ReplaceAllString(value, ""))
			}
		}
	}
	return lines
}

// sameCounts compares the counts of a bed with those of a chain.
func sameCounts(t *testing.T, b *bed, chain string) {
	t.Helper()
	got, want := counts(t, b.listener.address), counts(t, chain)
	if len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("counts of the fast path:\n%s\nof plugin prometheus:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// serveCounted answers a query through plugin prometheus of a server.
func serveCounted(t *testing.T, server string, w dns.ResponseWriter, m *dns.Msg, reply *dns.Msg) {
	t.Helper()
	handler := counting(func(w dns.ResponseWriter, m *dns.Msg) error {
		answer := reply.Copy()
		answer.Id = m.Id
		return w.WriteMsg(answer)
	})
	ctx := context.WithValue(context.Background(), dnsserver.Key{}, &dnsserver.Server{Addr: server})
	_, _ = handler.ServeDNS(ctx, w, m) // the writer counts its errors
}

// TestUnsendable has one answer in a batch that the kernel does not send. It is counted as the chain counts it.
func TestUnsendable(t *testing.T) {
	b := newBed(t, false)
	reply := addressReply("hit.test.", 1)
	b.store(t, &store.Entry{Cached: true, Validity: validity.Validity{Expires: validity.Now() + time.Hour}}, reply)
	packed := kit.Pack(t, question("hit.test."))
	s := b.listener.server.Load()
	before, answeredBefore := valueOf(t, s.metrics.droppedSend), valueOf(t, s.metrics.answered)
	client, _ := b.client.LocalAddr().(*net.UDPAddr)
	for i := range 3 {
		b.received[i].length = uint32(copy(b.queries[i][:], packed)) // #nosec G115
		b.received[i].header.Namelen = unix.SizeofSockaddrInet4
		b.names[i].Family = unix.AF_INET
		b.names[i].Port = uint16(client.Port)>>8 | uint16(client.Port)<<8 // #nosec G115
		copy(unsafeIPv4(&b.names[i]), client.IP.To4())
	}
	b.names[1].Port = 0 // invalid
	peers := make([]peer, 3)
	for i := range peers {
		peers[i] = peer{name: b.names[i], nameLen: b.received[i].header.Namelen}
	}
	kit.Must(t, b.socket.raw.Control(func(fd uintptr) { b.serve(fd, 3) }))
	for range 2 {
		b.receive(t)
	}
	if got := valueOf(t, s.metrics.droppedSend) - before; got != 1 {
		t.Errorf("%v could not be sent, want 1", got)
	}
	if got := valueOf(t, s.metrics.answered) - answeredBefore; got != 2 {
		t.Errorf("%v are counted as answered, want 2", got)
	}
	if got := valueOf(t, b.cache.Hits[store.Success]); got != 3 {
		t.Errorf("%v hits, want 3: the cache counts before it answers", got)
	}

	chain := t.Name() + " chain"
	for i := range peers {
		w := &writer{to: &datagram{b.socket, peers[i]}, metrics: s.metrics}
		serveCounted(t, chain, w, question("hit.test."), reply)
		if i == 1 {
			refuse(w, question("hit.test."), dns.MsgReject) // as CoreDNS's server does then
		}
	}
	sameCounts(t, b, chain)
	if got := valueOf(t, s.metrics.droppedSend) - before; got != 2 {
		t.Errorf("%v could not be sent, want 2: one of them by the chain", got)
	}
}

// TestCounted compares the counts of hits with those of the plugins prometheus and cache.
func TestCounted(t *testing.T) {
	if m := metrics.New("127.0.0.1:0"); m.Name() != "prometheus" {
		t.Fatalf("plugin %q", m.Name()) // block.Eligibility knows it by its name
	}
	typed := func(qtype uint16, change func(*dns.Msg)) *dns.Msg {
		m := new(dns.Msg).SetQuestion("hit.test.", qtype)
		change(m)
		return m
	}
	b, chain := newBed(t, false), t.Name()+" chain"
	hits := map[store.Kind]float64{}
	for i, c := range []struct {
		query   *dns.Msg
		records int
		rcode   int
		kind    store.Kind
	}{
		{typed(dns.TypeA, func(*dns.Msg) {}), 1, dns.RcodeSuccess, store.Success},
		{typed(dns.TypeAAAA, func(*dns.Msg) {}), 0, dns.RcodeSuccess, store.Denial},
		{typed(dns.TypeHTTPS, func(m *dns.Msg) { m.SetEdns0(1232, false) }), 0, dns.RcodeSuccess, store.Denial},
		{typed(dns.TypeTXT, func(m *dns.Msg) { m.SetEdns0(4096, true) }), 0, dns.RcodeNameError, store.Denial},
		{typed(dns.TypeLOC, func(m *dns.Msg) { m.RecursionDesired = false }), 0, dns.RcodeServerFailure, store.Denial},
		{typed(dns.TypeCAA, func(m *dns.Msg) { m.SetEdns0(4096, false) }), 100, dns.RcodeSuccess, store.Success},
	} {
		reply := addressReply("hit.test.", c.records)
		reply.Question, reply.Rcode = c.query.Question, c.rcode
		b.storeFor(t, &store.Entry{Cached: true, Kind: c.kind, Validity: validity.Validity{Expires: validity.Now() + time.Hour}}, reply, c.query)
		for range i + 1 {
			b.query(t, c.query)
			if m := b.receive(t); m.Rcode != c.rcode || len(m.Answer) != c.records {
				t.Fatalf("no hit: %v", m)
			}
			hits[c.kind]++
			serveCounted(t, chain, &writer{to: &datagram{b.socket, b.peer(t)}, metrics: b.listener.server.Load().metrics}, c.query, reply)
			b.receive(t)
		}
	}
	sameCounts(t, b, chain)
	for kind, want := range hits {
		if got := valueOf(t, b.cache.Hits[kind]); got != want {
			t.Errorf("%v hits of kind %v, want %v", got, kind, want)
		}
	}
	if got, want := valueOf(t, b.cache.Requests), hits[store.Success]+hits[store.Denial]; got != want {
		t.Errorf("%v requests, want %v", got, want)
	}
}

// peer returns the client's address in the kernel's form.
func (b *bed) peer(t *testing.T) peer {
	t.Helper()
	client, ok := b.client.LocalAddr().(*net.UDPAddr)
	if !ok {
		t.Fatal("no address")
	}
	p := peer{nameLen: unix.SizeofSockaddrInet4}
	p.name.Family, p.name.Port = unix.AF_INET, uint16(client.Port)>>8|uint16(client.Port)<<8 // #nosec G115
	copy(unsafeIPv4(&p.name), client.IP.To4())
	return p
}

package fastpath

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/test/kit"
)

// fakeService is a block.NameAwaiter and a plugin chain: queries wait for names that begin with w, for 20 ms if they begin with
// wshort. Names that begin with wshortdead are those of an upstream that does not answer before its end.
type fakeService struct {
	watchable
	upstream chan struct{} // closed at its end
	timeout  time.Duration
	exists   sync.Map // names in lower case
	counters block.WaitCounters
}

func newFakeService(timeout time.Duration) *fakeService {
	f := &fakeService{timeout: timeout, upstream: make(chan struct{})}
	f.counters.Waiting = prometheus.NewGauge(prometheus.GaugeOpts{Name: "gauge"})
	for _, c := range []*prometheus.Counter{&f.counters.Answered, &f.counters.TimedOut, &f.counters.Refused} {
		*c = prometheus.NewCounter(prometheus.CounterOpts{Name: "counter"})
	}
	return f
}

func (f *fakeService) WaitCounters() block.WaitCounters { return f.counters }

func (f *fakeService) AwaitName(name, _ []byte) (block.NameWait, bool) {
	w := block.NameWait{Generation: &f.watchable, Number: f.Load(), Timeout: f.timeout}
	text, _, err := dns.UnpackDomainName(name, 0)
	_, exists := f.exists.Load(text)
	if strings.HasPrefix(text, "wshort") {
		w.Timeout = 20 * time.Millisecond
	}
	return w, err == nil && !exists && strings.HasPrefix(text, "w")
}

// create creates a name.
func (f *fakeService) create(name string) {
	f.exists.Store(name, true)
	f.Advance()
}

func (f *fakeService) answer(w dns.ResponseWriter, m *dns.Msg) {
	if strings.HasPrefix(m.Question[0].Name, "wshortdead") {
		<-f.upstream
	}
	reply := new(dns.Msg).SetRcode(m, dns.RcodeNameError)
	if _, exists := f.exists.Load(strings.ToLower(m.Question[0].Name)); exists {
		reply.Rcode = dns.RcodeSuccess
		reply.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.IPv4(192, 0, 2, 1),
		}}
	}
	_ = w.WriteMsg(reply)
}

// configure gives a server the routes of a block with the plugin.
func (f *fakeService) configure(s *server) {
	s.routes = routes{byZone: map[string]*route{}}
	s.WriteTimeout = time.Hour // so that no query is answered because the connection of another one was closed
	s.routes.add(".", &route{
		counters: &counters{server: s.Addr}, queue: s.process.places.NewQueue(0), awaiter: f, waits: f.counters,
	})
}

// heldBed is a listener over UDP and TCP whose server has a fakeService.
type heldBed struct {
	*fakeService
	listener *listener
	udp, tcp string
}

func newHeldBed(t *testing.T, timeout time.Duration) *heldBed {
	t.Helper()
	b := &heldBed{fakeService: newFakeService(timeout)}
	b.listener, b.tcp = newStreamListener(t, b.answer, b.configure)
	r := newReader(b.listener, newSocket(t))
	b.udp = r.socket.conn.LocalAddr().String()
	go r.run()
	t.Cleanup(func() {
		b.listener.process.held.releaseServer(b.server())
		r.finish()
		awaitCount(t, "references", 0, func() int { return int(b.server().references.Load()) })
	})
	return b
}

func (b *heldBed) server() *server { return b.listener.server.Load() }

// held returns the number of queries that wait.
func (b *heldBed) held(t *testing.T) int {
	t.Helper()
	return int(valueOf(t, b.counters.Waiting))
}

// awaitCount waits until a number has a value.
func awaitCount(t *testing.T, what string, want int, number func() int) {
	t.Helper()
	kit.Eventually(t, fmt.Sprint(want, " ", what), func() bool { return number() == want })
}

// heldClient sends queries over UDP or TCP.
type heldClient struct {
	net.Conn
	tcp bool
}

// dialHeld returns a client with a source address.
func dialHeld(t *testing.T, network, from, address string) heldClient {
	t.Helper()
	var local net.Addr = &net.UDPAddr{IP: net.ParseIP(from)}
	if network == "tcp" {
		local = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	conn, err := (&net.Dialer{LocalAddr: local}).DialContext(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return heldClient{conn, network == "tcp"}
}

func (b *heldBed) dial(t *testing.T, network, from string) heldClient {
	t.Helper()
	return dialHeld(t, network, from, map[string]string{"udp": b.udp, "tcp": b.tcp}[network])
}

func (c heldClient) query(t *testing.T, id uint16, name string, change ...func(*dns.Msg)) {
	t.Helper()
	packed := framed(t, id, name, change...)
	if !c.tcp {
		packed = packed[lengthLen:]
	}
	kit.Send(t, c, packed)
}

// reply reads a reply. The time for it begins now: many queries may have been sent before.
func (c heldClient) reply(t *testing.T) *dns.Msg {
	t.Helper()
	kit.Must(t, c.SetReadDeadline(time.Now().Add(2*patience)))
	if c.tcp {
		m, err := readFrame(c)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	b := make([]byte, dns.MaxMsgSize)
	n, err := c.Read(b)
	m := new(dns.Msg)
	if err == nil {
		err = m.Unpack(b[:n])
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// expect reads a reply to a query, and checks its id and code.
func (c heldClient) expect(t *testing.T, id uint16, rcode int) {
	t.Helper()
	if m := c.reply(t); m.Id != id || m.Rcode != rcode {
		t.Fatalf("reply %d with %s, want %d with %s", m.Id, dns.RcodeToString[m.Rcode], id, dns.RcodeToString[rcode])
	}
}

// forEachNetwork runs a test over UDP and over TCP.
func forEachNetwork(t *testing.T, test func(t *testing.T, network string)) {
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) { test(t, network) })
	}
}

const long = time.Minute // a timeout that no test reaches

func TestHeldUntilNameExists(t *testing.T) {
	forEachNetwork(t, func(t *testing.T, network string) {
		b := newHeldBed(t, long)
		c := b.dial(t, network, "127.0.0.1")
		c.query(t, 1, "w1.")
		c.query(t, 2, "w2.")
		c.query(t, 3, "other.")
		c.expect(t, 3, dns.RcodeNameError)
		awaitCount(t, "held queries", 2, func() int { return b.held(t) })
		awaitCount(t, "queries in flight", 0, func() int { return int(valueOf(t, b.server().metrics.inFlight)) })
		b.Advance() // neither name exists
		begin := time.Now()
		b.create("w2.")
		c.expect(t, 2, dns.RcodeSuccess)
		t.Logf("answered after %s", time.Since(begin))
		awaitCount(t, "held queries", 1, func() int { return b.held(t) })
		b.create("w1.")
		c.expect(t, 1, dns.RcodeSuccess)
		c.query(t, 4, "w1.") // exists
		c.expect(t, 4, dns.RcodeSuccess)
		if got := valueOf(t, b.counters.Answered); got != 2 {
			t.Errorf("%v answered, want 2", got)
		}
	})
}

func TestHeldUntilTimeout(t *testing.T) {
	const timeout = 100 * time.Millisecond
	forEachNetwork(t, func(t *testing.T, network string) {
		b := newHeldBed(t, timeout)
		c := b.dial(t, network, "127.0.0.1")
		begin := time.Now()
		c.query(t, 1, "w.")
		time.Sleep(timeout / 2)
		b.Advance() // an event does not extend the time
		c.expect(t, 1, dns.RcodeNameError)
		if took := time.Since(begin); took < timeout || took > timeout+patience/4 {
			t.Errorf("answered after %s, want %s", took, timeout)
		}
		if got := valueOf(t, b.counters.TimedOut); got != 1 {
			t.Errorf("%v timed out, want 1", got)
		}
	})
}

func TestTypesNotHeld(t *testing.T) {
	b := newHeldBed(t, long)
	c := b.dial(t, "udp", "127.0.0.1")
	for i, qtype := range []uint16{dns.TypeMX, dns.TypeTXT, dns.TypeHTTPS, dns.TypeNS, dns.TypeANY} {
		c.query(t, uint16(i), "w.", func(m *dns.Msg) { m.Question[0].Qtype = qtype })
		c.expect(t, uint16(i), dns.RcodeNameError)
	}
	for i, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV} {
		c.query(t, uint16(i), "W.", func(m *dns.Msg) { m.Question[0].Qtype = qtype })
	}
	awaitCount(t, "held queries", 3, func() int { return b.held(t) })
}

// TestHeldWithoutGoroutines holds 10,000 queries of some sources, which one event ends.
func TestHeldWithoutGoroutines(t *testing.T) {
	const sources, each = 100, 100 // a socket of a client has a buffer for some hundred replies
	b := newHeldBed(t, long)
	var clients []heldClient
	before, heap := runtime.NumGoroutine(), heapInUse()
	for i := range sources {
		c := b.dial(t, "udp", fmt.Sprintf("127.0.1.%d", i+1))
		clients = append(clients, c)
		for id := range each {
			c.query(t, uint16(id), fmt.Sprintf("w%d.jobs.ml.svc.cluster.local.", id%100))
			if id%100 == 99 { // so that the server drops none
				awaitCount(t, "held queries", i*each+id+1, func() int { return b.held(t) })
			}
		}
	}
	bytes := (heapInUse() - heap) / (sources * each)
	if got := runtime.NumGoroutine(); got > before+20 {
		t.Errorf("%d goroutines, %d before the queries", got, before)
	}
	t.Logf("%d bytes for a held query", bytes)
	if bytes > 500 {
		t.Errorf("%d bytes for a held query, want 500 at most", bytes)
	}
	for i := range 100 {
		b.exists.Store(fmt.Sprintf("w%d.jobs.ml.svc.cluster.local.", i), true)
	}
	b.Advance()
	var waiting sync.WaitGroup
	for _, c := range clients {
		waiting.Go(func() {
			for range each {
				if m := c.reply(t); m.Rcode != dns.RcodeSuccess {
					t.Errorf("reply\n%v", m)
					return
				}
			}
		})
	}
	waiting.Wait()
}

// heapInUse returns the bytes of the objects that are in use.
func heapInUse() int64 {
	var m runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) // #nosec G115 -- less than 8 EiB
}

// TestHeldPerSource has a client that sends more queries than it may have; those of another client wait, and are answered.
func TestHeldPerSource(t *testing.T) {
	forEachNetwork(t, func(t *testing.T, network string) {
		b := newHeldBed(t, long)
		flood, other := b.dial(t, network, "127.0.0.2"), b.dial(t, network, "127.0.0.3")
		for id := range maxHeldPerSource {
			flood.query(t, uint16(id), "w.")
			if id%100 == 99 {
				awaitCount(t, "held queries", id+1, func() int { return b.held(t) })
			}
		}
		for id := range uint16(50) {
			flood.query(t, id, "w.")
			flood.expect(t, id, dns.RcodeNameError)
		}
		if got := valueOf(t, b.counters.Refused); got != 50 {
			t.Errorf("%v refused, want 50", got)
		}
		flood.query(t, 7, "other.") // the connection is read further
		flood.expect(t, 7, dns.RcodeNameError)
		other.query(t, 1, "other.")
		other.expect(t, 1, dns.RcodeNameError)
		other.query(t, 2, "w.")
		awaitCount(t, "held queries", maxHeldPerSource+1, func() int { return b.held(t) })
		b.create("w.")
		other.expect(t, 2, dns.RcodeSuccess)
	})
}

// TestHeldIsNotInFlight has more queries of a connection wait than it may have in flight: it is read further.
func TestHeldIsNotInFlight(t *testing.T) {
	b := newHeldBed(t, long)
	b.listener.process.held.setPerSource(2 * maxInFlight)
	c := b.dial(t, "tcp", "127.0.0.1")
	for id := range uint16(maxInFlight + 10) {
		c.query(t, id, "w.")
	}
	c.query(t, 1, "other.")
	c.expect(t, 1, dns.RcodeNameError)
	if got := b.held(t); got != maxInFlight+10 {
		t.Errorf("%d queries wait, want %d", got, maxInFlight+10)
	}
}

func (t *heldTable) setPerSource(limit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.perSource = limit
}

// TestHeldShares fills the table: each source has less, and a new one has a place still.
func TestHeldShares(t *testing.T) {
	table, newcomer := newHeldTable(10_000, 1000), netip.MustParseAddr("192.0.2.1")
	for table.total < table.max-1 {
		s := clientAddress(table.total)
		for table.admits(s) {
			table.sources[s]++
			table.total++
		}
		if table.total > table.max/2 && len(table.sources) < 10 {
			t.Fatalf("%d sources have more than half of the places", len(table.sources))
		}
		if table.total < table.max && !table.admits(newcomer) {
			t.Fatalf("%d of %d places are used, and a new source has none", table.total, table.max)
		}
	}
	table.total = table.max
	if table.admits(newcomer) {
		t.Error("more than the maximum is admitted")
	}
}

package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

// soon limits every wait for an expected event.
const soon = 15 * time.Second

func newMetrics() *Metrics {
	gauge := func() prometheus.Gauge { return prometheus.NewGauge(prometheus.GaugeOpts{Name: "g"}) }
	counter := func() prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{Name: "c"}) }
	return &Metrics{
		Connections: gauge(), InFlight: gauge(), Depth: depths{counter()},
		Hits: counter(), Misses: counter(), Late: counter(), Single: counter(), Case: counter(), Sent: counter(), Received: counter(),
		Dropped: dropCounters(counter),
	}
}

// number returns the value of a gauge or a counter.
func number(c prometheus.Collector) int { return int(testutil.ToFloat64(c)) }

func dropCounters(counter func() prometheus.Counter) map[string]prometheus.Counter {
	all := map[string]prometheus.Counter{}
	for _, reason := range DropReasons() {
		all[reason] = counter()
	}
	return all
}

// dropped returns the numbers of dropped answers by reason.
func (m *Metrics) dropped() (all [4]int) {
	for i, reason := range []string{WrongID, WrongQuestion, WrongCase, Malformed} {
		all[i] = number(m.Dropped[reason])
	}
	return all
}

// becomes waits for a value of a gauge or a counter.
func becomes(t testing.TB, what string, c prometheus.Collector, want int) {
	t.Helper()
	kit.Succeeds(t, kit.Patience, what, func() error {
		if n := number(c); n != want {
			return fmt.Errorf("%d, want %d", n, want)
		}
		return nil
	})
}

// clock is the real time plus the time that a test has skipped.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time       { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) skip(d time.Duration) { c.ahead.Add(int64(d)) }

// server listens on a loopback address. Tests read queries from its connections, and write answers.
type server struct {
	t         testing.TB
	l         *net.TCPListener
	reserved  io.Closer // the port, while connections are refused
	sessions  chan *session
	accepted  atomic.Int32
	opened    atomic.Int32
	maxOpen   atomic.Int32 // open at once
	closesNew atomic.Bool  // as a proxy without a server
	ended     sync.WaitGroup
	guard     sync.Mutex
	all       []*session
}

// session is the server's end of a connection.
type session struct {
	*net.TCPConn
	s      *server
	number int // from 1
	closed sync.Once
}

func newServer(t testing.TB) *server {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	kit.Must(t, err)
	s := &server{t: t, l: l, sessions: make(chan *session, 4096)}
	s.ended.Go(s.listen)
	t.Cleanup(s.stop)
	return s
}

// serving returns a server that calls a function for each connection.
func serving(t testing.TB, serve func(*session)) *server {
	t.Helper()
	s := newServer(t)
	s.ended.Go(func() {
		for one := range s.sessions {
			s.ended.Go(func() {
				serve(one)
				one.close()
			})
		}
	})
	return s
}

func (s *server) listen() {
	defer close(s.sessions)
	for {
		c, err := s.l.AcceptTCP()
		if err != nil {
			return
		}
		one := &session{TCPConn: c, s: s, number: int(s.accepted.Add(1))}
		for n := s.opened.Add(1); ; {
			if maxOpen := s.maxOpen.Load(); n <= maxOpen || s.maxOpen.CompareAndSwap(maxOpen, n) {
				break
			}
		}
		s.guard.Lock()
		s.all = append(s.all, one)
		s.guard.Unlock()
		if s.closesNew.Load() {
			one.close()
			continue
		}
		s.sessions <- one
	}
}

// refuse refuses connections. The port remains reserved, so that no other test listens on it.
func (s *server) refuse() {
	s.t.Helper()
	_ = s.l.Close()
	reserved, err := rogue.ReservePort(s.l.Addr().(*net.TCPAddr).AddrPort(), false)
	kit.Must(s.t, err)
	s.reserved = reserved
	s.t.Cleanup(func() { _ = reserved.Close() }) // again may have closed the port
}

// again accepts connections after refuse.
func (s *server) again() {
	s.t.Helper()
	kit.Must(s.t, s.reserved.Close())
	l, err := net.ListenTCP("tcp", s.l.Addr().(*net.TCPAddr))
	kit.Must(s.t, err)
	old := s.sessions
	for range old { // until the channel is closed
	}
	s.l, s.sessions = l, make(chan *session, 4096)
	s.ended.Go(s.listen)
}

func (s *server) stop() {
	_ = s.l.Close()
	s.guard.Lock()
	all := slices.Clone(s.all)
	s.guard.Unlock()
	for _, one := range all {
		one.close()
	}
	s.ended.Wait()
}

// accept returns the next connection.
func (s *server) accept() *session {
	s.t.Helper()
	select {
	case one := <-s.sessions:
		return one
	case <-time.After(soon):
		s.t.Fatal("no connection")
		return nil
	}
}

func (c *session) close() {
	c.closed.Do(func() {
		c.s.opened.Add(-1)
		_ = c.TCPConn.Close()
	})
}

// reset ends the connection with an RST.
func (c *session) reset() {
	_ = c.SetLinger(0)
	c.close()
}

// next returns the next query, or nil at the end.
func (c *session) next() []byte {
	var length [2]byte
	if _, err := io.ReadFull(c, length[:]); err != nil {
		return nil
	}
	query := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(c, query); err != nil {
		return nil
	}
	return query
}

// query returns the next query. It fails the test if there is none.
func (c *session) query() []byte {
	c.s.t.Helper()
	kit.Must(c.s.t, c.SetReadDeadline(time.Now().Add(soon)))
	q := c.next()
	if q == nil {
		c.s.t.Fatal("no query")
	}
	return q
}

// queries returns the next queries by their names.
func (c *session) queries(n int) map[string][]byte {
	c.s.t.Helper()
	all := map[string][]byte{}
	ids := map[uint16]bool{}
	for range n {
		q := c.query()
		ids[id(q)] = true
		all[nameOf(q)] = q
	}
	if len(all) != n || len(ids) != n {
		c.s.t.Fatalf("%d names and %d ids of %d queries", len(all), len(ids), n)
	}
	return all
}

// end waits until the pool has closed the connection. Further data fails the test.
func (c *session) end() {
	c.s.t.Helper()
	kit.Must(c.s.t, c.SetReadDeadline(time.Now().Add(soon)))
	if n, err := c.Read(make([]byte, 1)); n > 0 || os.IsTimeout(err) {
		c.s.t.Fatalf("%d bytes and %v, want the end of the connection", n, err)
	}
}

// read returns the error of the next read. Data fail the test.
func (c *session) read() error {
	c.s.t.Helper()
	kit.Must(c.s.t, c.SetReadDeadline(time.Now().Add(soon)))
	n, err := c.Read(make([]byte, 1))
	if n > 0 {
		c.s.t.Fatal("data, want the end of the connection")
	}
	return err
}

// aborted waits until the pool has closed the connection with a reset. Further data fails the test.
func (c *session) aborted() {
	c.s.t.Helper()
	if err := c.read(); !errors.Is(err, syscall.ECONNRESET) {
		c.s.t.Fatalf("%v, want a reset", err)
	}
}

// respond writes messages with their lengths. It reports success.
func (c *session) respond(messages ...[]byte) bool {
	var b []byte
	for _, m := range messages {
		b = append(b, frame(m)...)
	}
	_, err := c.Write(b)
	return err == nil
}

func frame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
}

// answer returns the answer to a query.
func answer(query []byte) []byte {
	reply := slices.Clone(query)
	reply[2] |= 0x80
	return reply
}

func id(message []byte) uint16 { return binary.BigEndian.Uint16(message) }

func nameOf(message []byte) string {
	name, _, err := dns.UnpackDomainName(message, 12)
	if err != nil {
		return err.Error()
	}
	return name
}

// echo answers all queries.
func echo(c *session) {
	for q := c.next(); q != nil && c.respond(answer(q)); q = c.next() {
	}
}

// question packs a query for an A record with the id 0xabcd.
func question(t testing.TB, name string) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeA)
	m.Id = 0xabcd
	return kit.Pack(t, m)
}

// testbed is a pool and its server.
type testbed struct {
	*Pool
	*server
	t      testing.TB
	clock  *clock
	logged chan string
	dials  atomic.Int32
}

// newTestbed returns a pool that checks its connections often, but finds no stalls.
func newTestbed(t testing.TB, s *server, depth, connections int) *testbed {
	t.Helper()
	b := &testbed{server: s, t: t, clock: new(clock), logged: make(chan string, 1024)}
	address := s.l.Addr().String()
	b.Pool = NewPool(Config{
		Dial: func(ctx context.Context) (net.Conn, error) {
			b.dials.Add(1)
			return Dialer("tcp", nil).DialContext(ctx, "tcp", address)
		},
		MaxInFlight: depth, MaxConnections: connections, Expire: time.Minute, Metrics: newMetrics(),
		Log: func(predicate string) { b.logged <- predicate },
	})
	b.Pool.now = b.clock.now
	b.tick = time.Millisecond
	b.stall, b.maxStall, b.silence = 1000*time.Hour, 1000*time.Hour, 1000*time.Hour // tests of stalls reduce it
	t.Cleanup(func() {
		b.Pool.Close()
		s.stop()
		b.wantClosed()
	})
	return b
}

// retireAll retires the connections for queries.
func (b *testbed) retireAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.conns) > 0 {
		b.retire(b.conns[0])
	}
}

// wantClosed waits until no connection and no call is left.
func (b *testbed) wantClosed() {
	b.t.Helper()
	becomes(b.t, "connections in the end", b.Metrics.Connections, 0)
	becomes(b.t, "queries on their way in the end", b.Metrics.InFlight, 0)
	kit.Eventually(b.t, "the pool has no connections in the end", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.conns)+len(b.retired)+len(b.waiting) == 0
	})
	// Counting backwards would add almost 2^32.
	if sent := testutil.ToFloat64(b.Metrics.Sent); sent > 1e6 {
		b.t.Errorf("%v packets sent", sent)
	}
	if received := testutil.ToFloat64(b.Metrics.Received); received > 1e6 {
		b.t.Errorf("%v packets received", received)
	}
}

// acceptFirst returns the server's end of the pool's first connection. It skips connections that the pool cancelled
// during the handshake: the server may accept them later.
func (b *testbed) acceptFirst() *session {
	b.t.Helper()
	var local string
	kit.Eventually(b.t, "the pool's first connection is established", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.conns) == 0 || b.conns[0].c == nil {
			return false
		}
		local = b.conns[0].c.LocalAddr().String()
		return true
	})
	for {
		if one := b.accept(); one.RemoteAddr().String() == local {
			return one
		}
	}
}

// sent is a call with its channel.
type sent struct {
	*Call
	name string
	done chan *Call
	t    testing.TB
}

func newSent(t testing.TB, name string) *sent {
	t.Helper()
	s := &sent{name: name, done: make(chan *Call, 2), t: t}
	s.Call = &Call{Query: question(t, name), Deadline: time.Now().Add(2 * soon), Owner: s}
	return s
}

// Ended implements Owner.
func (s *sent) Ended(_ *batch.Batch, call *Call) {
	call.Reply = slices.Clone(call.Reply)
	s.done <- call
}

// sendTo sends the call, and ends it after an error.
func (s *sent) sendTo(to Carrier) {
	var b batch.Batch
	if err := to.Send(&b, s.Call); err != nil {
		s.Err = err
		s.done <- s.Call
	}
	b.Flush()
}

func send(t testing.TB, to Carrier, name string) *sent {
	t.Helper()
	s := newSent(t, name)
	s.sendTo(to)
	return s
}

func (b *testbed) send(name string) *sent {
	b.t.Helper()
	return send(b.t, b.Pool, name)
}

// sendAll sends queries for names with a prefix.
func (b *testbed) sendAll(n int, prefix string) []*sent {
	b.t.Helper()
	all := make([]*sent, n)
	for i := range all {
		all[i] = b.send(prefix + letters(i) + ".example.")
	}
	return all
}

// letters returns a number in letters of both cases.
func letters(n int) string {
	const all = "abcdefghijKLMNOPQRSTUVWXyz"
	var b strings.Builder
	for ; n >= len(all); n /= len(all) {
		b.WriteByte(all[n%len(all)])
	}
	b.WriteByte(all[n])
	return b.String()
}

// wait waits for the call.
func (s *sent) wait() {
	s.t.Helper()
	select {
	case got := <-s.done:
		if got != s.Call {
			s.t.Fatalf("%s: another call returned", s.name)
		}
	case <-time.After(soon):
		s.t.Fatalf("%s: the call did not return", s.name)
	}
}

// answered waits for the right answer.
func (s *sent) answered() {
	s.t.Helper()
	s.wait()
	if s.Err != nil {
		s.t.Fatalf("%s: %v", s.name, s.Err)
	}
	s.right()
}

func (s *sent) right() {
	s.t.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(s.Reply); err != nil {
		s.t.Fatalf("%s: %v", s.name, err)
	}
	if m.Id != 0xabcd || !m.Response || len(m.Question) != 1 || m.Question[0].Name != s.name {
		s.t.Fatalf("%s: the answer is\n%v", s.name, m)
	}
	if id(s.Query) != 0xabcd || s.Query[2]&0x80 != 0 {
		s.t.Fatalf("%s: the query was changed", s.name)
	}
}

// fails waits for the error.
func (s *sent) fails() error {
	s.t.Helper()
	s.wait()
	if s.Err == nil || s.Reply != nil {
		s.t.Fatalf("%s: reply %x and error %v, want an error only", s.name, s.Reply, s.Err)
	}
	return s.Err
}

// notDone fails the test if the call has returned.
func (s *sent) notDone() {
	s.t.Helper()
	select {
	case <-s.done:
		s.t.Fatalf("%s: the call returned: %v", s.name, s.Err)
	default:
	}
}

func allAnswered(all []*sent) {
	for _, s := range all {
		s.t.Helper()
		s.answered()
	}
}

// waitingNow returns the number of calls that wait for room.
func (p *Pool) waitingNow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}

// connsNow returns the number of connections for queries.
func (p *Pool) connsNow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// wantLog waits for a log line with a prefix.
func (b *testbed) wantLog(prefix string) {
	b.t.Helper()
	for end := time.After(soon); ; {
		select {
		case line := <-b.logged:
			if strings.HasPrefix(line, prefix) {
				return
			}
		case <-end:
			b.t.Fatalf("not logged: %s", prefix)
		}
	}
}

// ourGoroutines returns the goroutines of this package, except those of tests.
func ourGoroutines() (found []string) {
	b := make([]byte, 4<<20)
	for _, g := range strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n") {
		for _, owner := range []string{"(*conn).", "(*Pool).", "(*Datagrams).", "(*poller).", "(*Func)."} {
			if strings.Contains(g, "/transport."+owner) && !strings.Contains(g, "testing.tRunner") {
				found = append(found, g)
				break
			}
		}
	}
	return found
}

// TestMain fails if tests have left goroutines.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		end := time.Now().Add(soon)
		for len(ourGoroutines()) > 0 && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		if left := ourGoroutines(); len(left) > 0 {
			println(len(left), "goroutines are left, one is\n", left[0])
			code = 1
		}
	}
	os.Exit(code)
}

// depths counts the queries sent.
type depths struct{ prometheus.Counter }

func (d depths) Observe(float64) { d.Inc() }

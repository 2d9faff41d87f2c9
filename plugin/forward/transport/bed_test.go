package transport

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearside-dns/nearside/test/forward/rogue"
)

// soon bounds every wait for something that is to happen.
const soon = 5 * time.Second

func newMetrics() *Metrics {
	gauge := func() prometheus.Gauge { return prometheus.NewGauge(prometheus.GaugeOpts{Name: "g"}) }
	counter := func() prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{Name: "c"}) }
	return &Metrics{
		Connections: gauge(), InFlight: gauge(), Depth: depths{counter()},
		Hits: counter(), Misses: counter(), Late: counter(), Single: counter(), Sent: counter(), Received: counter(),
		Dropped: dropCounters(counter),
	}
}

// number is the value of a gauge or a counter.
func number(c prometheus.Collector) int { return int(testutil.ToFloat64(c)) }

func dropCounters(counter func() prometheus.Counter) map[string]prometheus.Counter {
	all := map[string]prometheus.Counter{}
	for _, reason := range DropReasons() {
		all[reason] = counter()
	}
	return all
}

// dropped are the dropped answers by their reasons.
func (m *Metrics) dropped() (all [4]int) {
	for i, reason := range []string{WrongID, WrongQuestion, WrongCase, Malformed} {
		all[i] = number(m.Dropped[reason])
	}
	return all
}

// eventually waits until something is so.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never so: %s", what)
		}
	}
}

// becomes waits for a value of a gauge or a counter.
func becomes(t testing.TB, what string, c prometheus.Collector, want int) {
	t.Helper()
	for end := time.Now().Add(soon); number(c) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: %d, want %d", what, number(c), want)
		}
	}
}

// clock goes on by itself, and can be put forward.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time       { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) skip(d time.Duration) { c.ahead.Add(int64(d)) }

// server listens on loopback. A test reads and writes what its connections carry.
type server struct {
	t        testing.TB
	l        *net.TCPListener
	kept     io.Closer // the port, while connections are refused
	sessions chan *session
	accepted atomic.Int32
	opened   atomic.Int32
	most     atomic.Int32 // open at once
	ended    sync.WaitGroup
	guard    sync.Mutex
	all      []*session
}

// session is a connection as the server sees it.
type session struct {
	*net.TCPConn
	s      *server
	number int // 1 is the first
	closed sync.Once
}

func newServer(t testing.TB) *server {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, l: l, sessions: make(chan *session, 4096)}
	s.ended.Go(s.listen)
	t.Cleanup(s.stop)
	return s
}

// serving is a server of which each connection is served by a function.
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
			if most := s.most.Load(); n <= most || s.most.CompareAndSwap(most, n) {
				break
			}
		}
		s.guard.Lock()
		s.all = append(s.all, one)
		s.guard.Unlock()
		s.sessions <- one
	}
}

// refuse lets no more connections be made. The port stays the server's: what another test listens on would be
// taken for it.
func (s *server) refuse() {
	s.t.Helper()
	_ = s.l.Close()
	kept, err := rogue.KeepPort(s.l.Addr().(*net.TCPAddr).AddrPort(), false)
	if err != nil {
		s.t.Fatal(err)
	}
	s.kept = kept
	s.t.Cleanup(func() { _ = kept.Close() }) // a second time does no harm
}

// again accepts connections at the same address as before.
func (s *server) again() {
	s.t.Helper()
	if err := s.kept.Close(); err != nil {
		s.t.Fatal(err)
	}
	l, err := net.ListenTCP("tcp", s.l.Addr().(*net.TCPAddr))
	if err != nil {
		s.t.Fatal(err)
	}
	old := s.sessions
	for range old { // it is closed
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
		s.t.Fatal("no connection was made")
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

// query returns the next query, which has to come.
func (c *session) query() []byte {
	c.s.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(soon)); err != nil {
		c.s.t.Fatal(err)
	}
	q := c.next()
	if q == nil {
		c.s.t.Fatal("no query came")
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

// silent waits until the other side has closed the connection, with nothing more said.
func (c *session) end() {
	c.s.t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(soon)); err != nil {
		c.s.t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); n > 0 || os.IsTimeout(err) {
		c.s.t.Fatalf("%d bytes and %v, want the end of the connection", n, err)
	}
}

// say writes messages, each with its length. It reports whether it could.
func (c *session) say(messages ...[]byte) bool {
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

// answer is the answer to a query.
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

// echo answers everything.
func echo(c *session) {
	for q := c.next(); q != nil && c.say(answer(q)); q = c.next() {
	}
}

// question packs a query for an A record. The client's id is the same for all.
func question(t testing.TB, name string) []byte {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, dns.TypeA)
	m.Id = 0xabcd
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// bed is a pool and the server that it has connections to.
type bed struct {
	*Pool
	*server
	t      testing.TB
	clock  *clock
	logged chan string
	dials  atomic.Int32
}

// newBed returns a pool with up to depth queries on each of so many connections. It looks after them often,
// but suspects none.
func newBed(t testing.TB, s *server, depth, connections int) *bed {
	t.Helper()
	b := &bed{server: s, t: t, clock: new(clock), logged: make(chan string, 1024)}
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
	b.stall, b.maxStall = 1000*time.Hour, 1000*time.Hour // where it matters, a test sets it
	t.Cleanup(func() {
		b.Pool.Close()
		s.stop()
		b.gone()
	})
	return b
}

// gone waits until nothing is left of what was.
func (b *bed) gone() {
	b.t.Helper()
	becomes(b.t, "connections in the end", b.Metrics.Connections, 0)
	becomes(b.t, "queries on their way in the end", b.Metrics.InFlight, 0)
	eventually(b.t, "the pool has no connections in the end", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.conns)+len(b.retired)+len(b.waiting) == 0
	})
	// A connection's first queries are a handful of segments; what is counted twice or backwards is not.
	if sent := testutil.ToFloat64(b.Metrics.Sent); sent > 1e6 {
		b.t.Errorf("%v packets sent", sent)
	}
	if received := testutil.ToFloat64(b.Metrics.Received); received > 1e6 {
		b.t.Errorf("%v packets received", received)
	}
}

// acceptFirst returns the server's end of the pool's first connection. Connections that the pool gave up while it
// made them reach the server too, at any later time: acceptFirst skips them.
func (b *bed) acceptFirst() *session {
	b.t.Helper()
	var local string
	eventually(b.t, "the pool has made its first connection", func() bool {
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

// sent is a call with the channel by which it comes back.
type sent struct {
	*Call
	name string
	done chan *Call
	t    testing.TB
}

func newSent(t testing.TB, name string) *sent {
	t.Helper()
	s := &sent{name: name, done: make(chan *Call, 2), t: t}
	s.Call = &Call{Query: question(t, name), Deadline: time.Now().Add(2 * soon), Done: s.done}
	return s
}

func send(t testing.TB, to Carrier, name string) *sent {
	t.Helper()
	s := newSent(t, name)
	to.Send(s.Call)
	return s
}

func (b *bed) send(name string) *sent {
	b.t.Helper()
	return send(b.t, b.Pool, name)
}

// sendAll sends queries for names that begin so.
func (b *bed) sendAll(n int, prefix string) []*sent {
	b.t.Helper()
	all := make([]*sent, n)
	for i := range all {
		all[i] = b.send(prefix + letters(i) + ".example.")
	}
	return all
}

// letters is a number in letters of both cases.
func letters(n int) string {
	const all = "abcdefghijKLMNOPQRSTUVWXyz"
	var b strings.Builder
	for ; n >= len(all); n /= len(all) {
		b.WriteByte(all[n%len(all)])
	}
	b.WriteByte(all[n])
	return b.String()
}

// back waits for the call.
func (s *sent) back() {
	s.t.Helper()
	select {
	case got := <-s.done:
		if got != s.Call {
			s.t.Fatalf("%s: another call came back", s.name)
		}
	case <-time.After(soon):
		s.t.Fatalf("%s: the call did not come back", s.name)
	}
}

// answered waits for the answer and looks whether it is the right one.
func (s *sent) answered() {
	s.t.Helper()
	s.back()
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
	s.back()
	if s.Err == nil || s.Reply != nil {
		s.t.Fatalf("%s: reply %x and error %v, want an error only", s.name, s.Reply, s.Err)
	}
	return s.Err
}

// isBack reports whether the call has come back, which it must not have.
func (s *sent) notBack() {
	s.t.Helper()
	select {
	case <-s.done:
		s.t.Fatalf("%s: the call came back: %v", s.name, s.Err)
	default:
	}
}

func allAnswered(all []*sent) {
	for _, s := range all {
		s.t.Helper()
		s.answered()
	}
}

// waitingNow is how many calls wait for room.
func (p *Pool) waitingNow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}

// connsNow is how many connections take queries.
func (p *Pool) connsNow() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// wantLog waits until the pool has said something that begins so.
func (b *bed) wantLog(what string) {
	b.t.Helper()
	for end := time.After(soon); ; {
		select {
		case said := <-b.logged:
			if strings.HasPrefix(said, what) {
				return
			}
		case <-end:
			b.t.Fatalf("it was not found out that it %s", what)
		}
	}
}

// ourGoroutines are those that run this package's code, but for the tests.
func ourGoroutines() (found []string) {
	b := make([]byte, 4<<20)
	for _, g := range strings.Split(string(b[:runtime.Stack(b, true)]), "\n\n") {
		for _, of := range []string{"(*conn).", "(*Pool).", "(*Datagrams).", "(*Func)."} {
			if strings.Contains(g, "/transport."+of) && !strings.Contains(g, "testing.tRunner") {
				found = append(found, g)
				break
			}
		}
	}
	return found
}

// noneLeft waits until no goroutine of this package is left.
func noneLeft(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(soon); ; time.Sleep(time.Millisecond) {
		left := ourGoroutines()
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d goroutines are left, one is\n%s", len(left), left[0])
		}
	}
}

// TestMain looks for goroutines that the tests have left behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		end := time.Now().Add(soon)
		for len(ourGoroutines()) > 0 && time.Now().Before(end) {
			time.Sleep(time.Millisecond)
		}
		if left := ourGoroutines(); len(left) > 0 {
			println(len(left), "goroutines are left behind, one is\n", left[0])
			code = 1
		}
	}
	os.Exit(code)
}

// depths counts the queries that were sent.
type depths struct{ prometheus.Counter }

func (d depths) Observe(float64) { d.Inc() }

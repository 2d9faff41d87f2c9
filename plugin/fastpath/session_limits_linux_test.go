package fastpath

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestDeafSession has a session whose client reads nothing: it is closed, and another one is notified in time meanwhile.
func TestDeafSession(t *testing.T) {
	offer(t)
	keyspace := newKeyspace(t)
	l, address := newStreamListener(t, echo, withRoute(t, keyspace, nil))
	d := new(watchable)
	deaf, other := dialSession(t, address), dialSession(t, address)
	conn := serverEnd(t, l, deaf)
	kit.Must(t, unix.SetsockoptInt(conn.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096))
	unread := closedSessions(push.Unread)
	closed := make(chan time.Duration)
	go func() {
		begin, message := time.Now(), dso.AppendInvalidate(nil, make([]uint64, dso.MaxInvalidated))
		for connectionIsOpen(conn) {
			conn.Push(message)
		}
		closed <- time.Since(begin)
	}()
	for i := range 100 {
		storeAnswer(t, keyspace, "other.example.", 1, &store.Entry{Validity: bound(d)})
		_, handles := other.ask("other.example.", notify)
		begin := time.Now()
		d.Advance()
		if got := other.invalidated(); !slices.Equal(got, handles) {
			t.Fatalf("%v are invalidated, want %v", got, handles)
		}
		if took := time.Since(begin); took > patience/4 {
			t.Errorf("change %d is notified after %v", i, took)
		}
	}
	if took := <-closed; took > patience/4 {
		t.Errorf("the deaf session is closed after %v", took)
	}
	if got := closedSessions(push.Unread) - unread; got != 1 {
		t.Errorf("%v sessions are counted as unread, want 1", got)
	}
}

// TestUnacknowledgedSession has a session whose client's kernel accepts no more messages: the server's kernel gives up, and the
// session and its connection are counted as unread.
func TestUnacknowledgedSession(t *testing.T) {
	withdraw := push.Process.Offer(func() bool { return false }) // no heartbeats
	t.Cleanup(withdraw)
	l, address := newStreamListener(t, echo)
	c := dialSession(t, address)
	conn := serverEnd(t, l, c)
	sessions, connections := closedSessions(push.Unread), valueOf(t, l.server.Load().metrics.closed[closedUnread])
	func() {
		conn.mu.Lock()
		defer conn.mu.Unlock()
		kit.Must(t, unix.SetsockoptInt(conn.fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 100))
		for junk := make([]byte, 1<<20); conn.writeSome(junk) > 0; {
		}
	}()
	kit.Eventually(t, "the connection is closed", func() bool { return !connectionIsOpen(conn) })
	if got := closedSessions(push.Unread) - sessions; got != 1 {
		t.Errorf("%d sessions are counted as unread, want 1", got)
	}
	if got := valueOf(t, l.server.Load().metrics.closed[closedUnread]) - connections; got != 1 {
		t.Errorf("%v connections are counted as unread, want 1", got)
	}
}

func connectionIsOpen(c *connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fd >= 0
}

// closedSessions returns the number of sessions that were closed for a reason.
func closedSessions(reason push.CloseReason) uint64 {
	return push.Process.Statistics().Closed[reason]
}

// TestSilentSession has two sessions in which no query is sent for longer than the idle timeout. They remain, until one is
// silent for sessionSilence.
func TestSilentSession(t *testing.T) {
	offer(t)
	l, address := newStreamListener(t, echo, func(s *server) { s.IdleTimeout = 100 * time.Millisecond })
	plain := dialTCP(t, address)
	kit.Send(t, plain, framed(t, 1, "plain.example."))
	silent, other := dialSession(t, address), dialSession(t, address)
	mustRead(t, plain, 1)
	if _, err := readFrame(plain); err == nil {
		t.Error("an idle connection without a session remains")
	}
	count := closedSessions(push.Silent)
	for range 3 {
		time.Sleep(2 * sweepPause)
		other.send(dso.AppendSessionRequest(nil, 2))
		other.next()
	}
	if n := l.connections.Load(); n != 2 {
		t.Fatalf("%d connections, want 2 sessions", n)
	}
	age := func(c *sessionClient, by time.Duration) (silence time.Duration) {
		conn := serverEnd(t, l, c)
		conn.mu.Lock()
		defer conn.mu.Unlock()
		conn.session.heard -= by
		return validity.Now() - conn.session.heard
	}
	age(other, sessionSilence/2)
	other.send(dso.AppendSessionRequest(nil, 3))
	other.next()
	if silence := age(other, 0); silence > sessionSilence/4 {
		t.Errorf("a session is silent for %s after a request", silence)
	}
	age(silent, sessionSilence)
	silent.wantReset()
	other.send(dso.AppendSessionRequest(nil, 4))
	other.next()
	if got := closedSessions(push.Silent) - count; got < 1 {
		t.Errorf("%v sessions are counted as silent, want 1", got)
	}
}

// TestSessionsAfterReload reloads: the connections and sessions remain, all answers are revoked once, and those of the next
// configuration have handles. stop is called for the former configuration and when the next one has started.
func TestSessionsAfterReload(t *testing.T) {
	offer(t)
	old, next := new(watchable), new(watchable)
	keyspace := newKeyspace(t)
	l, address := newStreamListener(t, echo, withRoute(t, keyspace, nil))
	storeAnswer(t, keyspace, "reload.example.", 1, &store.Entry{Validity: bound(old)})
	c := dialSession(t, address)
	if _, handles := c.ask("reload.example.", notify); len(handles) != 1 {
		t.Fatalf("handles %v", handles)
	}
	replacedServer, replaced := l.server.Load(), store.Shared.NewKeyspace()
	defer replaced.Drop()
	storeAnswer(t, replaced, "reload.example.", 2, &store.Entry{Validity: bound(next)})
	conf := &block.Configuration{}
	r := l.process
	r.listeners[l.address] = l
	s := newServer(t, echo)
	s.process, s.conf = r, conf
	withRoute(t, replaced, nil)(s)
	kit.Must(t, r.serve(l.address, s, nil, nil, true))
	replacedServer.references.Add(1) // a query in progress, for which the reload waits
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.Stop(conf)
	}()
	if got := c.invalidated(); len(got) != 0 {
		t.Errorf("%v are invalidated, want all", got)
	}
	select {
	case <-stopped:
		t.Error("the reload did not wait for a query in progress")
	default:
	}
	replacedServer.references.Add(-1)
	<-stopped
	m, handles := c.ask("reload.example.", notify)
	if len(m.Answer) != 2 || len(handles) != 1 {
		t.Errorf("%d addresses and handles %v, want those of the next configuration", len(m.Answer), handles)
	}
	r.Stop(conf)
	old.Advance()
	next.Advance()
	if got := c.invalidated(); !slices.Equal(got, handles) {
		t.Errorf("%v are invalidated, want %v", got, handles)
	}
}

// TestReplacedServer has a query of a replaced server that is answered after the reload: the answer has no handles.
func TestReplacedServer(t *testing.T) {
	offer(t)
	d := &data{value: 2}
	release, begun := make(chan struct{}), make(chan struct{})
	keyspace := newKeyspace(t)
	storing := storingChain(t, keyspace, map[string]*data{"late.example.": d})
	l, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		close(begun)
		<-release
		storing(w, m)
	}, withRoute(t, keyspace, nil))
	c := dialSession(t, address)
	q := new(dns.Msg).SetQuestion("late.example.", dns.TypeA)
	notify(q)
	c.send(kit.Pack(t, q))
	<-begun
	s := newServer(t, echo)
	withRoute(t, keyspace, nil)(s)
	l.server.Store(s)
	close(release)
	b, err := c.read()
	if err != nil {
		t.Fatal(err)
	}
	if m, handles := c.answer(b); len(m.Answer) != 3 || len(handles) != 0 {
		t.Errorf("%d addresses and handles %v, want 3 and none", len(m.Answer), handles)
	}
}

// TestStoredFromTheFirstQuery checks that answers are stored when a server begins to answer, and not if it cannot.
func TestStoredFromTheFirstQuery(t *testing.T) {
	keyspace := store.Shared.NewKeyspace()
	defer keyspace.Drop()
	l, address := newStreamListener(t, echo)
	s := newServer(t, func(w dns.ResponseWriter, m *dns.Msg) {
		if !keyspace.ByGeneration.Load() {
			t.Error("the answer to a query is not stored")
		}
		echo(w, m)
	})
	s.generated = []*store.Keyspace{keyspace}
	if err := s.process.serve(l.address, s, nil, nil, true); err == nil || keyspace.ByGeneration.Load() {
		t.Errorf("error %v without a socket, and answers are stored: %v", err, keyspace.ByGeneration.Load())
	}
	s.process.listeners[l.address] = l
	c := &sessionClient{dialTCP(t, address), t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.process.serve(l.address, s, nil, nil, true); err != nil {
			t.Error(err)
		}
	}()
	for range 100 {
		c.ask("first.example.")
	}
	<-ended
	c.ask("first.example.")
	if !keyspace.ByGeneration.Load() {
		t.Error("answers are not stored")
	}
}

// TestSessionLimits has a session that has been idle for longer than all other connections: these are closed first. Its
// number of queries has no limit.
func TestSessionLimits(t *testing.T) {
	offer(t)
	for name, tt := range map[string]struct{ process, sources int }{"client": {1000, 1}, "process": {5, 32}} {
		t.Run(name, func(t *testing.T) {
			l, address := newStreamListener(t, echo, func(s *server) { s.MaxTCPQueries = 3 })
			l.process.streams.resize(tt.process, 5)
			var dialed int
			dial := func() net.Conn {
				dialed++
				return dialFrom(t, fmt.Sprintf("127.0.1.%d", 1+dialed%tt.sources), address)
			}
			sessions := []*sessionClient{beginSession(t, dial()), beginSession(t, dial())}
			for i := range uint16(20) { // used after the sessions
				conn := dial()
				kit.Send(t, conn, framed(t, i, "used.example."))
				mustRead(t, conn, i)
			}
			kit.Eventually(t, "the others are closed", func() bool { return l.connections.Load() == 5 })
			for _, c := range sessions {
				for range 10 {
					c.ask("session.example.", notify)
				}
				end := serverEnd(t, l, c)
				kit.Eventually(t, "its queries have ended", func() bool {
					end.mu.Lock()
					defer end.mu.Unlock()
					return end.inFlight.Load() == 0
				})
			}
			for range 10 { // more than the limit: the oldest one is closed
				sessions = append(sessions, beginSession(t, dial()))
			}
			sessions[0].wantEnd()
			sessions[len(sessions)-1].ask("session.example.", notify)
		})
	}
	t.Run("DSO without notifications", func(t *testing.T) {
		_, address := newStreamListener(t, echo, func(s *server) { s.MaxTCPQueries = 3 })
		c := &sessionClient{dialTCP(t, address), t}
		c.send(dso.AppendKeepalive(nil, 1, false, dso.Timeouts{}))
		c.next()
		c.ask("one.example.")
		q := framed(t, 2, "two.example.")
		kit.Send(t, c, append(q, q...))
		for {
			b, err := c.read()
			if err != nil {
				t.Fatal(err)
			}
			if m, err := dso.Parse(b); dso.IsDSO(b) && err == nil {
				if primary, _ := m.Primary(); primary.Type != dso.RetryDelay {
					t.Errorf("% x, want a retry delay", b)
				}
				return
			}
		}
	})
}

// TestOldestOfSessions has more sessions than candidates on a poller: the connection without a session is the oldest.
func TestOldestOfSessions(t *testing.T) {
	offer(t)
	s := newServer(t, echo)
	p, _, _ := streamPair(t, s)
	var last *connection
	for i := range 40 {
		c := newConnection(&listener{}, -1, netip.MustParseAddrPort("127.0.0.1:1"))
		c.poller = p
		p.mu.Lock()
		p.link(c)
		p.mu.Unlock()
		if last = c; i < 39 {
			c.subscribe()
			defer c.session.unsubscribe()
		}
	}
	if p.oldest() != last {
		t.Error("a session is the oldest connection")
	}
	p.mu.Lock()
	last.unlink()
	p.mu.Unlock()
	if p.oldest() == nil {
		t.Error("no connection beside sessions")
	}
}

// TestSweepPause checks that a sweep is short, and does not handle many connections at once.
func TestSweepPause(t *testing.T) {
	for _, tt := range []struct {
		connections int
		pause       time.Duration
	}{{1, sweepPause}, {256, sweepPause}, {257, sweepPause / 2}, {5000, sweepStep}, {15000, sweepStep}, {1 << 20, maxSweep / 4096}} {
		if got := sweepPauseOf(tt.connections); got != tt.pause {
			t.Errorf("%d connections: %s, want %s", tt.connections, got, tt.pause)
		}
	}
}

// TestSessionMemory has idle sessions, whose clients have no memory in the process.
func TestSessionMemory(t *testing.T) {
	const sessions, limit = 1000, 4 << 10
	offer(t)
	l, address := newStreamListener(t, echo)
	l.process.streams.resize(2*sessions, 2*sessions)
	port := tcpPort(t, address)
	connect := func(n int) {
		for range n {
			fd := dialSocket(t)
			kit.Must(t, unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}))
			if _, err := unix.Write(fd, appendMessage(nil, dso.AppendSessionRequest(nil, 1))); err != nil {
				t.Fatal(err)
			}
			if n, err := readSocket(fd, make([]byte, 64)); err != nil || n == 0 {
				t.Fatalf("read %d bytes: %v", n, err)
			}
		}
	}
	connect(10)
	before := liveHeap()
	connect(sessions)
	time.Sleep(2 * push.HeartbeatInterval)
	each := (liveHeap() - before) / sessions
	if n := l.connections.Load(); n != sessions+10 {
		t.Fatalf("%d connections", n)
	}
	t.Logf("%d bytes for a session", each)
	if each >= limit {
		t.Errorf("%d bytes for a session, want less than %d", each, limit)
	}
}

func liveHeap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func tcpPort(t *testing.T, address string) int {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return a.Port
}

// TestNotifiedHitsAllocateNothing answers pipelined queries that request notification from the store.
func TestNotifiedHitsAllocateNothing(t *testing.T) {
	if underRace {
		t.Skip("sync.Pool drops some buffers")
	}
	offer(t)
	keyspace := newKeyspace(t)
	storeAnswer(t, keyspace, "stored.example.", 3, &store.Entry{Validity: bound(new(watchable), new(watchable))})
	s := newServer(t, echo)
	withRoute(t, keyspace, nil)(s)
	p, c, client := sessionPair(t, s)
	var all []byte
	for i := range uint16(20) {
		all = append(all, framed(t, i, "stored.example.", notify)...)
	}
	buf := make([]byte, 1<<16)
	exchange := func() {
		if _, err := unix.Write(client, all); err != nil {
			t.Fatal(err)
		}
		p.serve(c, unix.EPOLLIN|unix.EPOLLOUT)
		if n, err := unix.Read(client, buf); err != nil || n < 20*(len(all)/20+16+2*8) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	exchange()
	var n float64
	for range 5 { // goroutines of other tests may allocate meanwhile, and a collection empties pools
		if n = testing.AllocsPerRun(100, exchange); n == 0 {
			return
		}
	}
	t.Errorf("%v allocations for 20 queries", n)
}

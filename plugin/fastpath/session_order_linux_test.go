package fastpath

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/plugin/internal/answers"
	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/coherence"
	"github.com/nearside-dns/nearside/plugin/internal/dso"
)

// data are the data behind an answer of a test: the answer for a value has as many addresses.
type data struct {
	generation
	mu    sync.Mutex
	value int
}

// read returns the value, and the validity of an answer with it.
func (d *data) read() (int, answers.Validity) {
	v := bound(&d.generation)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.value, v
}

// change changes the value, and returns it when the change is complete.
func (d *data) change() int {
	d.mu.Lock()
	d.value++
	v := d.value
	d.mu.Unlock()
	d.advance()
	return v
}

// storingChain returns the handler of a plugin chain that stores its replies as plugin kubernetes does.
func storingChain(t *testing.T, keyspace *answers.Keyspace, names map[string]*data) func(w dns.ResponseWriter, m *dns.Msg) {
	return func(w dns.ResponseWriter, m *dns.Msg) {
		name := m.Question[0].Name
		reply := new(dns.Msg).SetReply(m)
		p := &answers.Properties{AnyCase: true}
		if d := names[name]; d != nil {
			var value int
			value, p.Validity = d.read()
			reply.Answer = addressReply(name, value%50+1).Answer
			keyspace.PutReply(m, reply, p)
		}
		if m.IsEdns0() != nil {
			reply.SetEdns0(1232, false)
		}
		if err := w.WriteMsg(reply); err != nil {
			t.Log(err) // the client has closed the connection
		}
	}
}

// newStoringListener returns a listener whose plugin chain stores the answers for names.
func newStoringListener(t *testing.T, names map[string]*data) (l *listener, address string) {
	t.Helper()
	keyspace := newKeyspace(t)
	return newStreamListener(t, storingChain(t, keyspace, names), withRoute(t, keyspace, nil))
}

// TestFirstAnswer has handles in the first answer for a name, which the plugin chain makes and stores.
func TestFirstAnswer(t *testing.T) {
	offer(t)
	d := &data{value: 2}
	l, address := newStoringListener(t, map[string]*data{"first.example.": d})
	m := l.server.Load().metrics
	answered, handedOver := valueOf(t, m.answered), valueOf(t, m.handedOver)
	c := dialSession(t, address)
	for value := 2; value < 5; value++ {
		reply, handles := c.ask("first.example.", notify)
		if len(reply.Answer) != value+1 || len(handles) != 1 {
			t.Fatalf("%d addresses and handles %v, want %d and one", len(reply.Answer), handles, value+1)
		}
		again, same := c.ask("first.example.", notify)
		if len(again.Answer) != value+1 || !slices.Equal(same, handles) {
			t.Errorf("%d addresses and handles %v, want %d and %v", len(again.Answer), same, value+1, handles)
		}
		d.change()
		if got := c.invalidated(); !slices.Equal(got, handles) {
			t.Errorf("%v are invalidated, want %v", got, handles)
		}
	}
	if reply, handles := c.ask("other.example.", notify); len(reply.Answer) != 0 || len(handles) != 0 {
		t.Errorf("handles %v of a reply that is not stored:\n%v", handles, reply)
	}
	if reply, handles := c.ask("first.example."); len(reply.Answer) != 6 || len(handles) != 0 || reply.IsEdns0() != nil {
		t.Errorf("handles %v without a request for notification:\n%v", handles, reply)
	}
	await(t, "each is counted once", func() bool {
		return valueOf(t, m.answered)-answered == 3 && valueOf(t, m.handedOver)-handedOver == 5
	})
}

// TestOtherCode has a stored answer with another code than the reply: the reply is sent.
func TestOtherCode(t *testing.T) {
	offer(t)
	d := &data{value: 2}
	keyspace := newKeyspace(t)
	_, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		_, v := d.read()
		keyspace.PutReply(m, addressReply(m.Question[0].Name, 3), &answers.Properties{Validity: v})
		_ = w.WriteMsg(new(dns.Msg).SetRcode(m, dns.RcodeServerFailure))
	}, withRoute(t, keyspace, nil))
	c := dialSession(t, address)
	if reply, handles := c.ask("code.example.", notify); reply.Rcode != dns.RcodeServerFailure || len(handles) != 0 {
		t.Errorf("handles %v in\n%v", handles, reply)
	}
}

// TestOutdated has data that change between the lookup and the subscription: the answer has handles, and their invalidation
// is behind it.
func TestOutdated(t *testing.T) {
	offer(t)
	keyspace := newKeyspace(t)
	_, address := newStreamListener(t, echo, withRoute(t, keyspace, nil))
	for i := range 20 {
		g := &generation{}
		g.watcher = nil
		e := &answers.Entry{Validity: bound(&advancing{generation: g})}
		name := fmt.Sprintf("outdated%d.example.", i)
		storeAnswer(t, keyspace, name, 1, e)
		c := dialSession(t, address)
		_, handles := c.ask(name, notify)
		if len(handles) != 1 {
			t.Fatalf("handles %v", handles)
		}
		if got := c.invalidated(); !slices.Equal(got, handles) {
			t.Errorf("%v are invalidated, want %v", got, handles)
		}
	}
}

// advancing is a Generation that advances when it is watched, before the watcher is set.
type advancing struct{ *generation }

func (g *advancing) Watch(w interface{ Advanced() }) interface{ Advanced() } {
	g.number.Add(1)
	return g.generation.Watch(w)
}

// TestInvalidationFollowsAnswer has clients that query names while their data change. An invalidation has only handles that
// the client has received before. When the client has received the invalidations of all changes so far, it has no answer
// that is older, except those that an invalidation has ended.
func TestInvalidationFollowsAnswer(t *testing.T) {
	offer(t)
	names := map[string]*data{}
	var all []string
	for i := range 8 {
		name := fmt.Sprintf("n%d.example.", i)
		all = append(all, name)
		names[name] = &data{}
	}
	_, address := newStoringListener(t, names)
	var clients sync.WaitGroup
	for seed := range uint64(6) {
		c := dialSession(t, address)
		clients.Go(func() { queryWhileChanging(t, c, rand.New(rand.NewPCG(18, seed)), all, names) })
	}
	clients.Wait()
}

// received is the last answer that a client has received for a name: the value behind it and its handles.
type received struct {
	value   int
	handles []uint64
	ended   bool
}

// queryWhileChanging sends queries in bursts and changes data meanwhile. At the end of each round, changes stop for a name.
func queryWhileChanging(t *testing.T, c *sessionClient, random *rand.Rand, all []string, names map[string]*data) {
	last, known := map[string]*received{}, map[uint64]bool{}
	for range 300 {
		name := all[random.IntN(len(all))]
		var burst []byte
		count := 1 + random.IntN(10)
		for i := range count {
			m := new(dns.Msg).SetQuestion(all[random.IntN(len(all))], dns.TypeA)
			m.Id = uint16(i)
			notify(m)
			b, err := m.Pack()
			if err != nil {
				t.Error(err)
				return
			}
			burst = appendMessage(burst, b)
		}
		if _, err := c.Write(burst); err != nil {
			t.Error(err)
			return
		}
		if random.IntN(2) == 0 {
			names[name].change()
		}
		for count > 0 {
			b, err := c.read()
			if err != nil {
				t.Error(err)
				return
			}
			if !dso.IsDSO(b) {
				count--
				m, handles := c.answer(b)
				last[m.Question[0].Name] = &received{value: len(m.Answer), handles: handles}
				for _, h := range handles {
					known[h] = true
				}
				continue
			}
			invalidate(t, b, last, known)
		}
	}
	settle(t, c, last, known, names)
}

// invalidate processes an invalidation as a cache does.
func invalidate(t *testing.T, b []byte, last map[string]*received, known map[uint64]bool) {
	m, err := dso.Parse(b)
	primary, _ := m.Primary()
	handles, ok := dso.ReadHandles(nil, primary.Data)
	if err != nil || primary.Type != dso.Invalidate || !ok || len(handles) == 0 {
		t.Errorf("message % x, want an invalidation", b)
	}
	for _, h := range handles {
		if !known[h] {
			t.Errorf("handle %d is invalidated before an answer has it", h)
		}
	}
	for _, r := range last {
		if slices.ContainsFunc(r.handles, func(h uint64) bool { return slices.Contains(handles, h) }) {
			r.ended = true
		}
	}
}

// settle receives messages until no answer that has not ended is older than its data, which other clients may still change.
func settle(t *testing.T, c *sessionClient, last map[string]*received, known map[uint64]bool, names map[string]*data) {
	outdated := func() (name string) {
		for name, r := range last {
			if value, _ := names[name].read(); !r.ended && len(r.handles) > 0 && r.value != value%50+1 {
				return name
			}
		}
		return ""
	}
	for outdated() != "" {
		b, err := c.read()
		if err != nil {
			t.Errorf("%s is outdated and not invalidated: %v", outdated(), err)
			return
		}
		invalidate(t, b, last, known)
	}
	handles := 0
	for _, r := range last {
		handles += len(r.handles)
	}
	if handles == 0 {
		t.Error("no answer has a handle")
	}
}

// TestDeafSession has a session whose client reads nothing: it is closed, and another one is notified in time meanwhile.
func TestDeafSession(t *testing.T) {
	offer(t)
	keyspace := newKeyspace(t)
	l, address := newStreamListener(t, echo, withRoute(t, keyspace, nil))
	d := new(generation)
	deaf, other := dialSession(t, address), dialSession(t, address)
	conn := connectionOf(t, l, deaf)
	if err := unix.SetsockoptInt(conn.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
		t.Fatal(err)
	}
	unread := closedSessions(coherence.Unread)
	closed := make(chan time.Duration)
	go func() {
		begin, message := time.Now(), dso.AppendInvalidate(nil, make([]uint64, dso.MaxInvalidated))
		for connectionIsOpen(conn) {
			conn.Push(message)
		}
		closed <- time.Since(begin)
	}()
	for i := range 100 {
		storeAnswer(t, keyspace, "other.example.", 1, &answers.Entry{Validity: bound(d)})
		_, handles := other.ask("other.example.", notify)
		begin := time.Now()
		d.advance()
		if got := other.invalidated(); !slices.Equal(got, handles) {
			t.Fatalf("%v are invalidated, want %v", got, handles)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("change %d is notified after %v", i, took)
		}
	}
	if took := <-closed; took > time.Second {
		t.Errorf("the deaf session is closed after %v", took)
	}
	if got := closedSessions(coherence.Unread) - unread; got != 1 {
		t.Errorf("%v sessions are counted as unread, want 1", got)
	}
}

func connectionIsOpen(c *connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fd >= 0
}

// closedSessions returns the number of sessions that were closed for a reason.
func closedSessions(reason coherence.CloseReason) uint64 {
	return coherence.Process.Statistics().Closed[reason]
}

// TestSilentSession has two sessions in which no query is sent for longer than the idle timeout. They remain, until one is
// silent for sessionSilence.
func TestSilentSession(t *testing.T) {
	offer(t)
	l, address := newStreamListener(t, echo, func(s *server) { s.IdleTimeout = 100 * time.Millisecond })
	plain := dialTCP(t, address)
	if _, err := plain.Write(framed(t, 1, "plain.example.")); err != nil {
		t.Fatal(err)
	}
	silent, other := dialSession(t, address), dialSession(t, address)
	mustRead(t, plain, 1)
	if _, err := readFrame(plain); err == nil {
		t.Error("an idle connection without a session remains")
	}
	count := closedSessions(coherence.Silent)
	for range 3 {
		time.Sleep(2 * sweepPause)
		other.send(dso.AppendSessionRequest(nil, 2))
		other.next()
	}
	if n := l.connections.Load(); n != 2 {
		t.Fatalf("%d connections, want 2 sessions", n)
	}
	for _, c := range []*sessionClient{silent, other} {
		conn := connectionOf(t, l, c)
		conn.mu.Lock()
		conn.heard -= sessionSilence
		conn.mu.Unlock()
		if c == other { // before the next sweep
			c.send(dso.AppendSessionRequest(nil, 3))
			c.next()
		}
	}
	silent.wantEnd()
	other.send(dso.AppendSessionRequest(nil, 4))
	other.next()
	if got := closedSessions(coherence.Silent) - count; got < 1 {
		t.Errorf("%v sessions are counted as silent, want 1", got)
	}
}

// wantRetryDelay checks that the server ends the session and the connection.
func (c *sessionClient) wantRetryDelay() {
	c.t.Helper()
	m := c.next()
	primary, _ := m.Primary()
	delay, ok := dso.ReadRetryDelay(primary.Data)
	if primary.Type != dso.RetryDelay || !m.Unidirectional() || m.Rcode != dso.NoError || !ok || delay != 0 {
		c.t.Fatalf("%+v, want a retry delay of 0", m)
	}
	c.wantEnd()
}

// TestSessionsAtStop ends sessions with a retry delay, when the listener stops and when sessions are not offered any more.
func TestSessionsAtStop(t *testing.T) {
	for name, end := range map[string]func(l *listener, withdraw func()){
		"stop":    func(l *listener, _ func()) { go l.drainStreams() },
		"offered": func(_ *listener, withdraw func()) { withdraw() },
	} {
		t.Run(name, func(t *testing.T) {
			withdraw := offer(t)
			l, address := newStreamListener(t, echo)
			stateful := &sessionClient{dialTCP(t, address), t}
			stateful.send(dso.AppendKeepalive(nil, 1, false, dso.Timeouts{}))
			stateful.next()
			sessions := []*sessionClient{dialSession(t, address), dialSession(t, address)}
			if name == "stop" { // a DSO session without notifications remains until its timeout
				sessions = append(sessions, stateful)
			}
			end(l, withdraw)
			for _, c := range sessions {
				c.wantRetryDelay()
			}
		})
	}
}

// TestSessionsAfterReload reloads: the connections and sessions remain, all answers are revoked, and those of the next
// configuration have handles.
func TestSessionsAfterReload(t *testing.T) {
	offer(t)
	old, next := new(generation), new(generation)
	keyspace := newKeyspace(t)
	l, address := newStreamListener(t, echo, withRoute(t, keyspace, nil))
	storeAnswer(t, keyspace, "reload.example.", 1, &answers.Entry{Validity: bound(old)})
	c := dialSession(t, address)
	if _, handles := c.ask("reload.example.", notify); len(handles) != 1 {
		t.Fatalf("handles %v", handles)
	}
	replaced := answers.Shared.NewKeyspace()
	defer replaced.Drop()
	storeAnswer(t, replaced, "reload.example.", 2, &answers.Entry{Validity: bound(next)})
	conf := &block.Configuration{}
	r := &registry{all: map[string]*listener{l.address: l}, dropped: map[string]uint64{}}
	s := newServer(t, echo)
	s.conf, s.chain = conf, newChain(0)
	withRoute(t, replaced, nil)(s)
	if err := r.serve(l.address, s, nil, nil, true); err != nil {
		t.Fatal(err)
	}
	r.stop(conf)
	if got := c.invalidated(); len(got) != 0 {
		t.Errorf("%v are invalidated, want all", got)
	}
	m, handles := c.ask("reload.example.", notify)
	if len(m.Answer) != 2 || len(handles) != 1 {
		t.Errorf("%d addresses and handles %v, want those of the next configuration", len(m.Answer), handles)
	}
	old.advance()
	next.advance()
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
	b, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	c.send(b)
	<-begun
	s := newServer(t, echo)
	s.chain = newChain(0)
	withRoute(t, keyspace, nil)(s)
	l.server.Store(s)
	close(release)
	if b, err = c.read(); err != nil {
		t.Fatal(err)
	}
	if m, handles := c.answer(b); len(m.Answer) != 3 || len(handles) != 0 {
		t.Errorf("%d addresses and handles %v, want 3 and none", len(m.Answer), handles)
	}
}

// TestStoredFromTheFirstQuery checks that answers are stored when a server begins to answer, and not if it cannot.
func TestStoredFromTheFirstQuery(t *testing.T) {
	keyspace := answers.Shared.NewKeyspace()
	defer keyspace.Drop()
	l, address := newStreamListener(t, echo)
	r := &registry{all: map[string]*listener{}, dropped: map[string]uint64{}}
	s := newServer(t, func(w dns.ResponseWriter, m *dns.Msg) {
		if !keyspace.ByGeneration.Load() {
			t.Error("the answer to a query is not stored")
		}
		echo(w, m)
	})
	s.chain, s.generated = newChain(0), []*answers.Keyspace{keyspace}
	if err := r.serve(l.address, s, nil, nil, true); err == nil || keyspace.ByGeneration.Load() {
		t.Errorf("error %v without a socket, and answers are stored: %v", err, keyspace.ByGeneration.Load())
	}
	r.all[l.address] = l
	c := &sessionClient{dialTCP(t, address), t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := r.serve(l.address, s, nil, nil, true); err != nil {
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
	for name, limits := range map[string][2]int{"client": {1000, 5}, "process": {5, 5}} {
		t.Run(name, func(t *testing.T) {
			l, address := newStreamListener(t, echo, func(s *server) { s.MaxTCPQueries = 3 })
			setLimits(t, limits[0], limits[1])
			sessions := []*sessionClient{dialSession(t, address), dialSession(t, address)}
			for i := range uint16(20) { // used after the sessions
				conn := dialTCP(t, address)
				if _, err := conn.Write(framed(t, i, "used.example.")); err != nil {
					t.Fatal(err)
				}
				mustRead(t, conn, i)
			}
			await(t, "the others are closed", func() bool { return l.connections.Load() == 5 })
			for _, c := range sessions {
				for range 10 {
					c.ask("session.example.", notify)
				}
			}
			for range 10 { // more than the limit: the oldest one is closed
				sessions = append(sessions, dialSession(t, address))
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
		if _, err := c.Write(append(q, q...)); err != nil {
			t.Fatal(err)
		}
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
			c.open(0)
			defer c.closeSession()
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

// TestSessionMemory has idle sessions, whose clients have no memory in the process.
func TestSessionMemory(t *testing.T) {
	const sessions, limit = 1000, 4 << 10
	offer(t)
	l, address := newStreamListener(t, echo)
	setLimits(t, 2*sessions, 2*sessions)
	port := tcpPort(t, address)
	connect := func(n int) {
		for range n {
			fd := dialSocket(t)
			if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Write(fd, appendMessage(nil, dso.AppendSessionRequest(nil, 1))); err != nil {
				t.Fatal(err)
			}
			if n, err := unix.Read(fd, make([]byte, 64)); err != nil || n == 0 {
				t.Fatalf("read %d bytes: %v", n, err)
			}
		}
	}
	connect(10)
	before := heapInUse()
	connect(sessions)
	time.Sleep(2 * coherence.HeartbeatInterval)
	each := (heapInUse() - before) / sessions
	if n := l.connections.Load(); n != sessions+10 {
		t.Fatalf("%d connections", n)
	}
	t.Logf("%d bytes for a session", each)
	if each >= limit {
		t.Errorf("%d bytes for a session, want less than %d", each, limit)
	}
}

func heapInUse() int64 {
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

package fastpath

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/pkg/reuseport"
	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
)

// newStreamListener returns a listener with an address over TCP that was taken over. Its server has a plugin chain of one handler.
func newStreamListener(t *testing.T, handle func(w dns.ResponseWriter, m *dns.Msg), configure ...func(*server)) (l *listener, address string) {
	t.Helper()
	s := newServer(t, handle)
	for _, c := range configure {
		c(s)
	}
	own, err := reuseport.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Close() })
	l = &listener{process: s.process, address: s.Addr}
	l.server.Store(s)
	address = own.Addr().String()
	kit.Must(t, l.takeOver(own.(*net.TCPListener)))
	t.Cleanup(l.drainStreams)
	return l, address
}

// dialTCP opens a connection that the test closes.
func dialTCP(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	return dialFrom(t, "127.0.0.1", address).(*net.TCPConn)
}

// framed returns a packed query for a name with its length.
func framed(t *testing.T, id uint16, name string, change ...func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	m.Id = id
	for _, c := range change {
		c(m)
	}
	b := kit.Pack(t, m)
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
}

// readFrame reads a message.
func readFrame(r io.Reader) (*dns.Msg, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	m := new(dns.Msg)
	return m, m.Unpack(b)
}

// echo answers with the query's question.
func echo(w dns.ResponseWriter, m *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetReply(m)) }

func mustRead(t *testing.T, conn io.Reader, id uint16) *dns.Msg {
	t.Helper()
	m, err := readFrame(conn)
	if err != nil {
		t.Fatalf("reply %d: %v", id, err)
	}
	if m.Id != id || !m.Response {
		t.Fatalf("reply %d is\n%v", id, m)
	}
	return m
}

// TestPartialFrames splits two queries at every byte.
func TestPartialFrames(t *testing.T) {
	_, address := newStreamListener(t, echo)
	both := append(framed(t, 1, "one.example."), framed(t, 2, strings.Repeat("two.", 50)+"example.")...)
	for at := range both {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			conn := dialTCP(t, address)
			for _, part := range [][]byte{both[:at], both[at:]} {
				kit.Send(t, conn, part)
				time.Sleep(time.Millisecond)
			}
			seen := map[uint16]bool{}
			for range 2 {
				m, err := readFrame(conn)
				if err != nil {
					t.Fatal(err)
				}
				seen[m.Id] = true
			}
			if !seen[1] || !seen[2] {
				t.Errorf("replies %v", seen)
			}
		})
	}
}

// TestOneByteAtATime sends one query byte by byte. Another client begins a query and continues it without ever completing
// it; its connection is closed after the read timeout, with a small buffer until then.
func TestOneByteAtATime(t *testing.T) {
	l, address := newStreamListener(t, echo, func(s *server) { s.ReadTimeout, s.IdleTimeout = time.Second, time.Minute })
	s := l.server.Load()
	slow := dialTCP(t, address)
	for _, b := range framed(t, 1, "slow.example.") {
		kit.Send(t, slow, []byte{b})
		time.Sleep(time.Millisecond)
	}
	mustRead(t, slow, 1)
	before, begin := valueOf(t, s.metrics.closed[closedUnfinished]), time.Now()
	endless := dialTCP(t, address)
	kit.Send(t, endless, []byte{0xff, 0xff, 1, 2, 3})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 1000 {
			if _, err := endless.Write([]byte{7}); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	kit.Eventually(t, "the query has begun", func() bool {
		for _, c := range l.process.streams.connectionsOf(l) {
			c.mu.Lock()
			begun, retained := c.begun > 0, c.retained
			c.mu.Unlock()
			if retained > freeBuffer {
				t.Errorf("a buffer of %d bytes for a query of which few bytes have arrived", retained)
			}
			if begun {
				return true
			}
		}
		return false
	})
	if _, err := readFrame(endless); err == nil {
		t.Error("an incomplete query is answered")
	}
	if took := time.Since(begin); took < s.ReadTimeout || took > s.ReadTimeout+5*time.Second {
		t.Errorf("the connection was closed after %v, want %v", took, s.ReadTimeout)
	}
	<-ended
	if got := valueOf(t, s.metrics.closed[closedUnfinished]) - before; got != 1 {
		t.Errorf("%v connections are counted as unfinished, want 1", got)
	}
}

// TestOddFrames sends messages that are no queries; a query behind them is answered.
func TestOddFrames(t *testing.T) {
	_, address := newStreamListener(t, echo)
	response := framed(t, 3, "response.example.", func(m *dns.Msg) { m.Response = true })
	huge := framed(t, 4, "huge.example.", func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_PADDING{Padding: make([]byte, 65400)}}
	})
	for name, c := range map[string]struct {
		frame   []byte
		replies []uint16 // ids
	}{
		"no bytes":       {[]byte{0, 0}, nil},
		"one byte":       {[]byte{0, 1, 7}, nil},
		"a header":       {append([]byte{0, 12}, make([]byte, 12)...), []uint16{0}},
		"half a header":  {append([]byte{0, 6}, make([]byte, 6)...), nil},
		"zeros":          {append([]byte{0xff, 0xff}, make([]byte, 65535)...), []uint16{0}},
		"ones":           {append([]byte{0xff, 0xff}, bytes.Repeat([]byte{0xff}, 65535)...), nil}, // a response
		"a response":     {response, nil},
		"a query of 64K": {huge, []uint16{4}},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dialTCP(t, address)
			kit.Send(t, conn, append(slices.Clone(c.frame), framed(t, 5, "next.example.")...))
			want := append(c.replies, 5)
			var got []uint16
			for range want {
				m, err := readFrame(conn)
				if err != nil {
					t.Fatalf("after %v: %v", got, err)
				}
				got = append(got, m.Id)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("replies to %v, want %v", got, want)
			}
		})
	}
}

// TestHalfClose has a client that sends its last byte after its queries: all answers arrive, and then the end.
func TestHalfClose(t *testing.T) {
	release := make(chan struct{})
	_, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		<-release
		echo(w, m)
	})
	conn := dialTCP(t, address)
	for i := range 10 {
		kit.Send(t, conn, framed(t, uint16(i), "half.example."))
	}
	kit.Must(t, conn.CloseWrite())
	time.Sleep(20 * time.Millisecond)
	close(release)
	seen := map[uint16]bool{}
	for range 10 {
		m, err := readFrame(conn)
		if err != nil {
			t.Fatalf("after %d answers: %v", len(seen), err)
		}
		seen[m.Id] = true
	}
	if _, err := readFrame(conn); len(seen) != 10 || !errors.Is(err, io.EOF) {
		t.Errorf("%d answers, and then %v", len(seen), err)
	}
}

// TestPipelined sends 1000 queries at once.
func TestPipelined(t *testing.T) {
	_, address := newStreamListener(t, echo)
	conn := dialTCP(t, address)
	const queries = 1000
	var all []byte
	for i := range queries {
		all = append(all, framed(t, uint16(i), fmt.Sprintf("q%d.example.", i))...)
	}
	kit.Send(t, conn, all)
	seen, reader := map[uint16]bool{}, bufio.NewReader(conn)
	for range queries {
		m, err := readFrame(reader)
		if err != nil {
			t.Fatalf("after %d answers: %v", len(seen), err)
		}
		if m.Question[0].Name != fmt.Sprintf("q%d.example.", m.Id) {
			t.Fatalf("query %d is answered for %s", m.Id, m.Question[0].Name)
		}
		seen[m.Id] = true
	}
	if len(seen) != queries {
		t.Errorf("%d of %d answers", len(seen), queries)
	}
}

// TestOutOfOrder sends a query that is never answered, and others on the same connection.
func TestOutOfOrder(t *testing.T) {
	release := make(chan struct{})
	_, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		if m.Id == 1 {
			<-release
		}
		echo(w, m)
	})
	conn := dialTCP(t, address)
	kit.Send(t, conn, append(framed(t, 1, "dead.example."), framed(t, 2, "second.example.")...))
	mustRead(t, conn, 2)
	kit.Send(t, conn, framed(t, 3, "third.example."))
	mustRead(t, conn, 3)
	close(release)
	mustRead(t, conn, 1)
}

// TestReset has clients that reset their connections while queries are in progress and incomplete.
func TestReset(t *testing.T) {
	l, address := newStreamListener(t, echo)
	query := framed(t, 1, "reset.example.")
	for i := range 200 {
		conn := dialTCP(t, address)
		kit.Must(t, conn.SetLinger(0))
		kit.Send(t, conn, append(bytes.Repeat(query, i%7), query[:i%len(query)]...))
		_ = conn.Close()
	}
	conn := dialTCP(t, address)
	kit.Send(t, conn, query)
	mustRead(t, conn, 1)
	kit.Eventually(t, "the others are closed", func() bool { return l.connections.Load() == 1 })
	kit.Eventually(t, "no query is in flight", func() bool { return valueOf(t, l.server.Load().metrics.inFlight) == 0 })
}

// TestClientThatNeverReads has a client that sends queries with large answers and reads none: its connection is paused, and
// closed after the write timeout. Another client is served.
func TestClientThatNeverReads(t *testing.T) {
	l, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		reply := new(dns.Msg).SetReply(m)
		if m.Question[0].Name == "large.example." {
			reply.Answer = addressReply("large.example.", 1000).Answer
		}
		_ = w.WriteMsg(reply)
	}, func(s *server) { s.WriteTimeout = 3 * time.Second })
	s := l.server.Load()
	pauses := func() float64 { return valueOf(t, s.metrics.pausedUnsent) + valueOf(t, s.metrics.pausedInFlight) }
	paused, unread := pauses(), valueOf(t, s.metrics.closed[closedUnread])
	deaf := dialTCP(t, address)
	kit.Must(t, deaf.SetReadBuffer(4096))
	ended := make(chan int)
	go func() {
		n := 0
		for ; n < 1_000_000; n++ {
			if _, err := deaf.Write(framed(t, 1, "large.example.")); err != nil {
				break
			}
		}
		ended <- n
	}()
	other := dialTCP(t, address)
	for i := range 20 {
		kit.Send(t, other, framed(t, uint16(i), "small.example."))
		mustRead(t, other, uint16(i))
		time.Sleep(10 * time.Millisecond)
	}
	sent := <-ended
	if got := valueOf(t, s.metrics.closed[closedUnread]) - unread; got != 1 {
		t.Errorf("%v connections are counted as unread after %d queries, want 1", got, sent)
	}
	if pauses() == paused {
		t.Error("no pause is counted")
	}
	kit.Eventually(t, "all queries end", func() bool { return valueOf(t, s.metrics.inFlight) == 0 })
	kit.Eventually(t, "the buffers are released", func() bool { return l.process.streams.buffered.Load() == 0 })
}

// TestManyMessages has a plugin that sends many messages for one query, as in a zone transfer: it waits for the client.
func TestManyMessages(t *testing.T) {
	const messages = 200
	written := new(atomic.Int64)
	l, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		for range messages {
			reply := new(dns.Msg).SetReply(m)
			reply.Answer = addressReply("zone.example.", 1000).Answer
			if err := w.WriteMsg(reply); err != nil {
				t.Error(err)
			}
			written.Add(1)
		}
	}, func(s *server) { s.WriteTimeout = time.Minute })
	conn := dialTCP(t, address)
	kit.Must(t, conn.SetReadBuffer(64<<10))
	kit.Send(t, conn, framed(t, 9, "zone.example."))
	time.Sleep(100 * time.Millisecond)
	for _, c := range l.process.streams.connectionsOf(l) {
		c.mu.Lock()
		if unsent := len(c.out.bytes); unsent > maxUnsent+dns.MaxMsgSize {
			t.Errorf("%d bytes are buffered", unsent)
		}
		c.mu.Unlock()
	}
	reader := bufio.NewReaderSize(conn, 1<<16)
	for range messages {
		if m := mustRead(t, reader, 9); len(m.Answer) != 1000 {
			t.Fatalf("%d records", len(m.Answer))
		}
	}
	if written.Load() != messages {
		t.Errorf("%d messages were written", written.Load())
	}
}

// TestInFlightLimit has a client with more queries in progress than a connection may have; the others are read later.
func TestInFlightLimit(t *testing.T) {
	release := make(chan struct{})
	l, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		<-release
		echo(w, m)
	})
	s := l.server.Load()
	before := valueOf(t, s.metrics.pausedInFlight)
	conn := dialTCP(t, address)
	const queries = maxInFlight + 500
	var all []byte
	for i := range queries {
		all = append(all, framed(t, uint16(i), "slow.example.")...)
	}
	kit.Send(t, conn, all)
	kit.Eventually(t, "the connection is paused", func() bool { return valueOf(t, s.metrics.pausedInFlight) > before })
	time.Sleep(20 * time.Millisecond)
	for _, c := range l.process.streams.connectionsOf(l) {
		if n := c.inFlight.Load(); n > maxInFlight {
			t.Errorf("%d queries in flight, want at most %d", n, maxInFlight)
		}
	}
	close(release)
	seen, reader := map[uint16]bool{}, bufio.NewReader(conn)
	for range queries {
		m, err := readFrame(reader)
		if err != nil {
			t.Fatalf("after %d answers: %v", len(seen), err)
		}
		seen[m.Id] = true
	}
	if len(seen) != queries {
		t.Errorf("%d answers", len(seen))
	}
}

// TestPossibleConnections covers the limits of connections by limits of open files.
func TestPossibleConnections(t *testing.T) {
	for _, tt := range []struct {
		configured int
		files      uint64
		want       int
	}{
		{0, 1 << 20, defaultConnections},
		{0, 8000, 4000},
		{0, 1, 1},
		{15000, 1 << 20, 15000},
		{17000, 20000, 17000},
		{20000, 20000, 17500},
		{20000, math.MaxUint64, 20000},
		{1, 0, 1},
	} {
		if got := possibleConnections(tt.configured, tt.files); got != tt.want {
			t.Errorf("%d configured, %d files: %d, want %d", tt.configured, tt.files, got, tt.want)
		}
	}
}

// dialFrom opens a connection from a loopback address.
func dialFrom(t *testing.T, source, address string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: patience}
	conn, err := d.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	kit.Must(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

// TestConnectionLimits opens more connections than a client and the process may have. A connection in use is served.
func TestConnectionLimits(t *testing.T) {
	for name, c := range map[string]struct {
		process, client int
		source          func(i int) string
		reason          closeReason
	}{
		"client":  {1000, 10, func(int) string { return "127.0.0.2" }, closedForClient},
		"process": {10, 10, func(i int) string { return fmt.Sprintf("127.0.1.%d", 1+i%100) }, closedForProcess},
	} {
		t.Run(name, func(t *testing.T) {
			l, address := newStreamListener(t, echo)
			l.process.streams.resize(c.process, c.client)
			m := l.server.Load().metrics
			before := valueOf(t, m.closed[c.reason])
			used := dialFrom(t, c.source(0), address)
			for i := range 100 {
				dialFrom(t, c.source(i), address)
				kit.Send(t, used, framed(t, uint16(i), "used.example."))
				mustRead(t, used, uint16(i))
				if n := l.connections.Load(); n > 11 { // one may be being replaced
					t.Fatalf("%d connections", n)
				}
			}
			kit.Eventually(t, "connections are closed", func() bool { return valueOf(t, m.closed[c.reason])-before == 91 })
			if got := valueOf(t, m.connections); got != 10 {
				t.Errorf("%v connections are counted as open, want 10", got)
			}
		})
	}
}

// TestIdleTimeouts checks the timeouts before the first query and after a query.
func TestIdleTimeouts(t *testing.T) {
	l, address := newStreamListener(t, echo, func(s *server) {
		s.ReadTimeout, s.IdleTimeout = 300*time.Millisecond, 1300*time.Millisecond
	})
	s := l.server.Load()
	begin := time.Now()
	silent, used := dialTCP(t, address), dialTCP(t, address)
	kit.Send(t, used, framed(t, 1, "used.example."))
	mustRead(t, used, 1)
	for conn, want := range map[net.Conn]time.Duration{silent: s.ReadTimeout, used: s.IdleTimeout} {
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("error %v, want the end", err)
		}
		if took := time.Since(begin); took < want {
			t.Errorf("closed after %v, want %v", took, want)
		}
	}
	kit.Eventually(t, "the poller has no connections", func() bool { return l.connections.Load() == 0 })
}

// TestMaxTCPQueries closes a connection after the answers to a number of queries.
func TestMaxTCPQueries(t *testing.T) {
	_, address := newStreamListener(t, echo, func(s *server) { s.MaxTCPQueries = 3 })
	conn := dialTCP(t, address)
	kit.Send(t, conn, bytes.Repeat(framed(t, 1, "many.example."), 5))
	for range 3 {
		mustRead(t, conn, 1)
	}
	if _, err := readFrame(conn); !errors.Is(err, io.EOF) {
		t.Errorf("error %v, want the end", err)
	}
}

// TestStop has queries in progress and in the kernel's buffer when the listener ends: all are answered. Answers have an idle
// timeout of 0 if the client sends edns-tcp-keepalive.
func TestStop(t *testing.T) {
	release := make(chan struct{})
	l, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		<-release
		reply := new(dns.Msg).SetReply(m)
		if m.IsEdns0() != nil {
			reply.SetEdns0(1232, false)
		}
		_ = w.WriteMsg(reply)
	})
	conn := dialTCP(t, address)
	keepAlive := func(m *dns.Msg) {
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE}}
	}
	for i := range 5 {
		kit.Send(t, conn, framed(t, uint16(i), "stop.example.", keepAlive))
	}
	idle := dialTCP(t, address)
	kit.Eventually(t, "both are accepted", func() bool { return l.connections.Load() == 2 })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.drainStreams()
	}()
	if _, err := idle.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("idle connection: error %v, want the end", err)
	}
	_ = idle.Close()
	close(release)
	for range 5 {
		m, err := readFrame(conn)
		if err != nil {
			t.Fatal(err)
		}
		if option, ok := m.IsEdns0().Option[0].(*dns.EDNS0_TCP_KEEPALIVE); !ok || option.Timeout != 0 {
			t.Errorf("options %v, want an idle timeout of 0", m.IsEdns0().Option)
		}
	}
	if _, err := readFrame(conn); !errors.Is(err, io.EOF) {
		t.Errorf("error %v, want the end", err)
	}
	_ = conn.Close()
	<-ended
	if n := l.connections.Load(); n != 0 {
		t.Errorf("%d connections", n)
	}
}

// TestDroppedOverTCP drops queries for overload: the client gets SERVFAIL, so that it does not wait for its timeout.
func TestDroppedOverTCP(t *testing.T) {
	release := make(chan struct{})
	_, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		<-release
		echo(w, m)
	}, func(s *server) { s.queue = s.process.places.NewQueue(1) })
	conn := dialTCP(t, address)
	for i := range 5 {
		kit.Send(t, conn, framed(t, uint16(i), "drop.example."))
	}
	failed := 0
	for range 3 {
		m, err := readFrame(conn)
		if err != nil {
			t.Fatal(err)
		}
		if m.Rcode == dns.RcodeServerFailure && m.Question[0].Name == "drop.example." {
			failed++
		}
	}
	close(release)
	for range 2 {
		if m, err := readFrame(conn); err != nil || m.Rcode != dns.RcodeSuccess {
			t.Errorf("%v, %v", m, err)
		}
	}
	if failed != 3 {
		t.Errorf("%d queries failed, want 3", failed)
	}
}

// TestTooManyOpenFiles reaches the limit of open files: a connection waits, and the one that is idle is closed for it.
func TestTooManyOpenFiles(t *testing.T) {
	l, address := newStreamListener(t, echo)
	before := valueOf(t, l.server.Load().metrics.acceptFailures)
	idle := dialTCP(t, address)
	kit.Eventually(t, "it is accepted", func() bool { return l.connections.Load() == 1 })
	client := dialSocket(t) // the client's descriptor is open before the limit
	var old unix.Rlimit
	kit.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	lowest, err := unix.Dup(client)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(lowest)
	kit.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(lowest), Max: old.Max}))
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	}()
	port := netip.MustParseAddrPort(address).Port()
	kit.Must(t, unix.Connect(client, &unix.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}))
	if _, err := unix.Write(client, framed(t, 7, "waits.example.")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 512)
	if n, err := readSocket(client, buf); err != nil || n < 4 || buf[3] != 7 {
		t.Errorf("read %d bytes: %v", n, err)
	}
	if valueOf(t, l.server.Load().metrics.acceptFailures) == before {
		t.Error("no failure is counted")
	}
	if _, err := idle.Read(buf); !errors.Is(err, io.EOF) {
		t.Errorf("idle connection: %v, want the end", err)
	}
}

// dialSocket returns a blocking socket with a timeout that the test closes.
func dialSocket(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	timeout := unix.NsecToTimeval(int64(patience))
	kit.Must(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	return fd
}

// readSocket reads from a socket of dialSocket. A signal, for example of the garbage collector, interrupts a read with a
// timeout: it is repeated.
func readSocket(fd int, buf []byte) (n int, err error) {
	for {
		if n, err = unix.Read(fd, buf); err != unix.EINTR {
			return n, err
		}
	}
}

// TestClientThatNeverEnds has clients that send without end, while the server ends their connections. Another client of the
// same poller is served, and the connections are closed.
func TestClientThatNeverEnds(t *testing.T) {
	flood := func(conn net.Conn) (ended chan struct{}) {
		ended = make(chan struct{})
		all := bytes.Repeat(framed(t, 1, "endless.example."), 100)
		go func() {
			defer close(ended)
			for {
				if _, err := conn.Write(all); err != nil {
					return
				}
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		return ended
	}
	t.Run("after its last query", func(t *testing.T) {
		_, address := newStreamListener(t, echo, func(s *server) { s.MaxTCPQueries = 1 })
		ended := flood(dialTCP(t, address))
		for i := range 10 {
			conn := dialTCP(t, address)
			kit.Send(t, conn, framed(t, uint16(i), "other.example."))
			mustRead(t, conn, uint16(i))
		}
		<-ended
	})
	t.Run("at the stop", func(t *testing.T) {
		l, address := newStreamListener(t, echo)
		ended := flood(dialTCP(t, address))
		kit.Eventually(t, "queries arrive", func() bool { return l.connections.Load() == 1 })
		begin := time.Now()
		l.drainStreams()
		if took := time.Since(begin); took > stopTimeout-time.Second {
			t.Errorf("the connection was closed after %v", took)
		}
		<-ended
	})
}

// TestBufferLimits counts the buffers of clients.
func TestBufferLimits(t *testing.T) {
	table := &streamTable{}
	client := func() *connection { return &connection{source: new(source)} }
	for range 100 {
		if !table.hold(client(), freeBuffer) {
			t.Fatal("a small buffer counts")
		}
	}
	large := client()
	if !table.hold(large, maxClientBuffered) || table.hold(large, maxClientBuffered+1) || !table.hold(large, 0) {
		t.Error("wrong limit of a client")
	}
	for i := range maxBuffered / 2 / maxClientBuffered {
		if !table.hold(client(), maxClientBuffered) {
			t.Fatalf("client %d is refused", i)
		}
	}
	if table.hold(client(), maxClientBuffered/2) {
		t.Error("a client uses reserved buffers")
	}
	if !table.hold(client(), reservedBuffered) {
		t.Error("a client cannot use reserved buffers")
	}
}

// TestClosedBeforeAdded has a connection that was closed, since there were too many, before it is added to its poller.
func TestClosedBeforeAdded(t *testing.T) {
	p, err := newPoller()
	if err != nil {
		t.Fatal(err)
	}
	c := newConnection(nil, -1, netip.MustParseAddrPort("127.0.0.1:1"))
	c.poller = p
	p.add(c)
	if p.oldest() != nil || len(p.byFD) != 0 {
		t.Error("the poller has the closed connection")
	}
}

package inkernel

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

const (
	// loadTimeout is the time after which a query is lost. No client waits that long: a busy machine loses no query.
	loadTimeout = 20 * time.Second
	// perSocket is the number of queries before a client changes its source port.
	perSocket = 150
	// maxReports is the number of queries with a wrong answer, or none, that a test prints.
	maxReports = 10
)

// rule is what the answers to the queries of a load may be. A new rule is for the queries that are sent after it.
type rule struct {
	// ports are those of the ledger's servers. That of cluster DNS is right in any case: on a busy machine a lease expires.
	ports []int
	// low and high are limits of the cache's own max. TTL; 0 for none.
	low, high uint32
	// lossy permits that queries get no answer, for which clients wait a second.
	lossy bool
}

// load sends queries from pods to the node-local addresses until end, retries nothing, and verifies every answer. Each client has
// one query in progress, and a socket of its own.
type load struct {
	ledger *ledger
	// pause is the time between two queries of a client.
	pause time.Duration
	// unique is the part of queries for a name that only one client queries, and repeat how often it does; 0 is once.
	unique float64
	repeat int

	names []string
	rule  atomic.Pointer[rule]
	stop  chan struct{}
	done  sync.WaitGroup

	queries, lost, wrong, lossy atomic.Int64
	by                          [3]atomic.Int64 // answers by the server that made them

	mu       sync.Mutex
	clients  map[*loadClient]struct{}
	problems []string
}

// loadPorts are the servers of load.by.
var loadPorts = [3]int{firstPort, secondPort, clusterPort}

// popular returns names with various TTLs, every sixth of which does not exist.
func popular(number int) (names []string) {
	ttls := []int{5, 7, 11, 30, 300}
	for i := range number {
		exists := "t"
		if i%6 == 5 {
			exists = "x"
		}
		names = append(names, fmt.Sprintf("%s%d-%d.popular.test.", exists, ttls[i%len(ttls)], i))
	}
	return names
}

// newLoad makes a load without clients, which ends at the end of the test at the latest.
func newLoad(t testing.TB, l *ledger, r rule) *load {
	t.Helper()
	all := &load{
		ledger: l, pause: time.Millisecond, unique: 0.01, names: popular(30), stop: make(chan struct{}),
		clients: map[*loadClient]struct{}{},
	}
	all.rule.Store(&r)
	t.Cleanup(func() { all.halt() })
	return all
}

// loadClient is a client of a load.
type loadClient struct {
	load   *load
	from   *netns.Namespace
	server netip.Addr
	random *rand.Rand

	socket net.Conn
	id     uint16 // of the last query
	sent   int    // over the socket
	rule   atomic.Pointer[rule]
	asked  atomic.Int64
	leave  atomic.Bool // sends no more queries
	gone   atomic.Bool // its pod is removed: it receives nothing
	ended  chan struct{}
	known  map[uint32]*issue
	again  struct {
		name  string
		qtype uint16
		times int
	}
	buffer [4096]byte
}

// add starts clients in a namespace: a number for each server. They end with the load, or by remove.
func (l *load) add(from *netns.Namespace, number int, servers ...netip.Addr) (added []*loadClient) {
	for _, s := range servers {
		for range number {
			c := &loadClient{
				load: l, from: from, server: s, random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), ended: make(chan struct{}),
				known: map[uint32]*issue{},
			}
			l.mu.Lock()
			l.clients[c] = struct{}{}
			l.mu.Unlock()
			added = append(added, c)
			l.done.Go(c.run)
		}
	}
	return added
}

// remove ends clients after their queries in progress are answered.
func (l *load) remove(clients []*loadClient) {
	for _, c := range clients {
		c.leave.Store(true)
	}
	for _, c := range clients {
		<-c.ended
	}
}

// abandon ends clients whose pod is removed while their queries are in progress: these are not counted.
func (l *load) abandon(clients []*loadClient) {
	for _, c := range clients {
		c.gone.Store(true)
		c.leave.Store(true)
	}
}

// require sets the rule for the queries that are sent from now on, and waits until no others are in progress.
func (l *load) require(t testing.TB, r rule) {
	t.Helper()
	l.rule.Store(&r)
	l.each(t, func(c *loadClient) bool { return c.rule.Load() == &r })
}

// each waits until a condition is met for each client.
func (l *load) each(t testing.TB, met func(*loadClient) bool) {
	t.Helper()
	kit.Succeeds(t, bounded, "each client of the load is served", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		waiting := len(l.clients)
		for c := range l.clients {
			if met(c) {
				waiting--
			}
		}
		if waiting > 0 {
			return fmt.Errorf("%d clients are stuck", waiting)
		}
		return nil
	})
}

// halt ends the clients.
func (l *load) halt() {
	l.mu.Lock()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.mu.Unlock()
	l.done.Wait()
}

// end ends the load, fails the test for each query with a wrong answer, none or two, and returns the number of queries.
func (l *load) end(t testing.TB) int {
	t.Helper()
	l.halt()
	t.Log(l)
	for i, p := range l.problems {
		if i == maxReports {
			t.Errorf("and %d more", len(l.problems)-i)
			break
		}
		t.Error(p)
	}
	return int(l.queries.Load())
}

func (l *load) String() string {
	text := fmt.Sprintf("%d queries, %d wrong, %d lost, %d without an answer when that was permitted; answers made by",
		l.queries.Load(), l.wrong.Load(), l.lost.Load(), l.lossy.Load())
	for i, port := range loadPorts {
		text += fmt.Sprintf(" port %d: %d", port, l.by[i].Load())
	}
	return text
}

// from returns the number of answers that a server of the ledger has made.
func (l *load) from(port int) int { return int(l.by[slices.Index(loadPorts[:], port)].Load()) }

func (l *load) problem(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.problems = append(l.problems, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// report reports a query with a wrong answer.
func (c *loadClient) report(err error) {
	c.load.wrong.Add(1)
	c.load.problem("%s to %v: %v", c.from.Name, c.server, err)
}

func (c *loadClient) run() {
	defer func() {
		c.close()
		c.load.mu.Lock()
		delete(c.load.clients, c)
		c.load.mu.Unlock()
		close(c.ended)
	}()
	for !c.leave.Load() {
		select {
		case <-c.load.stop:
			return
		default:
		}
		if c.load.pause > 0 {
			time.Sleep(c.load.pause)
		}
		if c.socket == nil || c.sent == perSocket {
			c.close()
			if err := c.open(); err != nil {
				if !c.gone.Load() {
					c.report(err)
				}
				return
			}
		}
		c.query()
	}
}

// open opens a socket.
func (c *loadClient) open() (err error) {
	c.id, c.sent = uint16(c.random.Uint32()), 0
	c.socket, err = c.from.Dial(net.Dialer{}, "udp", netip.AddrPortFrom(c.server, 53).String())
	return err
}

// close closes the socket, and reports answers beyond one for each query.
func (c *loadClient) close() {
	if c.socket == nil {
		return
	}
	if s, ok := c.socket.(syscall.Conn); ok && !c.gone.Load() {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Read(func(fd uintptr) bool {
				if n, _, err := unix.Recvfrom(int(fd), c.buffer[:], unix.MSG_DONTWAIT); err == nil {
					c.report(fmt.Errorf("an answer too much: %x", c.buffer[:n]))
				}
				return true
			})
		}
	}
	_ = c.socket.Close()
	c.socket = nil
}

// types are the types of queries.
var types = []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT}

// next returns the next question. The names of the load differ in popularity.
func (c *loadClient) next() (name string, qtype uint16) {
	if c.again.times > 0 {
		c.again.times--
		return c.again.name, c.again.qtype
	}
	qtype = types[c.random.IntN(len(types))]
	if c.random.Float64() < c.load.unique {
		name = fmt.Sprintf("t30-%x.unique.test.", c.random.Uint64())
		c.again.name, c.again.qtype, c.again.times = name, qtype, max(c.load.repeat-1, 0)
		return name, qtype
	}
	n := len(c.load.names)
	return c.load.names[min(c.random.IntN(n), c.random.IntN(n))], qtype
}

// query sends a query and verifies the answer.
func (c *loadClient) query() {
	r := c.load.rule.Load()
	c.rule.Store(r)
	name, qtype := c.next()
	c.id++
	c.sent++
	c.load.queries.Add(1)
	c.asked.Add(1)
	message := c.message(name, qtype)
	sent := time.Now()
	reply, err := c.exchange(message, r)
	received := time.Now()
	switch {
	case c.gone.Load():
		c.load.queries.Add(-1)
	case errors.Is(err, errExtra):
		c.report(err)
	case err != nil && r.lossy:
		c.load.lossy.Add(1)
	case err != nil:
		c.load.lost.Add(1)
		c.load.problem("%s to %v: %s %s, sent at %s from %v: %v",
			c.from.Name, c.server, name, dns.Type(qtype), sent.Format("15:04:05.000"), c.socket.LocalAddr(), err)
	default:
		if err := c.verify(r, message, reply, name, qtype, sent, received); err != nil {
			c.report(fmt.Errorf("%s %s, sent at %s from %v: %w",
				name, dns.Type(qtype), sent.Format("15:04:05.000"), c.socket.LocalAddr(), err))
		}
	}
	if err != nil { // the answer may arrive later
		_ = c.socket.Close()
		c.socket = nil
	}
}

// message returns a query with letters in upper case, and an OPT record, in every second one.
func (c *loadClient) message(name string, qtype uint16) []byte {
	if c.random.IntN(2) == 0 {
		mixed := []byte(name)
		for i := range mixed {
			if c.random.IntN(2) == 0 {
				mixed[i] = bytes.ToUpper(mixed[i : i+1])[0]
			}
		}
		name = string(mixed)
	}
	m := dns.Msg{
		MsgHdr:   dns.MsgHdr{Id: c.id, RecursionDesired: true},
		Question: []dns.Question{{Name: name, Qtype: qtype, Qclass: dns.ClassINET}},
	}
	if c.random.IntN(2) == 0 {
		m.SetEdns0(1232, c.random.IntN(4) == 0)
	}
	b, err := m.Pack()
	if err != nil {
		panic(err) // names of this package are valid
	}
	return b
}

// errExtra is the error of a second answer to a query.
var errExtra = errors.New("an answer to an earlier query")

// exchange sends a message and returns the reply.
func (c *loadClient) exchange(message []byte, r *rule) ([]byte, error) {
	wait := loadTimeout
	if r.lossy {
		wait = time.Second
	}
	if _, err := c.socket.Write(message); err != nil {
		return nil, err
	}
	n, err := 0, os.ErrDeadlineExceeded
	for end := time.Now().Add(wait); errors.Is(err, os.ErrDeadlineExceeded); {
		now := time.Now()
		if !now.Before(end) || c.gone.Load() {
			return nil, fmt.Errorf("no answer in %v", wait)
		}
		if err := c.socket.SetReadDeadline(now.Add(min(end.Sub(now), time.Second))); err != nil {
			return nil, err
		}
		n, err = c.socket.Read(c.buffer[:])
	}
	if err != nil {
		return nil, err
	}
	reply := c.buffer[:n]
	if n < 12 || !bytes.Equal(reply[:2], message[:2]) {
		return nil, fmt.Errorf("%w, or a wrong ID: %x", errExtra, reply)
	}
	return reply, nil
}

// verify returns what is wrong with an answer.
func (c *loadClient) verify(r *rule, message, reply []byte, name string, qtype uint16, sent, received time.Time) error {
	const header = 12
	end := header + len(name) + 1 + 4
	if len(reply) < end || !bytes.Equal(reply[header:end], message[header:end]) {
		return fmt.Errorf("another question: %x", reply)
	}
	var m dns.Msg
	if err := m.Unpack(reply); err != nil {
		return fmt.Errorf("%w: %x", err, reply)
	}
	hasOPT := len(message) > end
	if !m.Response || m.Truncated || !m.RecursionDesired || !m.RecursionAvailable || (m.IsEdns0() != nil) != hasOPT {
		return fmt.Errorf("other flags, or an OPT record: %v", &m)
	}
	number, ttl, err := numberOf(&m, qtype)
	if err != nil {
		return err
	}
	i := c.known[number]
	if i == nil {
		if i = c.load.ledger.find(number); i == nil {
			return fmt.Errorf("answer %d was never made", number)
		}
		if len(c.known) > 1000 {
			clear(c.known)
		}
		c.known[number] = i
	}
	if i.name != name || i.qtype != qtype {
		return fmt.Errorf("the answer to %s %s", i.name, dns.Type(i.qtype))
	}
	c.load.by[slices.Index(loadPorts[:], i.port)].Add(1)
	if i.port != clusterPort && !slices.Contains(r.ports, i.port) {
		return fmt.Errorf("an answer of port %d, made at %s, want one of %v", i.port, i.made.Format("15:04:05.000"), r.ports)
	}
	low, high := r.low, r.high
	if low == 0 {
		low = 1 << 31
	}
	if high == 0 || i.port == clusterPort {
		high = 1 << 31
	}
	return i.receive(ttl, sent, received, low, high)
}

// watch counts the queries that arrive on an interface of the node and that the kernel does not answer.
func (n *node) watch(t testing.TB, device string) {
	t.Helper()
	n.Run(t, "nft", fmt.Sprintf("add table netdev counted; "+
		"add chain netdev counted %s { type filter hook ingress device %s priority 0; }; "+
		"flush chain netdev counted %s; add rule netdev counted %s udp dport 53 counter", device, device, device, device))
}

// received returns the number of these queries.
func (n *node) received(t testing.TB, device string) (packets int) {
	t.Helper()
	text := n.Run(t, "nft", "list", "chain", "netdev", "counted", device)
	_, rest, _ := strings.Cut(text, "counter packets ")
	if _, err := fmt.Sscan(rest, &packets); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return packets
}

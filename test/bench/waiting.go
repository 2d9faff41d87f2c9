package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// waitingMode is a way to the dead upstream server.
type waitingMode struct{ name, options string }

var waitingModes = []waitingMode{
	{"default protocol", ""},
	{"force_tcp", " {\n        force_tcp\n    }"},
}

// The figures of each server in the part waiting, with the name of the mode.
const (
	waitingRest   = "waiting, memory at rest: "
	waitingGrowth = "waiting, memory above that at rest: "
	waitingSoon   = "waiting, answered soon: "
	waitingLate   = "waiting, answered later: "
	waitingLost   = "waiting, not answered: "
	waitingDrops  = "waiting, dropped by the kernel: "
)

var waitingServers = []cache{
	{nameNodeCache, (*bench).startNodeCacheHot, true},
	{nameCoreDNS, (*bench).startCoreDNSHot, false},
}

// flood is a number of UDP queries that the dead upstream server would have to answer. Each client has an address of its
// own, so that a limit for each client is not reached.
type flood struct {
	clients, each int
	over          time.Duration // from the first query to the last
	wait          time.Duration // for answers, after the last query
}

// waitingFlood are 10,000 queries. Both programs answer with SERVFAIL after five seconds at the latest.
var waitingFlood = flood{clients: 200, each: 50, over: 2 * time.Second, wait: 7 * time.Second}

// waitingSoonLimit is the time after which a query has waited for the upstream server.
const waitingSoonLimit = time.Second

// floodDone are numbers of queries.
type floodDone struct {
	sent int
	soon int // answered within waitingSoonLimit: they did not wait
	late int // answered later
}

// lost is the number of queries without an answer, dropped by the server or by the kernel.
func (d floodDone) lost() int { return d.sent - d.soon - d.late }

// floodClient is a socket with its queries in flight.
type floodClient struct {
	conn *net.UDPConn
	mu   sync.Mutex
	sent []time.Time // by id; zero for those that were answered
	done floodDone
}

// run sends the queries and waits for the answers.
func (f flood) run(ctx context.Context, port int, tag string) (sum floodDone, err error) {
	all := make([]*floodClient, f.clients)
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range all {
		from := &net.UDPAddr{IP: net.IPv4(127, 0, 2, byte(1+i))} // #nosec G115 -- at most 254 clients
		conn, err := net.DialUDP("udp", from, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err != nil {
			return sum, err
		}
		defer func() { _ = conn.Close() }() // which ends receive
		all[i] = &floodClient{conn: conn}
		wg.Go(all[i].receive)
	}
	began := time.Now()
	for n := range f.clients * f.each {
		if err := child.Pause(ctx, time.Until(began.Add(f.over*time.Duration(n)/time.Duration(f.clients*f.each)))); err != nil {
			return sum, err
		}
		if err := all[n%f.clients].send(fmt.Sprintf("n%d-%s", n, tag)); err != nil {
			return sum, err
		}
	}
	if err := child.Pause(ctx, f.wait); err != nil {
		return sum, err
	}
	for _, c := range all {
		c.mu.Lock()
		sum = floodDone{sum.sent + c.done.sent, sum.soon + c.done.soon, sum.late + c.done.late}
		c.mu.Unlock()
	}
	return sum, nil
}

func (c *floodClient) send(label string) error {
	query, err := deadQuery(label)
	if err != nil {
		return err
	}
	c.mu.Lock()
	binary.BigEndian.PutUint16(query, uint16(len(c.sent))) // #nosec G115 -- few queries
	c.sent = append(c.sent, time.Now())
	c.done.sent++
	c.mu.Unlock()
	_, err = c.conn.Write(query)
	return err
}

// receive counts answers until the socket is closed.
func (c *floodClient) receive() {
	buffer := make([]byte, 4096)
	for {
		n, err := c.conn.Read(buffer)
		if err != nil {
			return
		}
		if n >= headerSize {
			c.count(int(binary.BigEndian.Uint16(buffer)), time.Now())
		}
	}
}

// count counts the first answer to a query.
func (c *floodClient) count(id int, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id >= len(c.sent) || c.sent[id].IsZero() {
		return
	}
	if now.Sub(c.sent[id]) < waitingSoonLimit {
		c.done.soon++
	} else {
		c.done.late++
	}
	c.sent[id] = time.Time{}
}

// measureWaiting measures new servers in each round and mode, so that earlier queries have left no memory.
func (b *bench) measureWaiting(ctx context.Context) error {
	for round := range b.rounds {
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, b.rounds)
		for _, m := range waitingModes {
			if err := b.measureWaitingMode(ctx, m); err != nil {
				return fmt.Errorf("waiting, %s: %w", m.name, err)
			}
		}
	}
	return nil
}

func (b *bench) measureWaitingMode(ctx context.Context, m waitingMode) error {
	if err := b.startDead(m.options); err != nil {
		return err
	}
	defer b.stopDead()
	defer b.stopForwarders()
	if err := b.startForwarders(ctx, waitingServers); err != nil {
		return err
	}
	if err := child.Pause(ctx, settle/4); err != nil {
		return err
	}
	for _, s := range b.forwarders {
		if err := s.atRest(); err != nil {
			return err
		}
		done, err := waitingFlood.run(ctx, s.port, fileName(m.name))
		if err != nil {
			return err
		}
		if err := b.addWaiting(s, m, done); err != nil {
			return err
		}
	}
	return nil
}

// addWaiting records the figures of one measurement.
func (b *bench) addWaiting(s *server, m waitingMode, done floodDone) error {
	growth, err := s.growth()
	if err != nil {
		return err
	}
	drops, err := kernelDrops(s.port)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s, %s: %.1f MiB at rest, %.1f MiB more; of %d queries, %d answered soon, %d not answered, %d dropped by the kernel\n",
		s.name, m.name, s.rest, growth, done.sent, done.soon, done.lost(), drops)
	for what, v := range map[string]float64{
		waitingRest: s.rest, waitingGrowth: growth, waitingSoon: float64(done.soon), waitingLate: float64(done.late),
		waitingLost: float64(done.lost()), waitingDrops: float64(drops),
	} {
		b.results.add(what+m.name, s.name, v)
	}
	return nil
}

// kernelDrops returns the number of datagrams that the kernel dropped as the receive buffers of a port's sockets were full.
func kernelDrops(port int) (int, error) {
	text, err := os.ReadFile("/proc/net/udp")
	if err != nil {
		return 0, err
	}
	return sumDrops(string(text), port)
}

// sumDrops adds up the last column of a port's lines in the form of /proc/net/udp (proc_pid_net(5)).
func sumDrops(text string, port int) (sum int, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 3 || !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
			continue
		}
		n, err := strconv.Atoi(fields[len(fields)-1])
		if err != nil {
			return 0, fmt.Errorf("/proc/net/udp: %q: %w", line, err)
		}
		sum += n
	}
	return sum, nil
}

// reportWaiting writes a table for each mode.
func (b *bench) reportWaiting(text *strings.Builder) {
	for _, m := range waitingModes {
		b.grid(text, fmt.Sprintf("%d queries wait for a dead upstream, %s", waitingFlood.clients*waitingFlood.each, m.name), cacheNames(waitingServers), []column{
			{title: "memory at rest, MiB", what: waitingRest + m.name, format: "%.1f"},
			{title: "more, maximum", what: waitingGrowth + m.name, format: "%.1f"},
			{title: "queries answered within a second", what: waitingSoon + m.name, format: "%.0f"},
			{title: "later", what: waitingLate + m.name, format: "%.0f"},
			{title: "not answered", what: waitingLost + m.name, format: "%.0f"},
			{title: "of them dropped by the kernel", what: waitingDrops + m.name, format: "%.0f"},
		})
	}
}

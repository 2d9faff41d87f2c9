//go:build linux

package fastpath

import (
	"net"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	tap "github.com/dnstap/golang-dnstap"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// collector counts the messages of plugin dnstap.
type collector struct {
	mu    sync.Mutex
	seen  map[string]int // by type and question
	conns map[net.Conn]bool
	ended bool
	done  sync.WaitGroup
}

func newCollector(t *testing.T) *collector {
	c := &collector{seen: map[string]int{}, conns: map[net.Conn]bool{}}
	t.Cleanup(func() {
		c.mu.Lock()
		c.ended = true
		for conn := range c.conns {
			_ = conn.Close()
		}
		c.mu.Unlock()
		c.done.Wait()
	})
	return c
}

// listen accepts the connections of plugins on a socket.
func (c *collector) listen(t *testing.T, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	kit.Must(t, err)
	c.done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.done.Go(func() { c.read(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close() })
}

// connect connects to a plugin that listens, once it does.
func (c *collector) connect(t *testing.T, path string) {
	t.Helper()
	kit.Eventually(t, "dnstap listens", func() bool {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return false
		}
		c.done.Go(func() { c.read(conn) })
		return true
	})
}

// read reads the messages of a connection until it ends.
func (c *collector) read(conn net.Conn) {
	c.mu.Lock()
	if c.conns[conn] = true; c.ended {
		_ = conn.Close()
	}
	c.mu.Unlock()
	defer func() {
		_ = conn.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.conns, conn)
	}()
	r, err := tap.NewReader(conn, &tap.ReaderOptions{Bidirectional: true})
	if err != nil {
		return
	}
	for d := tap.NewDecoder(r, 1<<20); ; {
		var frame tap.Dnstap
		if err := d.Decode(&frame); err != nil {
			return
		}
		packet := frame.GetMessage().GetQueryMessage()
		if packet == nil {
			packet = frame.GetMessage().GetResponseMessage()
		}
		m := new(dns.Msg)
		if err := m.Unpack(packet); err != nil || len(m.Question) != 1 {
			continue
		}
		c.mu.Lock()
		c.seen[frame.GetMessage().GetType().String()+" "+m.Question[0].Name]++
		c.mu.Unlock()
	}
}

func (c *collector) count(name string) (queries, responses int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen["CLIENT_QUERY "+name], c.seen["CLIENT_RESPONSE "+name]
}

// open returns the number of connections.
func (c *collector) open() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.conns)
}

// tappedBlocks returns two server blocks, of which one has plugin dnstap.
func tappedBlocks(folder, socket, directive string) string {
	const one, other = ".:PORT", "svc.cluster.local:PORT"
	block := clusterBlock(folder, "cache 30", strings.ReplaceAll(directive, "SOCKET", socket), "OTHER")
	return strings.ReplaceAll(strings.ReplaceAll(block, one, other)+clusterBlock(folder), "FASTPATH", "")
}

// endTapped ends the program, after a reload that was refused.
func endTapped(t *testing.T, s *server) {
	t.Helper()
	s.Signal(t, syscall.SIGTERM)
	if code, err := s.Wait(2 * bounded); code != 0 || err != nil {
		t.Errorf("exit code %d: %v", code, err)
	}
	if output := s.Output(); strings.Contains(strings.ToLower(output), "panic") || strings.Contains(output, "DATA RACE") {
		t.Error("a panic or a data race, see the output")
	}
}

// TestTapped has plugin dnstap in one of two server blocks: its collector gets every query of the block and every reply, also after
// reloads that are refused, and the program ends without a panic.
func TestTapped(t *testing.T) {
	const tapped, untapped = "web.shop.svc.cluster.local.", "34.12.96.10.in-addr.arpa."
	folder := newCluster(t)
	for name, directive := range map[string]string{
		"a connection":    "dnstap SOCKET full",
		"two connections": "dnstap SOCKET full\ndnstap unix://SOCKET {\nidentity other\n}",
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "tap")
			corefile := tappedBlocks(folder, socket, directive)
			c := newCollector(t)
			c.listen(t, socket)
			s := start(t, "clusterdns", without(corefile))
			kit.Eventually(t, "the start lines", func() bool {
				return strings.Contains(s.Output(), ": no fast path for svc.cluster.local.: plugin dnstap has to see every query\n") &&
					strings.Contains(s.Output(), ": fast path for .\n")
			})
			want := 0
			check := func(when string) {
				t.Helper()
				const repeated = 5
				before := s.scrape(t)
				udp, tcp := dial(t, "udp", "127.0.0.1", s), dial(t, "tcp", "127.0.0.1", s)
				for range repeated {
					for _, w := range []*wire{udp, tcp} {
						if got := brief(t, w.ask(t, pack(t, newQuery(tapped, dns.TypeA)))); got != "NOERROR 10.96.12.34" {
							t.Errorf("%s: %s", when, got)
						}
						want++
					}
					udp.ask(t, pack(t, newQuery(untapped, dns.TypePTR)))
				}
				kit.Eventually(t, when+": all messages", func() bool {
					queries, replies := c.count(tapped)
					return queries >= want && replies >= want
				})
				if queries, replies := c.count(tapped); queries != want || replies != want {
					t.Errorf("%s: %d queries and %d replies, want %d", when, queries, replies, want)
				}
				if queries, _ := c.count(untapped); queries != 0 {
					t.Errorf("%s: %d queries of a block without dnstap", when, queries)
				}
				if hits := s.counted(t, before, 3*repeated).Since(before).Sum(answeredTotal); hits < repeated-1 || hits > repeated {
					t.Errorf("%s: the fast path has answered %v queries, want only those of the other block", when, hits)
				}
			}
			check("at first")
			for _, broken := range []string{"nonsense", "forward . /none/resolv.conf", "nonsense"} {
				s.reloadUntil(t, with(corefile, "", broken), "Not reloaded")
				check("after a refused " + broken)
			}
			for range 2 {
				s.reload(t, without(corefile))
				check("after a reload")
			}
			kit.Eventually(t, "the replaced connections end", func() bool { return c.open() == strings.Count(directive, "dnstap") })
			s.reloadUntil(t, with(corefile, "", "nonsense"), "Not reloaded")
			endTapped(t, s)
		})
	}
}

// TestTapListens has plugin dnstap listen for its collector: it does so again after a reload that was refused and one that was not.
// The program has no race detector: CoreDNS writes the messages of concurrent queries to a connection without a lock.
func TestTapListens(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "tap")
	corefile := tappedBlocks(newCluster(t), socket, "dnstap listen unix://SOCKET full {\nidentity here\n}")
	s := startFrom(t, daemon.ProgramWithoutRace(t, "clusterdns"), without(corefile))
	for range 2 {
		c := newCollector(t)
		c.connect(t, socket)
		udp := dial(t, "udp", "127.0.0.1", s)
		kit.Eventually(t, "the collector gets a query and its reply", func() bool { // once the plugin has accepted the connection
			const name = "web.shop.svc.cluster.local."
			udp.ask(t, pack(t, newQuery(name, dns.TypeA)))
			for end := time.Now().Add(quiet); time.Now().Before(end); time.Sleep(time.Millisecond) {
				if queries, replies := c.count(name); queries > 0 && replies > 0 {
					return true
				}
			}
			return false
		})
		s.reloadUntil(t, with(corefile, "", "nonsense"), "Not reloaded")
		s.reload(t, without(corefile))
	}
	s.reloadUntil(t, with(corefile, "", "nonsense"), "Not reloaded")
	endTapped(t, s)
}

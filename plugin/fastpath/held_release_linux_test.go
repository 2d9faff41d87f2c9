package fastpath

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/test/kit"
)

// TestHeldOfClosedConnection closes a connection whose queries wait, and others remain.
func TestHeldOfClosedConnection(t *testing.T) {
	b := newHeldBed(t, long)
	closing, open := b.dial(t, "tcp", "127.0.0.1"), b.dial(t, "tcp", "127.0.0.1")
	for id := range uint16(100) {
		closing.query(t, id, "w.")
	}
	open.query(t, 1, "w.")
	awaitCount(t, "held queries", 101, func() int { return b.held(t) })
	if err := closing.Conn.(*net.TCPConn).SetLinger(0); err != nil { // a reset
		t.Fatal(err)
	}
	_ = closing.Close()
	awaitCount(t, "held queries", 1, func() int { return b.held(t) })
	awaitCount(t, "references", 1, func() int { return int(b.server().references.Load()) })
	b.create("w.")
	open.expect(t, 1, dns.RcodeSuccess)
}

// TestClosedWithoutHeld closes a connection without waiting queries while the table of the others is locked.
func TestClosedWithoutHeld(t *testing.T) {
	b := newHeldBed(t, long)
	c := b.dial(t, "tcp", "127.0.0.1")
	c.query(t, 1, "other.")
	c.expect(t, 1, dns.RcodeNameError)
	awaitCount(t, "queries in flight", 0, func() int { return int(valueOf(t, b.server().metrics.inFlight)) })
	func() {
		table := b.listener.process.held
		table.mu.Lock()
		defer table.mu.Unlock()
		_ = c.Close()
		awaitCount(t, "connections", 0, func() int { return int(b.listener.connections.Load()) })
	}()
}

// TestHeldWhileClosing closes connections while their queries arrive: none waits on.
func TestHeldWhileClosing(t *testing.T) {
	b := newHeldBed(t, long)
	for id := range uint16(300) {
		c := b.dial(t, "tcp", "127.0.0.1")
		for i := range uint16(3) {
			c.query(t, id+i, "w.")
		}
		if err := c.Conn.(*net.TCPConn).SetLinger(0); err != nil { // a reset
			t.Fatal(err)
		}
		_ = c.Close()
	}
	awaitCount(t, "connections", 0, func() int { return int(b.listener.connections.Load()) })
	awaitCount(t, "held queries", 0, func() int { return b.held(t) })
}

// TestHeldAtHalfClose has a client that has sent its last byte, and reads the answer.
func TestHeldAtHalfClose(t *testing.T) {
	b := newHeldBed(t, long)
	c := b.dial(t, "tcp", "127.0.0.1")
	c.query(t, 1, "w.")
	awaitCount(t, "held queries", 1, func() int { return b.held(t) })
	kit.Must(t, c.Conn.(*net.TCPConn).CloseWrite())
	kit.Eventually(t, "the server has received the end", func() bool {
		end := serverEnd(t, b.listener, c)
		end.mu.Lock()
		defer end.mu.Unlock()
		return end.eof
	})
	b.create("w.")
	c.expect(t, 1, dns.RcodeSuccess)
}

// TestHeldAtReload ends the use of a server whose queries wait.
func TestHeldAtReload(t *testing.T) {
	forEachNetwork(t, func(t *testing.T, network string) {
		b := newHeldBed(t, long)
		c := b.dial(t, network, "127.0.0.1")
		for id := range uint16(100) {
			c.query(t, id, fmt.Sprintf("w%d.", id%10))
		}
		awaitCount(t, "held queries", 100, func() int { return b.held(t) })
		begin := time.Now()
		b.listener.process.held.releaseServer(b.server())
		for range 100 {
			if m := c.reply(t); m.Rcode != dns.RcodeNameError {
				t.Fatalf("reply\n%v", m)
			}
		}
		c.query(t, 200, "w1.") // received before the next server
		c.expect(t, 200, dns.RcodeNameError)
		if took := time.Since(begin); took > patience/2 {
			t.Errorf("answered after %s", took)
		}
	})
}

// TestHeldAtDrain drains the connections of a listener whose queries wait: the clients receive the answers.
func TestHeldAtDrain(t *testing.T) {
	b := newHeldBed(t, long)
	c := b.dial(t, "tcp", "127.0.0.1")
	c.query(t, 1, "w.")
	awaitCount(t, "held queries", 1, func() int { return b.held(t) })
	b.listener.process.held.releaseServer(b.server())
	b.listener.drainStreams()
	c.expect(t, 1, dns.RcodeNameError)
}

// TestHeldHandles has answers by caller for queries that have waited: they have handles if the option identifies the caller.
func TestHeldHandles(t *testing.T) {
	offer(t)
	keyspace, f, service := newKeyspace(t), newFakeService(long), new(watchable)
	l, address := newStreamListener(t, f.answer, withRoute(t, keyspace, nil), func(s *server) {
		rt := s.routes.find([]byte{0})
		rt.awaiter, rt.waits = f, f.counters
	})
	t.Cleanup(func() { l.process.held.releaseServer(l.server.Load()) })
	c := dialSession(t, address)
	for i, tt := range []struct {
		option  func(*dns.Msg)
		handles int
	}{{func(*dns.Msg) {}, 0}, {fromMalformed, 0}, {fromCaller, 1}} {
		name := fmt.Sprintf("w%d.", i)
		q := new(dns.Msg).SetQuestion(name, dns.TypeA)
		notify(q)
		tt.option(q)
		packed := kit.Pack(t, q)
		c.send(packed)
		awaitCount(t, "held queries", 1, func() int { return int(valueOf(t, f.counters.Waiting)) })
		storeAnswer(t, keyspace, name, 2, &store.Entry{Validity: bound(service), Views: views{}})
		storeView(t, keyspace, name, 2, &store.Entry{Validity: bound(service)})
		f.create(name)
		b, err := c.read()
		if err != nil {
			t.Fatal(err)
		}
		if m, handles := c.answer(b); len(m.Answer) != 2 || len(handles) != tt.handles {
			t.Errorf("%d: %d addresses and handles %v, want %d", i, len(m.Answer), handles, tt.handles)
		}
	}
}

// TestHeldConcurrently creates names while queries for them and for others arrive and time out.
func TestHeldConcurrently(t *testing.T) {
	b := newHeldBed(t, long)
	var waiting sync.WaitGroup
	for worker := range 4 {
		udp, tcp := b.dial(t, "udp", "127.0.0.1"), b.dial(t, "tcp", "127.0.0.1")
		waiting.Go(func() {
			for i := range 50 {
				name, exists := fmt.Sprintf("w%d-%d.", worker, i), i%3 > 0
				if !exists {
					name = "wshort" + name
				}
				for j, c := range []heldClient{udp, tcp} {
					packed := framedWithout(t, uint16(i), name)
					if c.tcp {
						packed = append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)
					}
					if _, err := c.Write(packed); err != nil {
						t.Error(err)
						return
					}
					if j == 1 && exists {
						b.create(name)
					}
				}
				for _, c := range []heldClient{udp, tcp} {
					if m := c.reply(t); m.Id != uint16(i) || (m.Rcode == dns.RcodeSuccess) != exists {
						t.Errorf("query %d: reply\n%v", i, m)
						return
					}
				}
			}
		})
	}
	waiting.Wait()
	awaitCount(t, "held queries", 0, func() int { return b.held(t) })
}

// framedWithout returns a packed query without its length.
func framedWithout(t *testing.T, id uint16, name string) []byte {
	return framed(t, id, name)[lengthLen:]
}

// TestHeldOfDeafClients has more clients than there are workers, whose queries have waited and which read nothing: another client
// gets the reply of the plugin chain nevertheless.
func TestHeldOfDeafClients(t *testing.T) {
	b := newHeldBed(t, long)
	const deaf = maxHeldWorkers + 4
	for id := range uint16(deaf) {
		c := b.dial(t, "tcp", "127.0.0.1")
		c.query(t, id, "w.")
		awaitCount(t, "held queries", int(id)+1, func() int { return b.held(t) })
		deafen(serverEnd(t, b.listener, c))
	}
	open := b.dial(t, "tcp", "127.0.0.1")
	open.query(t, 100, "w.")
	awaitCount(t, "held queries", deaf+1, func() int { return b.held(t) })
	b.create("w.")
	open.expect(t, 100, dns.RcodeSuccess)
	awaitCount(t, "queries that count for the limits", 0, countedHeld(b.listener))
}

// countedHeld returns a function that returns the number of queries that count for the limits.
func countedHeld(l *listener) func() int {
	return func() int {
		t := l.process.held
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.total
	}
}

// TestHeldOfStalledClients is TestHeldOfDeafClients with clients that cease to read while the plugin chain makes their replies,
// over sessions and without.
func TestHeldOfStalledClients(t *testing.T) {
	offer(t)
	f := newFakeService(long)
	var l *listener
	l, address := newStreamListener(t, func(w dns.ResponseWriter, m *dns.Msg) {
		for _, c := range l.process.streams.connectionsOf(l) {
			if c.remote.String() == w.RemoteAddr().String() && m.Question[0].Name == "w." {
				deafen(c)
			}
		}
		f.answer(w, m)
	}, f.configure)
	t.Cleanup(func() { l.process.held.releaseServer(l.server.Load()) })
	waiting := func() int { return int(valueOf(t, f.counters.Waiting)) }
	const stalled = maxHeldWorkers + 4
	for i := range stalled {
		c := dialTCP(t, address)
		if i%2 == 0 {
			beginSession(t, c)
		}
		kit.Send(t, c, framed(t, 1, "w.", notify))
		awaitCount(t, "held queries", i+1, waiting)
	}
	f.create("w.")
	awaitCount(t, "queries that count for the limits", 0, countedHeld(l))
	open := dialHeld(t, "tcp", "127.0.0.1", address)
	open.query(t, 100, "w-open.")
	awaitCount(t, "held queries", 1, waiting)
	f.create("w-open.")
	open.expect(t, 100, dns.RcodeSuccess)
}

// TestDeadUpstreamBlocksNoWaitingQueriesOfOthers has a client whose queries have waited for names, and then wait for an upstream that
// does not answer, as with a search list. The queries of another client are answered when their waiting ends.
func TestDeadUpstreamBlocksNoWaitingQueriesOfOthers(t *testing.T) {
	forEachNetwork(t, func(t *testing.T, network string) {
		b := newHeldBed(t, long)
		t.Cleanup(func() { close(b.upstream) })
		flood, other := b.dial(t, network, "127.0.0.2"), b.dial(t, network, "127.0.0.3")
		for id := range uint16(300) {
			flood.query(t, id, fmt.Sprintf("wshortdead%d.", id))
		}
		for id := range uint16(50) {
			other.query(t, id, fmt.Sprintf("wshort%d.", id))
		}
		for range 50 {
			if m := other.reply(t); m.Rcode != dns.RcodeNameError {
				t.Fatalf("reply\n%v", m)
			}
		}
		awaitCount(t, "queries that count for the limits", 0, countedHeld(b.listener))
	})
}

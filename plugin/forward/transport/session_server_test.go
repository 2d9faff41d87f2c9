package transport

import (
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// retryDelay returns a Retry Delay message.
func retryDelay(rcode int, d time.Duration) []byte {
	return dso.AppendRetryDelay(nil, rcode, uint32(d/time.Millisecond))
}

// TestSession_RetryDelay: the connection is closed at once, and its query moves to another one. With a delay none is opened
// before it is over.
func TestSession_RetryDelay(t *testing.T) {
	for name, delay := range map[string]time.Duration{"at once": 0, "after a delay": 30 * time.Second} {
		t.Run(name, func(t *testing.T) {
			b := newCoherent(t, newServer(t), 100, 1)
			c := b.begin()
			v := b.learn(c, "a.example.", 1)
			b.clock.skip(minSession)
			b.wantFallbacks(map[string]int{SessionSilent: 1})
			c.respond(b.beat())
			pending := b.send("pending.example.")
			q := c.query()
			c.respond(retryDelay(dso.Refused, delay), answer(q))                                 // what is behind the message is no answer
			if err := c.read(); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) { // the answer was not read
				t.Errorf("%v, want the end of the connection", err)
			}
			if delay > 0 {
				if err := pending.fails(); !errors.Is(err, errDelay) {
					t.Errorf("error %v of the query, want %v", err, errDelay)
				}
				b.clock.skip(delay - time.Second)
				early := b.send("early.example.")
				if err := early.fails(); !errors.Is(err, errDelay) || b.dials.Load() != 1 {
					t.Errorf("error %v and %d connections during the delay", err, b.dials.Load())
				}
				alone := newSent(t, "alone.example.")
				alone.Alone = true
				alone.sendTo(b.Pool)
				if err := alone.fails(); !errors.Is(err, errDelay) {
					t.Errorf("error %v of the query with its own connection", err)
				}
				b.clock.skip(time.Second)
				b.begin()
			} else {
				next := b.accept()
				next.respond(b.opening(next.request()), answer(next.query()), b.beat())
				pending.answered()
			}
			if v.Vouches(b.Coherence.Now()) || !v.Lapsed() || !b.Notifies() {
				t.Error("the ended session vouches, its answers have not lapsed, or queries do not request notification")
			}
			becomes(t, "sessions", b.Coherence.Sessions, 1)
			b.wantFallbacks(map[string]int{SessionDelayed: 1, SessionSilent: 1})
		})
	}
}

// TestSession_LongRetryDelay: a delay of weeks is shortened.
func TestSession_LongRetryDelay(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	c.respond(retryDelay(dso.Refused, 1000*time.Hour))
	if err := c.read(); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v, want the end of the connection", err)
	}
	becomes(t, "sessions", b.Coherence.Sessions, 0)
	b.clock.skip(maxRetryDelay)
	b.begin()
}

// TestSession_RetryDelayAtOnce: a server that ends each session at once gets few connections, and the query is answered.
func TestSession_RetryDelayAtOnce(t *testing.T) {
	var connections atomic.Int32
	var b *coherentBed
	ready := make(chan struct{})
	s := serving(t, func(c *session) {
		<-ready
		connections.Add(1)
		for m := c.next(); m != nil; m = c.next() {
			if dso.IsDSO(m) {
				c.respond(b.opening(m), retryDelay(dso.NoError, 0))
				continue
			}
			time.Sleep(5 * time.Millisecond)
			c.respond(answer(m))
		}
	})
	b = newCoherent(t, s, 100, 1)
	close(ready)
	b.send("first.example.").answered()
	becomes(t, "connections", b.Metrics.Connections, 0)
	b.clock.skip(maxBriefPause)
	allAnswered(b.sendAll(20, "www-"))
	if n := connections.Load(); n != 3 {
		t.Errorf("%d connections, want the first one, one with a session, and another without", n)
	}
}

// TestSession_RetryDelayOfRequest: a delay in an error response is that of the request only, RFC 8490 section 7.2.2.
func TestSession_RetryDelayOfRequest(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	s := b.send("www.example.")
	c := b.acceptFirst()
	q := c.query()
	request := c.request()
	c.respond(dso.AppendTLV(dso.AppendErrorResponse(nil, id(request), dso.ServerFailure), dso.RetryDelay, 0, 0, 0x75, 0x30)) // 30 s
	b.wantFallbacks(map[string]int{SessionDelayed: 1})
	c.respond(answer(q))
	s.answered()
	b.clock.skip(29 * time.Second)
	s = b.send("www.example.")
	c.respond(answer(c.query())) // a request would be the first message
	s.answered()
	b.clock.skip(time.Second)
	c.end() // it gets no other request
	c = b.accept()
	c.respond(b.opening(c.request()), b.beat())
	kit.Eventually(t, "the session vouches", func() bool { return b.Vouches(nil) })
}

// TestSession_Unsupported: a server without sessions gets one DSO message in all, over many connections, and no query is lost.
func TestSession_Unsupported(t *testing.T) {
	rcode := func(opcode, rcode byte) func(c *session, request []byte) bool {
		return func(c *session, request []byte) bool {
			return c.respond([]byte{request[0], request[1], 0x80 | opcode<<3, rcode, 0, 0, 0, 0, 0, 0, 0, 0})
		}
	}
	for name, react := range map[string]func(c *session, request []byte) bool{
		"NOTIMP":                    rcode(dso.Opcode, dso.NotImplemented),
		"FORMERR":                   rcode(dso.Opcode, dso.FormatError),
		"DSOTYPENI":                 rcode(dso.Opcode, dso.TypeNI),
		"REFUSED":                   rcode(dso.Opcode, dso.Refused),
		"FORMERR to another opcode": rcode(dns.OpcodeQuery, dso.FormatError),
		"NOERROR without a TLV":     rcode(dso.Opcode, dso.NoError),
		"another version": func(c *session, request []byte) bool {
			return c.respond(dso.AppendTLV(dso.AppendHeader(nil, id(request), true, 0), dso.Session, append([]byte{9}, make([]byte, 16)...)...))
		},
		"the request": func(c *session, request []byte) bool { return c.respond(answer(request)) },
		"malformed":   func(c *session, request []byte) bool { return c.respond(request[:12]) },
		"a NOTIMP with the question of another": func(c *session, request []byte) bool {
			q := answer(question(c.s.t, "www.example."))
			q[0], q[1], q[2], q[3] = request[0], request[1], 0x80|dso.Opcode<<3, dso.NotImplemented
			return c.respond(q)
		},
		"closes": func(*session, []byte) bool { return false },
		"resets": func(c *session, _ []byte) bool {
			time.Sleep(50 * time.Millisecond) // an RST may discard answers
			c.reset()
			return false
		},
		"ignores": func(*session, []byte) bool { return true },
	} {
		t.Run(name, func(t *testing.T) {
			var requests, keepAlives atomic.Int32
			b := newCoherent(t, serving(t, func(c *session) {
				for m := c.next(); m != nil; m = c.next() {
					if dso.IsDSO(m) {
						requests.Add(1)
						if !react(c, m) {
							return
						}
						continue
					}
					if _, ok := wire.MessageOption(m, wire.OptionKeepAlive); ok {
						keepAlives.Add(1)
					}
					if !c.respond(answer(m)) {
						return
					}
				}
			}), 2, 3)
			allAnswered(b.sendAll(6, "first-")) // over several connections, of which one requests a session
			if name == "ignores" {
				b.clock.skip(responseTime)
			}
			b.wantFallbacks(map[string]int{SessionUnsupported: 1})
			b.wantLog("opens no session (")
			if b.Notifies() {
				t.Error("queries request notification")
			}
			for range 5 {
				allAnswered(b.sendAll(50, "www-"))
				b.retireAll()
				b.clock.skip(time.Minute)
			}
			withEDNS := newSent(t, "edns.example.")
			withEDNS.Query = answerWith(withEDNS.Query)
			withEDNS.Query[2] &^= 0x80
			withEDNS.sendTo(b.Pool)
			withEDNS.answered()
			if n := requests.Load(); n != 1 {
				t.Errorf("%d DSO messages, want 1", n)
			}
			if n := keepAlives.Load(); n != 1 {
				t.Errorf("%d queries with edns-tcp-keepalive, want that on a new connection", n)
			}
			b.wantFallbacks(map[string]int{SessionUnsupported: 1})
		})
	}
}

// TestSession_UnsupportedByAnother: a server that closes connections before any answer gets two requests. After a failed
// handshake another server may be there.
func TestSession_UnsupportedByAnother(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	s := b.send("www.example.")
	for range maxClosedRequests {
		if !b.Notifies() {
			t.Error("unsupported after one connection")
		}
		c := b.accept()
		c.query()
		c.request()
		c.close()
	}
	c := b.accept()
	c.respond(answer(c.query()))
	s.answered()
	b.wantFallbacks(map[string]int{SessionUnsupported: 1})
	b.refuse()
	c.close()
	b.retireAll()
	_ = b.send("www.example.").fails()
	b.again()
	b.clock.skip(time.Minute)
	b.begin()
}

// TestSession_Reloading: a server that had sessions is probed again after a while, since it may be reloading.
func TestSession_Reloading(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	v := b.learn(c, "a.example.", 1)
	b.clock.skip(compareEvery)
	request := c.request()
	b.wantFallbacks(map[string]int{SessionSilent: 1})
	c.respond(dso.AppendHeader(nil, id(request), true, dso.NotImplemented))
	b.wantFallbacks(map[string]int{SessionUnsupported: 1, SessionClosed: 1, SessionSilent: 1})
	if v.Vouches(b.Coherence.Now()) || b.Notifies() {
		t.Error("the session has not ended")
	}
	s := b.send("www.example.")
	c.respond(answer(c.query()))
	s.answered()
	b.clock.skip(sessionPause)
	c.end() // it gets no other request, RFC 8490 section 5.1.1
	c = b.accept()
	request = c.request() // before a query: answers from before it are fetched again
	s = b.send("www.example.")
	c.respond(dso.AppendHeader(nil, id(request), true, dso.NotImplemented), answer(c.query()))
	s.answered()
	b.wantFallbacks(map[string]int{SessionUnsupported: 2, SessionClosed: 1, SessionSilent: 1})
	b.clock.skip(sessionPause)
	s = b.send("www.example.") // a request would be the first message
	c.respond(answer(c.query()))
	s.answered()
	b.clock.skip(sessionPause)
	c.end()
	c = b.begin()
	kit.Eventually(t, "the session vouches again", func() bool { return b.Vouches(nil) && b.Notifies() })
	if b.learn(c, "a.example.", 1); v.Vouches(b.Coherence.Now()) {
		t.Error("the new session vouches for an answer of the old one")
	}
}

// TestSession_Violations: the connection is aborted, and its queries are sent on another. RFC 8490 section 6.6.3.1: no session
// is opened for an hour.
func TestSession_Violations(t *testing.T) {
	for name, message := range map[string]func(b *coherentBed) []byte{
		"short heartbeat":      func(*coherentBed) []byte { return dso.AppendTLV(dso.AppendHeader(nil, 0, false, 0), dso.Heartbeat, 1) },
		"part of a handle":     func(*coherentBed) []byte { return dso.AppendTLV(dso.AppendHeader(nil, 0, false, 0), dso.Invalidate, 1) },
		"unknown primary TLV":  func(*coherentBed) []byte { return dso.AppendTLV(dso.AppendHeader(nil, 0, false, 0), 0xF8FF, 1) },
		"heartbeat with an id": func(b *coherentBed) []byte { m := b.beat(); m[1] = 77; return m },
		"no TLV":               func(*coherentBed) []byte { return dso.AppendHeader(nil, 0, false, 0) },
		"two Session TLVs":     nil,
		"no Session TLV":       nil,
		"no response":          nil,
		"longer TLV":           func(b *coherentBed) []byte { m := b.beat(); return m[:len(m)-1] },
		"counts":               func(b *coherentBed) []byte { m := b.beat(); m[5] = 1; return m },
		"unexpected response":  func(b *coherentBed) []byte { return b.opening([]byte{0x12, 0x34}) },
		"response with id 0":   func(b *coherentBed) []byte { return b.opening([]byte{0, 0}) },
		"short retry delay":    func(*coherentBed) []byte { return dso.AppendTLV(dso.AppendHeader(nil, 0, false, 0), dso.RetryDelay, 1) },
		"short keepalive":      func(*coherentBed) []byte { return dso.AppendTLV(dso.AppendHeader(nil, 0, false, 0), dso.Keepalive, 1) },
		"frequent keepalive": func(*coherentBed) []byte {
			return dso.AppendTLV(dso.AppendHeader(nil, 0, false, 0), dso.Keepalive, 0, 0, 1, 0, 0, 0, 1, 0)
		},
		"edns-tcp-keepalive":    nil,
		"instance of a request": nil,
	} {
		t.Run(name, func(t *testing.T) {
			b := newCoherent(t, newServer(t), 100, 1)
			c := b.begin()
			v := b.learn(c, "a.example.", 1)
			s := b.send("www.example.")
			q := c.query()
			silences := 0
			switch name {
			case "edns-tcp-keepalive":
				other := b.send("other.example.")
				c.respond(append(answerWith(c.query())[:12+19], 0, 0, wire.TypeOPT, 4, 208, 0, 0, 0, 0, 0, 6, 0, wire.OptionKeepAlive, 0, 2, 0, 9))
				other.wait()
			case "instance of a request":
				silences = 1
				b.clock.skip(compareEvery)
				b.wantFallbacks(map[string]int{SessionSilent: 1})
				c.respond(dso.AppendSessionResponse(nil, id(c.request()), dso.Opening{Instance: 8, Clock: b.serverClock()}))
			case "two Session TLVs", "no Session TLV", "no response":
				silences = 1
				b.clock.skip(compareEvery)
				b.wantFallbacks(map[string]int{SessionSilent: 1})
				switch request := c.request(); name {
				case "two Session TLVs":
					opening := b.opening(request)
					c.respond(append(opening, opening[12:]...))
				case "no Session TLV":
					c.respond(dso.AppendHeader(nil, id(request), true, dso.NoError))
				default: // while heartbeats arrive
					b.clock.skip(responseTime - time.Second)
					c.respond(b.beat())
					kit.Eventually(t, "the session vouches", func() bool { return v.Vouches(b.Coherence.Now()) })
					silences = 2
					b.clock.skip(time.Second)
				}
			default:
				// The messages behind it are discarded, even if they are more than the buffer has room for.
				c.respond(append([][]byte{message(b)}, slices.Repeat([][]byte{b.beat()}, 4000)...)...)
			}
			c.aborted()
			if v.Vouches(b.Coherence.Now()) {
				t.Error("the session has not ended")
			}
			next := b.accept()
			moved := next.query()
			if nameOf(moved) != nameOf(q) {
				t.Errorf("query for %s, want %s", nameOf(moved), nameOf(q))
			}
			next.respond(answer(moved))
			s.answered()
			b.wantLog("")
			b.clock.skip(b.Expire)
			next.end()
			later := b.send("later.example.")
			next = b.accept()
			next.respond(answer(next.query())) // a request would be the first message
			later.answered()
			b.clock.skip(abortPause) // after which a session is opened again
			next.end()
			b.begin()
			becomes(t, "sessions", b.Coherence.Sessions, 1)
			b.wantFallbacks(map[string]int{SessionClosed: 1, SessionSilent: silences})
		})
	}
}

// TestSession_Ignored: messages that have no effect, and the response to an unknown request of the server.
func TestSession_Ignored(t *testing.T) {
	b := newCoherent(t, newServer(t), 100, 1)
	c := b.begin()
	v := b.learn(c, "a.example.", 1)
	s := b.send("www.example.")
	q := c.query()
	reply := answer(q)
	setID(reply, 0)
	unused := b.beat()
	unused[2], unused[3] = unused[2]|7, 0xF0|dso.Refused
	c.respond(
		dso.AppendTLV(dso.AppendTLV(b.beat(), 0xF8FE), dso.Padding, 0), // additional TLVs
		dso.AppendTLV(dso.AppendHeader(nil, 0, false, 0), dso.Keepalive, 0, 0, 0x75, 0x30, 0, 0, 0x75, 0x30),
		dso.AppendTLV(dso.AppendHeader(nil, 77, false, 0), 0xF8FF),
		append([]byte{0, 78, dso.Opcode << 3, 0, 0, 1}, make([]byte, 6)...), // a request with a count
		unused, // bits of the header
		reply,  // with the id of messages without a response, which no query has
	)
	for _, want := range [][]byte{dso.AppendErrorResponse(nil, 77, dso.TypeNI), dso.AppendErrorResponse(nil, 78, dso.FormatError)} {
		if m := c.query(); !slices.Equal(m, want) {
			t.Errorf("response % x, want % x", m, want)
		}
	}
	becomes(t, "dropped answers", b.Metrics.Dropped[WrongID], 1)
	s.notDone()
	c.respond(answer(q))
	s.answered()
	if !v.Vouches(b.Coherence.Now()) {
		t.Error("the session has ended")
	}
}

package forward

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/plugin/internal/dso"
	"github.com/nearside-dns/nearside/plugin/internal/store"
	"github.com/nearside-dns/nearside/plugin/internal/validity"
	"github.com/nearside-dns/nearside/plugin/internal/vouch"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
	"github.com/nearside-dns/nearside/test/kit"
)

// sessionServer is a server with sessions, whose answers have a handle if the query requests notification.
type sessionServer struct {
	t     testing.TB
	addr  string
	stop  func()
	began time.Time
	seen  sight
	// hold returns the time after which a query is answered.
	hold atomic.Pointer[func(name string) time.Duration]
	// mute is set if no query is answered, while heartbeats are sent.
	mute atomic.Bool
	// opens, if it is not nil, is closed when sessions are opened.
	opens chan struct{}
	// rcode is the response code of the answers, which have no records unless it is 0.
	rcode atomic.Int32

	mu    sync.Mutex
	conns []*sessionConn
}

type sessionConn struct {
	s      *sessionServer
	c      net.Conn
	mu     sync.Mutex
	opened bool
}

const handle = 77

func startSessions(t testing.TB) *sessionServer {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(nextHost(), "0"))
	kit.Must(t, err)
	s := &sessionServer{t: t, addr: l.Addr().String(), began: time.Now().Add(-time.Minute)}
	var all sync.WaitGroup
	stop := make(chan struct{})
	s.stop = sync.OnceFunc(func() {
		close(stop)
		_ = l.Close()
		s.closeAll()
		all.Wait()
	})
	all.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			one := &sessionConn{s: s, c: c}
			s.mu.Lock()
			s.conns = append(s.conns, one)
			s.mu.Unlock()
			all.Go(one.serve)
		}
	})
	all.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				s.push(dso.AppendHeartbeat(nil, s.clock()))
			}
		}
	})
	t.Cleanup(s.stop)
	return s
}

func (s *sessionServer) clock() uint64 { return uint64(time.Since(s.began) / time.Microsecond) }

// all returns the connections.
func (s *sessionServer) all() []*sessionConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.conns)
}

// sessions returns the number of connections that have had a session: not those of checks.
func (s *sessionServer) sessions() (n int) {
	for _, c := range s.all() {
		if c.mu.Lock(); c.opened {
			n++
		}
		c.mu.Unlock()
	}
	return n
}

// push sends a message in all sessions.
func (s *sessionServer) push(message []byte) {
	for _, c := range s.all() {
		if c.mu.Lock(); c.opened {
			c.write(message)
		}
		c.mu.Unlock()
	}
}

func (s *sessionServer) closeAll() {
	for _, c := range s.all() {
		_ = c.c.Close()
	}
}

// write writes a message. The connection is locked.
func (c *sessionConn) write(message []byte) {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(message)))
	_, _ = c.c.Write(append(b, message...)) // the client may have closed the connection
}

func (c *sessionConn) serve() {
	var held sync.WaitGroup
	defer held.Wait()
	defer func() { _ = c.c.Close() }()
	for {
		var length [2]byte
		if _, err := io.ReadFull(c.c, length[:]); err != nil {
			return
		}
		m := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(c.c, m); err != nil {
			return
		}
		if dso.IsDSO(m) {
			if c.s.opens != nil {
				held.Go(func() { <-c.s.opens; c.open(m) })
			} else {
				c.open(m)
			}
			continue
		}
		r := new(dns.Msg)
		if err := r.Unpack(m); err != nil {
			c.s.t.Error(err)
			return
		}
		c.s.seen.add(r)
		c.mu.Lock()
		inSession := c.opened
		c.mu.Unlock()
		if opt := r.IsEdns0(); inSession && opt != nil && hasOption(opt, isKeepAlive) { // RFC 8490 section 7.1.2
			_ = c.c.(*net.TCPConn).SetLinger(0)
			return
		}
		held.Go(func() { c.answer(r) })
	}
}

// open opens the session that a message requests.
func (c *sessionConn) open(request []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opened = true
	c.write(dso.AppendSessionResponse(nil, binary.BigEndian.Uint16(request), dso.Opening{Instance: 1, Clock: c.s.clock()}))
	c.write(dso.AppendHeartbeat(nil, c.s.clock()))
}

// answer answers a query, with a handle if it requests notification.
func (c *sessionConn) answer(r *dns.Msg) {
	if c.s.mute.Load() {
		return
	}
	if hold := c.s.hold.Load(); hold != nil {
		time.Sleep((*hold)(r.Question[0].Name))
	}
	reply := addressReply(r)
	if rcode := int(c.s.rcode.Load()); rcode != dns.RcodeSuccess {
		reply = new(dns.Msg).SetRcode(r, rcode)
	}
	if opt := r.IsEdns0(); opt != nil {
		reply.SetEdns0(1232, false)
		if hasOption(opt, isNotify) {
			data := dso.AppendHandles(nil, []uint64{handle})
			reply.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionNotify, Data: data}}
		}
	}
	packed, err := reply.Pack()
	if err != nil {
		c.s.t.Error(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write(packed)
}

func isNotify(code uint16) bool { return code == wire.OptionNotify }

func isKeepAlive(code uint16) bool { return code == dns.EDNS0TCPKEEPALIVE }

// notifyOptions returns the number of requests for notification in a message.
func notifyOptions(m *dns.Msg) (n int) {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if isNotify(o.Option()) {
				n++
			}
		}
	}
	return n
}

// withNotify adds the client's own request for notification to a query.
func withNotify(m *dns.Msg) *dns.Msg {
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: wire.OptionNotify, Data: []byte{1, 2}})
	return m
}

// open waits for a session of the first upstream.
func (s *sessionServer) open(t testing.TB, f *Forward) {
	t.Helper()
	wantRight(t, f, false, "first.example.")
	kit.Eventually(t, "the session vouches", func() bool { return upstreamOf(f, 0).vouches(nil) })
}

// passed is a reply in wire form and its voucher.
type passed struct {
	reply   []byte
	voucher *vouch.Voucher
	err     error
}

// passing is a Receiver.
type passing chan passed

// Receive implements wirechain.Receiver.
func (p passing) Receive(_ *batch.Batch, reply *wire.Reply, v *vouch.Voucher, _ int, err error) {
	p <- passed{messageOf(reply), v, err}
}

// overWire queries in wire form.
func overWire(t testing.TB, f *Forward, m *dns.Msg) passed {
	t.Helper()
	packed, err := m.Pack()
	var q wire.Query
	if err != nil || !q.Parse(packed) {
		t.Fatalf("%v: %v", m, err)
	}
	done := make(passing, 1)
	var b batch.Batch
	if !f.Exchange(&b, &q, packed, false, done) {
		t.Fatal("the query is for the plugin chain")
	}
	b.Flush()
	return <-done
}

// throughChain queries through the plugin chain, as behind a cache.
func throughChain(f plugin.Handler, m *dns.Msg) (answer, *vouch.Voucher) {
	ctx, recorded := store.Record(context.Background(), m)
	return queryWith(ctx, f, m, false), recorded.Voucher
}

// TestCoherent: the voucher of an answer arrives in wire form and in the chain, and the option in neither.
func TestCoherent(t *testing.T) {
	for _, options := range []string{"coherent", "coherent\ncaller node-a zone-1", "force_tcp\ncoherent"} {
		t.Run(options, func(t *testing.T) {
			s := startSessions(t)
			f := chainOf(t, stanzaOf(options, s.addr))
			s.open(t, f)
			edns := question("edns.example.")
			edns.SetEdns0(4096, true)
			for name, m := range map[string]*dns.Msg{"without EDNS": question("www.example."), "with EDNS": edns} {
				wire := overWire(t, f, m)
				reply := new(dns.Msg)
				if err := reply.Unpack(wire.reply); wire.err != nil || err != nil {
					t.Fatalf("%s: %v, %v", name, wire.err, err)
				}
				if !wire.voucher.Vouches(validity.Now()) || (reply.IsEdns0() != nil) != (m == edns) || notifyOptions(reply) > 0 {
					t.Errorf("%s, in wire form: voucher %v, reply\n%v", name, wire.voucher, reply)
				}
				a, v := throughChain(f, m)
				if wrong := a.wrong(m); wrong != "" || !v.Vouches(validity.Now()) || (a.IsEdns0() != nil) != (m == edns) || notifyOptions(a.Msg) > 0 {
					t.Errorf("%s, in the chain: %s, voucher %v, reply\n%v", name, wrong, v, a.Msg)
				}
				for _, vouched := range []*vouch.Voucher{wire.voucher, v} {
					defer func() {
						if !vouched.Ended() {
							t.Error("the voucher was not invalidated")
						}
					}()
				}
			}
			own := withNotify(question("own.example."))
			if a, _ := throughChain(f, own); a.wrong(own) != "" || notifyOptions(a.Msg) > 0 {
				t.Errorf("%s, reply\n%v", a.wrong(own), a.Msg)
			}
			for i, m := range s.seen.all() {
				if opt := m.IsEdns0(); opt == nil || notifyOptions(m) != 1 || len(opt.Option[len(opt.Option)-1].(*dns.EDNS0_LOCAL).Data) > 0 ||
					hasOption(opt, func(code uint16) bool { return code == wire.OptionCaller }) != (f.caller != nil) {
					t.Errorf("query %d is not with one empty request for notification:\n%v", i, m)
				}
			}
			if n := metric(t, "nearside_forward_coherence_sessions", "to", s.addr); n != 1 {
				t.Errorf("%v sessions", n)
			}
			if age := metric(t, "nearside_forward_coherence_heartbeat_age_seconds", "to", s.addr); age < 0 || age > bounded.Seconds() || len(seriesOf(t, ages)) == 0 {
				t.Errorf("age of the last heartbeat: %v", age)
			}
			s.push(dso.AppendInvalidate(nil, []uint64{handle}))
			kit.Eventually(t, "the invalidation is counted", func() bool { return metric(t, "nearside_forward_coherence_invalidations_total", "to", s.addr) == 1 })
			s.closeAll()
			kit.Eventually(t, "the lost session is counted", func() bool {
				return metric(t, "nearside_forward_coherence_fallbacks_total", "to", s.addr, "reason", "closed") == 1
			})
		})
	}
}

// TestCoherent_Failover: no session vouches for a reply that depends on the replies of two upstreams.
func TestCoherent_Failover(t *testing.T) {
	first, second := startSessions(t), startSessions(t)
	f := chainOf(t, stanzaOf("coherent\nfailover NXDOMAIN\npolicy sequential", first.addr, second.addr))
	first.open(t, f)
	want := func(rcode int, vouched bool) {
		t.Helper()
		p := overWire(t, f, question("www.example."))
		reply := new(dns.Msg)
		if err := reply.Unpack(p.reply); p.err != nil || err != nil {
			t.Fatalf("%v, %v", p.err, err)
		}
		if reply.Rcode != rcode || (p.voucher != nil) != vouched {
			t.Errorf("voucher %v, want one: %t; reply\n%v", p.voucher, vouched, reply)
		}
	}
	want(dns.RcodeSuccess, true)
	first.rcode.Store(dns.RcodeNameError)
	want(dns.RcodeSuccess, false)
	kit.Eventually(t, "the session of the second upstream", func() bool { return upstreamOf(f, 1).vouches(nil) })
	want(dns.RcodeSuccess, false)
	second.stop()
	want(dns.RcodeNameError, false)
}

// TestCoherent_Switch: an upstream is killed, and another one of the stanza answers: the answers of the first one lapse.
func TestCoherent_Switch(t *testing.T) {
	first, second := startSessions(t), startSessions(t)
	f := chainOf(t, stanzaOf("coherent\npolicy sequential", first.addr, second.addr))
	first.open(t, f)
	answered := overWire(t, f, question("www.example."))
	if answered.err != nil || answered.voucher == nil {
		t.Fatalf("error %v and voucher %v", answered.err, answered.voucher)
	}
	first.stop()
	kit.Eventually(t, "the answer of the first upstream has lapsed", func() bool {
		wantRight(t, f, false, "other.example.")
		return answered.voucher.Lapsed()
	})
	if answered.voucher.Ended() || !upstreamOf(f, 1).vouches(nil) {
		t.Error("the answer has ended, or the session of the second upstream does not vouch")
	}
}

// TestCoherent_Others: upstreams without sessions, and queries over UDP, get no request for notification, not even that of a client.
func TestCoherent_Others(t *testing.T) {
	type setting struct {
		options string
		tcp     func(r *dns.Msg) *dns.Msg // nil is no server over TCP
		first   int                       // max queries with the option over TCP, and DSO messages, until the server is known
	}
	notImplemented := func(r *dns.Msg) *dns.Msg {
		if r.Opcode == dso.Opcode {
			return new(dns.Msg).SetRcode(r, dns.RcodeNotImplemented)
		}
		return withRoom(addressReply(r), r)
	}
	for name, c := range map[string]setting{
		"no option":  {"", notImplemented, 0},
		"force_tcp":  {"force_tcp", notImplemented, 0},
		"caller":     {"force_tcp\ncaller node-a", notImplemented, 0},
		"coherent":   {"coherent", notImplemented, 1},
		"over UDP":   {"coherent\nfallback udp", func(*dns.Msg) *dns.Msg { return nil }, 1000},
		"and caller": {"coherent\ncaller node-a", notImplemented, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var udp, tcp sight
			at := script{
				udp: replies(func(r *dns.Msg) *dns.Msg { udp.add(r); return withRoom(addressReply(r), r) }),
				tcp: replies(func(r *dns.Msg) *dns.Msg { tcp.add(r); return c.tcp(r) }),
			}.address(t)
			f := chainOf(t, stanzaOf(c.options, at))
			wantRight(t, f, false, "first.example.")
			if f.coherent && c.first == 1 {
				kit.Eventually(t, "the server is known", func() bool { return !upstreamOf(f, 0).notifies() })
			}
			for i := range 5 {
				m := withNotify(question(fmt.Sprintf("www-%d.example.", i)))
				if a, v := throughChain(f, m); a.wrong(m) != "" || notifyOptions(a.Msg) > 0 || v.Vouches(validity.Now()) {
					t.Errorf("%s, reply\n%v", a.wrong(m), a.Msg)
				}
				plain := question(fmt.Sprintf("wire-%d.example.", i))
				if wire := overWire(t, f, plain); wire.err != nil || wire.voucher.Vouches(validity.Now()) {
					t.Errorf("error %v and voucher %v", wire.err, wire.voucher)
				}
			}
			for _, m := range udp.all() {
				if notifyOptions(m) > 0 {
					t.Errorf("query over UDP with the option:\n%v", m)
				}
			}
			requests, notify := 0, 0
			for _, m := range tcp.all() {
				notify += notifyOptions(m)
				if m.Opcode == dso.Opcode {
					requests++
				}
			}
			if notify > c.first || requests > c.first {
				t.Errorf("%d queries with the option and %d DSO messages", notify, requests)
			}
		})
	}
}

// TestCoherent_Mixed: of two upstreams, only the one with sessions gets requests for notification.
func TestCoherent_Mixed(t *testing.T) {
	s := startSessions(t)
	var seen sight
	plain := script{tcp: replies(func(r *dns.Msg) *dns.Msg {
		if seen.add(r); r.Opcode == dso.Opcode {
			return new(dns.Msg).SetRcode(r, dns.RcodeNotImplemented)
		}
		return addressReply(r)
	})}.address(t)
	f := chainOf(t, stanzaOf("coherent\npolicy round_robin", s.addr, plain))
	wantRight(t, f, false, "a.example.", "b.example.")
	kit.Eventually(t, "both upstreams are known", func() bool { return upstreamOf(f, 0).vouches(nil) && !upstreamOf(f, 1).notifies() })
	before := len(seen.all())
	vouched := 0
	for range 6 {
		if wire := overWire(t, f, question("www.example.")); wire.err != nil {
			t.Error(wire.err)
		} else if wire.voucher != nil {
			vouched++
		}
	}
	others := seen.all()[before:]
	if len(others) != 3 || vouched != 3 || slices.ContainsFunc(others, func(m *dns.Msg) bool { return m.IsEdns0() != nil }) {
		t.Errorf("%d answers with a voucher, and to the server without sessions\n%v", vouched, others)
	}
}

// withRoom adds an OPT record if the query has one, with an option for the cache only.
func withRoom(reply, r *dns.Msg) *dns.Msg {
	if r.IsEdns0() != nil {
		reply.SetEdns0(1232, false)
		reply.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: wire.OptionNotify, Data: make([]byte, 8)}}
	}
	return reply
}

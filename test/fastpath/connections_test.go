//go:build linux

package fastpath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

const (
	connectionsOpen   = "nearside_fastpath_connections"
	connectionsClosed = "nearside_fastpath_connections_closed_total"
)

// stream is a connection of a client.
type stream struct{ net.Conn }

// connect opens a connection from an address, "" for any.
func connect(t *testing.T, s *server, source, host string) stream {
	t.Helper()
	d := net.Dialer{Timeout: bounded}
	if source != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
	}
	conn, err := d.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(s.Port)))
	kit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	kit.Must(t, conn.SetDeadline(time.Now().Add(4*bounded)))
	return stream{conn}
}

// send sends messages by one system call.
func (c stream) send(t *testing.T, messages ...*dns.Msg) {
	t.Helper()
	var all []byte
	for _, m := range messages {
		b := pack(t, m)
		all = append(binary.BigEndian.AppendUint16(all, uint16(len(b))), b...)
	}
	if _, err := c.Write(all); err != nil {
		t.Fatal(err)
	}
}

// next returns the next message.
func (c stream) next() (*dns.Msg, error) {
	length := make([]byte, 2)
	if _, err := io.ReadFull(c, length); err != nil {
		return nil, err
	}
	b := make([]byte, binary.BigEndian.Uint16(length))
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, err
	}
	m := new(dns.Msg)
	return m, m.Unpack(b)
}

// expect returns the next message, which answers a query.
func (c stream) expect(t *testing.T, query *dns.Msg) *dns.Msg {
	t.Helper()
	m, err := c.next()
	if err != nil || m.Id != query.Id || !m.Response || m.Question[0] != query.Question[0] {
		t.Fatalf("answer to %s: %v, %v", query.Question[0].Name, m, err)
	}
	return m
}

// withKeepAlive returns a query with edns-tcp-keepalive.
func withKeepAlive(name string) *dns.Msg {
	m := newQuery(name, dns.TypeA).SetEdns0(1232, false)
	m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_TCP_KEEPALIVE{Code: dns.EDNS0TCPKEEPALIVE}}
	return m
}

// idleTimeoutOf returns the timeout in the edns-tcp-keepalive option of a reply, -1 without one.
func idleTimeoutOf(m *dns.Msg) int {
	if opt := m.IsEdns0(); opt != nil {
		for _, o := range opt.Option {
			if k, ok := o.(*dns.EDNS0_TCP_KEEPALIVE); ok {
				return int(k.Timeout)
			}
		}
	}
	return -1
}

// streamsInARow is the number of connections after which another one to CoreDNS's own listener is unlikely: the kernel distributes those
// to a host among all listeners on its address, of which one after the other is taken over.
const streamsInARow = 16

// awaitStreams waits until the fast path accepts connections to a host: CoreDNS serves those that it accepts before.
func awaitStreams(t *testing.T, s *server, host string) {
	t.Helper()
	kit.Eventually(t, "the fast path accepts connections to "+host, func() bool {
		for range streamsInARow {
			if !isStream(t, s, host) {
				return false
			}
		}
		return true
	})
}

// isStream reports whether the fast path accepts a new connection to a host.
func isStream(t *testing.T, s *server, host string) bool {
	t.Helper()
	query, conn := withKeepAlive("web.shop.svc.cluster.local."), connect(t, s, "", host)
	defer func() { _ = conn.Close() }()
	conn.send(t, query)
	return idleTimeoutOf(conn.expect(t, query)) >= 0
}

// TestStalledQuery has a query to an upstream that does not answer: the queries behind it on the connection are answered.
func TestStalledQuery(t *testing.T) {
	s, g := slow(t, bothLoopbacks, "")
	defer g.open()
	conn := connect(t, s, "", "127.0.0.1")
	stalled, behind := newQuery(unique(1)[0], dns.TypeA), newQuery("web.shop.svc.cluster.local.", dns.TypeA)
	warm := newQuery("web.shop.svc.cluster.local.", dns.TypeA)
	conn.send(t, warm)
	conn.expect(t, warm)
	begin := time.Now()
	conn.send(t, stalled, behind)
	conn.expect(t, behind)
	t.Logf("answered after %v", time.Since(begin))
	other := newQuery("other.example.net.", dns.TypeA)
	conn.send(t, other)
	conn.expect(t, other)
	g.open()
	conn.expect(t, stalled)
}

// TestReloadOverTCP reloads with open connections under load: no connection is closed and no query is lost.
func TestReloadOverTCP(t *testing.T) {
	forEachLife(t, func(t *testing.T, s life) {
		var loads [2]*load
		for i, host := range []string{"127.0.0.1", "::1"} {
			awaitStreams(t, s.server, host)
			loads[i] = startLoadOver(t, "tcp", net.JoinHostPort(host, strconv.Itoa(s.Port)), 8, s.next)
		}
		for i, fastpath := range []string{"", "fastpath off", "fastpath off", "", "fastpath {\nmax_connections 500\n}", ""} {
			s.reload(t, with(s.corefile, fastpath, ""))
			before := s.scrape(t).Sum(answeredTotal)
			awaitQueries(t, loads)
			if grown := s.scrape(t).Sum(answeredTotal) - before; (grown > 0) != (fastpath != "fastpath off") {
				t.Errorf("step %d: the fast path has answered %v queries", i, grown)
			}
			for _, host := range []string{"127.0.0.1", "::1"} { // a new connection
				query, conn := newQuery("x.example.org.", dns.TypeA), connect(t, s.server, "", host)
				conn.send(t, query)
				conn.expect(t, query)
			}
		}
		if n := s.scrape(t).Sum(connectionsOpen); n < 16 {
			t.Errorf("%v connections are open, want 16", n)
		}
		endLoads(t, loads)
	})
}

// TestStopOverTCP ends a program with queries in progress and unread ones: all are answered, with an idle timeout of 0 for
// clients that send edns-tcp-keepalive.
func TestStopOverTCP(t *testing.T) {
	forEachBind(t, "stop", func(t *testing.T, bind string) {
		s, g := slow(t, bind, "", "prefer_udp")
		awaitStreams(t, s, "127.0.0.1")
		conn, unread := connect(t, s, "", "127.0.0.1"), connect(t, s, "", "127.0.0.1")
		first := withKeepAlive("web.shop.svc.cluster.local.")
		conn.send(t, first)
		if got := idleTimeoutOf(conn.expect(t, first)); got != 100 {
			t.Errorf("idle timeout %d, want 10 seconds", got)
		}
		var stalled []*dns.Msg
		for _, name := range unique(20) {
			stalled = append(stalled, withKeepAlive(name))
		}
		conn.send(t, stalled...)
		kit.Eventually(t, "the slow server has the queries", func() bool { return g.count() == len(stalled) })
		s.Signal(t, syscall.SIGSTOP)
		query := withKeepAlive("web.shop.svc.cluster.local.")
		unread.send(t, query)
		s.Signal(t, syscall.SIGTERM)
		s.Signal(t, syscall.SIGCONT)
		if got := idleTimeoutOf(unread.expect(t, query)); got != 0 && got != 100 { // read before the signal was handled
			t.Errorf("idle timeout %d", got)
		}
		kit.Eventually(t, "the stop begins", func() bool { return strings.Contains(s.Output(), "SIGTERM: Shutting down") })
		if _, err := unread.next(); !errors.Is(err, io.EOF) {
			t.Errorf("%v, want the end of the connection", err)
		}
		g.open()
		for range stalled {
			m, err := conn.next()
			kit.Must(t, err)
			if got := idleTimeoutOf(m); got != 0 {
				t.Errorf("idle timeout %d, want 0", got)
			}
		}
		_ = conn.Close()
		_ = unread.Close()
		if code, err := s.Wait(2 * bounded); code != 0 || err != nil {
			t.Errorf("exit code %d: %v", code, err)
		}
	})
}

// TestConnectionFlood has a client that opens a thousand connections, with and without queries, beside another client whose
// connection remains. CoreDNS, in the same program, accepts all.
func TestConnectionFlood(t *testing.T) {
	const flood = 1000
	p := startPair(t, "clusterdns", clusterBlock(newCluster(t)))
	for name, s := range map[string]*server{"with the fast path": p.on, "without": p.off} {
		t.Run(name, func(t *testing.T) {
			query := newQuery("web.shop.svc.cluster.local.", dns.TypeA)
			good := connect(t, s, "127.0.0.9", "127.0.0.1")
			var slowest time.Duration
			for i := range flood {
				bad := connect(t, s, "127.0.0.8", "127.0.0.1")
				if i%2 == 0 {
					_, _ = bad.Write([]byte{0, 200, 1, 2}) // an incomplete query
				}
				if i%10 == 0 {
					begin := time.Now()
					good.send(t, query)
					good.expect(t, query)
					slowest = max(slowest, time.Since(begin))
				}
			}
			now := s.scrape(t)
			t.Logf("slowest answer %v, %v goroutines, %v bytes resident", slowest, now.Sum(goroutines), now.Sum("process_resident_memory_bytes"))
			if s == p.off {
				return
			}
			// The server accepts the last ones after the client's last query was answered.
			kit.Eventually(t, "the connections are counted as closed for their client", func() bool {
				return s.scrape(t).Sum(connectionsClosed, "reason", "client") >= flood-152
			})
			if open := s.scrape(t).Sum(connectionsOpen); open > 152 {
				t.Errorf("%v connections are open, want at most 150 of the one client and 1 of the other", open)
			}
		})
	}
}

// TestTransferOverTCP transfers a zone, and has a client that reads slowly.
func TestTransferOverTCP(t *testing.T) {
	folder := newCluster(t)
	p := startPair(t, "clusterdns", strings.Replace(clusterBlock(folder), "FASTPATH", "FASTPATH\n    transfer {\n        to *\n    }", 1))
	transfer := func(s *server) (records []string) {
		query := newQuery("cluster.local.", dns.TypeAXFR)
		conn := connect(t, s, "", "127.0.0.1")
		conn.send(t, query)
		soas := 0
		for soas < 2 {
			for _, rr := range conn.expect(t, query).Answer {
				if _, ok := rr.(*dns.SOA); ok {
					soas++
				} else {
					records = append(records, rr.String())
				}
			}
		}
		slices.Sort(records)
		return records
	}
	on, off := transfer(p.on), transfer(p.off)
	if len(on) < 100 || !slices.Equal(on, off) {
		t.Errorf("%d records with the fast path, %d without", len(on), len(off))
	}
}

// TestAddressesOverTCP queries servers on several addresses, and on wildcard ones, with several sockets each.
func TestAddressesOverTCP(t *testing.T) {
	for _, bind := range append(binds, "", "bind 127.0.0.1 ::1\n    multisocket 3") {
		t.Run("with "+bind, func(t *testing.T) {
			s := start(t, policies, without(strings.Replace(clusterBlock(newCluster(t)), bothLoopbacks, bind, 1)))
			for _, host := range []string{"127.0.0.1", "::1"} {
				awaitStreams(t, s, host)
			}
			before := s.settled(t)
			const each = 10
			for range each { // of several sockets, the kernel chooses one for each connection
				for _, host := range []string{"127.0.0.1", "::1"} {
					query, conn := withKeepAlive("web.shop.svc.cluster.local."), connect(t, s, "", host)
					conn.send(t, query)
					if idleTimeoutOf(conn.expect(t, query)) < 0 {
						t.Error("CoreDNS accepted a connection")
					}
				}
			}
			now := s.settled(t).Since(before)
			if n := now.Sum(answeredTotal) + now.Sum(handedOverTotal); n != 2*each {
				t.Errorf("the fast path received %v of %d queries", n, 2*each)
			}
			if n := now.Sum("coredns_dns_requests_total", "proto", "tcp"); n != 2*each {
				t.Errorf("%v queries over TCP are counted, want %d", n, 2*each)
			}
		})
	}
}

// TestSignedOverTCP reloads to a configuration with TSIG secrets: signed queries on an open connection are verified, and
// their replies signed, also those of a zone transfer.
func TestSignedOverTCP(t *testing.T) {
	corefile := clusterBlock(newCluster(t), "OTHER")
	s := start(t, policies, without(corefile))
	awaitStreams(t, s, "127.0.0.1")
	conn := connect(t, s, "", "127.0.0.1")
	query := newQuery("web.shop.svc.cluster.local.", dns.TypeA)
	conn.send(t, query)
	conn.expect(t, query)
	s.reload(t, with(corefile, "", fmt.Sprintf("tsig {\n secret key.test. %s\n require AXFR\n}\ntransfer {\n to *\n}", secret)))
	conn.send(t, query)
	conn.expect(t, query)
	signed := &dns.Transfer{Conn: &dns.Conn{Conn: conn.Conn}, TsigSecret: map[string]string{secretName: secret}}
	axfr := new(dns.Msg).SetAxfr("cluster.local.").SetTsig(secretName, dns.HmacSHA256, 300, time.Now().Unix())
	envelopes, err := signed.In(axfr, "")
	kit.Must(t, err)
	records := 0
	for e := range envelopes {
		if e.Error != nil {
			t.Fatal(e.Error)
		}
		records += len(e.RR)
	}
	if records < 100 {
		t.Errorf("%d records", records)
	}
}

// TestTimeoutsOverTCP sets the timeouts of CoreDNS's plugin timeouts: they apply to the fast path, and edns-tcp-keepalive
// announces the idle timeout.
func TestTimeoutsOverTCP(t *testing.T) {
	s := start(t, policies, without(clusterBlock(newCluster(t), "timeouts {\n read 1s\n idle 2s\n}")))
	awaitStreams(t, s, "127.0.0.1")
	begin := time.Now()
	silent, used := connect(t, s, "", "127.0.0.1"), connect(t, s, "", "127.0.0.1")
	query := withKeepAlive("web.shop.svc.cluster.local.")
	used.send(t, query)
	if got := idleTimeoutOf(used.expect(t, query)); got != 20 {
		t.Errorf("the announced idle timeout is %d tenths of a second, want 20", got)
	}
	for conn, want := range map[stream]time.Duration{silent: time.Second, used: 2 * time.Second} {
		if _, err := conn.next(); !errors.Is(err, io.EOF) {
			t.Errorf("%v, want the end of the connection", err)
		}
		if took := time.Since(begin); took < want {
			t.Errorf("closed after %v, want %v", took, want)
		}
	}
}

// TestStalledQueryBetweenPrograms has a nodecache that forwards to clusterdns over TCP, and a query to an upstream of
// clusterdns that does not answer: a cluster name behind it is answered.
func TestStalledQueryBetweenPrograms(t *testing.T) {
	cluster, g := slow(t, bothLoopbacks, "")
	defer g.open()
	awaitStreams(t, cluster, "127.0.0.1")
	node := start(t, "nodecache", fmt.Sprintf(".:PORT {\n%s\nprometheus METRICS\nerrors\ncache 30\nforward . %s {\nforce_tcp\n}\n}\n", bothLoopbacks, cluster.Addr))
	before := cluster.scrape(t)
	conn := connect(t, node, "", "127.0.0.1")
	stalled, behind := newQuery(unique(1)[0], dns.TypeA), newQuery("web.shop.svc.cluster.local.", dns.TypeA)
	conn.send(t, stalled)
	kit.Eventually(t, "the slow server has the query", func() bool { return g.count() == 1 })
	begin := time.Now()
	conn.send(t, behind)
	conn.expect(t, behind)
	if took := time.Since(begin); took > time.Second {
		t.Errorf("the cluster name is answered after %v", took)
	} else {
		t.Logf("answered after %v", took)
	}
	now := cluster.scrape(t).Since(before)
	if n := now.Sum("coredns_dns_requests_total", "proto", "tcp"); n < 1 {
		t.Error("nodecache sent no query over TCP")
	}
	g.open()
	conn.expect(t, stalled)
}

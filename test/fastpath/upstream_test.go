//go:build linux

package fastpath

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
)

// upstream is a server that the programs under test forward to. It answers over UDP and TCP.
type upstream struct {
	address string
	queries atomic.Int64
	handler dns.HandlerFunc
}

// startUpstream starts a server on a port of its own.
func startUpstream(t *testing.T, handler dns.HandlerFunc) *upstream {
	t.Helper()
	u := &upstream{handler: handler}
	packets, streams := kit.ListenBoth(t, "127.0.0.1:0")
	u.address = packets.LocalAddr().String()
	receiveBuffer(t, packets)
	kit.Run(t, &dns.Server{PacketConn: packets, Handler: u})
	kit.Run(t, &dns.Server{Listener: streams, Handler: u})
	return u
}

// receiveBuffer makes the buffer of a socket large enough for the datagrams of a burst while the test waits for CPU
// time.
func receiveBuffer(t *testing.T, conn net.PacketConn) {
	t.Helper()
	const size = 4 << 20
	udp, _ := conn.(*net.UDPConn)
	raw, err := udp.SyscallConn()
	kit.Must(t, err)
	var forced error
	kit.Must(t, raw.Control(func(fd uintptr) {
		forced = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size) // #nosec G115 -- a descriptor
	}))
	if forced == nil {
		return
	}
	if err := udp.SetReadBuffer(size); err != nil { // without the privilege, up to the system's limit
		t.Fatal(err)
	}
}

// ServeDNS implements dns.Handler.
func (u *upstream) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	u.queries.Add(1)
	u.handler(w, r)
}

// gate holds back the answers of a server until it is opened.
type gate struct {
	once   sync.Once
	opened chan struct{}
	held   atomic.Int64 // received queries

	mu    sync.Mutex
	names map[string]bool // names of received queries
}

func newGate(t *testing.T) *gate {
	g := &gate{opened: make(chan struct{}), names: map[string]bool{}}
	t.Cleanup(g.open) // a server ends after its last query
	return g
}

func (g *gate) open() { g.once.Do(func() { close(g.opened) }) }

// pass returns when the gate is open.
func (g *gate) pass(name string) {
	g.held.Add(1)
	g.mu.Lock()
	g.names[name] = true
	g.mu.Unlock()
	<-g.opened
}

// count returns the number of different names received.
func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.names)
}

// answerAddress answers every question with 192.0.2.1.
func answerAddress(w dns.ResponseWriter, r *dns.Msg) {
	m := new(dns.Msg).SetReply(r)
	m.Answer = []dns.RR{&dns.A{
		Hdr: dns.RR_Header{Name: r.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300},
		A:   net.IPv4(192, 0, 2, 1).To4(),
	}}
	_ = w.WriteMsg(m) // the client may have closed its socket
}

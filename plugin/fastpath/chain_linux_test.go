package fastpath

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nearside-dns/nearside/plugin/fastpath/admission"
	"github.com/nearside-dns/nearside/plugin/internal/batch"
	"github.com/nearside-dns/nearside/test/kit"
)

// patience is the maximum time to wait for an event that should occur at once.
const patience = 10 * time.Second

// newServer returns a server whose plugin chain is one handler.
func newServer(t *testing.T, handle func(w dns.ResponseWriter, m *dns.Msg)) *server {
	t.Helper()
	config := &dnsserver.Config{Zone: ".", Transport: "dns", ListenHosts: []string{"127.0.0.1"}, Port: "53"}
	config.AddPlugin(func(plugin.Handler) plugin.Handler {
		return plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, m *dns.Msg) (int, error) {
			handle(w, m)
			return dns.RcodeSuccess, nil
		})
	})
	coreDNS, err := dnsserver.NewServer("dns://"+t.Name(), []*dnsserver.Config{config})
	if err != nil {
		t.Fatal(err)
	}
	f := newFastPath()
	return &server{Server: coreDNS, process: f, queue: f.places.NewQueue(0), metrics: newListenerMetrics(coreDNS.Addr)}
}

// newSocket returns a socket of the fast path, opened beside one that is closed then.
func newSocket(t *testing.T) *socket {
	t.Helper()
	// With SO_REUSEPORT, the kernel may choose a port that another process has opened with SO_REUSEPORT.
	free, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = free.Close() // its port is free then
	return newSocketOn(t, free.LocalAddr().String())
}

func newSocketOn(t *testing.T, address string) *socket {
	t.Helper()
	return newSocketsOn(t, address, 1)[0]
}

// newSocketsOn opens a number of sockets as a listener does.
func newSocketsOn(t *testing.T, address string, number int) []*socket {
	t.Helper()
	config := net.ListenConfig{Control: reusePort}
	beside, err := config.ListenPacket(t.Context(), "udp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = beside.Close() }() // the kernel would deliver it a share
	all, err := openSockets(beside.(*net.UDPConn), false, number)
	t.Cleanup(func() {
		for _, s := range all {
			s.close()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// query returns a request with a query for a name.
func query(t *testing.T, s *server, from *socket, name string) *request {
	t.Helper()
	m := new(dns.Msg).SetQuestion(name, dns.TypeA)
	b := kit.Pack(t, m)
	r := newRequest(s, b)
	r.to, r.origin.socket = &r.origin, from
	return r
}

// valueOf returns the value of a counter or a gauge.
func valueOf(t *testing.T, metric prometheus.Metric) float64 {
	t.Helper()
	var m dto.Metric
	kit.Must(t, metric.Write(&m))
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

func TestChainIsBounded(t *testing.T) {
	var mu sync.Mutex
	var answered []string
	blocked := make(chan struct{})
	started := make(chan struct{}, 20)
	s := newServer(t, func(_ dns.ResponseWriter, m *dns.Msg) {
		started <- struct{}{}
		<-blocked
		mu.Lock()
		defer mu.Unlock()
		answered = append(answered, m.Question[0].Name)
	})
	socket, bounded := newSocket(t), s.process.places.NewQueue(3)
	before := valueOf(t, s.metrics.droppedOverload) // of the process
	var clients []netip.Addr
	for i := range 10 {
		r := query(t, s, socket, fmt.Sprintf("q%d.", i))
		r.Client = clientAddress(i)
		clients = append(clients, r.Client)
		r.handOver(new(batch.Batch), bounded)
		if i < 3 {
			<-started
		}
	}
	if got := valueOf(t, s.metrics.inFlight); got != 6 {
		t.Errorf("%v queries in flight, want 3 running and 3 waiting", got)
	}
	close(blocked)
	awaitIdle(t, bounded, s, clients...)
	slices.Sort(answered)
	if want := []string{"q0.", "q1.", "q2.", "q7.", "q8.", "q9."}; !slices.Equal(answered, want) {
		t.Errorf("answered %q, want %q", answered, want)
	}
	if got := valueOf(t, s.metrics.droppedOverload) - before; got != 4 {
		t.Errorf("%v dropped, want 4", got)
	}
	if got := valueOf(t, s.metrics.inFlight); got != 0 {
		t.Errorf("%v in flight at the end", got)
	}
}

// TestAnswerThatFitsNoDatagramIsTruncated queries an answer that is within the client's UDP size, and longer than a datagram.
func TestAnswerThatFitsNoDatagramIsTruncated(t *testing.T) {
	for _, tc := range []struct {
		last      int // length of the last text
		truncated bool
	}{{52, false}, {53, true}} { // 65,507 and 65,508 bytes
		b := newBed(t, false)
		s := newServer(t, func(w dns.ResponseWriter, m *dns.Msg) {
			reply := new(dns.Msg).SetReply(m)
			for _, length := range append(slices.Repeat([]int{255}, 245), tc.last) {
				header := dns.RR_Header{Name: ".", Rrtype: dns.TypeTXT, Class: dns.ClassINET}
				reply.Answer = append(reply.Answer, &dns.TXT{Hdr: header, Txt: []string{strings.Repeat("x", length)}})
			}
			if err := w.WriteMsg(reply); err != nil {
				t.Error(err)
			}
		})
		present := b.listener.server.Load()
		s.routes = present.routes
		b.listener.server.Store(s)
		m := new(dns.Msg).SetQuestion(".", dns.TypeTXT)
		m.SetEdns0(dns.MaxMsgSize, false)
		b.query(t, m)
		packed := make([]byte, dns.MaxMsgSize)
		kit.Must(t, b.client.SetReadDeadline(time.Now().Add(patience)))
		n, err := b.client.Read(packed)
		if err != nil {
			t.Fatal(err)
		}
		reply := kit.Unpack(t, packed[:n])
		if reply.Rcode != dns.RcodeSuccess || reply.Truncated != tc.truncated || len(reply.Answer) == 0 {
			t.Errorf("%d: %s, truncated %v, %d bytes with %d records", tc.last, dns.RcodeToString[reply.Rcode], reply.Truncated, n, len(reply.Answer))
		}
	}
}

// TestPanicEndsQuery has a plugin that panics; CoreDNS recovers, and the query releases its place and its server.
func TestPanicEndsQuery(t *testing.T) {
	s := newServer(t, func(dns.ResponseWriter, *dns.Msg) { panic("in a plugin") })
	queue := s.process.places.NewQueue(1)
	for range 3 {
		query(t, s, newSocket(t), "panic.").handOver(new(batch.Batch), queue)
	}
	awaitIdle(t, queue, s, netip.Addr{})
}

// awaitIdle waits until clients have no queries in a queue and a server has no references.
func awaitIdle(t *testing.T, queue *admission.Queue, s *server, clients ...netip.Addr) {
	t.Helper()
	kit.Eventually(t, "no queries and no references", func() bool {
		return s.references.Load() == 0 && !slices.ContainsFunc(clients, func(c netip.Addr) bool { return queue.InProgress(c) > 0 })
	})
}

// clientAddress returns the address of a client by its number.
func clientAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) // #nosec G115
}

// TestWaitingCost checks that a waiting query takes no more memory than admission.WaitingCost.
func TestWaitingCost(t *testing.T) {
	if size := unsafe.Sizeof(request{}) + datagramLen; size > admission.WaitingCost {
		t.Errorf("a query of %d bytes takes %d, more than %d", datagramLen, size, admission.WaitingCost)
	}
}

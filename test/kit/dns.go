package kit

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// QueryWait is the maximum time for the answer to a query.
const QueryWait = 5 * time.Second

// attempts bounds how often Serve looks for a port that is free over UDP and TCP.
const attempts = 20

// Serve starts a DNS server over UDP and TCP on one address, until the end of the test. Port 0 is a port that is free over both.
// It returns the address.
func Serve(t testing.TB, address string, handler dns.HandlerFunc) string {
	t.Helper()
	packets, streams := ListenBoth(t, address)
	for _, s := range []*dns.Server{{PacketConn: packets, Handler: handler}, {Listener: streams, Handler: handler}} {
		Run(t, s)
	}
	return packets.LocalAddr().String()
}

// Run runs a DNS server until the end of the test. It returns when the server is running.
func Run(t testing.TB, s *dns.Server) {
	t.Helper()
	started, ended := make(chan struct{}), make(chan error, 1)
	s.NotifyStartedFunc = func() { close(started) }
	go func() { ended <- s.ActivateAndServe() }()
	select {
	case <-started:
	case err := <-ended:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Shutdown() // it closes the socket; a test may have shut it down already
		<-ended
	})
}

// ListenBoth listens over UDP and TCP on one address. Port 0 is a port that is free over both.
func ListenBoth(t testing.TB, address string) (net.PacketConn, net.Listener) {
	t.Helper()
	var err error
	for range attempts {
		var packets net.PacketConn
		if packets, err = net.ListenPacket("udp", address); err != nil {
			break
		}
		var streams net.Listener
		if streams, err = net.Listen("tcp", packets.LocalAddr().String()); err == nil {
			return packets, streams
		}
		_ = packets.Close() // another program has the port over TCP
	}
	t.Fatal(err)
	return nil, nil
}

// Exchange sends a query over "udp", "tcp" or "tcp-tls" and reads its reply, without retries, within QueryWait.
func Exchange(network, address string, query *dns.Msg) (*dns.Msg, error) {
	client := dns.Client{Net: network, Timeout: QueryWait}
	reply, _, err := client.Exchange(query, address)
	return reply, err
}

// Ask is Exchange for a name and a type. Without a reply it ends the test.
func Ask(t testing.TB, network, address, name string, qtype uint16) *dns.Msg {
	t.Helper()
	reply, err := Exchange(network, address, new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype))
	if err != nil {
		t.Fatalf("%s of %s over %s: %v", dns.TypeToString[qtype], name, network, err)
	}
	return reply
}

// Pack returns a message in wire form.
func Pack(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	wire, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return wire
}

// Unpack returns the message of its wire form.
func Unpack(t testing.TB, wire []byte) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	if err := m.Unpack(wire); err != nil {
		t.Fatal(err)
	}
	return m
}

// Send writes to a connection.
func Send(t testing.TB, to io.Writer, data []byte) {
	t.Helper()
	if _, err := to.Write(data); err != nil {
		t.Fatal(err)
	}
}

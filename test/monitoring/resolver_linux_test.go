//go:build linux

package monitoring

import (
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// resolverServer stands for the resolvers of the node, with all names under example.com.
type resolverServer struct {
	// down makes it drop queries.
	down atomic.Bool
}

// delay is the maximum delay of an answer.
const delay = 20 * time.Millisecond

// startResolver starts the resolvers: one over UDP and TCP, one over UDP alone.
func startResolver(t *testing.T, in *netns.Namespace) *resolverServer {
	t.Helper()
	r := &resolverServer{}
	var servers []*dns.Server
	var listener net.Listener
	kit.Must(t, in.Do(func() error {
		for _, address := range []string{resolver, udpOnly} {
			packets, err := net.ListenPacket("udp", address+":53")
			if err != nil {
				return err
			}
			servers = append(servers, &dns.Server{PacketConn: packets, Handler: r})
		}
		var err error
		listener, err = net.Listen("tcp", resolver+":53")
		return err
	}))
	for _, s := range servers {
		kit.Run(t, s)
	}
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		r.accept(listener)
	}()
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		<-accepting
	})
	return r
}

// accept serves the connections of a listener until that is closed.
func (r *resolverServer) accept(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go r.serve(&dns.Conn{Conn: connection})
	}
}

// Limits of a connection over TCP, as those of dns.Server. That closes a connection while handlers use it, if they do not end with
// ServeDNS.
const (
	maxQueries = 128
	maxIdle    = 8 * time.Second
)

// serve answers the queries of a connection over TCP, and closes it.
func (r *resolverServer) serve(connection *dns.Conn) {
	var answers sync.WaitGroup
	for range maxQueries {
		if connection.SetReadDeadline(time.Now().Add(maxIdle)) != nil {
			break
		}
		query, err := connection.ReadMsg()
		if err != nil {
			break
		}
		if !r.down.Load() {
			answers.Go(func() { answerLate(connection, query) })
		}
	}
	answers.Wait()
	_ = connection.Close() // the client may have closed it
}

// ServeDNS implements dns.Handler, for queries over UDP.
func (r *resolverServer) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	if !r.down.Load() {
		go answerLate(w, query) // the next query does not wait for it
	}
}

// answerLate answers a query by a connection or a response writer. Names that begin with "short" have a TTL of a second; an answer
// to another question precedes the answer to a name that begins with "wrong".
func answerLate(w interface{ WriteMsg(*dns.Msg) error }, query *dns.Msg) {
	time.Sleep(rand.N(delay))
	name := query.Question[0].Name
	reply := new(dns.Msg).SetReply(query)
	header := dns.RR_Header{Name: name, Class: dns.ClassINET, Ttl: 300}
	switch {
	case strings.HasPrefix(name, "short"):
		header.Ttl = 1
	case strings.HasPrefix(name, "wrong"):
		wrong := reply.Copy()
		wrong.Question[0].Name = "another.example.com."
		if err := w.WriteMsg(wrong); err != nil {
			return // the client may have closed its socket
		}
	}
	switch q := query.Question[0].Qtype; {
	case !dns.IsSubDomain("example.com.", name):
		reply.Rcode = dns.RcodeNameError
	case strings.HasPrefix(name, "refused"):
		reply.Rcode = dns.RcodeServerFailure
	case q == dns.TypeA:
		header.Rrtype = dns.TypeA
		reply.Answer = []dns.RR{&dns.A{Hdr: header, A: net.IPv4(192, 0, 2, 1)}}
	case q == dns.TypeAAAA:
		header.Rrtype = dns.TypeAAAA
		reply.Answer = []dns.RR{&dns.AAAA{Hdr: header, AAAA: net.ParseIP("2001:db8::1")}}
	}
	if len(reply.Answer) == 0 {
		reply.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "example.com.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 30}, Ns: "ns.example.com.", Mbox: "host.example.com.", Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: 30}}
	}
	// An error means that the client has closed its socket.
	_ = w.WriteMsg(reply)
}

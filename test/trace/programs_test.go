package trace

import (
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/zipkin"
)

// tagName is the tag with the name of a question.
const tagName = "coredns.io/name"

// patience bounds all waits.
const patience = 30 * time.Second

// upstream answers A queries, except for names below none.example. A query for held.example is received and waits.
type upstream struct {
	address  string
	received chan struct{}
	release  chan struct{}
}

func startUpstream(t *testing.T) *upstream {
	t.Helper()
	u := &upstream{received: make(chan struct{}, 100), release: make(chan struct{})}
	u.address = kit.Serve(t, "127.0.0.1:0", func(w dns.ResponseWriter, q *dns.Msg) {
		m, name := new(dns.Msg).SetReply(q), q.Question[0].Name
		switch {
		case dns.IsSubDomain("none.example.", name):
			m.Rcode = dns.RcodeNameError
			m.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "none.example.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 60}, Ns: ".", Mbox: ".", Minttl: 60}}
		case name == "held.example.":
			u.received <- struct{}{}
			<-u.release
			fallthrough
		case q.Question[0].Qtype == dns.TypeA:
			m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.IPv4(192, 0, 2, 1)}}
		}
		if err := w.WriteMsg(m); err != nil {
			t.Logf("reply of the upstream: %v", err)
		}
	})
	return u
}

// dead returns an address on which no program answers.
func dead(t *testing.T) string {
	t.Helper()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(daemon.FreePort(t)))
}

// start starts a program with its Corefile, in which COLLECTOR is the collector and UPSTREAM the upstream.
func start(t *testing.T, program string, z *zipkin.Collector, u *upstream, corefile string, args ...string) *daemon.Process {
	t.Helper()
	return daemon.Start(t, program, strings.NewReplacer("COLLECTOR", z.Address(), "UPSTREAM", u.address).Replace(corefile), args...)
}

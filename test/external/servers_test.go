package external

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

func TestMain(m *testing.M) { kubeapi.Main(m) }

// server is a running DNS server.
type server struct {
	*daemon.Process
	name string
}

// pair is a variant, served by both servers.
type pair struct {
	*variant
	stock, ours server
}

// start starts both servers of a variant, until the end of the test.
func (v *variant) start(t *testing.T, api, outside string) *pair {
	t.Helper()
	stock := daemon.Start(t, controlplane.RequireBinary(t, "coredns"), v.corefileOf(false, api, outside))
	ours := daemon.Start(t, daemon.Program(t, "clusterdns"), v.corefileOf(true, api, outside))
	return &pair{v, server{stock, "CoreDNS"}, server{ours, "clusterdns"}}
}

// ask returns the reply to a question, over TCP if it is truncated over UDP.
func (s *server) ask(q dns.Question) (reply *dns.Msg, err error) {
	m := new(dns.Msg)
	m.Id, m.RecursionDesired, m.Question = dns.Id(), true, []dns.Question{q}
	m.SetEdns0(1232, false)
	client := dns.Client{Timeout: 10 * time.Second} // longer than CoreDNS waits for its own resolver
	if reply, _, err = client.Exchange(m, s.Addr); err == nil && reply.Truncated {
		client.Net = "tcp"
		reply, _, err = client.Exchange(m, s.Addr)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", s.name, q.String(), err)
	}
	return reply, nil
}

func question(name string, qtype uint16) dns.Question {
	return dns.Question{Name: name, Qtype: qtype, Qclass: dns.ClassINET}
}

// transfer requests a zone. A serial of 0 is for the whole zone.
func (s *server) transfer(zone string, serial uint32) (rcode int, records []dns.RR, err error) {
	m := new(dns.Msg).SetAxfr(zone)
	if serial != 0 {
		m.SetIxfr(zone, serial, "ns.", "mbox.")
	}
	conn, err := (&dns.Client{Net: "tcp", Timeout: 10 * time.Second}).Dial(s.Addr)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return 0, nil, err
	}
	if err := conn.WriteMsg(m); err != nil {
		return 0, nil, err
	}
	for {
		reply, err := conn.ReadMsg()
		if err != nil {
			return 0, nil, fmt.Errorf("transfer of %s from %s, after %d records: %w", zone, s.name, len(records), err)
		}
		records = append(records, reply.Answer...)
		if len(records) == 0 || reply.Rcode != dns.RcodeSuccess {
			return reply.Rcode, records, nil
		}
		if _, last := records[len(records)-1].(*dns.SOA); last && (len(records) > 1 || serial != 0) {
			return reply.Rcode, records, nil
		}
	}
}

// outsideName has addresses outside of the cluster, and so have all names that contain "lb". Others do not exist.
const outsideName = "lb"

// startOutside starts a resolver for names outside of the cluster.
func startOutside(t *testing.T) (address string) {
	t.Helper()
	return kit.Serve(t, "127.0.0.1:0", func(w dns.ResponseWriter, r *dns.Msg) {
		m := new(dns.Msg).SetReply(r)
		q := r.Question[0]
		h := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 600}
		switch lower := strings.ToLower(q.Name); {
		case !strings.Contains(lower, outsideName) || strings.Contains(lower, "arpa"):
			m.Rcode = dns.RcodeNameError
		case q.Qtype == dns.TypeA:
			m.Answer = []dns.RR{&dns.A{Hdr: h, A: net.IPv4(198, 51, 100, 1)}, &dns.A{Hdr: h, A: net.IPv4(198, 51, 100, 2)}}
		case q.Qtype == dns.TypeAAAA && strings.HasPrefix(lower, "lb."):
			m.Answer = []dns.RR{&dns.AAAA{Hdr: h, AAAA: net.ParseIP("2001:db8:51::1")}}
		}
		if len(m.Answer) == 0 {
			m.Ns = []dns.RR{&dns.SOA{
				Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 600},
				Ns:  "ns.outside.", Mbox: "root.outside.", Serial: 1, Refresh: 1, Retry: 1, Expire: 1, Minttl: 600,
			}}
		}
		_ = w.WriteMsg(m) // the server may have closed its socket
	})
}

// ownAddresses returns the addresses of the machine besides loopback, which both servers have as their own.
func ownAddresses(t *testing.T) (own []string) {
	t.Helper()
	all, err := net.InterfaceAddrs()
	kit.Must(t, err)
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			own = append(own, n.IP.String())
		}
	}
	return own
}

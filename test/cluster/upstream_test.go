//go:build linux

package cluster

import (
	"net"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// zone has the names of the host next to the node, which is the resolver of the node's configuration.
var zone = []string{
	"www.example.test. 60 IN A 198.51.100.7",
	"www.example.test. 60 IN AAAA 2001:db8::7",
	"alias.example.test. 60 IN CNAME www.example.test.",
	"7.100.51.198.in-addr.arpa. 60 IN PTR www.example.test.",
	"printer." + nodeSearch + ". 60 IN A 198.51.100.9",
	"large.example.test. 60 IN TXT " + strings.Repeat(`"`+strings.Repeat("x", 200)+`" `, 10),
	// Kubernetes' e2e suite queries these names of the Internet.
	"dns.google. 60 IN A 8.8.8.8",
	"8.8.8.8.in-addr.arpa. 60 IN PTR dns.google.",
}

// anyName is the zone in which every name has the address 198.51.100.8.
const anyName = "any.example.test."

// serverName is the zone in which every name has a TXT record: the address at which the resolver received the query.
const serverName = "server.example.test."

// startUpstream starts that resolver, on all its addresses, until the end of the test.
func (c *cluster) startUpstream(t *testing.T) {
	t.Helper()
	records := map[string][]dns.RR{}
	for _, text := range zone {
		record, err := dns.NewRR(text)
		kit.Must(t, err)
		owner := record.Header().Name
		records[owner] = append(records[owner], record)
	}
	for _, address := range []string{outsideIPv4, outsideIPv6} {
		c.Outside.Serve(t, net.JoinHostPort(address, "53"), func(w dns.ResponseWriter, query *dns.Msg) { answer(w, query, records) })
	}
}

// answer is the resolver's answer: the records of the zones, and NXDOMAIN for all other names.
func answer(w dns.ResponseWriter, query *dns.Msg, records map[string][]dns.RR) {
	reply := new(dns.Msg).SetReply(query)
	reply.RecursionAvailable = true
	question := query.Question[0]
	name := strings.ToLower(question.Name)
	for _, record := range records[name] {
		if kind := record.Header().Rrtype; kind == question.Qtype || kind == dns.TypeCNAME {
			reply.Answer = append(reply.Answer, record)
		}
		if record.Header().Rrtype == dns.TypeCNAME {
			for _, target := range records[record.(*dns.CNAME).Target] {
				if target.Header().Rrtype == question.Qtype {
					reply.Answer = append(reply.Answer, target)
				}
			}
		}
	}
	switch {
	case dns.IsSubDomain(anyName, name) && question.Qtype == dns.TypeA:
		reply.Answer = append(reply.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
			A:   net.IPv4(198, 51, 100, 8),
		})
	case dns.IsSubDomain(serverName, name) && question.Qtype == dns.TypeTXT:
		host, _, err := net.SplitHostPort(w.LocalAddr().String())
		if err != nil {
			host = err.Error()
		}
		reply.Answer = append(reply.Answer, &dns.TXT{
			Hdr: dns.RR_Header{Name: question.Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 60},
			Txt: []string{host},
		})
	case records[name] == nil:
		reply.Rcode = dns.RcodeNameError
	}
	if _, udp := w.LocalAddr().(*net.UDPAddr); udp {
		size := dns.MinMsgSize
		if options := query.IsEdns0(); options != nil {
			size = int(options.UDPSize())
		}
		reply.Truncate(size)
	}
	_ = w.WriteMsg(reply) // the client may have closed its socket
}

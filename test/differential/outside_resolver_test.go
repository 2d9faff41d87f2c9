package differential

import (
	"fmt"
	"hash/fnv"
	"net"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
)

// outsideNames are targets outside of the cluster, with every outcome of a lookup. The outcome of other names depends on
// their hash; see outsideReply.
var outsideNames = []string{
	"www.example.org.", "example.com.", "db.example.net.", "x.cluster.local.example.org.",
	"www.example.com.", "refused.example.org.", "big.example.org.", "localhost.",
}

// outsideReply is the outside resolver's reply. It depends only on the question, so that an answer for a name that fell
// through differs from one of the server itself.
func outsideReply(r *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(r)
	m.RecursionAvailable = true
	q := r.Question[0]
	header := func(name string, t uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: t, Class: dns.ClassINET, Ttl: 77}
	}
	v4 := func(name string, last byte) dns.RR {
		return &dns.A{Hdr: header(name, dns.TypeA), A: net.IPv4(198, 51, 100, last)}
	}
	address := func(name string, last byte) {
		switch q.Qtype {
		case dns.TypeA:
			m.Answer = append(m.Answer, v4(name, last))
		case dns.TypeAAAA:
			m.Answer = append(m.Answer, &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: net.ParseIP(fmt.Sprintf("2001:db8:e::%d", last))})
		}
	}
	switch name := strings.ToLower(q.Name); name {
	case "www.example.org.":
		address(q.Name, 10)
	case "example.com.":
		if q.Qtype == dns.TypeA {
			address(q.Name, 11)
		}
	case "db.example.net.":
		m.Answer = append(m.Answer, &dns.CNAME{Hdr: header(q.Name, dns.TypeCNAME), Target: "db-1.example.net."})
		address("db-1.example.net.", 12)
	case "x.cluster.local.example.org.":
		m.Rcode = dns.RcodeNameError
	case "www.example.com.":
		m.Rcode = dns.RcodeServerFailure
		return m
	case "refused.example.org.":
		m.Rcode = dns.RcodeRefused
		return m
	case "big.example.org.":
		if q.Qtype == dns.TypeA {
			for i := range 250 {
				m.Answer = append(m.Answer, v4(q.Name, byte(i)))
			}
		}
	default:
		h := fnv.New32a()
		h.Write([]byte(name))
		n := h.Sum32()
		switch {
		case n%2 == 0 || strings.Contains(name, markerNamespace):
			m.Rcode = dns.RcodeNameError
		case q.Qtype == dns.TypePTR:
			m.Answer = append(m.Answer, &dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: fmt.Sprintf("host-%d.example.org.", n%1000)})
		default:
			address(q.Name, byte(n>>8))
		}
	}
	if len(m.Answer) == 0 {
		m.Ns = append(m.Ns, &dns.SOA{
			Hdr: header("example.org.", dns.TypeSOA), Ns: "ns.example.org.", Mbox: "root.example.org.",
			Serial: 1, Refresh: 2, Retry: 3, Expire: 4, Minttl: 5,
		})
	}
	return m
}

// startOutside starts the resolver for names outside of the cluster and returns its address.
func startOutside(t *testing.T) string {
	t.Helper()
	return kit.Serve(t, "127.0.0.1:0", func(w dns.ResponseWriter, r *dns.Msg) {
		m := outsideReply(r)
		if opt := r.IsEdns0(); opt != nil {
			m.SetEdns0(dns.DefaultMsgSize, opt.Do())
		}
		if w.LocalAddr().Network() == "udp" {
			size := dns.MinMsgSize
			if opt := r.IsEdns0(); opt != nil {
				size = int(opt.UDPSize())
			}
			m.Truncate(size)
		}
		_ = w.WriteMsg(m) // the client may have closed its socket
	})
}

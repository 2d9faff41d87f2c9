//go:build linux

package fastpath

import (
	"net"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"
)

// answerApart is a server whose answer depends on the client subnet and on RD: without RD it refers the client to other
// servers, or fails for names below fail.test.
func answerApart(w dns.ResponseWriter, r *dns.Msg) {
	m := new(dns.Msg).SetReply(r)
	name := r.Question[0].Name
	header := func(rrtype uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: 300}
	}
	address := net.IPv4(192, 0, 2, 1)
	if opt := r.IsEdns0(); opt != nil {
		m.SetEdns0(1232, opt.Do())
		for _, o := range opt.Option {
			if subnet, ok := o.(*dns.EDNS0_SUBNET); ok {
				address = subnet.Address
				scoped := *subnet
				scoped.SourceScope = subnet.SourceNetmask
				m.IsEdns0().Option = []dns.EDNS0{&scoped}
			}
		}
	}
	switch {
	case r.RecursionDesired:
		m.Answer = []dns.RR{&dns.A{Hdr: header(dns.TypeA), A: address}}
	case dns.IsSubDomain("fail.test.", name):
		m.Rcode = dns.RcodeServerFailure
	default:
		m.Ns = []dns.RR{&dns.NS{Hdr: header(dns.TypeNS), Ns: "ns.test."}}
	}
	_ = w.WriteMsg(m) // the client may have closed its socket
}

// TestUnsharedAnswers has one client send a query whose answer is for it alone, and another one the ordinary query for the
// name, over UDP and TCP, in both orders. Each receives the upstream's answer to its own query.
func TestUnsharedAnswers(t *testing.T) {
	u := startUpstream(t, answerApart)
	subnet := func(address string) func(*dns.Msg) {
		return func(m *dns.Msg) {
			m.SetEdns0(1232, false)
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.ParseIP(address).To4()}}
		}
	}
	norec := func(m *dns.Msg) { m.RecursionDesired = false }
	ordinary := func(*dns.Msg) {}
	const (
		common = "192.0.2.1"
		here   = "198.51.100.0"
		there  = "203.0.113.0"
	)
	type step struct {
		change func(*dns.Msg)
		want   string // the address, or another part of the reply
	}
	s := start(t, "nodecache", strings.ReplaceAll(cacheBlock(u, "cache"), "FASTPATH", ""))
	for _, c := range []struct {
		name, below string
		steps       []step
	}{
		{"a client subnet first", "subnet.test.", []step{{subnet(here), here}, {subnet(there), there}, {ordinary, common}, {subnet(here), here}, {ordinary, common}}},
		{"a client subnet last", "last.test.", []step{{ordinary, common}, {ordinary, common}, {subnet(here), here}, {subnet(there), there}, {ordinary, common}}},
		{"a referral", "refer.test.", []step{{norec, "NS"}, {ordinary, common}, {norec, common}, {ordinary, common}}},
		{"a failure", "fail.test.", []step{{norec, "SERVFAIL"}, {ordinary, common}, {norec, common}, {ordinary, common}}},
	} {
		for _, networks := range [][2]string{{"udp", "udp"}, {"udp", "tcp"}, {"tcp", "udp"}} {
			t.Run(c.name+", "+networks[0]+" and "+networks[1], func(t *testing.T) {
				clients := []*wire{dial(t, networks[0], "127.0.0.1", s), dial(t, networks[1], "127.0.0.1", s)}
				for i, step := range c.steps {
					q := newQuery(networks[0]+networks[1]+"."+c.below, dns.TypeA)
					step.change(q)
					m := new(dns.Msg)
					kit.Must(t, m.Unpack(clients[i%2].ask(t, pack(t, q))))
					if got := seenIn(m); got != step.want || m.RecursionDesired != q.RecursionDesired || m.Id != q.Id {
						t.Errorf("step %d: got %s, want %s, in\n%v", i, got, step.want, m)
					}
				}
			})
		}
	}
}

// seenIn returns the address in a reply, or else the type of the first record of its authority section, or its code.
func seenIn(m *dns.Msg) string {
	for _, rr := range m.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String()
		}
	}
	for _, rr := range m.Ns {
		return dns.TypeToString[rr.Header().Rrtype]
	}
	return dns.RcodeToString[m.Rcode]
}

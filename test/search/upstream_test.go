//go:build linux

package search

import (
	"net"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// The zones of the upstream.
const (
	outside = "outside.example." // of the internet
	corp    = "corp.example."    // in the search list of the nodes
	extra   = "extra.example."   // in the search list of some pods
)

// ttl is the TTL of the upstream's records and denials, in seconds.
const ttl = 60

// data are the upstream's records of a name, or its response code.
type data struct {
	v4, v6, alias string
	rcode         int
}

// upstreamNames are the data of the upstream by zone and name; the entry KIND is also that of all names KIND-N.
var upstreamNames = map[string]map[string]data{
	outside: {
		"both":   {v4: "192.0.2.1", v6: "2001:db8::1"},
		"four":   {v4: "192.0.2.2"},
		"six":    {v6: "2001:db8::2"},
		"alias":  {alias: "target-0." + outside},
		"target": {v4: "192.0.2.3", v6: "2001:db8::3"},
		"empty":  {},
		"fails":  {rcode: dns.RcodeServerFailure},
	},
	corp:  {"intra": {v4: "192.0.2.11", v6: "2001:db8::11"}, "shop": {v4: "192.0.2.12"}},
	extra: {"only": {v4: "192.0.2.21", v6: "2001:db8::21"}, "intra": {v4: "192.0.2.22", v6: "2001:db8::22"}},
	".":   {"web.bank": {v4: "192.0.2.31"}, "bare": {v4: "192.0.2.32"}},
}

// upstream is the resolver of the nodes.
type upstream struct{ recorded }

// startUpstream starts the upstream on an address of a namespace, until the end of the test.
func startUpstream(t *testing.T, in *netns.Namespace, address string) *upstream {
	t.Helper()
	u := &upstream{}
	packets, streams := in.ListenBoth(t, net.JoinHostPort(address, "53"))
	kit.Run(t, &dns.Server{PacketConn: packets, Handler: u})
	kit.Run(t, &dns.Server{Listener: streams, Handler: u, MaxTCPQueries: -1})
	return u
}

// ServeDNS implements dns.Handler.
func (u *upstream) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	q := r.Question[0]
	u.add(query{network: w.LocalAddr().Network(), name: strings.ToLower(q.Name), qtype: dns.TypeToString[q.Qtype]})
	reply := answer(q)
	reply.SetRcode(r, reply.Rcode)
	reply.RecursionAvailable = true
	packed, err := reply.Pack()
	if err != nil {
		panic(err) // the records above are wrong
	}
	_, _ = w.Write(packed) // the client may have closed its socket
}

// answer returns the sections and the response code of a reply.
func answer(q dns.Question) *dns.Msg {
	m := new(dns.Msg)
	zone, d, found := find(q.Name)
	if !found {
		m.Rcode = dns.RcodeNameError
	}
	if d.rcode != 0 {
		m.Rcode = d.rcode
		return m
	}
	owner := q.Name
	if d.alias != "" {
		m.Answer = append(m.Answer, &dns.CNAME{Hdr: header(owner, dns.TypeCNAME), Target: d.alias})
		owner = d.alias
		_, d, _ = find(owner)
	}
	switch {
	case q.Qtype == dns.TypeA && d.v4 != "":
		m.Answer = append(m.Answer, &dns.A{Hdr: header(owner, dns.TypeA), A: net.ParseIP(d.v4)})
	case q.Qtype == dns.TypeAAAA && d.v6 != "":
		m.Answer = append(m.Answer, &dns.AAAA{Hdr: header(owner, dns.TypeAAAA), AAAA: net.ParseIP(d.v6)})
	default:
		m.Ns = []dns.RR{&dns.SOA{Hdr: header(zone, dns.TypeSOA), Ns: "ns.invalid.", Mbox: "hostmaster.invalid.", Serial: 1, Refresh: 3600, Retry: 600, Expire: 86400, Minttl: ttl}}
	}
	return m
}

func header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: ttl}
}

// find returns the zone of a name and its data.
func find(name string) (zone string, d data, found bool) {
	name, zone = strings.ToLower(name), "."
	for z := range upstreamNames {
		if z != "." && dns.IsSubDomain(z, name) {
			zone = z
		}
	}
	kind := strings.TrimSuffix(strings.TrimSuffix(name, zone), ".")
	if before, _, numbered := strings.Cut(kind, "-"); numbered {
		kind = before
	}
	d, found = upstreamNames[zone][kind]
	return zone, d, found || kind == ""
}

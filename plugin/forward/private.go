package forward

import (
	"net"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// privateNames is the value of the option private_names.
type privateNames int

const (
	forwardPrivate privateNames = iota
	refusePrivate
	denyPrivate // nxdomain
)

// localZone is a zone that resolvers answer themselves, according to the registries "Special-Use Domain Names" (RFC 6761) and
// "Locally-Served DNS Zones" (RFC 6303).
type localZone struct {
	name     string // normalized
	kind     string // leakReverse or leakSpecial
	allNames bool   // every name in the zone exists
	loopback bool   // every name has the loopback addresses
}

// localZones are the zones of the registries that a forwarder should answer itself. The other ones have to be forwarded, such as
// ipv4only.arpa (RFC 8880), or are not special to resolvers, such as example and alt.
var localZones = newLocalZones()

func newLocalZones() (all []localZone) {
	for _, name := range []string{
		"test.", "invalid.", // RFC 6761 sections 6.2 and 6.4
		"local.",     // RFC 6762 section 22.1
		"onion.",     // RFC 7686 section 2
		"home.arpa.", // RFC 8375 section 5
	} {
		all = append(all, localZone{name: name, kind: leakSpecial})
	}
	all = append(all,
		localZone{name: "localhost.", kind: leakSpecial, allNames: true, loopback: true}, // RFC 6761 section 6.3
		localZone{name: "resolver.arpa.", kind: leakSpecial, allNames: true},             // RFC 9462 section 4: NODATA
	)
	for _, name := range localReverseZones() {
		all = append(all, localZone{name: name, kind: leakReverse})
	}
	return all
}

// localReverseZones returns the zones of RFC 6303 section 4 and RFC 7793 section 4.
func localReverseZones() (all []string) {
	for _, network := range []string{"10", "168.192", "0", "127", "254.169", "2.0.192", "100.51.198", "113.0.203", "255.255.255.255"} {
		all = append(all, network+".in-addr.arpa.")
	}
	for second := 16; second < 32; second++ { // 172.16.0.0/12
		all = append(all, strconv.Itoa(second)+".172.in-addr.arpa.")
	}
	for second := 64; second < 128; second++ { // 100.64.0.0/10
		all = append(all, strconv.Itoa(second)+".100.in-addr.arpa.")
	}
	zeros := strings.Repeat("0.", 31)
	for _, network := range []string{"0." + zeros, "1." + zeros, "d.f.", "8.e.f.", "9.e.f.", "a.e.f.", "b.e.f.", "8.b.d.0.1.0.0.2."} {
		all = append(all, network+"ip6.arpa.")
	}
	return all
}

// localZone returns the zone that answers queries for a name in wire form, nil if they are forwarded.
func (f *Forward) localZone(name []byte, qtype uint16) *localZone {
	if f.private == forwardPrivate || f.names == nil {
		return nil
	}
	_, local := f.names.classify(name, qtype)
	return local
}

// localZoneOf is localZone for a query of the plugin chain.
func (f *Forward) localZoneOf(r *dns.Msg) *localZone {
	if f.private == forwardPrivate {
		return nil
	}
	var name [wire.MaxName + 1]byte
	q := &r.Question[0]
	if _, err := dns.PackDomainName(q.Name, name[:], 0, nil, false); err != nil {
		return nil
	}
	return f.localZone(name[:], q.Qtype)
}

// Fields of the SOA record, RFC 6303 section 3.
const (
	localTTL     = 10800
	localMailbox = "nobody.invalid."
)

// refuses reports whether a query gets REFUSED and not an answer of the zone.
func (p privateNames) refuses(q *dns.Question) bool {
	return p == refusePrivate || q.Qclass != dns.ClassINET || isTransfer(q.Qtype)
}

// reply returns the reply to a query for a name in the zone.
func (z *localZone) reply(r *dns.Msg, p privateNames) *dns.Msg {
	m := new(dns.Msg).SetReply(r)
	m.RecursionAvailable = true
	q := &r.Question[0]
	if p.refuses(q) {
		m.Rcode = dns.RcodeRefused
		return m
	}
	m.Authoritative = true
	soa := &dns.SOA{
		Hdr: z.header(z.name, dns.TypeSOA), Ns: z.name, Mbox: localMailbox,
		Serial: 1, Refresh: 3600, Retry: 1200, Expire: 604800, Minttl: localTTL,
	}
	apex := strings.EqualFold(q.Name, z.name)
	for _, rr := range z.records(q.Name, apex, soa) {
		if q.Qtype == rr.Header().Rrtype || q.Qtype == dns.TypeANY {
			m.Answer = append(m.Answer, rr)
		}
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{soa}
	}
	if !apex && !z.allNames {
		m.Rcode = dns.RcodeNameError
	}
	return m
}

// records returns the records of a name in the zone.
func (z *localZone) records(name string, apex bool, soa dns.RR) (all []dns.RR) {
	if apex {
		all = append(all, soa, &dns.NS{Hdr: z.header(name, dns.TypeNS), Ns: z.name})
	}
	if z.loopback {
		all = append(all,
			&dns.A{Hdr: z.header(name, dns.TypeA), A: net.IPv4(127, 0, 0, 1)},
			&dns.AAAA{Hdr: z.header(name, dns.TypeAAAA), AAAA: net.IPv6loopback})
	}
	return all
}

func (z *localZone) header(name string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: rrtype, Class: dns.ClassINET, Ttl: localTTL}
}

package kubernetes

import (
	"net"
	"net/netip"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Fields of the SOA record in seconds, as in CoreDNS.
const (
	soaRefresh = 7200
	soaRetry   = 1800
	soaExpire  = 86400
	soaMaxTTL  = 300
)

// soa returns the SOA record of a zone. The serial is the Unix time of the last change.
func (k *Kubernetes) soa(zone string) *dns.SOA {
	return &dns.SOA{
		Hdr:     dns.RR_Header{Name: zone, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: min(k.ttl, soaMaxTTL)},
		Ns:      dnsutil.Join("ns.dns", zone),
		Mbox:    dnsutil.Join("hostmaster", zone),
		Serial:  k.serial(),
		Refresh: soaRefresh,
		Retry:   soaRetry,
		Expire:  soaExpire,
		Minttl:  k.ttl,
	}
}

// deny adds the SOA record to a negative answer. If queries wait for the name, its TTL is 0: no cache may repeat the answer to
// a query that has not waited (RFC 2308 section 5).
func (k *Kubernetes) deny(m *dns.Msg, zone string, waits bool) {
	if len(m.Answer) > 0 {
		return
	}
	soa := k.soa(zone)
	if waits {
		soa.Hdr.Ttl, soa.Minttl = 0, 0
	}
	m.Ns = []dns.RR{soa}
}

func (k *Kubernetes) serial() uint32 { return uint32(k.index.Modified()) } // #nosec G115 -- serials wrap, RFC 1982

// nameServerAddr is a name of this server with one of its addresses.
type nameServerAddr struct {
	name string
	addr netip.Addr
}

// nameServers returns the names of this server in a zone: those of the Services with an endpoint at one of its addresses, or
// ns.dns with its own addresses if there is none. In reverse zones and zones of a clusterset, which have no Services, the
// names are in the first zone with Services.
func (k *Kubernetes) nameServers(zone string) (all []nameServerAddr) {
	servicesIn := zone
	if isReverse(zone) || k.isClusterset(zone) {
		servicesIn = k.primaryZone
	}
	seen := set[nameServerAddr]{}
	add := func(name string, a netip.Addr) {
		if ns := (nameServerAddr{name, a}); seen.add(ns) {
			all = append(all, ns)
		}
	}
	for _, ip := range k.localIPs {
		if servicesIn == "" {
			break
		}
		for _, sl := range k.index.SlicesByIP(ip) {
			e := k.index.Service(sl.Namespace, sl.Service)
			if e == nil || !k.exposes(sl.Namespace) {
				continue
			}
			name := serviceName(e.Service, servicesIn)
			if e.Service.Kind == index.Headless {
				for e := range sl.All() {
					add(e.Label()+"."+name, e.Addr)
				}
			}
			for _, a := range e.Service.IPs {
				add(name, a)
			}
		}
	}
	if len(all) == 0 {
		for _, ip := range k.localIPs {
			add(dnsutil.Join("ns.dns", zone), ip)
		}
	}
	return all
}

// nsRecords returns the NS records of a zone and the addresses of their targets.
func (k *Kubernetes) nsRecords(zone string) (records, extra []dns.RR) {
	seen := set[string]{}
	for _, ns := range k.nameServers(zone) {
		if seen.add(ns.name) {
			records = append(records, &dns.NS{Hdr: k.header(zone, dns.TypeNS), Ns: ns.name})
		}
		extra = append(extra, addressRecord(k.header(ns.name, addressType(ns.addr)), ns.addr))
	}
	return records, extra
}

// boundIPs returns the addresses that the server listens on, without loopback: those of plugin bind, or else all addresses
// of the machine.
func boundIPs(c *caddy.Controller) (ips []netip.Addr) {
	hosts := dnsserver.GetConfig(c).ListenHosts
	if len(hosts) == 0 || hosts[0] == "" {
		hosts = nil
		addrs, err := net.InterfaceAddrs()
		if err != nil {
			log.Warningf("listing the machine's addresses failed: zones have no NS records: %v", err)
		}
		for _, a := range addrs {
			hosts = append(hosts, a.String())
		}
	}
	for _, h := range hosts {
		a, err := netip.ParseAddr(h)
		if prefix, perr := netip.ParsePrefix(h); err != nil && perr == nil {
			a, err = prefix.Addr(), nil
		}
		if err == nil && !a.IsLoopback() && !a.IsUnspecified() {
			ips = append(ips, a.WithZone("").Unmap())
		}
	}
	return ips
}

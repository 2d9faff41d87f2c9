package differential

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// transferred is a record in only one of the two copies of a zone.
type transferred struct {
	*pair
	c         *cluster
	zone      string
	rr        dns.RR
	fromStock bool
	own       []dns.RR // the copy with the record
	others    []dns.RR // the other copy
}

// allowedInTransfer is a record that is intended to be in one copy only.
type allowedInTransfer struct {
	name     string
	reason   string
	seldom   func(*run) bool
	explains func(*transferred) bool
}

// transferTable returns all intended differences of zone transfers.
func transferTable() []allowedInTransfer {
	return append(importTransfers(), []allowedInTransfer{
		{
			name:   "AXFR of a reverse zone",
			reason: "a reverse zone has PTR records. CoreDNS transfers names of Services below it, which it does not answer",
			explains: func(d *transferred) bool {
				_, isPTR := d.rr.(*dns.PTR)
				return isReverse(d.zone) && (isPTR && !d.fromStock || d.fromStock && d.below("svc"))
			},
		},
		{
			name:   "AXFR, name servers and their addresses",
			reason: "NS records and addresses of ns.dns are those in answers to queries. CoreDNS has them as glue with a TTL of 0",
			explains: func(d *transferred) bool {
				switch d.rr.Header().Rrtype {
				case dns.TypeNS:
					return true
				case dns.TypeA, dns.TypeAAAA:
					return d.rr.Header().Name == fullName(d.zone, "ns.dns") || d.fromStock && d.rr.Header().Ttl == 0 && d.isServer()
				}
				return false
			},
		},
		{
			name:   "AXFR, weight of SRV",
			reason: "SRV records are those in answers to queries. CoreDNS computes other weights for transfers",
			explains: func(d *transferred) bool {
				srv, ok := d.rr.(*dns.SRV)
				return ok && d.otherHas(func(rr dns.RR) { rr.(*dns.SRV).Weight = srv.Weight })
			},
		},
		{
			name:   "AXFR, SRV of a headless Service",
			reason: "SRV records are those in answers to queries: also at the Service's own name",
			explains: func(d *transferred) bool {
				s, below := d.service()
				imp, _ := d.serviceImport()
				return !d.fromStock && d.rr.Header().Rrtype == dns.TypeSRV && len(below) == 0 &&
					(s != nil && isHeadless(s) || imp != nil && imp.Spec.Type == mcsv1beta1.Headless)
			},
		},
		{
			name:   "AXFR, SRV of a port without a number",
			reason: "a Service without ports has no SRV records. CoreDNS makes one of port -1, which is 65535",
			explains: func(d *transferred) bool {
				s, _ := d.service()
				imp, _ := d.serviceImport()
				srv, ok := d.rr.(*dns.SRV)
				return ok && d.fromStock && srv.Port == 65535 &&
					(s != nil && (len(s.Spec.Ports) == 0 || numberless(d.c.slicesOf(s.Namespace, s.Name))) ||
						imp != nil && numberless(d.c.importedOf(imp.Namespace, imp.Name)))
			},
		},
		{
			name:   "AXFR, EndpointSlices of names",
			reason: "see EndpointSlices of names: CoreDNS transfers SRV records without a target",
			explains: func(d *transferred) bool {
				s, _ := d.service()
				imp, _ := d.serviceImport()
				srv, ok := d.rr.(*dns.SRV)
				names := func(endpoints []*discoveryv1.EndpointSlice) bool {
					return slices.ContainsFunc(addresses(endpoints), address.isName)
				}
				return ok && d.fromStock && srv.Target == "." &&
					(s != nil && names(d.c.slicesOf(s.Namespace, s.Name)) || imp != nil && names(d.c.importedOf(imp.Namespace, imp.Name)))
			},
		},
		{
			name:   "AXFR with ignore empty_service",
			reason: "a name without an answer is not transferred",
			explains: func(d *transferred) bool {
				s, _ := d.service()
				imp, _ := d.serviceImport()
				empty := func(endpoints []*discoveryv1.EndpointSlice) bool {
					return !slices.ContainsFunc(addresses(endpoints), address.isIP)
				}
				return d.fromStock && d.ignoreEmpty &&
					(s != nil && len(clusterIPs(s)) > 0 && empty(d.c.slicesOf(s.Namespace, s.Name)) ||
						imp != nil && len(imp.Spec.IPs) > 0 && empty(d.c.importedOf(imp.Namespace, imp.Name)))
			},
		},
		{
			name:   "AXFR, names of endpoints",
			reason: "see endpoint's name of an address in a form that is not the shortest, and of a pod whose name is not one label",
			explains: func(d *transferred) bool {
				names := []string{d.rr.Header().Name}
				if srv, ok := d.rr.(*dns.SRV); ok {
					names = append(names, srv.Target)
				}
				for _, a := range d.c.pools.endpoints {
					was, is := naming{}.label(a, d.podNames), naming{canonical: true, oneLabel: true}.label(a, d.podNames)
					if d.fromStock {
						was, is = is, was
					}
					if was != is && slices.Contains(names, fullName(d.zone, is, serviceOf(a.slice), a.slice.Namespace, "svc")) {
						return true
					}
				}
				return false
			},
		},
	}...)
}

// below reports whether the record's name is below a label that is below the zone.
func (d *transferred) below(label string) bool {
	return dns.IsSubDomain(fullName(d.zone, label), d.rr.Header().Name)
}

// service returns the Service of the record's name, and the labels left of it.
func (d *transferred) service() (*corev1.Service, []string) {
	labels := labelsBelow(d.zone, d.rr.Header().Name)
	if len(labels) < 3 || labels[0] != "svc" {
		return nil, nil
	}
	if d.isClusterset(d.zone) {
		return nil, labels[3:]
	}
	return d.c.service(labels[1], labels[2]), labels[3:]
}

// serviceImport returns the same of a ServiceImport, in a zone of a clusterset.
func (d *transferred) serviceImport() (*mcsv1beta1.ServiceImport, []string) {
	labels := labelsBelow(d.zone, d.rr.Header().Name)
	if len(labels) < 3 || labels[0] != "svc" || !d.isClusterset(d.zone) {
		return nil, nil
	}
	return d.c.serviceImport(labels[1], labels[2]), labels[3:]
}

// isServer reports whether the record's name is a name server's.
func (d *transferred) isServer() bool {
	return slices.ContainsFunc(d.own, func(rr dns.RR) bool {
		ns, ok := rr.(*dns.NS)
		return ok && ns.Ns == d.rr.Header().Name
	})
}

// otherHas reports whether the other copy has the record after a change.
func (d *transferred) otherHas(change func(dns.RR)) bool {
	return slices.ContainsFunc(d.others, func(rr dns.RR) bool {
		if rr.Header().Rrtype != d.rr.Header().Rrtype || rr.Header().Name != d.rr.Header().Name {
			return false
		}
		rr = dns.Copy(rr)
		change(rr)
		return rr.String() == d.rr.String()
	})
}

// numberless reports whether endpoints have ports without numbers.
func numberless(in []*discoveryv1.EndpointSlice) bool {
	return slices.ContainsFunc(in, func(s *discoveryv1.EndpointSlice) bool {
		return slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool { return p.Port == nil })
	})
}

// compareZone compares two copies of a zone and returns the names of the differences, and the records without an
// explanation.
func (p *pair) compareZone(c *cluster, zone string, stock, ours []dns.RR) (names []string, unexplained []string) {
	table := transferTable()
	one := func(from, others []dns.RR, fromStock bool) {
		known := map[string]bool{}
		for _, text := range recordSet(others) {
			known[text] = true
		}
		for _, rr := range from {
			if known[recordSet([]dns.RR{rr})[0]] {
				continue
			}
			d := &transferred{p, c, zone, rr, fromStock, from, others}
			at := slices.IndexFunc(table, func(a allowedInTransfer) bool { return a.explains(d) })
			if at < 0 {
				unexplained = append(unexplained, fmt.Sprintf("only from %s: %v", map[bool]string{true: "CoreDNS", false: "clusterdns"}[fromStock], rr))
				continue
			}
			names = append(names, table[at].name)
		}
	}
	one(stock, ours, true)
	one(ours, stock, false)
	return names, unexplained
}

// transfer requests a whole zone, or with a serial the changes since. It returns the code of the reply and the records.
func (s *server) transfer(zone string, serial uint32) (rcode int, records []dns.RR, err error) {
	conn, err := net.DialTimeout("tcp", s.address, patient.timeout)
	if err != nil {
		return 0, nil, err
	}
	c := &dns.Conn{Conn: conn}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return 0, nil, err
	}
	m := new(dns.Msg)
	m.SetAxfr(zone)
	if serial != 0 {
		m.SetIxfr(zone, serial, "ns.", "mbox.")
	}
	if err := c.WriteMsg(m); err != nil {
		return 0, nil, err
	}
	for {
		reply, err := c.ReadMsg()
		if err != nil {
			return 0, nil, fmt.Errorf("transfer of %s from %s, after %d records: %w", zone, s.name, len(records), err)
		}
		records = append(records, reply.Answer...)
		n := len(records)
		if reply.Rcode != dns.RcodeSuccess || n == 0 {
			return reply.Rcode, records, nil
		}
		if _, last := records[n-1].(*dns.SOA); last {
			return reply.Rcode, records, nil
		}
	}
}

// compareTransfers compares whole zones of both servers, and ours with its answers to queries.
func (r *run) compareTransfers(p *pair, c *cluster, a asker, where string) error {
	zones := []string{p.primary(), pick(a.Rand, p.zones)}
	if len(p.clustersets) > 0 {
		zones[0] = pick(a.Rand, p.clustersets)
	}
	for _, zone := range zones {
		stockCode, stock, err := p.stock.transfer(zone, 0)
		if err != nil {
			return err
		}
		ourCode, ours, err := p.ours.transfer(zone, 0)
		if err != nil {
			return err
		}
		if zone == "." && stockCode == dns.RcodeServerFailure && ourCode == dns.RcodeSuccess {
			r.found([]string{rootTransfer}, nil)
			continue
		}
		if stockCode != ourCode {
			r.found(nil, func() string {
				return fmt.Sprintf("%s: AXFR of %s: %s from CoreDNS, %s from clusterdns", where, zone, dns.RcodeToString[stockCode], dns.RcodeToString[ourCode])
			})
			continue
		}
		if ourCode != dns.RcodeSuccess {
			continue
		}
		names, unexplained := p.compareZone(c, zone, stock, ours)
		unexplained = append(unexplained, p.checkRecords(a, zone, ours)...)
		if len(unexplained) > 0 {
			names = nil
		}
		if len(names)+len(unexplained) > 0 {
			r.found(names, func() string {
				return fmt.Sprintf("%s: AXFR of %s\n%s", where, zone, strings.Join(unexplained, "\n"))
			})
		}
		if err := r.compareIncremental(p, zone, stock, ours, where); err != nil {
			return err
		}
	}
	return nil
}

// checkRecords queries our server for some of the records of a zone, which must be the same in answers.
func (p *pair) checkRecords(a asker, zone string, records []dns.RR) (wrong []string) {
	type key struct {
		name  string
		qtype uint16
	}
	sets := map[key][]dns.RR{}
	var keys []key
	for _, rr := range records {
		if p.zoneOf(rr.Header().Name) != zone {
			continue // it belongs to a zone below
		}
		k := key{rr.Header().Name, rr.Header().Rrtype}
		if sets[k] == nil {
			keys = append(keys, k)
		}
		sets[k] = append(sets[k], rr)
	}
	some := []key{{zone, dns.TypeNS}, {fullName(zone, "ns.dns"), dns.TypeA}, {fullName(zone, "ns.dns"), dns.TypeAAAA}}
	for range min(30, len(keys)) {
		some = append(some, pick(a.Rand, keys))
	}
	for _, k := range some {
		reply := p.askOurs(a.c, question{name: k.name, qtype: k.qtype, tcp: true})
		if want := asText(sets[k]); reply.sections[0] != want {
			wrong = append(wrong, fmt.Sprintf("transferred:\n%s\nasked for:\n%s", want, reply.dig()))
		}
	}
	if !isReverse(zone) {
		return wrong
	}
	// The comparison with CoreDNS does not find records missing in a reverse zone, as its records differ.
	for range 30 {
		name, err := dns.ReverseAddr(pick(a.Rand, a.p.ips))
		if err != nil || p.zoneOf(name) != zone {
			continue
		}
		reply := p.askOurs(a.c, question{name: name, qtype: dns.TypePTR, tcp: true})
		if got := asText(sets[key{name, dns.TypePTR}]); reply.has(dns.TypePTR) && reply.reply.Authoritative && got != reply.sections[0] {
			wrong = append(wrong, fmt.Sprintf("asked for:\n%s\ntransferred:\n%s", reply.dig(), got))
		}
	}
	return wrong
}

// wholeTransfers are differences that are not of one record.
var wholeTransfers = []entry{
	{
		name:   rootTransfer,
		reason: "the root zone can be a cluster's. CoreDNS makes names of it that cannot be written",
	},
	{
		name:   newerSerial,
		reason: "RFC 1995 2: a client that has the same serial or a newer one gets a lone SOA. CoreDNS sends the whole zone for a newer one",
	},
}

const (
	rootTransfer = "AXFR of the root zone"
	newerSerial  = "IXFR from a newer serial"
)

// compareIncremental requests the changes since now, since long ago, and since the future.
func (r *run) compareIncremental(p *pair, zone string, stock, ours []dns.RR, where string) error {
	for _, s := range []struct {
		name   string
		server *server
		whole  []dns.RR
	}{{"CoreDNS", p.stock, stock}, {"clusterdns", p.ours, ours}} {
		soa, ok := s.whole[0].(*dns.SOA)
		if !ok {
			r.found(nil, func() string {
				return fmt.Sprintf("%s: AXFR of %s from %s begins with %v", where, zone, s.name, s.whole[0])
			})
			continue
		}
		for _, ixfr := range []struct {
			since string
			from  uint32
			want  int
		}{{"now", soa.Serial, 1}, {"long ago", 1, len(s.whole)}, {"the future", soa.Serial + 1000, 1}} {
			_, got, err := s.server.transfer(zone, ixfr.from)
			if err != nil {
				return err
			}
			switch {
			case len(got) == ixfr.want:
			case s.server == p.stock && ixfr.since == "the future" && len(got) == len(s.whole):
				r.found([]string{newerSerial}, nil)
			default:
				r.found(nil, func() string {
					return fmt.Sprintf("%s: IXFR of %s since %s from %s: %d records, AXFR has %d", where, zone, ixfr.since, s.name, len(got), len(s.whole))
				})
			}
		}
	}
	return nil
}

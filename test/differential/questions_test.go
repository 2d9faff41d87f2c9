package differential

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// question is one question and the form of its query.
type question struct {
	name  string // fully qualified
	qtype uint16
	tcp   bool
}

func (q question) String() string {
	transport := "udp"
	if q.tcp {
		transport = "tcp"
	}
	return fmt.Sprintf("%s %s %s", q.name, dns.Type(q.qtype), transport)
}

func (q question) message() *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(q.name, q.qtype)
	m.SetEdns0(4096, false)
	return m
}

// pools are the parts of names: those of the cluster's objects.
type pools struct {
	services   []*corev1.Service
	endpoints  []address // except those of imports alone
	imported   []address
	byIP       map[netip.Addr][]address
	bySlice    map[*discoveryv1.EndpointSlice][]address
	ips        []string // of anything
	podIPs     []podIP
	namespaces []string
	zones      []string // topology zones
	labels     []string
}

type podIP struct{ namespace, ip string }

func (c *cluster) makePools() (p pools) {
	p.services = c.services
	p.imported = addresses(c.imported)
	p.byIP, p.bySlice = map[netip.Addr][]address{}, map[*discoveryv1.EndpointSlice][]address{}
	for _, e := range addresses(c.slices) {
		if ofService(e.slice) {
			p.endpoints = append(p.endpoints, e)
		}
		p.bySlice[e.slice] = append(p.bySlice[e.slice], e)
		if ip, err := netip.ParseAddr(e.text); err == nil {
			p.byIP[ip] = append(p.byIP[ip], e)
		}
	}
	zones := map[string]bool{"nowhere": true, "a.b.c": true}
	for _, s := range c.services {
		p.ips = append(append(p.ips, clusterIPs(s)...), s.Spec.ExternalIPs...)
	}
	seen := c.slices
	if len(c.variant.clustersets) > 0 {
		seen = append(slices.Clone(seen), c.imported...)
		for _, s := range c.imports {
			p.ips = append(p.ips, s.Spec.IPs...)
		}
	}
	for _, s := range seen {
		if !ofService(s) && len(c.variant.clustersets) == 0 {
			continue
		}
		for i := range s.Endpoints { // the unready as well
			p.ips = append(p.ips, s.Endpoints[i].Addresses...)
			if z := s.Endpoints[i].Zone; z != nil {
				zones[*z] = true
			}
		}
	}
	for _, pod := range c.pods {
		for _, ip := range pod.Status.PodIPs {
			p.ips = append(p.ips, ip.IP)
			p.podIPs = append(p.podIPs, podIP{pod.Namespace, ip.IP})
		}
	}
	for _, a := range c.own {
		p.ips = append(p.ips, a.String())
	}
	p.ips = append(p.ips, "10.0.0.255", "10.1.0.0", "fd00:1::ffff", "203.0.113.9", "127.0.0.1", "::1", "10.0.0.1", "fd00:10::1")
	p.ips = slices.DeleteFunc(p.ips, func(ip string) bool {
		_, err := netip.ParseAddr(ip)
		return err != nil
	})
	for ns := range c.namespaces {
		p.namespaces = append(p.namespaces, ns)
	}
	p.namespaces = append(p.namespaces, "missing", "ns-b")
	slices.Sort(p.namespaces)
	for z := range zones {
		p.zones = append(p.zones, z)
	}
	slices.Sort(p.zones)
	p.labels = []string{
		"*", "any", "_", "__", "-", "svc", "pod", "dns", "ns", "dns-version", "endpoint", "_tcp", "_udp", "tcp", "_zone", "pin", "prefer",
		"web", "default", "10-1-0-1", `a\.b`, `\000`, `sp\032ace`, `quo\"te`, "in-addr", "0", "xn--nxasmq6b", strings.Repeat("x", 63), "apex", "hostmaster",
	}
	return p
}

// asker makes questions about a cluster.
type asker struct {
	*rand.Rand
	c *cluster
	p *pools
}

func pick[T any](r *rand.Rand, from []T) (v T) {
	if len(from) == 0 {
		return v
	}
	return from[r.IntN(len(from))]
}

func (a asker) chance(percent int) bool { return a.IntN(100) < percent }

// next returns a question.
func (a asker) next() question {
	name := a.name()
	for a.chance(25) {
		name = a.altered(name)
	}
	if _, ok := dns.IsDomainName(name); !ok || len(name) > 250 {
		name = a.c.variant.primary()
	}
	return question{name: unpacked(dns.Fqdn(name)), qtype: a.qtype(name), tcp: a.chance(20)}
}

// unpacked returns a name in the form of an unpacked message: there are several ways to write a name.
func unpacked(name string) string {
	buf := make([]byte, 300)
	if _, err := dns.PackDomainName(name, buf, 0, nil, false); err != nil {
		panic(err) // it has been checked
	}
	name, _, err := dns.UnpackDomainName(buf, 0)
	if err != nil {
		panic(err)
	}
	return name
}

// qtype returns a type: more often one with records at names of that sort.
func (a asker) qtype(name string) uint16 {
	switch {
	case slices.Contains(a.c.variant.zones, strings.ToLower(name)) && a.chance(25):
		return dns.TypeNS
	case isReverse(name) && a.chance(65):
		return dns.TypePTR
	case len(a.c.variant.clustersets) > 0 && strings.HasPrefix(name, "dns-version.") && a.chance(50):
		return dns.TypeTXT
	}
	switch n := a.IntN(100); {
	case n < 26:
		return dns.TypeA
	case n < 44:
		return dns.TypeAAAA
	case n < 64:
		return dns.TypeSRV
	case n < 72:
		return dns.TypeCNAME
	case n < 78:
		return dns.TypeTXT
	case n < 83:
		return dns.TypeSOA
	case n < 88:
		return dns.TypeNS
	case n < 91:
		return dns.TypePTR
	case n < 93:
		return dns.TypeMX
	case n < 95:
		return dns.TypeANY
	}
	more := []uint16{
		dns.TypeHTTPS, dns.TypeSVCB, dns.TypeCAA, dns.TypeDNSKEY, dns.TypeDS, dns.TypeNAPTR, dns.TypeTLSA, dns.TypeDNAME,
		dns.TypeRRSIG, dns.TypeNSEC, dns.TypeURI, dns.TypeHINFO, 65400,
	}
	if !a.c.variant.transfers {
		more = append(more, dns.TypeAXFR)
	}
	return pick(a.Rand, more)
}

// name returns a name that may exist.
func (a asker) name() string {
	if len(a.c.variant.clustersets) > 0 && a.chance(60) {
		return a.ofClusterset()
	}
	switch n := a.IntN(100); {
	case n < 22:
		return a.ofService(pick(a.Rand, a.p.services))
	case n < 38:
		return a.ofEndpoint()
	case n < 54:
		return a.ofPort()
	case n < 63:
		return a.ofPod()
	case n < 81:
		return a.reverse()
	case n < 88:
		return a.fixed()
	case n < 94:
		return a.ofZone()
	case n < 96:
		return pick(a.Rand, outsideNames)
	}
	var labels []string
	for range a.IntN(5) {
		labels = append(labels, pick(a.Rand, a.p.labels))
	}
	return fullName(a.zone(), append(labels, pick(a.Rand, []string{"svc", "pod", "x"}))...)
}

// zone returns a zone of the variant, rarely a reverse zone.
func (a asker) zone() string {
	if a.chance(4) {
		return pick(a.Rand, a.c.variant.zones)
	}
	for {
		if z := pick(a.Rand, a.c.variant.zones); !isReverse(z) {
			return z
		}
	}
}

func (a asker) ofService(s *corev1.Service) string {
	if s == nil {
		return a.c.variant.primary()
	}
	if a.chance(5) {
		return fullName(a.zone(), s.Name, pick(a.Rand, a.p.namespaces), "svc")
	}
	return fullName(a.zone(), s.Name, s.Namespace, "svc")
}

func (a asker) ofEndpoint() string {
	e := pick(a.Rand, a.p.endpoints)
	if e.slice == nil {
		return a.c.variant.primary()
	}
	label := ""
	switch a.IntN(10) {
	case 0:
		label = dashed(e.text)
	case 1:
		label = naming{canonical: true}.label(e, false)
	case 2:
		label = naming{canonical: true, oneLabel: true}.label(e, true)
	case 3:
		if e.endpoint.TargetRef != nil {
			label = e.endpoint.TargetRef.Name
		}
	case 4:
		label = dashed(pick(a.Rand, a.p.ips))
	default:
		label = naming{}.label(e, a.c.variant.podNames)
	}
	service := serviceOf(e.slice)
	if label == "" || service == "" {
		label, service = "a", "web"
	}
	return fullName(a.zone(), label, service, e.slice.Namespace, "svc")
}

// ofPort returns the name of a port of a Service or of a slice; its underscores are optional.
func (a asker) ofPort() string {
	service, namespace, port, protocol := "web", "default", "http", "TCP"
	if a.chance(50) {
		if s := pick(a.Rand, a.p.services); s != nil {
			service, namespace = s.Name, s.Namespace
			if len(s.Spec.Ports) > 0 {
				p := pick(a.Rand, s.Spec.Ports)
				port, protocol = p.Name, string(p.Protocol)
			}
		}
	} else if s := pick(a.Rand, a.c.slices); s != nil && serviceOf(s) != "" {
		service, namespace = serviceOf(s), s.Namespace
		if len(s.Ports) > 0 {
			p := pick(a.Rand, s.Ports)
			port, protocol = *p.Name, string(*p.Protocol)
		}
	}
	if a.chance(10) {
		port = pick(a.Rand, []string{"http", "https", "dns", "dns-tcp", "metrics", "x--y", "1a", "80", "_http"})
	}
	if a.chance(15) {
		protocol = pick(a.Rand, []string{"tcp", "udp", "sctp", "icmp", ""})
	}
	protocol = strings.ToLower(protocol)
	if port == "" || a.chance(85) {
		port = "_" + port
	}
	if protocol == "" || a.chance(85) {
		protocol = "_" + protocol
	}
	return fullName(a.zone(), port, protocol, service, namespace, "svc")
}

func (a asker) ofPod() string {
	p := pick(a.Rand, a.p.podIPs)
	if p.ip == "" || a.chance(15) {
		p.ip = pick(a.Rand, a.p.ips)
	}
	if p.namespace == "" || a.chance(15) {
		p.namespace = pick(a.Rand, a.p.namespaces)
	}
	label := dashed(a.spelt(p.ip))
	if a.chance(6) {
		label = pick(a.Rand, []string{"1-2-3", "1-2-3-4-5", "256-1-1-1", "01-2-3-4", "0-0-0-0-0-ffff-a01-1", "a01-1", "--1", "--", "1--2--3", "web-0", "1-2--3"})
	}
	labels := []string{label, p.namespace, "pod"}
	for a.chance(10) {
		labels = append([]string{pick(a.Rand, a.p.labels)}, labels...)
	}
	return fullName(a.zone(), labels...)
}

// spelt returns an IPv6 address in one of its text forms; IPv4 has one.
func (a asker) spelt(ip string) string {
	addr, err := netip.ParseAddr(ip)
	if err != nil || addr.Is4() || a.chance(60) {
		return ip
	}
	switch a.IntN(3) {
	case 0:
		return addr.StringExpanded()
	case 1:
		return strings.ToUpper(ip)
	}
	return strings.Replace(addr.String(), "::", ":0:0::", 1)
}

func (a asker) reverse() string {
	ip, err := netip.ParseAddr(pick(a.Rand, a.p.ips))
	if err != nil {
		panic(err) // the pool has been checked
	}
	if ip.Is4() && a.chance(3) {
		ip = netip.AddrFrom16(ip.As16())
		return reverseOf16(ip)
	}
	name, err := dns.ReverseAddr(ip.String())
	if err != nil {
		panic(err)
	}
	if a.chance(6) { // above it
		for range 1 + a.IntN(4) {
			_, name, _ = strings.Cut(name, ".")
		}
	}
	return name
}

// reverseOf16 returns the name below ip6.arpa of an address, also of an IPv4 address in IPv6.
func reverseOf16(ip netip.Addr) string {
	var labels []string
	b := ip.As16()
	for i := 15; i >= 0; i-- {
		labels = append(labels, fmt.Sprintf("%x", b[i]&0xf), fmt.Sprintf("%x", b[i]>>4))
	}
	return strings.Join(labels, ".") + ".ip6.arpa."
}

// fixed returns a name that does not depend on the objects, or on namespaces only.
func (a asker) fixed() string {
	zone := a.zone()
	if a.chance(25) {
		zone = pick(a.Rand, a.c.variant.zones)
	}
	switch a.IntN(8) {
	case 0, 1:
		return zone
	case 2, 3:
		return fullName(zone, pick(a.Rand, a.p.namespaces), pick(a.Rand, []string{"svc", "svc", "pod"}))
	}
	return fullName(zone, pick(a.Rand, []string{
		"svc", "pod", "ns.dns", "ns.dns", "dns", "dns-version", "x.dns-version", "apex.dns", "x.ns.dns", "hostmaster", "ns", "any", "x.svc", "_zone",
	}))
}

// ofZone returns a zonal name.
func (a asker) ofZone() string {
	s := pick(a.Rand, a.p.services)
	var headless []*corev1.Service
	for _, s := range a.p.services {
		if isHeadless(s) {
			headless = append(headless, s)
		}
	}
	if a.chance(85) && len(headless) > 0 {
		s = pick(a.Rand, headless)
	}
	if s == nil {
		return a.c.variant.primary()
	}
	zone := pick(a.Rand, a.p.zones)
	if own := zonesOf(a.c.slicesOf(s.Namespace, s.Name)); len(own) > 0 && a.chance(70) {
		zone = pick(a.Rand, own)
	}
	directive := pick(a.Rand, []string{"pin", "pin", "prefer", "prefer", "other"})
	return fullName(a.zone(), zone, directive, "_zone", s.Name, s.Namespace, "svc")
}

// zonesOf returns the topology zones of ready endpoints.
func zonesOf(s []*discoveryv1.EndpointSlice) (zones []string) {
	for _, a := range addresses(s) {
		if a.endpoint.Zone != nil {
			zones = append(zones, *a.endpoint.Zone)
		}
	}
	return zones
}

// altered returns a name similar to the given one.
func (a asker) altered(name string) string {
	labels := dns.SplitDomainName(name)
	if len(labels) == 0 {
		return name
	}
	at := a.IntN(len(labels))
	switch a.IntN(10) {
	case 0:
		labels = append([]string{pick(a.Rand, a.p.labels)}, labels...)
	case 1:
		labels = labels[1:]
	case 2:
		labels[at] = pick(a.Rand, a.p.labels)
	case 3:
		labels = slices.Insert(labels, at, pick(a.Rand, a.p.labels))
	case 4:
		labels = slices.Delete(labels, at, at+1)
	default:
		return a.mixedCase(name)
	}
	return strings.Join(labels, ".") + "."
}

// mixedCase returns a name with some letters in upper case, sometimes all letters of one part.
func (a asker) mixedCase(name string) string {
	from := a.IntN(len(name))
	if a.chance(50) {
		from = 0
	}
	b := []byte(name)
	for i := from; i < len(b); i++ {
		if 'a' <= b[i] && b[i] <= 'z' && a.chance(50) {
			b[i] -= 'a' - 'A'
		}
	}
	return string(b)
}

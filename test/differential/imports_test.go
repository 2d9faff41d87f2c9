package differential

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// importRules are the rules for the answers of a ServiceImport's names. The zero rules are CoreDNS's.
type importRules struct {
	anyLength bool // the ID of a cluster may be several labels
	unnamed   bool // an endpoint without a cluster, or with an invalid cluster ID, has a name without the ID
	folded    bool // the ID of a cluster is written in lower case
	portless  bool // one with addresses and without ports exists
	protocol  bool // the default protocol is TCP
	selected  bool // labels are those of ServiceImports, namespace_labels those of namespaces
	endless   bool // noendpoints applies
	numeric   bool // slices of names have no addresses
	typeless  bool // a name exists for TXT as for other types
	naming
}

// importTable returns the intended differences in zones of a clusterset.
func importTable() []allowed {
	return []allowed{
		{
			name:    "import: ID of a cluster of several labels",
			reason:  "KEP-1645: it is a DNS label or, in a DNS-like hierarchy, several. CoreDNS has NXDOMAIN for names with more than one",
			imports: func(r *importRules) { r.anyLength = true },
		},
		{
			name: "import: endpoint of no cluster",
			reason: "names are host names. CoreDNS makes an empty label of a missing ID, so that SRV cannot be packed and there is no reply, " +
				"and a name of one that is none",
			imports: func(r *importRules) { r.unnamed = true },
		},
		{
			name:    "import: ID of a cluster with capitals",
			reason:  "RFC 4343: the same name. It is written in lower case, as the names of objects are; CoreDNS writes it as the label of the slice does",
			imports: func(r *importRules) { r.folded = true },
		},
		{
			name:    "import: addresses without ports",
			reason:  "specification 2.3.1: a name has the addresses of its ServiceImport. CoreDNS has NXDOMAIN where it has no ports",
			imports: func(r *importRules) { r.portless = true },
		},
		{
			name:    "import: port without a protocol",
			reason:  "the API: the protocol is TCP by default, which its definition does not fill in. CoreDNS finds such a port by no protocol",
			imports: func(r *importRules) { r.protocol = true },
		},
		{
			name:    "import: labels",
			reason:  "labels select ServiceImports as they do Services. CoreDNS selects them by namespace_labels, which is for the labels of namespaces",
			imports: func(r *importRules) { r.selected = true },
		},
		{
			name:    "import: noendpoints",
			reason:  "it holds for imported endpoints as for others. CoreDNS serves these",
			imports: func(r *importRules) { r.endless = true },
		},
		{
			name:   "import: version of the specification",
			reason: "specification 2.2: it is of version 1.0.0; CoreDNS names that of the DNS of a cluster",
			explains: func(d *difference) bool {
				return d.isClusterset(d.zoneOf(d.q.name)) && d.is("dns-version") && d.ours.has(dns.TypeTXT) &&
					d.stock.replaced(`"1.1.0"`, `"1.0.0"`).sections == d.ours.sections
			},
		},
		{
			name:   "import: names of pods",
			reason: "the specification has no such names; CoreDNS answers them as in the cluster's zone",
			explains: func(d *difference) bool {
				labels := d.labels()
				return d.isClusterset(d.zoneOf(d.q.name)) && len(labels) > 0 && labels[0] == "pod" && d.denied(d.ours)
			},
		},
		{
			name:    "NS in a zone of a clusterset",
			reason:  "NS names a name that resolves: that of the Service in the first zone that has Services. CoreDNS puts it in the clusterset",
			seldom:  func(r *run) bool { return len(r.own) == 0 },
			servers: func(r *serverRules) { r.services = true },
		},
		{
			name:     "PTR into a zone of a clusterset",
			reason:   "a PTR points at a name that exists: in the first zone that has Services. CoreDNS takes the first that is no reverse zone",
			pointers: func(r *pointerRules) { r.services = true },
		},
	}
}

// aboutImport reports whether a question is for a name of a ServiceImport or below it, and its answer follows from the
// import rules: the answer to a SOA query has another explanation.
func (d *difference) aboutImport() bool {
	if !d.isClusterset(d.zoneOf(d.q.name)) {
		return false
	}
	labels := d.labels()
	return len(labels) >= 3 && labels[0] == "svc" && d.q.qtype != dns.TypeSOA
}

// importName is the part of a question left of a ServiceImport's name.
type importName struct{ port, protocol, cluster, endpoint string }

// importNameOf parses the labels left of a ServiceImport's name, the last first. It returns false if they do not follow
// the schema.
func importNameOf(left []string, rules importRules) (n importName, ok bool) {
	underscore := slices.ContainsFunc(left, func(l string) bool { return strings.HasPrefix(l, "_") })
	switch last := len(left) - 1; {
	case last < 0:
	case last == 0:
		n.endpoint = left[0]
	case last == 1 && underscore:
		n.protocol, n.port = strings.TrimPrefix(left[0], "_"), strings.TrimPrefix(left[1], "_")
	case last == 1, rules.anyLength && !underscore:
		ids := slices.Clone(left[:last])
		slices.Reverse(ids)
		n.cluster, n.endpoint = strings.Join(ids, "."), left[last]
	default:
		return n, false
	}
	return n, true
}

// hasPort reports whether a name stands for a port.
func (n importName) hasPort(name, protocol string) bool {
	return (n.port == "" || strings.EqualFold(n.port, name)) && (n.protocol == "" || strings.EqualFold(n.protocol, protocol))
}

// importAnswer is the answer to a question for a name of a ServiceImport.
type importAnswer struct {
	denied  bool // the name does not exist
	broken  bool // it cannot be packed
	aliases bool // a part of it follows from names instead of addresses: see ofNames
	records []importRecord
}

// importRecord is one address and one port at a name.
type importRecord struct {
	name string // target of SRV
	ip   netip.Addr
	port int32 // -1 for none
}

// imports returns the answer to the question by some rules.
func (d *difference) imports(rules importRules) (a importAnswer) {
	labels := d.labels()
	name, ok := importNameOf(labels[3:], rules)
	imp := d.c.serviceImport(labels[1], labels[2])
	if !ok || imp == nil || !d.c.namespaces[imp.Namespace] || !d.selects(imp, rules) {
		return importAnswer{denied: true}
	}
	zone := d.q.name[len(d.q.name)-len(d.zoneOf(d.q.name)):]
	base := fullName(zone, imp.Name, imp.Namespace, "svc")
	in := d.c.importedOf(imp.Namespace, imp.Name)
	if rules.endless && d.noEndpoints {
		in = nil
	}
	headless := imp.Spec.Type == mcsv1beta1.Headless
	switch {
	case d.ignoreEmpty && !headless && len(addresses(in)) == 0:
		return importAnswer{denied: true}
	case headless || name.endpoint != "":
		a = d.importedEndpoints(in, name, base, rules)
	default:
		a = importedAddresses(imp, name, base, rules)
	}
	if d.q.qtype == dns.TypeTXT && !rules.typeless {
		a.denied = len(a.records) == 0
	}
	a.broken = d.q.qtype == dns.TypeSRV && slices.ContainsFunc(a.records, func(r importRecord) bool {
		return r.port >= 0 && strings.Contains(r.name, "..")
	})
	return a
}

// selects reports whether the variant's options select a ServiceImport.
func (d *difference) selects(imp *mcsv1beta1.ServiceImport, rules importRules) bool {
	selector := d.nsLabels
	if rules.selected {
		selector = d.variant.labels
	}
	return selector == "" || d.selector(selector).Matches(labels.Set(imp.Labels))
}

// importedAddresses returns the answer with a ServiceImport's own addresses.
func importedAddresses(imp *mcsv1beta1.ServiceImport, name importName, base string, rules importRules) (a importAnswer) {
	ports := imp.Spec.Ports
	if len(ports) == 0 && rules.portless {
		ports = []mcsv1beta1.ServicePort{{Port: -1}}
	}
	a.denied = true
	for _, p := range ports {
		protocol := string(p.Protocol)
		if protocol == "" && rules.protocol && p.Port >= 0 {
			protocol = "TCP"
		}
		if !name.hasPort(p.Name, protocol) {
			continue
		}
		a.denied = false
		for _, ip := range imp.Spec.IPs {
			a.records = append(a.records, importRecord{base, netip.MustParseAddr(ip), p.Port})
		}
	}
	return a
}

// isUnnamed reports whether a slice's endpoints have no cluster, or an invalid cluster ID.
func isUnnamed(s *discoveryv1.EndpointSlice) bool {
	return len(validation.IsDNS1123Subdomain(strings.ToLower(sourceOf(s)))) > 0
}

// importedEndpoints returns the answer with the addresses of endpoints.
func (d *difference) importedEndpoints(in []*discoveryv1.EndpointSlice, name importName, base string, rules importRules) (a importAnswer) {
	for _, e := range addresses(in) {
		if e.isName() && rules.numeric {
			continue
		}
		id, label := sourceOf(e.slice), rules.label(e, d.podNames)
		if rules.unnamed && isUnnamed(e.slice) {
			id = ""
		}
		if name.endpoint != "" && (!strings.EqualFold(name.cluster, id) || !strings.EqualFold(name.endpoint, label)) {
			continue
		}
		if rules.folded {
			id = strings.ToLower(id)
		}
		target := label + "." + id + "." + base
		if id == "" && rules.unnamed {
			target = label + "." + base
		}
		ports := e.slice.Ports
		if len(ports) == 0 {
			ports = []discoveryv1.EndpointPort{{}}
		}
		for _, p := range ports {
			number, portName, protocol := int32(-1), "", ""
			if p.Port != nil {
				number = *p.Port
			}
			if p.Name != nil {
				portName, protocol = *p.Name, string(*p.Protocol)
			}
			switch {
			case !name.hasPort(portName, protocol):
			case e.isName():
				a.aliases = true
			default:
				a.records = append(a.records, importRecord{target, netip.MustParseAddr(e.text), number})
			}
		}
	}
	a.denied = len(a.records) == 0
	return a
}

// is reports whether an answer is this one.
func (a importAnswer) is(d *difference, got answer) bool {
	var answer, extra []dns.RR
	switch d.q.qtype {
	case dns.TypeA, dns.TypeAAAA:
		for _, r := range a.records {
			if rr := d.address(d.q.name, r.ip); rr.Header().Rrtype == d.q.qtype {
				answer = append(answer, rr)
			}
		}
	case dns.TypeSRV:
		for _, r := range a.records {
			if r.port < 0 {
				continue
			}
			answer = append(answer, &dns.SRV{
				Hdr: d.header(d.q.name, dns.TypeSRV), Weight: uint16(max(1, 100/len(a.records))), Port: uint16(r.port), Target: r.name,
			})
			extra = append(extra, d.address(r.name, r.ip))
		}
	}
	switch {
	case a.broken:
		return got.reply == nil
	case got.reply == nil || a.aliases:
		return false
	case a.denied:
		return d.denied(got)
	case len(answer) == 0:
		return got.nodata()
	}
	return got.rcode() == dns.RcodeSuccess && got.reply.Authoritative && got.sections == [3]string{asText(answer), "", asText(extra)}
}

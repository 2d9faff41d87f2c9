//go:build linux

package coherence

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// key is the namespace and the name of a record.
type key struct{ namespace, name string }

// The kinds of Services, as in package index.
const (
	clusterIP = iota
	headless
	externalName
)

// The traffic distributions, as in package index.
const (
	preferSameZone = 1
	preferSameNode = 2
)

type port struct {
	Name, Protocol string
	Number         int
}

type endpoint struct {
	Address          netip.Addr
	Name, Zone, Node string
}

// record has the fields of all kinds of records.
type record struct {
	Namespace, Name string
	IPs             []netip.Addr

	Kind         int
	Target       string
	Ports        []port
	Local        bool
	Distribution int

	Service, Import, Cluster string
	Endpoints                []endpoint

	Zone string // of a node
}

// cluster is a state of the index of clusterdns, by the kinds of records.
type cluster map[string]map[key]record

func newCluster() cluster {
	c := cluster{}
	for _, kind := range []string{"Service", "Import", "Slice", "Pod", "Namespace", "Node"} {
		c[kind] = map[key]record{}
	}
	return c
}

// apply makes one change of the index.
func (c cluster) apply(e event) {
	k := key{e.Record.Namespace, e.Record.Name}
	if e.Operation == "delete" || e.Operation == "remove" {
		delete(c[e.Kind], k)
		return
	}
	c[e.Kind][k] = e.Record
}

// change makes one change of the index. It returns the record before, and whether the new one differs.
func (c cluster) change(e event) (before record, changed bool) {
	k := key{e.Record.Namespace, e.Record.Name}
	before, existed := c[e.Kind][k]
	c.apply(e)
	after, exists := c[e.Kind][k]
	return before, existed != exists || !reflect.DeepEqual(before, after)
}

// asker is the sender of a query and the configuration that answers it: what answers depend on besides the records.
type asker struct {
	node, zone string
	namespaces []string // those that have names; nil for all
}

// exposes reports whether a namespace has names.
func (c cluster) exposes(namespace string, a asker) bool {
	if a.namespaces != nil && !slices.Contains(a.namespaces, namespace) {
		return false
	}
	_, ok := c["Namespace"][key{name: namespace}]
	return ok
}

// The texts of answers without records.
const (
	nameError = "NXDOMAIN"
	noData    = ""
)

// answer returns the text of the right answer to a question: its records, sorted.
func (c cluster) answer(q *question, a asker) string {
	if !q.mayHaveData() {
		return c.withoutData(q, a)
	}
	switch q.form {
	case serviceForm:
		return c.ofService(q, a)
	case namespaceForm:
		if c.exposes(q.namespace, a) {
			return noData
		}
	case podForm:
		return c.ofPod(q, a)
	case reverseForm:
		return c.ofAddress(q, a)
	}
	return nameError
}

// mayHaveData reports whether the form of the name decides about records of the type. CNAME is left to withoutData.
func (q *question) mayHaveData() bool {
	switch q.form {
	case serviceForm:
		return q.qtype == dns.TypeA || q.qtype == dns.TypeAAAA || q.qtype == dns.TypeSRV
	case podForm:
		return q.qtype == dns.TypeA || q.qtype == dns.TypeAAAA
	case reverseForm:
		return q.qtype == dns.TypePTR
	}
	return true
}

// withoutData is the answer of a type without data: NODATA if the name exists. An ExternalName has a CNAME record.
func (c cluster) withoutData(q *question, a asker) string {
	other := *q
	if other.qtype = dns.TypeA; q.form == reverseForm {
		other.qtype = dns.TypePTR
	}
	if c.answer(&other, a) == nameError {
		return nameError
	}
	s := c["Service"][key{q.namespace, q.service}]
	if q.qtype == dns.TypeCNAME && !q.imported && s.Kind == externalName {
		return fmt.Sprintf("%s CNAME %s", q.name, s.Target)
	}
	return noData
}

func (c cluster) ofPod(q *question, a asker) string {
	if !c.exposes(q.namespace, a) {
		return nameError
	}
	for k, p := range c["Pod"] {
		if k.namespace == q.namespace && slices.Contains(p.IPs, q.address) {
			return text(addressLines(q.name, q.qtype, []netip.Addr{q.address}))
		}
	}
	return nameError
}

func addressLines(owner string, qtype uint16, all []netip.Addr) (lines []string) {
	for _, a := range all {
		if a.Is4() == (qtype == dns.TypeA) {
			lines = append(lines, fmt.Sprintf("%s %s %s", owner, dns.TypeToString[qtype], a))
		}
	}
	return lines
}

// text joins the lines of an answer.
func text(lines []string) string {
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n")
}

// ofAddress is the answer for a reverse name: the Service with the address, else the endpoints with it.
func (c cluster) ofAddress(q *question, a asker) string {
	var owners, names []string
	for k, s := range c["Service"] {
		if s.Kind == clusterIP && slices.Contains(s.IPs, q.address) && c.exposes(k.namespace, a) {
			owners = append(owners, k.namespace+" "+k.name)
		}
	}
	if len(owners) > 0 {
		namespace, name, _ := strings.Cut(slices.Min(owners), " ")
		return fmt.Sprintf("%s PTR %s.%s.svc.cluster.local.", q.name, name, namespace)
	}
	for _, s := range c["Slice"] {
		service, ok := c["Service"][key{s.Namespace, s.Service}]
		if !ok || service.Kind == externalName || !c.exposes(s.Namespace, a) {
			continue
		}
		for _, e := range s.Endpoints {
			if e.Address == q.address {
				names = append(names, fmt.Sprintf("%s PTR %s.%s.%s.svc.cluster.local.", q.name, e.label(), s.Service, s.Namespace))
			}
		}
	}
	if len(names) == 0 {
		return nameError
	}
	return text(names)
}

func (e endpoint) label() string {
	if e.Name != "" {
		return e.Name
	}
	return dashed(e.Address)
}

func dashed(a netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
}

// ofService is the answer for the name of a Service or ServiceImport, of one of its ports or of one of its endpoints.
func (c cluster) ofService(q *question, a asker) string {
	kind := "Service"
	if q.imported {
		kind = "Import"
	}
	s, ok := c[kind][key{q.namespace, q.service}]
	if !ok || !c.exposes(q.namespace, a) {
		return nameError
	}
	switch {
	case s.Kind == externalName:
		return c.ofAlias(q, s, a)
	case s.Kind == headless || q.endpoint != "":
		return c.ofEndpoints(q, s, a)
	case !hasPort(s.Ports, q.port):
		return nameError
	case q.qtype == dns.TypeSRV:
		var lines []string
		for _, p := range s.Ports {
			for _, ip := range s.IPs {
				if q.port == "" || q.port == p.Name {
					lines = append(lines, srvLines(q.name, q.serviceName(), ip, p)...)
				}
			}
		}
		return text(lines)
	}
	return text(addressLines(q.name, q.qtype, s.IPs))
}

// hasPort reports whether one of the ports has the name; "" is any port, or none.
func hasPort(ports []port, name string) bool {
	return name == "" || slices.ContainsFunc(ports, func(p port) bool { return p.Name == name })
}

func srvLines(owner, target string, a netip.Addr, p port) []string {
	qtype := dns.TypeA
	if a.Is6() {
		qtype = dns.TypeAAAA
	}
	extra := addressLines("+"+target, qtype, []netip.Addr{a})
	return append(extra, fmt.Sprintf("%s SRV %d %s", owner, p.Number, target))
}

// ofAlias is the answer for an ExternalName, whose targets are names of Services.
func (c cluster) ofAlias(q *question, s record, a asker) string {
	if q.endpoint != "" || q.port != "" || s.Target == "" {
		return nameError
	}
	if q.qtype == dns.TypeSRV {
		return noData
	}
	labels := strings.Split(s.Target, ".")
	target := *q
	target.name, target.service, target.namespace = s.Target, labels[0], labels[1]
	answer := c.ofService(&target, a)
	if answer == nameError || answer == noData {
		return noData
	}
	return text(append(strings.Split(answer, "\n"), fmt.Sprintf("%s CNAME %s", q.name, s.Target)))
}

// found is an endpoint with its slice.
type found struct {
	endpoint
	slice record
}

// ofEndpoints is the answer that consists of endpoints.
func (c cluster) ofEndpoints(q *question, s record, a asker) string {
	var all []found
	for _, sl := range c["Slice"] {
		owner := sl.Service
		if q.imported {
			owner = sl.Import
		}
		if owner != q.service || sl.Namespace != q.namespace || !hasPort(sl.Ports, q.port) {
			continue
		}
		for _, e := range sl.Endpoints {
			if q.endpoint == "" || q.endpoint == e.label() && (!q.imported || q.cluster == sl.Cluster) {
				all = append(all, found{e, sl})
			}
		}
	}
	if len(all) == 0 {
		return nameError
	}
	var lines []string
	for _, v4 := range []bool{true, false} {
		family := slices.DeleteFunc(slices.Clone(all), func(e found) bool { return e.Address.Is4() != v4 })
		if q.endpoint == "" {
			family = c.near(s, a, family)
		}
		for _, e := range family {
			lines = append(lines, q.endpointLines(e)...)
		}
	}
	return text(lines)
}

func (q *question) endpointLines(e found) (lines []string) {
	if q.qtype != dns.TypeSRV {
		return addressLines(q.name, q.qtype, []netip.Addr{e.Address})
	}
	target := e.label() + "." + q.serviceName()
	if q.imported && e.slice.Cluster != "" {
		target = e.label() + "." + e.slice.Cluster + "." + q.serviceName()
	}
	for _, p := range e.slice.Ports {
		if q.port == "" || q.port == p.Name {
			lines = append(lines, srvLines(q.name, target, e.Address, p)...)
		}
	}
	return lines
}

// near returns the endpoints of one family that the topology settings of a Service select for a node.
func (c cluster) near(s record, a asker, all []found) []found {
	zone := a.zone
	if n, ok := c["Node"][key{name: a.node}]; ok {
		zone = n.Zone
	}
	that := func(matches func(e found) bool) []found {
		return slices.DeleteFunc(slices.Clone(all), func(e found) bool { return !matches(e) })
	}
	onNode := that(func(e found) bool { return e.Node == a.node })
	inZone := that(func(e found) bool { return zone != "" && e.Zone == zone })
	switch {
	case s.Local:
		return onNode
	case s.Distribution == preferSameNode && len(onNode) > 0:
		return onNode
	case s.Distribution != 0 && len(inZone) > 0:
		return inZone
	}
	return all
}

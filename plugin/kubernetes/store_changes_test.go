package kubernetes

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// changes draws random changes of a small cluster, in which records collide. Most of them alter one field of an
// existing record, so that nothing else can reveal the change.
type changes struct {
	*rand.Rand
	ix         *recorded
	reads      source.Options // what a source of the configuration reads
	focus      index.Name     // of a Service that changes more than others, if any
	namespaces []string
	services   []string
	slices     []string
	pods       []string
	v4, v6     []netip.Addr
	many       []netip.Addr // for answers that need compression, or do not fit
}

func (c *changes) common() *changes { return c }

func newChanges(seed uint64, k *Kubernetes) *changes {
	c := &changes{
		Rand:       rand.New(rand.NewPCG(seed, 0)),
		ix:         &recorded{Index: indexOf(k), model: newModel()},
		reads:      k.source,
		namespaces: []string{"shop", "team"},
		services:   []string{"web", "db", "mail"},
		slices:     []string{"one", "two", "three"},
		pods:       []string{"p", "q"},
		many:       following("10.2.0.1", 150),
		v4:         following("10.1.0.1", 4),
		v6:         following("2001:db8::1", 2),
	}
	for _, ns := range c.namespaces {
		c.ix.PutNamespace(ns)
		for _, name := range c.services {
			c.ix.PutService(c.service(ns, name))
		}
		for _, name := range c.slices {
			if c.reads.Endpoints {
				c.ix.PutSlice(c.slice(ns, name))
			}
		}
	}
	if c.reads.Topology {
		c.ix.PutNode(c.node("n1"))
		c.ix.PutNode(c.node("n2"))
	}
	return c
}

// following returns n addresses from a start.
func following(first string, n int) (all []netip.Addr) {
	for a := netip.MustParseAddr(first); len(all) < n; a = a.Next() {
		all = append(all, a)
	}
	return all
}

// reverse returns the reverse name of an address.
func reverse(a netip.Addr) string {
	name, err := dns.ReverseAddr(a.String())
	if err != nil {
		panic(err) // every address has a reverse name
	}
	return name
}

func pick[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

// change makes one change and returns its description.
func (c *changes) change() string {
	ix := c.ix
	ns, service, slice, pod := pick(c.Rand, c.namespaces), pick(c.Rand, c.services), pick(c.Rand, c.slices), pick(c.Rand, c.pods)
	if c.focus != (index.Name{}) && c.IntN(2) == 0 {
		ns, service = c.focus.Namespace, c.focus.Name
	}
	if c.reads.Topology && c.IntN(3) == 0 {
		return c.changeTopology(ns, service)
	}
	n := c.IntN(100)
	if !ix.HasNamespace(ns) && n < 50 {
		n = namespaceComes // other records have no names before
	}
	if n < 80 && n >= 45 && !c.reads.Endpoints || n < 91 && n >= 80 && !c.reads.Pods {
		n %= 40 // no reader uses it
	}
	switch {
	case n < 40:
		s := c.service(ns, service)
		ix.PutService(s)
		return fmt.Sprintf("PutService %+v", *s)
	case n < 43:
		ix.DeleteService(ns, service)
		return fmt.Sprint("DeleteService ", ns, " ", service)
	case n < 45:
		s := c.service(ns, service)
		ix.DeleteService(ns, service)
		ix.PutService(s)
		return fmt.Sprintf("DeleteService and PutService %+v", *s)
	case n < 75:
		s := c.slice(ns, slice)
		ix.PutSlice(s)
		return fmt.Sprintf("PutSlice %+v", *s)
	case n < 80:
		ix.DeleteSlice(ns, slice)
		return fmt.Sprint("DeleteSlice ", ns, " ", slice)
	case n < 88:
		p := &index.Pod{Namespace: ns, Name: pod, IPs: []netip.Addr{pick(c.Rand, c.v4), pick(c.Rand, c.v6)}}
		if c.reads.Topology {
			c.place(p)
		}
		ix.PutPod(p)
		return fmt.Sprintf("PutPod %+v", *p)
	case n < 91:
		ix.DeletePod(ns, pod)
		return fmt.Sprint("DeletePod ", ns, " ", pod)
	case n < 95:
		other := fmt.Sprint("other", n)
		ix.PutNamespace(other)
		ix.DeleteNamespace(other)
		return "PutNamespace and DeleteNamespace of another"
	case n == namespaceComes:
		ix.PutNamespace(ns)
		return "PutNamespace " + ns
	case n < 97:
		ix.DeleteNamespace(ns)
		return "DeleteNamespace " + ns
	case n < 98:
		ix.DeleteNamespace(ns)
		ix.PutNamespace(ns)
		return "DeleteNamespace and PutNamespace " + ns
	default:
		return c.relist()
	}
}

const namespaceComes = 95

// relist replaces all records of a kind, as a source does after its watch has ended: some are missing from the list.
func (c *changes) relist() string {
	ix := c.ix
	switch c.IntN(3) {
	case 0:
		var left []*index.Service
		for _, e := range ix.Services() {
			if c.IntN(2) == 0 {
				left = append(left, e.Service)
			}
		}
		ix.ReplaceServices(left)
		return "ReplaceServices"
	case 1:
		var left []*index.Slice
		for _, e := range ix.Services() {
			for _, s := range e.Slices {
				if c.IntN(2) == 0 {
					left = append(left, s)
				}
			}
		}
		ix.ReplaceSlices(left)
		return "ReplaceSlices"
	default:
		ix.ReplaceNamespaces(c.namespaces[c.IntN(2):])
		return "ReplaceNamespaces"
	}
}

func (c *changes) ips() []netip.Addr {
	switch c.IntN(4) {
	case 0:
		return []netip.Addr{pick(c.Rand, c.v6)}
	case 1:
		return []netip.Addr{pick(c.Rand, c.v4), pick(c.Rand, c.v6)}
	default:
		return []netip.Addr{pick(c.Rand, c.v4)}
	}
}

func (c *changes) ports() []index.Port {
	all := []index.Port{
		{Name: index.NewSymbol("http"), Protocol: index.NewSymbol("tcp"), Number: c.Int32N(2) + 80},
		{Name: index.NewSymbol("dns"), Protocol: index.NewSymbol("udp"), Number: 53},
		{Protocol: index.NewSymbol("tcp"), Number: index.NoPort},
	}
	c.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:c.IntN(3)]
}

func (c *changes) kind() index.Kind {
	if c.reads.Topology && c.IntN(2) == 0 {
		return index.Headless
	}
	return pick(c.Rand, []index.Kind{index.ClusterIP, index.ClusterIP, index.Headless, index.Headless, index.ExternalName})
}

// service draws a record: the current one with an alteration, or a new one.
func (c *changes) service(ns, name string) *index.Service {
	s := &index.Service{Namespace: ns, Name: name, Kind: c.kind(), Ports: c.ports()}
	old := c.ix.ServiceRecord(ns, name)
	alter := old != nil && c.IntN(4) > 0
	if alter {
		s.Kind, s.IPs, s.Target, s.Ports, s.Topology = old.Kind, old.IPs, old.Target, old.Ports, old.Topology
	} else if c.reads.Topology {
		s.Topology = c.topology()
	}
	switch what := c.IntN(3); {
	case alter && what == 0:
		s.Ports = c.ports()
		return s
	case alter && what == 1:
		s.Kind = c.kind()
	}
	s.IPs, s.Target = nil, ""
	switch s.Kind {
	case index.ClusterIP:
		s.IPs = c.ips()
	case index.ExternalName:
		s.Target = pick(c.Rand, []string{"", "www.example.org.", "web.shop.svc.cluster.local.", "db.team.svc.cluster.local."})
	}
	return s
}

func (c *changes) slice(ns, name string) *index.Slice {
	s := &index.Slice{Namespace: ns, Name: name, Service: pick(c.Rand, c.services), Ports: c.ports()}
	old := c.ix.SliceRecord(ns, name)
	if old == nil || c.IntN(4) == 0 {
		s.Endpoints = c.endpoints()
		return s
	}
	s.Service, s.Ports, s.Endpoints = old.Service, old.Ports, slices.Collect(old.All())
	kinds := 6
	if c.reads.Topology {
		kinds++
	}
	what := c.IntN(kinds)
	if len(s.Endpoints) == 0 {
		what = c.IntN(3)
	}
	switch what {
	case 0:
		s.Service = pick(c.Rand, c.services)
	case 1:
		s.Ports = c.ports()
	case 2:
		s.Endpoints = append(s.Endpoints, c.endpoint()) // an endpoint becomes ready
	case 3:
		at := c.IntN(len(s.Endpoints))
		s.Endpoints = slices.Delete(s.Endpoints, at, at+1)
	case 4:
		s.Endpoints[c.IntN(len(s.Endpoints))].Name = c.endpoint().Name
	case 5:
		s.Endpoints[c.IntN(len(s.Endpoints))].Zone = c.endpoint().Zone
	case 6:
		s.Endpoints[c.IntN(len(s.Endpoints))].Node = c.endpoint().Node
	}
	return s
}

func (c *changes) endpoints() (all []index.Endpoint) {
	if c.IntN(6) == 0 {
		for _, a := range c.many[:c.IntN(len(c.many))] {
			all = append(all, index.Endpoint{Addr: a})
		}
		if c.reads.Topology {
			c.spread(all)
		}
		return all
	}
	n := c.IntN(4)
	if c.reads.Topology {
		n += 2
	}
	for range n {
		all = append(all, c.endpoint())
	}
	return all
}

func (c *changes) endpoint() index.Endpoint {
	e := index.Endpoint{
		Addr: pick(c.Rand, pick(c.Rand, [][]netip.Addr{c.v4, c.v4, c.v6})),
		Name: pick(c.Rand, []string{"", "", "db-0", "db-1"}),
		Zone: index.NewSymbol(pick(c.Rand, []string{"", "east", "west.example"})),
	}
	if c.reads.Topology {
		e.Node = index.NewSymbol(pick(c.Rand, endpointNodes))
	}
	return e
}

// questions draws n queries, most of them for names of Services, pods and addresses that may exist.
func (c *changes) questions(n int) (all []dns.Question) {
	names := c.names()
	for len(all) < n {
		q := dns.Question{Name: pick(c.Rand, names), Qtype: pick(c.Rand, types)}
		if c.reads.Topology && c.IntN(4) > 0 {
			all = append(all, c.filtered())
			continue
		}
		switch c.IntN(7) {
		case 0, 1, 2:
			q.Name = pick(c.Rand, c.services) + "." + pick(c.Rand, c.namespaces) + ".svc.cluster.local."
		case 3:
			q.Name, q.Qtype = index.AddressLabel(pick(c.Rand, c.v4))+"."+pick(c.Rand, c.namespaces)+".pod.cluster.local.", dns.TypeA
		case 4:
			q.Name, q.Qtype = reverse(pick(c.Rand, slices.Concat(c.v4, c.v6))), dns.TypePTR
		}
		all = append(all, q)
	}
	return all
}

var types = []uint16{
	dns.TypeA, dns.TypeA, dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeAAAA, dns.TypeSRV, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME,
	dns.TypeTXT, dns.TypeNS, dns.TypeSOA, dns.TypeMX, dns.TypeANY, dns.TypeDS, dns.TypeHTTPS,
}

// names returns the names of queries: those of all records that may exist, and similar ones.
func (c *changes) names() (all []string) {
	for _, ns := range append(slices.Clone(c.namespaces), "none") {
		all = append(all, ns+".svc.cluster.local.", ns+".pod.cluster.local.", "www.example.org."+ns+".svc.cluster.local.",
			"10-1-0-1."+ns+".pod.cluster.local.", "2001-db8--1."+ns+".pod.cluster.local.", "p."+ns+".pod.cluster.local.")
		for _, service := range append(slices.Clone(c.services), "none") {
			name := service + "." + ns + ".svc.cluster.local."
			all = append(all, name)
			for _, below := range []string{"_http._tcp.", "_dns._udp.", "_._tcp.", "tcp.", "db-0.", "10-1-0-1.", "10-1-0-2.", "2001-db8--1.", "10-2-0-9.",
				"east.pin._zone.", "west.example.pin._zone.", "east.prefer._zone.", "none.prefer._zone."} {
				all = append(all, below+name)
			}
		}
	}
	for _, a := range slices.Concat(c.v4, c.v6, c.many[:3]) {
		all = append(all, reverse(a))
	}
	return append(all, "cluster.local.", "svc.cluster.local.", "pod.cluster.local.", "dns.cluster.local.", "ns.dns.cluster.local.",
		"dns-version.cluster.local.", "www.example.org.", "www.example.org.cluster.local.", "www.example.org.svc.cluster.local.",
		"10.in-addr.arpa.", "1.10.in-addr.arpa.", "x.0.1.10.in-addr.arpa.", "ns.dns.10.in-addr.arpa.", "8.b.d.0.1.0.0.2.ip6.arpa.",
		`a\.b.web.shop.svc.cluster.local.`, `\000.shop.svc.cluster.local.`)
}

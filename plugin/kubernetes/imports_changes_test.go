package kubernetes

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// importChanges draws random changes of a small cluster with ServiceImports of the names of its Services. Like
// changes, it usually alters one field of an existing record.
type importChanges struct {
	*changes
	ix *recordedImports
	m  *importModel
	// unread is true while ServiceImports are not synced, as after the resource was missing; nil if they always are.
	unread *atomic.Bool
}

var (
	clusterIDs   = []string{"west", "east", "easter", "eu.west-1", ""}
	importSlices = []string{"i1", "i2", "i3", "one"} // the last one may be of a Service, too
)

// newImportChanges fills the cluster of a handler, and returns its random changes. A model follows.
func newImportChanges(seed uint64, k *Kubernetes) *importChanges {
	c := &importChanges{changes: newChanges(seed, k)}
	c.m = &importModel{model: c.changes.ix.model, imports: map[index.Name]index.Service{}, topology: k.source.Topology, prefer: k.preferCluster,
		given: k.clusterID.String(), ignoreEmpty: k.ignoreEmpty, shown: slices.Collect(maps.Keys(k.namespaces))}
	c.ix = &recordedImports{recorded: c.changes.ix, model: c.m}
	for _, key := range k.topologyKeys {
		c.m.defaults = append(c.m.defaults, key.String())
	}
	c.m.trusts = func(a netip.Addr) bool { return a.IsPrivate() }
	for _, ns := range c.namespaces {
		for _, name := range c.services {
			c.ix.PutImport(c.serviceImport(ns, name))
		}
		for _, name := range importSlices {
			if c.reads.Endpoints {
				c.ix.PutSlice(c.importSlice(ns, name))
			}
		}
	}
	c.ix.SetClusterID(index.NewSymbol("west"))
	return c
}

// importChanges returns random changes of the handler's cluster, in which ServiceImports may have to be synced again.
func (s *storing) importChanges(seed uint64) *importChanges {
	c := newImportChanges(seed, s.k)
	c.unread = new(atomic.Bool)
	c.m.unread = c.unread
	resources := s.k.source.Resources()
	status := func() (all []source.Status) {
		for _, r := range resources {
			all = append(all, source.Status{Resource: r, Synced: r != source.ServiceImports || !c.unread.Load()})
		}
		return all
	}
	s.k.status, s.plain.status, s.imports = status, status, c
	return c
}

// change makes one change and returns its description.
func (c *importChanges) change() string {
	if c.unread != nil && c.unread.Load() && c.IntN(3) == 0 {
		c.unread.Store(false)
		return "ServiceImports are read"
	}
	ns, name, slice := pick(c.Rand, c.namespaces), pick(c.Rand, c.services), pick(c.Rand, importSlices)
	if c.focus != (index.Name{}) && c.IntN(2) == 0 {
		ns, name = c.focus.Namespace, c.focus.Name
	}
	n := c.IntN(100)
	if !c.ix.HasNamespace(ns) && n < 50 {
		c.ix.PutNamespace(ns) // other records have no names before
		return "PutNamespace " + ns
	}
	if !c.reads.Endpoints && n >= 25 && n < 55 {
		n %= 25 // no reader uses it
	}
	switch {
	case n < 18:
		s := c.serviceImport(ns, name)
		c.ix.PutImport(s)
		return fmt.Sprintf("PutImport %+v, topology %+v", *s, s.Topology)
	case n < 22:
		c.ix.DeleteImport(ns, name)
		return fmt.Sprint("DeleteImport ", ns, " ", name)
	case n < 24:
		s := c.serviceImport(ns, name)
		c.ix.DeleteImport(ns, name)
		c.ix.PutImport(s)
		return fmt.Sprintf("DeleteImport and PutImport %+v", *s)
	case n < 25:
		var left []*index.Service
		for _, e := range c.ix.Imports() {
			if c.IntN(2) == 0 {
				left = append(left, e.Service)
			}
		}
		c.ix.ReplaceImports(left)
		return "ReplaceImports"
	case n < 48:
		s := c.importSlice(ns, slice)
		c.ix.PutSlice(s)
		return fmt.Sprintf("PutSlice %+v", *s)
	case n < 50:
		c.ix.DeleteSlice(ns, slice)
		return fmt.Sprint("DeleteSlice ", ns, " ", slice)
	case n < 55:
		if c.reads.Topology {
			return c.hint(func(s index.Slice) bool { return s.Namespace == ns && s.Import == name })
		}
		return c.changes.change()
	case n < 58 && c.unread != nil:
		c.unread.Store(true)
		c.ix.Outdate()
		return "ServiceImports are there and not read yet"
	case n < 62:
		id := pick(c.Rand, []string{"west", "east", "eu.west-1", "", "north"})
		c.ix.SetClusterID(index.NewSymbol(id))
		return "SetClusterID " + id
	default:
		return c.changes.change()
	}
}

// serviceImport draws a record: the current one with an alteration, or a new one.
func (c *importChanges) serviceImport(ns, name string) *index.Service {
	s := &index.Service{Namespace: ns, Name: name, Kind: pick(c.Rand, []index.Kind{index.ClusterIP, index.Headless, index.Headless}), Ports: c.ports()}
	old, ok := c.m.imports[index.Name{Namespace: ns, Name: name}]
	if ok && c.IntN(4) > 0 {
		s.Kind, s.IPs, s.Ports, s.Topology = old.Kind, old.IPs, old.Ports, old.Topology
		switch what := c.IntN(4); {
		case what == 0:
			s.Ports = c.ports()
			return s
		case what == 1 && s.Kind == index.ClusterIP:
			s.IPs = c.ips()
			return s
		case what == 2 && c.reads.Topology:
			s.Topology = c.topology()
			return s
		}
		s.Kind = index.ClusterIP + index.Headless - old.Kind
	} else if c.reads.Topology {
		s.Topology = c.topology()
	}
	s.IPs = nil
	if s.Kind == index.ClusterIP && c.IntN(6) > 0 {
		s.IPs = c.ips()
	}
	return s
}

func (c *importChanges) importSlice(ns, name string) *index.Slice {
	s := &index.Slice{Namespace: ns, Name: name, Import: pick(c.Rand, c.services), Cluster: index.NewSymbol(pick(c.Rand, clusterIDs)), Ports: c.ports()}
	if c.IntN(4) == 0 {
		s.Service = pick(c.Rand, c.services)
	}
	old, ok := c.m.slices[index.Name{Namespace: ns, Name: name}]
	if !ok || old.Len() == 0 || c.IntN(4) == 0 {
		s.Endpoints = append(c.endpoints(), c.endpoint(), c.endpoint())
		return s
	}
	drawn := *s
	*s = old
	s.Endpoints = slices.Collect(old.All())
	at := c.IntN(len(s.Endpoints))
	switch c.IntN(8) {
	case 0:
		s.Import = drawn.Import
	case 1:
		s.Cluster = drawn.Cluster
	case 2:
		s.Service, s.Import = drawn.Service, drawn.Import
	case 3:
		s.Ports = drawn.Ports
	case 4:
		s.Endpoints = append(s.Endpoints, c.endpoint()) // an endpoint becomes ready
	case 5:
		s.Endpoints = slices.Delete(s.Endpoints, at, at+1)
	case 6:
		s.Endpoints[at].Name = c.endpoint().Name
	case 7:
		s.Endpoints[at].Node, s.Endpoints[at].Zone = c.endpoint().Node, c.endpoint().Zone
	}
	return s
}

// questions draws n queries, most of them for names of ServiceImports that may exist.
func (c *importChanges) questions(n int) (all []dns.Question) {
	below := c.below()
	for len(all) < n {
		if c.IntN(8) == 0 {
			all = append(all, c.changes.questions(1)...)
			continue
		}
		q := dns.Question{Name: pick(c.Rand, c.services) + "." + pick(c.Rand, c.namespaces) + ".svc." + modelZone, Qtype: pick(c.Rand, types)}
		if c.IntN(4) > 0 {
			q.Qtype = pick(c.Rand, []uint16{dns.TypeA, dns.TypeA, dns.TypeAAAA, dns.TypeSRV})
		}
		switch c.IntN(10) {
		case 0:
			q.Name = pick(c.Rand, below) + q.Name
		case 1, 2, 3:
			q.Name = pick(c.Rand, []string{"db-0.", "db-0.", "10-1-0-1.", "2001-db8--1."}) + pick(c.Rand, []string{"west.", "east.", "eu.west-1.", ""}) + q.Name
		case 4:
			q.Name = pick(c.Rand, []string{"_http._tcp.", "_dns._udp."}) + q.Name
		case 5:
			q.Name = pick(c.Rand, []string{"svc.clusterset.local.", "clusterset.local.", "shop.svc.clusterset.local.", "team.svc.clusterset.local.", "none.svc.clusterset.local.",
				"pod.clusterset.local.", "10-1-0-1.shop.pod.clusterset.local.", "dns-version.clusterset.local.", "ns.dns.clusterset.local.", "a.b.clusterset.local.",
				"none.shop.svc.clusterset.local.", "db-0.east.none.team.svc.clusterset.local.", "www.example.org.clusterset.local."})
		}
		all = append(all, q)
	}
	return all
}

// below returns labels that may be before the name of a ServiceImport.
func (c *importChanges) below() (all []string) {
	for _, host := range []string{"db-0.", "db-1.", "10-1-0-1.", "10-1-0-2.", "10-1-0-3.", "2001-db8--1.", "x."} {
		for _, id := range append(slices.Clone(clusterIDs), "north", "west-1") {
			if id != "" {
				id = strings.ToLower(id) + "."
			}
			all = append(all, host+id)
		}
	}
	return append(all, "_http._tcp.", "_http._tcp.", "_dns._udp.", "_dns._udp.", "_._tcp.", "http.tcp.", "http._tcp.", "_http.", "east.", "west.", "eu.west-1.",
		"_http._tcp.db-0.", "db-0._x.east.", "x.pin._zone.", `db-0.eu\.west-1.`)
}

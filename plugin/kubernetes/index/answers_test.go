package index

import (
	"fmt"
	"net/netip"
	"strconv"
)

// stored is a stored answer.
type stored struct {
	question question
	// content is the data that the answer was made from, as text.
	content string
	hangsOn []hold
}

// hold is a generation with its number before the records were read.
type hold struct {
	generation *Generation
	number     uint64
}

func load(g *Generation) hold { return hold{g, g.Load()} }

func (k stored) valid() bool {
	for _, g := range k.hangsOn {
		if g.generation.Load() != g.number {
			return false
		}
	}
	return true
}

// check returns an error if the answer counts as valid and differs from the current one.
func (k stored) check(now stored) error {
	if k.valid() && k.content != now.content {
		return fmt.Errorf("the answer to %T %v counts as valid:\n%q\nit is\n%q", k.question, k.question, k.content, now.content)
	}
	return nil
}

// question is a query whose answer is stored. ask reads the index as a handler that stores its answer must: a
// generation found by name is looked up again after its number was loaded, since in between the object may have been
// replaced by one of the same name with another generation.
type question interface{ ask(*Index) stored }

// questions returns every question about the names of the alphabet.
func (a *alphabet) questions() []question {
	all := []question{clusterQuestion{}}
	for _, ns := range a.namespaces {
		all = append(all, namespaceQuestion(ns))
		for _, name := range a.services {
			all = append(all, serviceQuestion{ns, name}, importQuestion{ns, name})
		}
	}
	for _, ips := range [][]netip.Addr{a.v4, a.v6} {
		for _, ip := range ips {
			all = append(all, pointerQuestion{ip}, podQuestion{ip})
		}
	}
	return all
}

// serviceQuestion reads the records at and below the name of a Service.
type serviceQuestion Name

func (q serviceQuestion) ask(ix *Index) stored {
	return askEntry(ix, q, Name(q), ix.Service, appendSlice)
}

// importQuestion is serviceQuestion for a ServiceImport; names below it also have the cluster.
type importQuestion Name

func (q importQuestion) ask(ix *Index) stored {
	return askEntry(ix, q, Name(q), ix.Import, func(b []byte, s *Slice) []byte {
		return appendSlice(appendStrings(b, "cluster", s.Cluster.String()), s)
	})
}

func askEntry(ix *Index, q question, name Name, find func(namespace, name string) *Entry, show func([]byte, *Slice) []byte) stored {
	access := load(ix.AccessGeneration())
	existing := func() *Entry {
		if !ix.HasNamespace(name.Namespace) {
			return nil
		}
		return find(name.Namespace, name.Name)
	}
	for {
		e := existing()
		if e == nil {
			absence := load(ix.NameGeneration(name.Namespace, name.Name))
			if existing() != nil {
				continue
			}
			return stored{q, "no such name", []hold{access, absence}}
		}
		own := load(e.Generation())
		if e = existing(); e == nil || e.Generation() != own.generation {
			continue
		}
		return stored{q, string(appendEntry(nil, e, show)), []hold{access, own}}
	}
}

// namespaceQuestion reads whether a namespace exists, which decides the answer for its name and for pods.
type namespaceQuestion string

func (q namespaceQuestion) ask(ix *Index) stored {
	existence := load(ix.NamespaceGeneration(string(q)))
	return stored{q, fmt.Sprint(ix.HasNamespace(string(q))), []hold{existence}}
}

// clusterQuestion reads the ID of the cluster, which decides like the Nodes which endpoints a caller gets.
type clusterQuestion struct{}

func (q clusterQuestion) ask(ix *Index) stored {
	nodes := load(ix.NodesGeneration())
	return stored{q, ix.ClusterID().String(), []hold{nodes}}
}

// pointerQuestion reads the PTR records of an address. An endpoint has one for each existing Service that is not an
// alias. Services without their namespace have none.
type pointerQuestion struct{ netip.Addr }

func (q pointerQuestion) ask(ix *Index) stored {
	generation := load(ix.AddressGeneration(q.Addr))
	var b []byte
	for _, s := range ix.ServicesByIP(q.Addr) {
		if !ix.HasNamespace(s.Namespace) {
			continue
		}
		b = appendStrings(b, "service", s.Namespace, s.Name)
	}
	for _, s := range ix.ServicesByExternalIP(q.Addr) {
		if ix.HasNamespace(s.Namespace) {
			b = appendStrings(b, "external", s.Namespace, s.Name)
		}
	}
	for _, s := range ix.SlicesByIP(q.Addr) {
		if e := ix.Service(s.Namespace, s.Service); e == nil || e.Service.Kind == ExternalName || !ix.HasNamespace(s.Namespace) {
			continue
		}
		for e := range s.All() {
			if e.Addr == q.Addr {
				b = appendStrings(b, "endpoint", s.Namespace, s.Service, e.Name)
			}
		}
	}
	return stored{q, string(b), []hold{generation}}
}

// podQuestion reads the pods with an address.
type podQuestion struct{ netip.Addr }

func (q podQuestion) ask(ix *Index) stored {
	generation := load(ix.AddressGeneration(q.Addr))
	var b []byte
	for _, p := range ix.PodsByIP(q.Addr) {
		b = appendStrings(b, "pod", p.Namespace, p.Name)
	}
	return stored{q, string(b), []hold{generation}}
}

// The text of records has everything that an answer may contain.

func appendEntry(b []byte, e *Entry, show func([]byte, *Slice) []byte) []byte {
	b = appendService(b, e.Service)
	for _, s := range e.Slices {
		b = show(b, s)
	}
	return b
}

func appendService(b []byte, s *Service) []byte {
	b = appendStrings(b, "service", strconv.Itoa(int(s.Kind)), s.Target)
	for _, a := range s.IPs {
		b = append(a.AppendTo(b), ' ')
	}
	if s.Topology != nil {
		b = fmt.Append(b, *s.Topology)
	}
	if s.External != nil {
		b = fmt.Append(b, *s.External)
	}
	return appendPorts(b, s.Ports)
}

func appendSlice(b []byte, s *Slice) []byte {
	b = appendPorts(appendStrings(b, "slice", s.Name), s.Ports)
	for e := range s.All() {
		b = append(e.Addr.AppendTo(b), ' ')
		b = appendStrings(b, e.Name, e.Zone.String(), e.Node.String())
		if e.Hints != nil {
			b = fmt.Append(b, *e.Hints)
		}
	}
	return b
}

func appendPorts(b []byte, ports []Port) []byte {
	for _, p := range ports {
		b = appendStrings(b, "port", p.Name.String(), p.Protocol.String(), strconv.Itoa(int(p.Number)))
	}
	return b
}

func appendStrings(b []byte, all ...string) []byte {
	for _, s := range all {
		b = append(append(b, s...), ' ')
	}
	return b
}

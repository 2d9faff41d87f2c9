//go:build linux

package search

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// clusterZone is the zone of the cluster.
const clusterZone = "cluster.local."

// records are the addresses at a name.
type records struct {
	exists bool
	v4, v6 []string
	owner  string // where they are
}

func (r records) of(qtype string) []string {
	if qtype == "A" {
		return r.v4
	}
	return r.v6
}

// look returns what is at a name that nobody expands, in the cluster or upstream.
func look(name string) records {
	if dns.IsSubDomain(clusterZone, name) {
		return lookInCluster(name)
	}
	_, d, found := find(name)
	if d.alias != "" {
		return look(d.alias)
	}
	r := records{exists: found, owner: name}
	if d.v4 != "" {
		r.v4 = []string{d.v4}
	}
	if d.v6 != "" {
		r.v6 = []string{d.v6}
	}
	return r
}

// lookInCluster returns what is at a name of the zone of the cluster.
func lookInCluster(name string) (r records) {
	r.owner = name
	for _, s := range services {
		at := s.name + "." + s.namespace + ".svc." + clusterZone
		switch {
		case name == at && s.alias != "":
			return look(s.alias)
		case name == at:
			r.exists = true
			r.add(s.ips...)
			r.add(s.endpoints...)
		case dns.IsSubDomain(name, at):
			r.exists = true // a namespace, svc, the zone
		}
		for i, e := range s.endpoints {
			if name == "e"+string(rune('0'+i))+"."+at {
				r.exists = true
				r.add(e)
			}
		}
	}
	return r
}

func (r *records) add(addresses ...string) {
	for _, a := range addresses {
		if strings.Contains(a, ":") {
			r.v6 = append(r.v6, a)
		} else {
			r.v4 = append(r.v4, a)
		}
	}
}

// brief tells the records as brief does those of a reply.
func (r records) brief(qtype string) string {
	switch found := slices.Sorted(slices.Values(r.of(qtype))); {
	case len(found) > 0:
		return strings.Join(found, " ") + " at " + r.owner
	case r.exists:
		return "NODATA"
	}
	return "NXDOMAIN"
}

// model says what a client is to be answered, whose search list is known, or nil if it is not.
func model(list []string, name, qtype string) string {
	name = strings.ToLower(name)
	if len(list) > 0 && strings.HasSuffix(name, "."+list[0]+".") {
		return found(strings.TrimSuffix(name, list[0]+"."), list).brief(qtype)
	}
	if below, ok := strings.CutSuffix(name, "."+clusterZone+carrying); ok {
		return carried(strings.Split(below, ".")).brief(qtype)
	}
	return look(name).brief(qtype)
}

// found returns what the first candidate of a search list has that has addresses.
func found(base string, list []string) records {
	exists := false
	for _, suffix := range append(slices.Clone(list), "") {
		r := look(dns.Fqdn(base + suffix))
		if len(r.v4)+len(r.v6) > 0 {
			return r
		}
		exists = exists || r.exists
	}
	return records{exists: exists}
}

// carrying is what names are under that carry their search list.
const carrying = "ap.k8s.io."

// carried returns what such a name leads to, of which the labels are given that stand left of the zone of the cluster.
func carried(labels []string) records {
	n := len(labels)
	switch {
	case n == 1:
		return records{exists: true}
	case labels[n-2] != "search":
		return records{}
	case n == 2, n == 3 && labels[0] == "v1":
		return records{exists: true}
	}
	namespace, base := labels[n-1], labels[:n-2]
	switch base[len(base)-1] {
	case "v1":
		base = base[:len(base)-1]
	case "v2":
		return records{}
	}
	return found(strings.Join(base, ".")+".", clusterSearch(namespace))
}

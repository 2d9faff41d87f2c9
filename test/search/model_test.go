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
	owner  string // owner name
}

func (r records) byType(qtype string) []string {
	if qtype == "A" {
		return r.v4
	}
	return r.v6
}

// look returns the records of a name, in the cluster or upstream, without expansion.
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

// lookInCluster returns the records of a name in the zone of the cluster.
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

// brief returns the records in the form of brief for replies.
func (r records) brief(qtype string) string {
	switch found := slices.Sorted(slices.Values(r.byType(qtype))); {
	case len(found) > 0:
		return strings.Join(found, " ") + " at " + r.owner
	case r.exists:
		return "NODATA"
	}
	return "NXDOMAIN"
}

// model returns the answer for a client with this search list, nil if the server does not know one, in the form of brief.
func model(list []string, name, qtype string) string {
	name = strings.ToLower(name)
	if len(list) > 0 && strings.HasSuffix(name, "."+list[0]+".") {
		return expand(strings.TrimSuffix(name, list[0]+"."), list).brief(qtype)
	}
	if below, ok := strings.CutSuffix(name, "."+clusterZone+searchNameSuffix); ok {
		return lookSearchName(strings.Split(below, ".")).brief(qtype)
	}
	return look(name).brief(qtype)
}

// expand returns the records of the first candidate with addresses.
func expand(base string, list []string) records {
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

// searchNameSuffix is the suffix of search names.
const searchNameSuffix = "ap.k8s.io."

// lookSearchName returns the records for a search name, given its labels before the zone of the cluster.
func lookSearchName(labels []string) records {
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
	return expand(strings.Join(base, ".")+".", clusterSearch(namespace))
}

package differential

import (
	"slices"
	"strings"
)

// pointerRules are the rules for the names of an address. The zero rules are CoreDNS's.
type pointerRules struct {
	exposed  bool // only in selected namespaces, also without the option namespaces
	existing bool // endpoints only of a Service that exists and has endpoints
	root     bool // into the root zone, too
	exact    bool // only of names that are an address
	services bool // into the first zone that has Services
	naming
}

// pointerSets returns the possible PTR records of a name, each sorted: one set for each Service with it as ClusterIP,
// since only the first counts; or else one set of its endpoints.
func (c *cluster) pointerSets(name string, rules pointerRules) (possible [][]string) {
	ip := addressOf(name)
	if rules.exact && !isAddress(name) {
		return [][]string{nil}
	}
	hidden := func(namespace string) bool {
		return (rules.exposed || len(c.variant.namespaces) > 0) && !c.namespaces[namespace]
	}
	zone := c.variant.forward()
	if rules.services {
		zone = c.variant.primary()
	}
	if zone == "." && !rules.root {
		zone = ".." // CoreDNS appends a dot to the dot
	}
	for _, s := range c.services {
		if slices.Contains(clusterIPs(s), ip.String()) && !hidden(s.Namespace) {
			possible = append(possible, []string{fullName(zone, s.Name, s.Namespace, "svc")})
		}
	}
	if len(possible) > 0 {
		return possible
	}
	var names []string
	for _, a := range c.pools.byIP[ip] {
		if a.text != ip.String() && !rules.canonical || hidden(a.slice.Namespace) {
			continue
		}
		s := c.service(a.slice.Namespace, serviceOf(a.slice))
		if rules.existing && (s == nil || isExternalName(s)) {
			continue
		}
		names = append(names, fullName(zone, rules.label(a, c.variant.podNames), serviceOf(a.slice), a.slice.Namespace, "svc"))
	}
	slices.Sort(names)
	return [][]string{slices.Compact(names)}
}

// unpackable reports whether CoreDNS's answer cannot be packed: it has the name of an endpoint without a Service, with
// an empty label.
func unpackable(possible [][]string) bool {
	return slices.ContainsFunc(possible, func(names []string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, "..") })
	})
}

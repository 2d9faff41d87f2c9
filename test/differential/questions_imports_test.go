package differential

import (
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// ofClusterset returns a name in a zone of a clusterset that may exist.
func (a asker) ofClusterset() string {
	zone := pick(a.Rand, a.c.variant.clustersets)
	switch n := a.IntN(100); {
	case n < 35:
		return a.ofImport(zone)
	case n < 70:
		return a.ofImported(zone)
	case n < 88:
		return a.ofImportPort(zone)
	case n < 94:
		return fullName(zone, pick(a.Rand, []string{"dns-version", "dns-version", "pod", "svc", "ns.dns", "x.dns-version", "default.svc", "default.pod", "1-2-3-4.default.pod"}))
	}
	// What the cluster's zone has names for.
	return fullName(zone, pick(a.Rand, a.p.zones), pick(a.Rand, []string{"pin", "prefer"}), "_zone", a.ofImport("."))
}

// ofImport returns the name of a ServiceImport, seldom of a Service.
func (a asker) ofImport(zone string) string {
	imp := pick(a.Rand, a.c.imports)
	switch {
	case imp == nil || a.chance(6):
		if s := pick(a.Rand, a.p.services); s != nil {
			return fullName(zone, s.Name, s.Namespace, "svc")
		}
		return zone
	case a.chance(5):
		return fullName(zone, imp.Name, pick(a.Rand, a.p.namespaces), "svc")
	}
	return fullName(zone, imp.Name, imp.Namespace, "svc")
}

// ofImported returns the name of an imported endpoint, or one that has too little or too much of it.
func (a asker) ofImported(zone string) string {
	e := pick(a.Rand, a.p.imported)
	if e.slice == nil {
		return zone
	}
	base := fullName(zone, importOf(e.slice), e.slice.Namespace, "svc")
	label, id := naming{}.label(e, a.c.variant.podNames), sourceOf(e.slice)
	switch a.IntN(12) {
	case 0:
		label = dashed(e.text)
	case 1:
		label = naming{canonical: true}.label(e, !a.c.variant.podNames)
	case 2:
		label = naming{canonical: true, oneLabel: true}.label(e, true)
	case 3:
		id = sourceOf(pick(a.Rand, a.p.imported).slice)
	case 4:
		id = ""
	case 5:
		label = "" // the cluster alone
	case 6:
		label = pick(a.Rand, []string{"_x", "x", "*", "a.b", "_http._tcp"}) + "." + label
	case 7:
		_, id, _ = strings.Cut(id, ".")
	}
	name := base
	for _, part := range []string{id, label} {
		if part != "" {
			name = part + "." + name
		}
	}
	return name
}

// ofImportPort returns the name of a port of a ServiceImport or of one of its slices.
func (a asker) ofImportPort(zone string) string {
	port, protocol, base := "http", "TCP", a.ofImport(zone)
	if imp := pick(a.Rand, a.c.imports); imp != nil {
		base = fullName(zone, imp.Name, imp.Namespace, "svc")
		if len(imp.Spec.Ports) > 0 {
			p := pick(a.Rand, imp.Spec.Ports)
			port, protocol = p.Name, string(p.Protocol)
		}
		if in := a.c.importedOf(imp.Namespace, imp.Name); a.chance(50) && len(in) > 0 {
			if ports := pick(a.Rand, in).Ports; len(ports) > 0 {
				p := pick(a.Rand, ports)
				port, protocol = *p.Name, string(*p.Protocol)
			}
		}
	}
	if protocol == "" {
		protocol = "TCP"
	}
	if a.chance(10) {
		protocol = pick(a.Rand, []string{"TCP", "udp", ""})
	}
	port, protocol = "_"+port, "_"+strings.ToLower(protocol)
	switch a.IntN(8) {
	case 0:
		port = strings.TrimPrefix(port, "_")
	case 1:
		protocol = strings.TrimPrefix(protocol, "_")
	}
	name := base
	for _, part := range []string{protocol, port} {
		if part != "" {
			name = part + "." + name
		}
	}
	return name
}

// ofService reports whether a slice is no import's, or a Service's as well.
func ofService(s *discoveryv1.EndpointSlice) bool { return importOf(s) == "" || serviceOf(s) != "" }

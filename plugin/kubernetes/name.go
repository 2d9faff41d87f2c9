package kubernetes

import (
	"errors"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/miekg/dns"
)

// Labels of the schema, https://github.com/kubernetes/dns/blob/master/docs/specification.md.
const (
	labelService = "svc"
	labelPod     = "pod"
	// labelZone marks a zonal name: <zone>.pin._zone.<service>... or <zone>.prefer._zone...
	labelZone   = "_zone"
	labelPin    = "pin"
	labelPrefer = "prefer"
)

// objectName is a parsed name of the cluster, in lower case. Fields of labels that the name does not have are empty.
type objectName struct {
	kind      string // labelService or labelPod; empty at the apex, and at svc and pod themselves
	namespace string
	object    string // the Service, or the pod's address with dashes

	imported bool // the object is a ServiceImport: the zone is one of a clusterset

	// At most one of these three groups is set.
	endpoint       string
	cluster        string // cluster ID in the endpoint name of a ServiceImport; it may contain dots
	port, protocol string // without the underscore; empty matches any
	zone           string // topology zone of a zonal name; it may contain dots
	prefer         bool   // the zonal name falls back to all zones
}

// errName is the error for a name outside of the schema. Its text, the same as in CoreDNS, is the metadata
// kubernetes/parse-error.
var errName = errors.New("invalid query name")

// below returns the part of a name before its zone, "" for the zone itself.
func below(name, zone string) string {
	base, err := dnsutil.TrimZone(name, zone)
	if err != nil {
		return ""
	}
	return base
}

// grammar selects the optional names of a zone.
type grammar struct {
	zonal    bool // zonal names
	imported bool // names of ServiceImports instead of Services and pods
}

// parseName parses a name in a zone; both are fully qualified, the name is in lower case.
//
// As in CoreDNS, the underscores of port and protocol are optional: two labels before a Service are port and protocol, one
// is an endpoint. Before a ServiceImport, one of two labels must have its underscore: without underscores, they are an
// endpoint and the ID of its cluster.
func parseName(name, zone string, g grammar) (n objectName, err error) {
	base := below(name, zone)
	if base == "" || base == labelService || base == labelPod {
		return n, nil
	}
	n.imported = g.imported
	labels := dns.SplitDomainName(base)
	pop := func() (label string) {
		if len(labels) > 0 {
			label = labels[len(labels)-1]
			labels = labels[:len(labels)-1]
		}
		return label
	}
	n.kind = pop()
	if n.kind != labelService && n.kind != labelPod {
		return objectName{}, errName
	}
	n.namespace = pop()
	n.object = pop()
	switch {
	case len(labels) == 0:
	case len(labels) == 1:
		n.endpoint = pop()
	case len(labels) == 2 && (!g.imported || slices.ContainsFunc(labels, hasUnderscore)):
		n.protocol = strings.TrimPrefix(pop(), "_")
		n.port = strings.TrimPrefix(pop(), "_")
	case g.imported:
		if slices.ContainsFunc(labels, hasUnderscore) {
			return objectName{}, errName
		}
		n.endpoint, n.cluster = labels[0], strings.Join(labels[1:], ".")
	default:
		if !g.zonal || n.kind != labelService || pop() != labelZone {
			return objectName{}, errName
		}
		switch pop() {
		case labelPin:
		case labelPrefer:
			n.prefer = true
		default:
			return objectName{}, errName
		}
		n.zone = strings.Join(labels, ".")
	}
	return n, nil
}

func hasUnderscore(label string) bool { return strings.HasPrefix(label, "_") }

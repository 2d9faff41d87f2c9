package kubernetes

import (
	"errors"
	"slices"
	"strings"

	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/miekg/dns"
)

// Names of the schema, https://github.com/kubernetes/dns/blob/master/docs/specification.md.
const (
	labelService = "svc"
	labelPod     = "pod"
	// labelZone marks a zonal name: <zone>.pin._zone.<service>... or <zone>.prefer._zone...
	labelZone   = "_zone"
	labelPin    = "pin"
	labelPrefer = "prefer"
)

// objectName is a name in the cluster, taken apart. Fields from the right are empty where the name
// ends before them. All are in lower case.
type objectName struct {
	kind      string // labelService or labelPod; empty at the apex, and at svc and pod themselves
	namespace string
	object    string // the Service, or the pod's address with dashes

	imported bool // the object is a ServiceImport, since the zone is one of a clusterset

	// At most one of these three groups is set.
	endpoint       string
	cluster        string // of the endpoint of a ServiceImport: the ID of its cluster; it may hold dots
	port, protocol string // without their underscore; empty matches any
	zone           string // of a zonal name; it may hold dots
	prefer         bool   // a zonal name that falls back to all zones
}

// errName says that a name is outside of the schema. Its text is the metadata
// kubernetes/parse-error, the same as in CoreDNS.
var errName = errors.New("invalid query name")

// below returns what a name has left of a zone that it is in; it is empty for the zone itself.
func below(name, zone string) string {
	base, err := dnsutil.TrimZone(name, zone)
	if err != nil {
		return "" // nothing left of it
	}
	return base
}

// grammar says what names a zone has besides those of every zone.
type grammar struct {
	zonal    bool // zonal names
	imported bool // names of ServiceImports, instead of Services and pods
}

// parseName takes a name in zone apart; both are fully qualified, the name in lower case.
//
// Underscores of ports and protocols are not required, as in CoreDNS: two labels left of the Service
// are a port and a protocol, one is an endpoint. Left of a ServiceImport one of the two has to have its
// underscore: labels without are an endpoint and the ID of its cluster.
func parseName(name, zone string, g grammar) (n objectName, err error) {
	base := below(name, zone)
	if base == "" || base == labelService || base == labelPod {
		return n, nil
	}
	n.imported = g.imported
	labels := dns.SplitDomainName(base)
	take := func() (label string) {
		if len(labels) > 0 {
			label = labels[len(labels)-1]
			labels = labels[:len(labels)-1]
		}
		return label
	}
	n.kind = take()
	if n.kind != labelService && n.kind != labelPod {
		return objectName{}, errName
	}
	n.namespace = take()
	n.object = take()
	switch {
	case len(labels) == 0:
	case len(labels) == 1:
		n.endpoint = take()
	case len(labels) == 2 && (!g.imported || slices.ContainsFunc(labels, hasUnderscore)):
		n.protocol = strings.TrimPrefix(take(), "_")
		n.port = strings.TrimPrefix(take(), "_")
	case g.imported:
		if slices.ContainsFunc(labels, hasUnderscore) {
			return objectName{}, errName
		}
		n.endpoint, n.cluster = labels[0], strings.Join(labels[1:], ".")
	default:
		if !g.zonal || n.kind != labelService || take() != labelZone {
			return objectName{}, errName
		}
		switch take() {
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

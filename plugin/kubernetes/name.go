package kubernetes

import (
	"errors"
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

	// At most one of these three groups is set.
	endpoint       string
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

// parseName takes a name in zone apart; both are fully qualified, the name in lower case. Zonal names
// are outside of the schema unless zonal is set.
//
// Underscores of ports and protocols are not required, as in CoreDNS: two labels left of the Service
// are a port and a protocol, one is an endpoint.
func parseName(name, zone string, zonal bool) (n objectName, err error) {
	base := below(name, zone)
	if base == "" || base == labelService || base == labelPod {
		return n, nil
	}
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
	switch len(labels) {
	case 0:
	case 1:
		n.endpoint = take()
	case 2:
		n.protocol = strings.TrimPrefix(take(), "_")
		n.port = strings.TrimPrefix(take(), "_")
	default:
		if !zonal || n.kind != labelService || take() != labelZone {
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

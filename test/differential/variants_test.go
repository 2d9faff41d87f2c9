package differential

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/labels"
)

// variant is one Corefile, with the settings that the test needs. The Corefile's text has the placeholders API, OUTSIDE,
// PORT and LOCAL for addresses.
type variant struct {
	name     string
	corefile string
	zones    []string // zones of the kubernetes block, as it normalizes them
	// clustersets are those for ServiceImports.
	clustersets []string
	// share is the percentage of questions that this variant receives, compared to others; 0 is all of them.
	share int

	noEndpoints   bool
	podNames      bool // endpoint_pod_names
	verified      bool // pods verified
	zonal         bool
	ignoreEmpty   bool
	transfers     bool
	bind          bool
	ttl           uint32
	namespaces    []string
	labels        string
	nsLabels      string
	fall          []string // zones of fallthrough
	needsOwnAddrs bool     // runs only on a machine with an address besides loopback
}

var variants = []*variant{
	{
		name:  "default",
		zones: []string{"cluster.local.", "in-addr.arpa.", "ip6.arpa."},
		corefile: `.:PORT {
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint API
        pods insecure
    }
    transfer {
        to *
    }
    forward . OUTSIDE {
        max_fails 0
    }
}`,
		transfers: true, ttl: 5,
	},
	{
		name:  "verified",
		zones: []string{"cluster.local.", "in-addr.arpa.", "ip6.arpa."},
		corefile: `.:PORT {
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint API
        pods verified
        endpoint_pod_names
        zonal
        ttl 30
    }
    transfer {
        to *
    }
    forward . OUTSIDE {
        max_fails 0
    }
}`,
		verified: true, podNames: true, zonal: true, transfers: true, ttl: 30,
	},
	{
		// The zones are those of the server block; queries for other names are refused.
		name:  "noendpoints",
		zones: []string{"cluster.local.", "in-addr.arpa.", "ip6.arpa."},
		corefile: `cluster.local:PORT in-addr.arpa:PORT ip6.arpa:PORT {
    kubernetes {
        endpoint API
        pods insecure
        noendpoints
        ttl 3600
    }
    transfer {
        to *
    }
}`,
		noEndpoints: true, transfers: true, ttl: 3600,
	},
	{
		name:  "namespaces",
		zones: []string{"cluster.local.", "in-addr.arpa.", "ip6.arpa."},
		corefile: `.:PORT {
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint API
        pods insecure
        ignore empty_service
        namespaces default ns-a edge NAMESPACES
        namespaces svc
    }
    transfer {
        to *
    }
    forward . OUTSIDE {
        max_fails 0
    }
}`,
		ignoreEmpty: true, transfers: true, ttl: 5,
		namespaces: []string{"default", "ns-a", "edge", "svc", markerNamespace, markerToggle(0), markerToggle(1)},
	},
	{
		name:  "labels",
		zones: []string{"cluster.local.", "in-addr.arpa.", "ip6.arpa."},
		corefile: `.:PORT {
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint API
        pods verified
        labels colour notin (blue)
        namespace_labels colour notin (green)
        ttl 0
    }
    transfer {
        to *
    }
    forward . OUTSIDE {
        max_fails 0
    }
}`,
		verified: true, transfers: true,
		labels: "colour notin (blue)", nsLabels: "colour notin (green)",
	},
	{
		name:  "reverse fallthrough",
		zones: []string{"cluster.local.", "in-addr.arpa.", "ip6.arpa."},
		corefile: `.:PORT {
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint API
        pods disabled
        fallthrough in-addr.arpa ip6.arpa
        zonal
    }
    forward . OUTSIDE {
        max_fails 0
    }
}`,
		zonal: true, ttl: 5, fall: []string{"in-addr.arpa.", "ip6.arpa."},
	},
	{
		// The zone has all names: none is outside.
		name:  "root",
		zones: []string{"10.in-addr.arpa.", ".", "ip6.arpa."},
		corefile: `.:PORT {
    kubernetes 10.in-addr.arpa . ip6.arpa {
        endpoint API
        pods insecure
    }
    transfer {
        to *
    }
}`,
		transfers: true, ttl: 5,
	},
	{
		name:  "mixed zones",
		zones: []string{"10.in-addr.arpa.", "k8s.example.net.", "ns-a.svc.cluster.local.", "cluster.local.", "1.0.0.0.0.0.d.f.ip6.arpa.", "200.0.0.10.in-addr.arpa."},
		corefile: `.:PORT {
    kubernetes 10.in-addr.arpa K8s.Example.net ns-a.svc.cluster.local cluster.local fd00:1::/32 10.0.0.200/32 {
        endpoint API
        pods verified
        endpoint_pod_names
        fallthrough
    }
    transfer cluster.local {
        to *
    }
    forward . OUTSIDE {
        max_fails 0
    }
}`,
		verified: true, podNames: true, transfers: true, ttl: 5, fall: []string{"."},
	},
	{
		name:  "bind",
		zones: []string{"cluster.local.", "in-addr.arpa."},
		corefile: `.:PORT {
    bind LOCAL
    kubernetes cluster.local in-addr.arpa {
        endpoint API
    }
    transfer {
        to *
    }
    forward . OUTSIDE {
        max_fails 0
    }
}`,
		bind: true, transfers: true, ttl: 5, needsOwnAddrs: true,
	},
	{
		name:  "clusterset",
		zones: []string{"cluster.local.", "clusterset.local.", "in-addr.arpa.", "ip6.arpa."},
		corefile: `.:PORT {
    kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {
        endpoint API
        pods insecure
        multicluster clusterset.local
    }
    transfer {
        to *
    }
    forward . OUTSIDE {
        max_fails 0
    }
}`,
		clustersets: []string{"clusterset.local."}, share: 60,
		transfers: true, ttl: 5,
	},
	{
		// The clusterset is first; PTR records point into another zone.
		name:  "two clustersets",
		zones: []string{"clusterset.local.", "mcs.example.net.", "cluster.local.", "in-addr.arpa."},
		corefile: `.:PORT {
    kubernetes Clusterset.local mcs.example.net cluster.local in-addr.arpa {
        endpoint API
        multicluster MCS.example.net clusterset.local
        endpoint_pod_names
        ignore empty_service
        namespaces default ns-a svc edge NAMESPACES
        labels colour notin (blue)
        fallthrough
        ttl 30
    }
    transfer {
        to *
    }
    forward . OUTSIDE {
        max_fails 0
    }
}`,
		clustersets: []string{"clusterset.local.", "mcs.example.net."}, share: 60,
		podNames: true, ignoreEmpty: true, transfers: true, ttl: 30, fall: []string{"."},
		namespaces: []string{"default", "ns-a", "svc", "edge", markerNamespace, markerToggle(0), markerToggle(1)},
		labels:     "colour notin (blue)",
	},
	{
		name:  "clusterset without endpoints",
		zones: []string{"cluster.local.", "clusterset.local."},
		corefile: `.:PORT {
    kubernetes cluster.local clusterset.local {
        endpoint API
        multicluster clusterset.local
        noendpoints
        namespace_labels colour notin (green)
    }
    transfer {
        to *
    }
}`,
		clustersets: []string{"clusterset.local."}, share: 40,
		noEndpoints: true, transfers: true, ttl: 5,
		nsLabels: "colour notin (green)",
	},
}

// write replaces the placeholders of a Corefile.
func write(corefile, api, outside, port string, own []netip.Addr) string {
	local := ""
	if len(own) > 0 {
		local = own[0].String()
	}
	return strings.NewReplacer("API", api, "OUTSIDE", outside, "PORT", port, "LOCAL", local,
		"NAMESPACES", fmt.Sprintf("%s %s %s", markerNamespace, markerToggle(0), markerToggle(1))).Replace(corefile)
}

// primary is the zone of PTR targets: the first with names of Services.
func (v *variant) primary() string {
	return v.zones[slices.IndexFunc(v.zones, func(z string) bool { return !isReverse(z) && !v.isClusterset(z) })]
}

// forward is the first zone that is no reverse zone.
func (v *variant) forward() string {
	return v.zones[slices.IndexFunc(v.zones, func(z string) bool { return !isReverse(z) })]
}

// isClusterset reports whether the names of a zone are those of ServiceImports.
func (v *variant) isClusterset(zone string) bool { return slices.Contains(v.clustersets, zone) }

// zoneOf returns the most specific zone that a name is in, or "".
func (v *variant) zoneOf(name string) (zone string) {
	for _, z := range v.zones {
		if dns.IsSubDomain(z, name) && len(z) > len(zone) {
			zone = z
		}
	}
	return zone
}

// fallsThrough reports whether the outside resolver is queried for a name that does not exist.
func (v *variant) fallsThrough(name string) bool {
	return slices.ContainsFunc(v.fall, func(z string) bool { return dns.IsSubDomain(z, name) })
}

func (v *variant) selector(text string) labels.Selector {
	s, err := labels.Parse(text)
	if err != nil {
		panic(err) // a row of the table above
	}
	return s
}

func isReverse(name string) bool {
	name = strings.ToLower(name)
	return dns.IsSubDomain("in-addr.arpa.", name) || dns.IsSubDomain("ip6.arpa.", name)
}

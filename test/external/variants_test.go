package external

import (
	"slices"
	"strings"
)

// variant is a Corefile for both servers, with the facts that questions depend on. API, OUTSIDE and PORT stand for addresses.
type variant struct {
	name     string
	zones    []string // of k8s_external
	apex     string
	corefile string
	// cached has our server cache answers for an hour, and only ours: CoreDNS would answer from an old state.
	cached bool
	// outside is set if names that do not exist fall through to the outside resolver.
	outside     bool
	noEndpoints bool
}

const common = `.:PORT {
    errors
    transfer {
        to *
    }
    CACHE
`

// corefileOf returns the Corefile of a variant for one of the servers.
func (v *variant) corefileOf(ours bool, api, outside string) string {
	cache := ""
	if v.cached && ours {
		cache = "cache 3600"
	}
	return strings.NewReplacer("CACHE", cache, "API", api, "OUTSIDE", outside).Replace(common + v.corefile + "}\n")
}

// reverse returns the reverse zones.
func (v *variant) reverse() []string {
	return slices.DeleteFunc(slices.Clone(v.zones), func(z string) bool { return !isReverse(z) })
}

func isReverse(name string) bool { return strings.HasSuffix(name, ".arpa.") }

var variants = []*variant{
	{
		name: "plain", zones: []string{"example.org."}, apex: "dns", corefile: `
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint API
    }
    k8s_external example.org
    forward . OUTSIDE
`,
	},
	{
		name: "headless, with all options", zones: []string{"example.org.", "a.example.net.", "113.0.203.in-addr.arpa.", "ip6.arpa."}, apex: "edge", cached: true, corefile: `
    kubernetes cluster.local in-addr.arpa {
        endpoint API
        endpoint_pod_names
        ttl 30
    }
    k8s_external example.org a.example.net 113.0.203.in-addr.arpa ip6.arpa {
        headless
        apex edge
        ttl 77
    }
    forward . OUTSIDE
`,
	},
	{
		name: "fallthrough to another server", zones: []string{"example.org.", "203.in-addr.arpa."}, apex: "dns", cached: true, outside: true, corefile: `
    kubernetes cluster.local {
        endpoint API
        namespaces default ns-a marker marker-0 marker-1
    }
    k8s_external example.org 203.in-addr.arpa {
        headless
        fallthrough
    }
    forward . OUTSIDE
`,
	},
	{
		name: "fallthrough to kubernetes", zones: []string{"ext.cluster.local.", "in-addr.arpa.", "ip6.arpa."}, apex: "dns", cached: true, noEndpoints: true, corefile: `
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        endpoint API
        noendpoints
    }
    k8s_external ext.cluster.local in-addr.arpa ip6.arpa {
        headless
        fallthrough in-addr.arpa ip6.arpa
    }
    forward . OUTSIDE
`,
	},
	{
		name: "selected by labels", zones: []string{"example.org."}, apex: "dns", corefile: `
    kubernetes cluster.local {
        endpoint API
        namespace_labels colour notin (green)
        labels colour notin (blue)
    }
    k8s_external example.org {
        headless
        ttl 0
    }
    forward . OUTSIDE
`,
	},
}

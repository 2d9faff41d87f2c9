package docs

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
)

// clusterCorefile has most directives of clusterdns, with metrics on METRICS. Its upstream does not answer.
const clusterCorefile = `.:PORT {
    bind 127.0.0.1
    metadata
    errors
    health HEALTH
    ready READY
    prometheus METRICS
    reload
    kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {
        manifests DEMO
        multicluster clusterset.local
        topology
        pods verified
        fallthrough in-addr.arpa ip6.arpa
    }
    hosts {
        192.0.2.1 a.example
        fallthrough
    }
    template IN A b.example {
        answer "{{ .Name }} 60 IN A 192.0.2.1"
    }
    cache 30
    forward . 127.0.0.1:1 {
        timeout 200ms
    }
    loadbalance
}
cluster.local.two:PORT {
    bind 127.0.0.1
    prometheus METRICS
    autopath @kubernetes
    kubernetes {
        manifests DEMO
        pods verified
        coherent
    }
}
ap.k8s.io:PORT {
    bind 127.0.0.1
    prometheus METRICS
    searchpath {
        zone cluster.local
    }
}
`

// nodeCorefile has most directives of nodecache, with the upstream SERVER.
const nodeCorefile = `cluster.local:PORT {
    bind 127.0.0.1
    nodelocal 169.254.20.10 {
        setup none
    }
    errors
    health HEALTH
    ready READY
    prometheus METRICS
    autopath @nodelocal {
        node node-a1
        manifests DEMO
    }
    cache 30
    forward . SERVER {
        force_tcp
        fallback udp
        coherent
    }
}
ap.k8s.io:PORT {
    bind 127.0.0.1
    prometheus METRICS
    searchpath {
        zone cluster.local
    }
}
.:PORT {
    bind 127.0.0.1
    prometheus METRICS
    cache 30
    forward . SERVER
}
`

// queried are names whose queries reach most of the plugins.
var queried = []string{
	"web.shop.svc.cluster.local.", "db.shop.svc.cluster.local.", "missing.shop.svc.cluster.local.", "web.shop.svc.clusterset.local.",
	"web.v1.search.shop.cluster.local.ap.k8s.io.", "wrong.ap.k8s.io.", "a.example.", "b.example.", "web.svc.cluster.local.two.", "none.example.",
}

// exported starts a program, sends queries, and returns the names of its metrics.
func exported(t *testing.T, program, corefile string, args ...string) (server *daemon.Process, names []string) {
	t.Helper()
	local := func() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(daemon.FreePort(t))) }
	demo, err := filepath.Abs(filepath.Join(root, "deploy", "demo"))
	kit.Must(t, err)
	metrics := local()
	corefile = strings.NewReplacer("DEMO", demo, "METRICS", metrics, "HEALTH", local(), "READY", local()).Replace(corefile)
	server = daemon.Start(t, daemon.Program(t, program), corefile, args...)
	client := dns.Client{Timeout: 30 * time.Second}
	for _, name := range queried {
		for range 2 {
			if _, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), server.Addr); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	}
	found := map[string]bool{}
	for sample := range daemon.Scrape(t, http.DefaultClient, metrics) {
		name, _, _ := strings.Cut(sample, "{")
		found[name] = true
	}
	return server, slices.Sorted(maps.Keys(found))
}

// TestMetricsOfPrograms checks that the page has every metric that the programs export.
func TestMetricsOfPrograms(t *testing.T) {
	listed := listedMetrics(t, documents(t))
	cluster, names := exported(t, "clusterdns", clusterCorefile)
	_, more := exported(t, "nodecache", strings.ReplaceAll(nodeCorefile, "SERVER", cluster.Addr), "-metrics-listen-address=", "-node-name=node-a1")
	names = append(names, more...)
	for _, must := range []string{
		"coredns_cache_hits_total", "coredns_dns_requests_total", "nearside_forward_coherence_sessions", "coredns_nodecache_setup_errors_total",
		"nearside_autopath_unknown_clients_total", "nearside_cache_bytes", "nearside_fastpath_answered_total", "nearside_forward_up",
		"nearside_kubernetes_coherence_live", "nearside_kubernetes_last_sync_seconds", "nearside_reload_failed_total", "nearside_searchpath_expansions_total",
	} {
		if !slices.Contains(names, must) {
			t.Errorf("%s is not exported here: the test does not cover it", must)
		}
	}
	for _, name := range unlisted(strings.Join(names, "\n"), listed) {
		t.Errorf("%s is exported, and not in %s", name, configuration)
	}
	t.Run("can fail", func(t *testing.T) {
		without := slices.DeleteFunc(slices.Clone(listed), func(m string) bool { return m == "nearside_forward_up" })
		if got, want := fmt.Sprint(unlisted(strings.Join(names, "\n"), without)), "[nearside_forward_up]"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
}

package trace

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/zipkin"
)

// clusterCorefile has the plugins of a cluster whose answers the fast path sends. TRACE is the plugin or nothing.
const clusterCorefile = `.:PORT {
    bind 127.0.0.1
    metadata
    TRACE
    prometheus METRICS
    errors
    autopath cluster.local SEARCH
    cache 30
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        manifests DEMO
        pods verified
        fallthrough in-addr.arpa ip6.arpa
    }
    loop
    forward . UPSTREAM
    loadbalance
}
`

// answers are the records of a reply without order and TTLs.
func answers(m *dns.Msg) string {
	var lines []string
	for _, rr := range slices.Concat(m.Answer, m.Ns) {
		rr.Header().Ttl = 0
		if soa, ok := rr.(*dns.SOA); ok {
			soa.Serial = 0
		}
		lines = append(lines, rr.String())
	}
	slices.Sort(lines)
	return dns.RcodeToString[m.Rcode] + "\n" + strings.Join(lines, "\n")
}

// TestEveryQuery sends queries, most of them again, to clusterdns with trace and without: the answers are the same, no query is
// answered by the fast path, and each has spans.
func TestEveryQuery(t *testing.T) {
	u, z := startUpstream(t), zipkin.New(t)
	demo, err := filepath.Abs("../../deploy/demo")
	kit.Must(t, err)
	search := kit.File(t, "resolv.conf", "search shop.svc.cluster.local svc.cluster.local cluster.local\n")
	metrics := map[bool]string{false: dead(t), true: dead(t)}
	servers := map[bool]*daemon.Process{}
	for traced, address := range metrics {
		plugin := ""
		if traced {
			plugin = "trace COLLECTOR {\n zipkin_max_batch_interval 10ms\n }"
		}
		corefile := strings.NewReplacer("TRACE", plugin, "METRICS", address, "SEARCH", search, "DEMO", demo).Replace(clusterCorefile)
		servers[traced] = start(t, daemon.Program(t, "clusterdns"), z, u, corefile)
	}
	const times = 3
	for _, tc := range []struct {
		question string
		qtype    uint16
		first    string // the last plugin of the first query
		stored   string // the plugin that answers the others
	}{
		{"web.shop.svc.cluster.local.", dns.TypeA, "kubernetes", "cache"},
		{"2.1.244.10.in-addr.arpa.", dns.TypePTR, "kubernetes", "cache"},
		{"www.example.org.", dns.TypeA, "connect", "cache"},
		{"www.none.example.", dns.TypeA, "connect", "cache"},
		{"www.example.net.shop.svc.cluster.local.", dns.TypeA, "connect", "autopath"},
	} {
		t.Run(tc.question, func(t *testing.T) {
			for n := range times {
				network := []string{"udp", "tcp"}[n%2]
				replies := map[bool]string{}
				for traced, server := range servers {
					replies[traced] = answers(kit.Ask(t, network, server.Addr, tc.question, tc.qtype))
				}
				if replies[true] != replies[false] {
					t.Errorf("with trace %s\nwithout %s", replies[true], replies[false])
				}
			}
			traces := z.Traces(t, times, tagName, tc.question)
			if len(traces) != times {
				t.Errorf("%d traces, want %d", len(traces), times)
			}
			if tree := zipkin.Tree(traces[0]); !strings.Contains(tree, "  "+tc.first) {
				t.Errorf("no %s in\n%s", tc.first, tree)
			}
			for _, trace := range traces[1:] {
				if tree := zipkin.Tree(trace); !strings.HasSuffix(tree, " "+tc.stored+"\n") {
					t.Errorf("not answered by %s:\n%s", tc.stored, tree)
				}
			}
		})
	}
	for traced, address := range metrics {
		samples := daemon.Scrape(t, http.DefaultClient, address)
		if got := samples.Sum("nearside_fastpath_answered_total"); traced != (got == 0) {
			t.Errorf("trace %t: %v answers of the fast path", traced, got)
		}
	}
	if out := servers[true].Output(); !strings.Contains(out, "no fast path for .: plugin trace has to see every query") {
		t.Errorf("the reason is not logged:\n%s", out)
	}
}

// TestNodecache traces queries over UDP and TCP, and not those by which nodecache renews its lease.
func TestNodecache(t *testing.T) {
	u, z := startUpstream(t), zipkin.New(t)
	const corefile = `.:PORT {
    bind 127.0.0.1
    nodelocal 169.254.20.10 {
        setup none
    }
    trace COLLECTOR {
        service node
        zipkin_max_batch_interval 10ms
    }
    errors
    cache 30
    forward . UPSTREAM {
        force_tcp
        fallback udp
    }
}
`
	p := start(t, daemon.Program(t, "nodecache"), z, u, corefile, "-metrics-listen-address=")
	want := ""
	for _, network := range []string{"udp", "tcp"} {
		name := network + ".example."
		kit.Ask(t, network, p.Addr, name, dns.TypeA)
		kit.Ask(t, network, p.Addr, "1.nodelocal-health.", dns.TypeTXT)
		want = fmt.Sprintf("servedns coredns.io/name=%s coredns.io/proto=%s coredns.io/rcode=NOERROR coredns.io/remote=127.0.0.1 coredns.io/type=A\n"+
			"  errors\n    cache\n      forward\n        connect peer.address=%s\n", name, network, u.address)
		if got := zipkin.Tree(z.Traces(t, 1, tagName, name)[0]); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
	for _, s := range z.Await(t, "spans", func(zipkin.State) bool { return true }).Spans {
		if strings.Contains(s.Tags[tagName], "nodelocal-health") {
			t.Errorf("span of a lease: %+v", s)
		}
	}
}

// TestLog logs the ID of a trace.
func TestLog(t *testing.T) {
	u, z := startUpstream(t), zipkin.New(t)
	const corefile = ".:PORT {\n    bind 127.0.0.1\n    metadata\n    trace COLLECTOR {\n        zipkin_max_batch_interval 10ms\n    }\n    log . \"{name} has {/trace/traceid}\"\n    forward . UPSTREAM\n}\n"
	p := start(t, daemon.Program(t, "clusterdns"), z, u, corefile)
	kit.Ask(t, "udp", p.Addr, "a.example.", dns.TypeA)
	want := "a.example. has " + z.Traces(t, 1, tagName, "a.example.")[0][0].TraceID + "\n"
	kit.Eventually(t, want, func() bool { return strings.Contains(p.Output(), want) })
}

// TestAttempts has two upstreams, of which one is dead: each attempt has a span, which ends with it.
func TestAttempts(t *testing.T) {
	u, z, none := startUpstream(t), zipkin.New(t), dead(t)
	corefile := ".:PORT {\n    bind 127.0.0.1\n}\nheld.example:PORT {\n    bind 127.0.0.1\n    trace COLLECTOR {\n        zipkin_max_batch_interval 10ms\n    }\n    forward . " + none + " UPSTREAM {\n        policy sequential\n    }\n}\n"
	p := start(t, daemon.Program(t, "clusterdns"), z, u, corefile)
	answered := make(chan error, 1)
	go func() {
		client := dns.Client{Timeout: patience}
		_, _, err := client.Exchange(new(dns.Msg).SetQuestion("held.example.", dns.TypeA), p.Addr)
		answered <- err
	}()
	<-u.received
	s := z.Await(t, "first attempt", func(s zipkin.State) bool { return len(s.Spans) > 0 })
	if got, want := s.Spans[0].Tags["peer.address"], none; got != want || len(s.Spans) != 1 {
		t.Errorf("spans during the second attempt:\n%s", zipkin.Tree(s.Spans))
	}
	close(u.release)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	want := "  forward\n    connect peer.address=" + none + "\n    connect peer.address=" + u.address + "\n"
	if tree := zipkin.Tree(z.Traces(t, 1, tagName, "held.example.")[0]); !strings.HasSuffix(tree, want) {
		t.Errorf("%s\nwant\n%s", tree, want)
	}
}

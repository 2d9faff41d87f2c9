package trace

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/zipkin"
)

// stockCorefile has directives that CoreDNS and both programs have.
const stockCorefile = `.:PORT {
    bind 127.0.0.1
    trace COLLECTOR {
        zipkin_max_batch_interval 10ms
        service stock
    }
    prometheus METRICS
    errors
    log
    any
    loadbalance
    rewrite name old.example new.example
    cache 30
    template IN TXT t.example {
        answer "t.example. 60 IN TXT text"
    }
    hosts {
        192.0.2.9 h.example
        fallthrough
    }
    forward . UPSTREAM
}
dead.example:PORT {
    bind 127.0.0.1
    trace zipkin http://COLLECTOR/api/v2/spans {
        zipkin_max_batch_interval 10ms
    }
    errors
    forward . DEAD
}
`

// once removes the repetitions of a line: programs make different numbers of attempts at an upstream that is dead.
func once(tree string) string {
	return strings.Join(slices.Compact(strings.SplitAfter(tree, "\n")), "")
}

// TestParity sends the same queries to both programs and to CoreDNS: the trees of spans are the same.
func TestParity(t *testing.T) {
	paths := map[string]string{"coredns": controlplane.RequireBinary(t, "coredns")}
	for _, name := range []string{"clusterdns", "nodecache"} {
		paths[name] = daemon.Program(t, name)
	}
	u, none := startUpstream(t), dead(t)
	collectors, servers := map[string]*zipkin.Collector{}, map[string]*daemon.Process{}
	for name, path := range paths {
		collectors[name] = zipkin.New(t)
		corefile := strings.NewReplacer("DEAD", none, "METRICS", dead(t)).Replace(stockCorefile)
		var args []string
		if name == "nodecache" {
			args = []string{"-metrics-listen-address="}
		}
		servers[name] = start(t, path, collectors[name], u, corefile, args...)
	}
	for _, tc := range []struct {
		name, network, question string
		qtype                   uint16
		times                   int
		want                    string // a part of the trees
	}{
		{"upstream", "udp", "a.example.", dns.TypeA, 1, "connect peer.address=" + u.address},
		{"cache hits", "udp", "b.example.", dns.TypeA, 3, "coredns.io/rcode=NOERROR"},
		{"TCP", "tcp", "c.example.", dns.TypeA, 2, "coredns.io/proto=tcp"},
		{"NXDOMAIN", "udp", "a.none.example.", dns.TypeA, 2, "coredns.io/rcode=NXDOMAIN"},
		{"NODATA", "udp", "d.example.", dns.TypeMX, 1, "coredns.io/type=MX"},
		{"rewrite", "udp", "old.example.", dns.TypeA, 1, "coredns.io/name=new.example."},
		{"template", "udp", "t.example.", dns.TypeTXT, 1, "template"},
		{"hosts", "tcp", "h.example.", dns.TypeA, 1, "hosts"},
		{"any", "udp", "e.example.", dns.TypeANY, 1, "any"},
		{"unknown type", "udp", "f.example.", 65280, 1, "coredns.io/type=TYPE65280"},
		{"failure", "udp", "a.dead.example.", dns.TypeA, 1, "coredns.io/rcode=SERVFAIL"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := map[string]string{}
			for name, server := range servers {
				for range tc.times {
					kit.Ask(t, tc.network, server.Addr, tc.question, tc.qtype)
				}
				for _, trace := range collectors[name].Traces(t, tc.times, tagName, strings.Replace(tc.question, "old", "new", 1)) {
					got[name] += once(zipkin.Tree(trace))
					for _, s := range trace {
						service := "stock"
						if tc.name == "failure" {
							service = "coredns"
						}
						if e := s.LocalEndpoint; e.ServiceName != service || e.IPv4 != "127.0.0.1" || e.Port != server.Port {
							t.Errorf("%s: endpoint %+v", name, e)
						}
					}
				}
				if !strings.Contains(got[name], tc.want) {
					t.Errorf("%s:\n%s\nwant %s", name, got[name], tc.want)
				}
			}
			for _, name := range []string{"clusterdns", "nodecache"} {
				if got[name] != got["coredns"] {
					t.Errorf("%s:\n%s\nCoreDNS:\n%s", name, got[name], got["coredns"])
				}
			}
		})
	}
}

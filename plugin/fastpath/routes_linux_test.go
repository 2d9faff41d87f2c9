package fastpath

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/coredns/coredns/plugin/test"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	"time"

	"github.com/nearside-dns/nearside/test/property"
)

// TestRoutes compares the way of names with what CoreDNS says about the longest zone.
func TestRoutes(t *testing.T) {
	for name, zones := range map[string][]string{
		"root":           {"."},
		"one zone":       {"cluster.local."},
		"node-local-dns": {"cluster.local.", "in-addr.arpa.", "ip6.arpa.", "."},
		"nested":         {"local.", "cluster.local.", "svc.cluster.local.", "a.b.c.d.e.f.cluster.local."},
		"escaped":        {`a\.b.local.`, `\000.`, "local."},
	} {
		t.Run(name, func(t *testing.T) {
			r := routes{byZone: map[string]*route{}}
			byRoute := map[*route]string{}
			for _, zone := range zones {
				to := &route{}
				byRoute[to] = zone
				r.add(zone, to)
			}
			property.Seeds(t, 1, 1, func(t *testing.T, seed uint64) {
				random := rand.New(rand.NewPCG(seed, 2))
				for range 2000 {
					asked := randomName(random, zones)
					packed := make([]byte, 256)
					n, err := dns.PackDomainName(asked, packed, 0, nil, false)
					if err != nil {
						continue // too long
					}
					if got, want := byRoute[r.find(packed[:n])], plugin.Zones(zones).Matches(asked); got != want {
						t.Fatalf("%s leads to %q, want %q", asked, got, want)
					}
				}
			})
		})
	}
	t.Run("many labels", func(t *testing.T) {
		r := routes{byZone: map[string]*route{}}
		to := &route{}
		r.add("b.", to)
		packed := append([]byte(strings.Repeat("\x01a", 126)), 1, 'b', 0)
		if r.find(packed) != to {
			t.Error("a name of 127 labels is lost")
		}
	})
}

// randomName returns a name in one of the zones, near them, or elsewhere.
func randomName(random *rand.Rand, zones []string) string {
	labels := []string{"a", "b", "local", "cluster", "svc", "arpa", `a\.b`, `\000`, "x"}
	name := zones[random.IntN(len(zones))]
	if random.IntN(3) == 0 {
		name = "."
	}
	if name == "." {
		name = ""
	}
	for range random.IntN(6) {
		name = labels[random.IntN(len(labels))] + "." + name
	}
	return dns.Fqdn(name)
}

// TestNamedTypes asks CoreDNS's metrics for the name of every type.
func TestNamedTypes(t *testing.T) {
	for qtype := range monitoredTypes {
		m := new(dns.Msg)
		m.Question = []dns.Question{{Name: "example.org.", Qtype: uint16(qtype), Qclass: dns.ClassINET}} // #nosec G115
		state := request.Request{Req: m, W: &test.ResponseWriter{}}
		before := counted(t, named[qtype])
		vars.Report("named", state, "zone", "", "NOERROR", "plugin", 0, time.Now())
		if counted(t, named[qtype]) != before+1 {
			t.Errorf("type %d is not counted as %q", qtype, named[qtype])
		}
	}
}

// counted returns how many queries of a type were counted.
func counted(t *testing.T, label string) float64 {
	t.Helper()
	return valueOf(t, vars.RequestCount.WithLabelValues("named", "zone", "", "udp", "1", label))
}

package fastpath

import (
	"math/rand/v2"
	"strings"
	"testing"

	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/coredns/coredns/plugin/test"
	corerequest "github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/property"
)

// TestRoutes compares the zones of routes with plugin.Zones.
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
				rt := &route{}
				byRoute[rt] = zone
				r.add(zone, rt)
			}
			property.Seeds(t, 1, 1, func(t *testing.T, seed uint64) {
				random := rand.New(rand.NewPCG(seed, 2))
				for range 2000 {
					name := randomName(random, zones)
					packed := make([]byte, 256)
					n, err := dns.PackDomainName(name, packed, 0, nil, false)
					if err != nil {
						continue // too long
					}
					if got, want := byRoute[r.find(packed[:n])], plugin.Zones(zones).Matches(name); got != want {
						t.Fatalf("the route of %s has zone %q, want %q", name, got, want)
					}
				}
			})
		})
	}
	t.Run("many labels", func(t *testing.T) {
		r := routes{byZone: map[string]*route{}}
		rt := &route{}
		r.add("b.", rt)
		packed := append([]byte(strings.Repeat("\x01a", 126)), 1, 'b', 0)
		if r.find(packed) != rt {
			t.Error("a name of 127 labels has no route")
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

// TestTypeLabels compares the label of each type with that in CoreDNS's metrics.
func TestTypeLabels(t *testing.T) {
	for qtype := range monitoredTypes {
		m := new(dns.Msg)
		m.Question = []dns.Question{{Name: "example.org.", Qtype: uint16(qtype), Qclass: dns.ClassINET}} // #nosec G115
		state := corerequest.Request{Req: m, W: &test.ResponseWriter{}}
		before := counted(t, typeLabels[qtype])
		vars.Report("named", state, "zone", "", "NOERROR", "plugin", 0, time.Now())
		if counted(t, typeLabels[qtype]) != before+1 {
			t.Errorf("type %d is not counted as %q", qtype, typeLabels[qtype])
		}
	}
}

// counted returns the count of queries with a type label.
func counted(t *testing.T, label string) float64 {
	t.Helper()
	return valueOf(t, vars.RequestCount.WithLabelValues("named", "zone", "", "udp", "1", label))
}

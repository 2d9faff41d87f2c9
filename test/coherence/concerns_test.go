//go:build linux

package coherence

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
)

// TestConcerns compares the spans of right answers with those of an oracle that computes each answer after each change.
func TestConcerns(t *testing.T) {
	u := newUniverse()
	r := rand.New(rand.NewPCG(1, 0))
	a, other := asker{node: "node-a", zone: "east"}, asker{node: "node-b", zone: "west"}
	state := newCluster()
	last := make([]string, len(u.all))
	for n := range u.all {
		last[n] = state.answer(&u.all[n], a)
	}
	answers, differing := 0, 0
	for i := range 600 {
		e := randomEvent(r)
		before, changed := state.change(e)
		for n := range u.all {
			q := &u.all[n]
			if q.form == searchForm {
				continue
			}
			now := state.answer(q, a)
			if now != last[n] {
				answers++
				if !changed || !q.concerns(e, before) {
					t.Fatalf("change %d, %+v: %s %s: %q becomes %q", i, e, q.name, dns.TypeToString[q.qtype], last[n], now)
				}
			}
			if last[n] = now; state.answer(q, other) != now {
				differing++
				if !q.dependsOnAsker() {
					t.Fatalf("change %d, %+v: %s %s depends on the asker", i, e, q.name, dns.TypeToString[q.qtype])
				}
			}
		}
	}
	if answers < 1000 || differing < 50 {
		t.Errorf("%d changes of answers, %d answers that depend on the asker", answers, differing)
	}
}

// randomEvent returns a change of any kind.
func randomEvent(r *rand.Rand) event {
	e := event{Kind: pick(r, []string{"Service", "Import", "Slice", "Slice", "Pod", "Namespace", "Node"}), Operation: "put"}
	e.Record.Namespace = pick(r, existing)
	o := &e.Record
	switch e.Kind {
	case "Service":
		o.Name, o.Kind = pick(r, services), r.IntN(2)
		if o.Name == "alias" && r.IntN(2) == 0 {
			o.Kind, o.Target = externalName, pick(r, services[:3])+"."+pick(r, existing)+".svc.cluster.local."
		}
		o.IPs, o.Ports, o.Distribution = []netip.Addr{pick(r, serviceIPs)}, []port{{"http", "tcp", 80}}, r.IntN(3)
	case "Import":
		o.Name, o.Kind, o.IPs, o.Ports = pick(r, imports), r.IntN(2), []netip.Addr{pick(r, serviceIPs)}, []port{{"http", "tcp", 80}}
	case "Slice":
		o.Name, o.Ports = fmt.Sprint("slice-", r.IntN(12)), []port{{"http", "tcp", 8080}}
		if o.Service = pick(r, services); r.IntN(3) == 0 {
			o.Service, o.Import, o.Cluster = "", pick(r, imports), pick(r, clusters)
		}
		o.Endpoints = []endpoint{{Address: pick(r, podIPs), Name: pick(r, append(hostnames, "")), Zone: pick(r, zones), Node: pick(r, nodes)}}
	case "Pod":
		o.Name, o.IPs = pick(r, podNames), []netip.Addr{pick(r, podIPs), pick(r, podIPs6)}
	case "Namespace":
		o.Namespace, o.Name = "", pick(r, existing)
	case "Node":
		o.Namespace, o.Name, o.Zone = "", pick(r, nodes), pick(r, zones)
	}
	if r.IntN(4) == 0 {
		e.Operation, e.Record = "delete", record{Namespace: o.Namespace, Name: o.Name}
	}
	return e
}

//go:build linux

package multicluster

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// These are the checks of DNS in the conformance suite of the Multi-Cluster Services API.

// testClusterSetIP checks the names of Services with cluster IPs, in every cluster: hello is exported by all, web by
// one.
func testClusterSetIP(t *testing.T, cs *clusterset) {
	for _, c := range cs.all() {
		t.Run(c.id, func(t *testing.T) {
			hello, web := c.importIPs(t, "hello"), c.importIPs(t, "web")
			if len(hello) != 2 || len(web) != 1 {
				t.Fatalf("the ServiceImports have the addresses %q and %q", hello, web)
			}
			t.Run("addresses", func(t *testing.T) {
				c.main.at("").want(t,
					answer("hello"+inSet, "A", hello[0]), answer("hello"+inSet, "AAAA", hello[1]),
					answer("web"+inSet, "A", web[0]), wish{"web" + inSet, "AAAA", "NODATA"})
			})
			t.Run("one SRV record for two protocols", func(t *testing.T) {
				c.main.at("").want(t, answer("hello"+inSet, "SRV", "42 hello"+inSet), answer("web"+inSet, "SRV", "42 web"+inSet))
			})
			t.Run("the Service of the cluster", func(t *testing.T) {
				local := c.clusterIPs(t, "hello")
				c.main.at("").want(t, answer("hello"+inCluster, "A", local[0]), answer("hello"+inCluster, "AAAA", local[1]))
			})
		})
	}
	t.Run("a Service of the other cluster alone", func(t *testing.T) {
		cs.west.main.at("").want(t, answer("web"+inCluster, "A", cs.west.clusterIPs(t, "web")[0]))
		cs.east.main.at("").want(t, wish{"web" + inCluster, "A", "NXDOMAIN"})
	})
}

// pod is a ready endpoint of db, the same for all clusters: the labels before the Service's, and the addresses.
type pod struct{ name, v4, v6 string }

func (cs *clusterset) pods() []pod {
	w, e := cs.west, cs.east
	dashed := strings.ReplaceAll(e.v4(13), ".", "-")
	return []pod{
		{"db-0.west", w.v4(10), w.v6(10)},
		{"db-1.west", w.v4(11), w.v6(11)},
		{"db-0.east.prod", e.v4(10), e.v6(10)},
		{dashed + ".east.prod", e.v4(13), ""},
		{"fd00-12--13.east.prod", "", e.v6(13)}, // without a hostname, it is not known that the two are one pod
	}
}

// addresses are those of the pods, of each family.
func addresses(all []pod) (v4, v6 []string) {
	for _, p := range all {
		if p.v4 != "" {
			v4 = append(v4, p.v4)
		}
		if p.v6 != "" {
			v6 = append(v6, p.v6)
		}
	}
	return v4, v6
}

// testHeadless checks the names of a headless Service that all clusters export, in every cluster.
func testHeadless(t *testing.T, cs *clusterset) {
	all := cs.pods()
	v4, v6 := addresses(all)
	for _, c := range cs.all() {
		t.Run(c.id, func(t *testing.T) {
			ask := c.main.at("")
			t.Run("ready endpoints of all clusters", func(t *testing.T) {
				ask.want(t, answer("db"+inSet, "A", v4...), answer("db"+inSet, "AAAA", v6...))
			})
			t.Run("each endpoint by its name", func(t *testing.T) {
				var names []wish
				for _, p := range all {
					names = append(names, address(p.name+".db"+inSet, "A", p.v4), address(p.name+".db"+inSet, "AAAA", p.v6))
				}
				ask.want(t, names...)
			})
			t.Run("SRV for each endpoint", func(t *testing.T) {
				var targets []string
				for _, p := range all {
					targets = append(targets, "5432 "+p.name+".db"+inSet)
				}
				ask.want(t, answer("db"+inSet, "SRV", targets...), answer("_postgres._tcp.db"+inSet, "SRV", targets...))
				for _, option := range []string{"+notcp", "+tcp"} {
					if err := wantGlue(ask.with(option), "db"+inSet, slices.Concat(v4, v6)); err != nil {
						t.Error(err)
					}
				}
			})
			t.Run("the Service of the cluster", func(t *testing.T) {
				own := map[string][]string{"west": {c.v4(10), c.v4(11)}, "east.prod": {c.v4(10), c.v4(13)}}[c.id]
				ask.want(t, answer("db"+inCluster, "A", own...), answer("db-0.db"+inCluster, "A", c.v4(10)))
			})
		})
	}
}

// address is the wish for one address, which an endpoint may lack.
func address(name, qtype, ip string) wish {
	if ip == "" {
		return wish{name, qtype, "NODATA"}
	}
	return answer(name, qtype, ip)
}

// wantGlue returns an error if the additional addresses of an SRV reply are not those of its targets.
func wantGlue(a asking, name string, all []string) error {
	replies, err := a.ask(question{name, "SRV"})
	if err != nil {
		return err
	}
	targets, glue := map[string]bool{}, []string{}
	for _, rr := range replies[0].Answer {
		fields := strings.Fields(rr.Data)
		targets[fields[len(fields)-1]] = true
	}
	for _, rr := range replies[0].Additional {
		if !targets[rr.Owner] {
			err = errors.Join(err, fmt.Errorf("%v: %s SRV: the further record %v is of no target", a, name, rr))
		}
		glue = append(glue, rr.Data)
	}
	slices.Sort(glue)
	slices.Sort(all)
	if !slices.Equal(glue, all) {
		err = errors.Join(err, fmt.Errorf("%v: %s SRV: further addresses %q, want %q", a, name, glue, all))
	}
	return err
}

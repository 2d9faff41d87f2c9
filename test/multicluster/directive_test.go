//go:build linux

package multicluster

import (
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// asked are the names of all queries to a server: of the clusterset, and of the cluster.
var asked = []string{
	"hello" + inSet, "web" + inSet, "db" + inSet, "idle" + inSet, "narrow" + inSet, "pending" + inSet, "bare" + inSet,
	"lone" + inSet, "both" + inSet, "private" + inSet, "db-0.west.db" + inSet, "db-0.east.prod.db" + inSet, "db-2.west.db" + inSet,
	"lone-0.lone" + inSet, "_postgres._tcp.db" + inSet, "_tcp._tcp.hello" + inSet, "_tcp._udp.hello" + inSet, "west.db" + inSet,
	"DB-0.WEST.db.Shop.SVC.ClusterSet.Local.", "x.y.z.db" + inSet, "x.y._postgres._tcp.db" + inSet,
	"clusterset.local.", "svc.clusterset.local.", shop + ".svc.clusterset.local.", "nowhere.svc.clusterset.local.",
	"pod.clusterset.local.", "dns-version.clusterset.local.", "x.clusterset.local.",
	"hello" + inCluster, "db" + inCluster, "db-0.db" + inCluster, "pending" + inCluster, "dns-version.cluster.local.",
	"10.0.11.10.in-addr.arpa.", "10.0.12.10.in-addr.arpa.",
}

// testDirective compares the answers of directive multicluster with those of kubernetes for both kinds of zones.
func testDirective(t *testing.T, cs *clusterset, s *server) {
	var questions []question
	for _, name := range asked {
		for _, qtype := range []string{"A", "AAAA", "SRV", "TXT", "MX", "PTR"} {
			questions = append(questions, question{name, qtype})
		}
	}
	want, err := cs.west.main.at("").ask(questions...)
	kit.Must(t, err)
	for _, option := range []string{"+notcp", "+tcp"} {
		got, err := s.at(byDirective).with(option).ask(questions...)
		kit.Must(t, err)
		for i, q := range questions {
			g, w := timeless(got[i]), timeless(want[i])
			if g.Status != w.Status || !slices.Equal(g.Answer, w.Answer) || !slices.Equal(g.Authority, w.Authority) || !slices.Equal(g.Additional, w.Additional) {
				t.Errorf("%s %s %s: got\n%v, want\n%v", q.name, q.qtype, option, g, w)
			}
		}
	}
}

// timeless is a reply with its records in one order, and without the fields of an SOA record that depend on the time.
func timeless(r reply) reply {
	for _, section := range []*[]kit.DigRecord{&r.Answer, &r.Authority, &r.Additional} {
		*section = slices.Clone(*section)
		for i := range *section {
			if rr := &(*section)[i]; rr.Type == "SOA" {
				rr.Data = ""
			}
		}
		slices.SortFunc(*section, func(a, b kit.DigRecord) int {
			return slices.Compare([]string{a.Owner, a.Data}, []string{b.Owner, b.Data})
		})
	}
	return r
}

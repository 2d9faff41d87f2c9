//go:build linux

package multicluster

import (
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/miekg/dns"
)

// testSpecification checks the other names of the DNS specification of KEP-1645, and those of README.md where it has
// none.
func testSpecification(t *testing.T, cs *clusterset) {
	w, e := cs.west, cs.east
	hello := w.importIPs(t, "hello")
	for _, tc := range []struct {
		name string
		all  []wish
	}{
		{"version", []wish{
			{"dns-version.clusterset.local.", "TXT", `"1.0.0"`},
			{"dns-version.cluster.local.", "TXT", `"1.1.0"`},
		}},
		{"SRV by port and protocol", []wish{
			{"_tcp._tcp.hello" + inSet, "SRV", "42 hello" + inSet},
			{"_udp._udp.hello" + inSet, "SRV", "42 hello" + inSet},
			{"_tcp._udp.hello" + inSet, "SRV", "NXDOMAIN"},
			{"_http._tcp.hello" + inSet, "SRV", "NXDOMAIN"},
			{"_postgres._udp.db" + inSet, "SRV", "NXDOMAIN"},
			{"_postgres._tcp.narrow" + inSet, "SRV", "5432 narrow-0.west.narrow" + inSet},
			{"_postgres._tcp.db-0.west.db" + inSet, "SRV", "NXDOMAIN"},
		}},
		{"none ready", []wish{
			{"idle" + inSet, "A", "NXDOMAIN"}, {"idle" + inSet, "AAAA", "NXDOMAIN"}, {"idle" + inSet, "SRV", "NXDOMAIN"},
			{"idle-0.west.idle" + inSet, "A", "NXDOMAIN"}, {"db-2.west.db" + inSet, "A", "NXDOMAIN"},
		}},
		{"one family", []wish{
			{"narrow" + inSet, "A", w.v4(21)}, {"narrow" + inSet, "AAAA", "NODATA"},
			{"narrow-0.west.narrow" + inSet, "AAAA", "NODATA"}, {"narrow" + inSet, "MX", "NODATA"},
		}},
		{"no name of a cluster alone", []wish{
			{"west.db" + inSet, "A", "NXDOMAIN"}, {"west.db" + inSet, "SRV", "NXDOMAIN"},
			{"east.prod.db" + inSet, "A", "NXDOMAIN"}, {"prod.db" + inSet, "A", "NXDOMAIN"},
			{"west.hello" + inSet, "A", "NXDOMAIN"}, {"west.hello" + inSet, "SRV", "NXDOMAIN"},
		}},
		{"no such endpoint", []wish{
			{"db-1.east.prod.db" + inSet, "A", "NXDOMAIN"}, {"db-0.east.db" + inSet, "A", "NXDOMAIN"},
			{"db-0.prod.db" + inSet, "A", "NXDOMAIN"}, {"db-0.nowhere.db" + inSet, "A", "NXDOMAIN"},
			{"db-0.db" + inSet, "A", "NXDOMAIN"}, {"x.db-0.west.db" + inSet, "A", "NXDOMAIN"},
		}},
		{"case", []wish{
			{"DB-0.East.PROD.db.Shop.SVC.ClusterSet.Local.", "A", e.v4(10)},
			{"HELLO" + inSet, "A", hello[0]},
		}},
		{"not imported", []wish{
			{"private" + inSet, "A", "NXDOMAIN"}, {"p.west.private" + inSet, "A", "NXDOMAIN"},
			{"private" + inCluster, "A", w.v4(90)}, {"kubernetes.default.svc.clusterset.local.", "A", "NXDOMAIN"},
			{"hello.default.svc.clusterset.local.", "A", "NXDOMAIN"},
		}},
		{"not exported as well", []wish{{"pending" + inCluster, "A", "NXDOMAIN"}, {"bare" + inCluster, "A", "NXDOMAIN"}, {"lone" + inCluster, "A", "NXDOMAIN"}}},
		{"ClusterSetIP without addresses", []wish{{"pending" + inSet, "A", "NODATA"}, {"pending" + inSet, "AAAA", "NODATA"}}},
		{"ClusterSetIP without ports", []wish{{"bare" + inSet, "A", "10.112.1.100"}, {"bare" + inSet, "AAAA", "NODATA"}, {"bare" + inSet, "SRV", "NODATA"}}},
		{"slices that are of no cluster", []wish{
			{"lone" + inSet, "A", w.v4(30)}, {"lone-0.lone" + inSet, "A", w.v4(30)},
			{"lone" + inSet, "SRV", "5432 lone-0.lone" + inSet}, {"lone-0.west.lone" + inSet, "A", "NXDOMAIN"},
		}},
		{"slices of a Service and an import", []wish{
			{"both" + inSet, "A", w.v4(31)}, {"both-0.west.both" + inSet, "A", w.v4(31)}, {"both-0.both" + inSet, "A", "NXDOMAIN"},
			{"both" + inCluster, "A", w.v4(31)}, {"both-0.both" + inCluster, "A", w.v4(31)}, {"both-0.west.both" + inCluster, "A", "NXDOMAIN"},
		}},
		{"levels of the zone", []wish{
			{"clusterset.local.", "A", "NODATA"}, {"svc.clusterset.local.", "A", "NODATA"}, {shop + ".svc.clusterset.local.", "A", "NODATA"},
			{"nowhere.svc.clusterset.local.", "A", "NXDOMAIN"}, {"x.clusterset.local.", "A", "NXDOMAIN"},
			{"pod.clusterset.local.", "A", "NXDOMAIN"}, {"10-11-0-10." + shop + ".pod.clusterset.local.", "A", "NXDOMAIN"},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { w.main.at("").want(t, tc.all...) })
	}
	t.Run("no PTR into the zone", func(t *testing.T) { testPointers(t, cs) })
}

// testPointers queries PTR records: addresses of the cluster's Services have names in its own zone, and those of imports
// alone have none.
func testPointers(t *testing.T, cs *clusterset) {
	w, e := cs.west, cs.east
	names := map[string]string{
		w.v4(10): "db-0.db" + inCluster,
		w.v6(11): "db-1.db" + inCluster,
		w.v4(31): "both-0.both" + inCluster,
		w.v4(30): "NXDOMAIN", // of an import alone
		e.v4(10): "NXDOMAIN",
		e.v4(13): "NXDOMAIN",
		e.v6(13): "NXDOMAIN",
	}
	for _, ip := range w.clusterIPs(t, "hello") {
		names[ip] = "hello" + inCluster
	}
	for _, ip := range w.importIPs(t, "hello") {
		names[ip] = "NXDOMAIN"
	}
	var all []wish
	for ip, name := range names {
		reverse, err := dns.ReverseAddr(ip)
		kit.Must(t, err)
		all = append(all, wish{reverse, "PTR", name})
	}
	w.main.at("").want(t, all...)
}

package kubernetes

import (
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// slowImportedName is slowName for the zone of a clusterset.
func slowImportedName(name, zone string) (n objectName, ok bool) {
	all, suffix := dns.SplitDomainName(name), dns.SplitDomainName(zone)
	left := all[:len(all)-len(suffix)]
	if len(left) == 0 || len(left) == 1 && (left[0] == "svc" || left[0] == "pod") {
		return n, true
	}
	kind, left := left[len(left)-1], left[:len(left)-1]
	if kind != "svc" && kind != "pod" {
		return n, false
	}
	n = objectName{kind: kind, namespace: left[len(left)-1], imported: true}
	if left = left[:len(left)-1]; len(left) == 0 {
		return n, true
	}
	n.object = left[len(left)-1]
	left = left[:len(left)-1]
	marked := 0
	for _, l := range left {
		if l[0] == '_' {
			marked++
		}
	}
	switch {
	case len(left) == 0:
	case len(left) == 1:
		n.endpoint = left[0]
	case marked == 0:
		n.endpoint, n.cluster = left[0], strings.Join(left[1:], ".")
	case len(left) == 2:
		n.port, n.protocol = strings.TrimPrefix(left[0], "_"), strings.TrimPrefix(left[1], "_")
	default:
		return objectName{}, false
	}
	return n, true
}

var parsedImportedNames = []string{
	"clusterset.local.", "svc.clusterset.local.", "pod.clusterset.local.", "other.clusterset.local.", "shop.svc.clusterset.local.", "web.shop.svc.clusterset.local.",
	"x.web.shop.svc.clusterset.local.", "_tcp.web.shop.svc.clusterset.local.", "db-0.east.db.shop.svc.clusterset.local.", "db-0.eu.west-1.db.shop.svc.clusterset.local.",
	"_http._tcp.web.shop.svc.clusterset.local.", "_http.tcp.web.shop.svc.clusterset.local.", "http._tcp.web.shop.svc.clusterset.local.", "http.tcp.web.shop.svc.clusterset.local.",
	"_._.web.shop.svc.clusterset.local.", "__a.__b.web.shop.svc.clusterset.local.", "_http._tcp.x.web.shop.svc.clusterset.local.", "x.pin._zone.web.shop.svc.clusterset.local.",
	"a.b.c.d.e.web.shop.svc.clusterset.local.", "10-1-0-1.shop.pod.clusterset.local.", `db-0.eu\.west-1.db.shop.svc.clusterset.local.`, `a\000b.east.db.shop.svc.clusterset.local.`,
	"svc.svc.svc.svc.svc.clusterset.local.",
}

func agreesImported(t *testing.T, name, zone string) {
	t.Helper()
	want, ok := slowImportedName(name, zone)
	got, err := parseName(name, zone, grammar{imported: true})
	if (err == nil) != ok || ok && got != want || !ok && got != (objectName{}) {
		t.Fatalf("%s in %s: got %+v, error %v, want %+v, %v", name, zone, got, err, want, ok)
	}
}

func TestParseImportedName(t *testing.T) { eachName(t, parsedImportedNames, modelZone, agreesImported) }

func FuzzParseImportedName(f *testing.F) {
	fuzzNames(f, parsedImportedNames, modelZone, agreesImported)
}

// FuzzImportedNameOf makes names from the parts that objects may have: parsing a name returns its parts, and no two
// objects have one name.
func FuzzImportedNameOf(f *testing.F) {
	f.Add("shop", "db", "db-0", "east")
	f.Add("svc", "svc", "svc", "svc.svc")
	f.Add("pin", "zone", "10-1-0-1", "a.b.c.d")
	f.Add("http", "tcp", "http", "tcp")
	f.Add("shop", "db", "b-0", "")
	f.Fuzz(func(t *testing.T, namespace, object, host, cluster string) {
		label := func(s string) bool { return len(validation.IsDNS1123Label(s)) == 0 }
		if !label(namespace) || !label(object) || !label(host) || cluster != "" && !source.IsClusterID(cluster) {
			t.Skip()
		}
		cluster = strings.ToLower(cluster)
		for _, want := range []objectName{
			{kind: "svc", namespace: namespace},
			{kind: "svc", namespace: namespace, object: object},
			{kind: "svc", namespace: namespace, object: object, endpoint: host, cluster: cluster},
			{kind: "svc", namespace: namespace, object: object, port: host, protocol: "tcp"},
		} {
			want.imported = true
			parts := []string{want.endpoint, want.cluster, want.object, want.namespace, want.kind, strings.TrimSuffix(modelZone, ".")}
			if want.port != "" {
				parts = append([]string{"_" + want.port, "_" + want.protocol}, parts...)
			}
			name := strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), ".") + "."
			if _, ok := dns.IsDomainName(name); !ok {
				continue
			}
			if got, err := parseName(name, modelZone, grammar{imported: true}); err != nil || got != want {
				t.Errorf("%s is parsed to %+v, error %v, want %+v", name, got, err, want)
			}
		}
	})
}

// FuzzServeClusterset is FuzzServeDNS for a clusterset.
func FuzzServeClusterset(f *testing.F) {
	names := append([]string{"dns-version.clusterset.local.", "ns.dns.clusterset.local.", "db.shop.svc.clusterset.local.", "noip.shop.svc.clusterset.local.", "w.east.web.shop.svc.clusterset.local.",
		"10-2-1-2.east.db.shop.svc.clusterset.local.", "b-0.bare.shop.svc.clusterset.local.", "Web.SHOP.svc.ClusterSet.Local.", "1.0.100.10.in-addr.arpa.", "web.shop.svc.cluster.local."}, parsedImportedNames...)
	var servers []*Kubernetes
	for _, options := range [][]string{{"zonal"}, {"topology", "prefer-local-cluster", "endpoint_pod_names"}} {
		k := answering(f, clusterset(options...), clustersetObjects()...)
		k.localIPs = addrs(f, "10.9.9.9")
		servers = append(servers, k)
	}
	fuzzServe(f, names, servers)
}

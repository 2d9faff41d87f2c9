package kubernetes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/plugin/transfer"
	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/property"
	"github.com/nearside-dns/nearside/test/randomcluster"
)

var _ transfer.Transferer = (*Kubernetes)(nil)

// transferred returns the records of a transfer between its two SOA records, which it checks.
func transferred(t testing.TB, k *Kubernetes, zone string) (records []dns.RR) {
	t.Helper()
	in, err := k.Transfer(zone, 0)
	kit.Must(t, err)
	for batch := range in {
		records = append(records, batch...)
	}
	soa := text(k.soa(zone))
	if n := len(records); n < 2 || text(records[0]) != soa || text(records[n-1]) != soa {
		t.Fatalf("%s: a transfer begins and ends with the SOA, got %v", zone, texts(records))
	}
	return records[1 : len(records)-1]
}

func TestTransfer_Services(t *testing.T) {
	db := service("shop", "db", headless, tcp("sql", 5432), tcp("", 8080))
	down := service("shop", "down", headless, tcp("sql", 5432))
	web := service("shop", "web", []string{"10.0.0.1", "2001:db8::1"}, tcp("http", 80), udp("http", 80), tcp("", 81))
	k := answering(t, allZones+" {\npods verified\nzonal\n}", namespace("shop"), db, down, web,
		externalName("shop", "ext", "www.example.org"), externalName("shop", "ip", "192.0.2.1"), externalName("shop", "dead", "none.shop.svc.cluster.local"),
		service("missing", "web", []string{"10.0.0.2"}, tcp("http", 80)),
		slice(web, "a", endpoint("10.1.0.8", hostname("x"))),
		slice(down, "a", endpoint("10.1.0.9", notReady)),
		slice(db, "a", endpoint("10.1.0.1", hostname("db-0"), inZone("east")), endpoint("10.1.0.2")))
	k.localIPs = []netip.Addr{netip.MustParseAddr("10.9.9.9")}
	sameRecords(t, "transfer", transferred(t, k, "cluster.local."), []string{
		"cluster.local. 5 IN NS ns.dns.cluster.local.",
		"ns.dns.cluster.local. 5 IN A 10.9.9.9",
		"db.shop.svc.cluster.local. 5 IN A 10.1.0.1",
		"db.shop.svc.cluster.local. 5 IN A 10.1.0.2",
		"db.shop.svc.cluster.local. 5 IN SRV 0 25 5432 db-0.db.shop.svc.cluster.local.",
		"db.shop.svc.cluster.local. 5 IN SRV 0 25 8080 db-0.db.shop.svc.cluster.local.",
		"db.shop.svc.cluster.local. 5 IN SRV 0 25 5432 10-1-0-2.db.shop.svc.cluster.local.",
		"db.shop.svc.cluster.local. 5 IN SRV 0 25 8080 10-1-0-2.db.shop.svc.cluster.local.",
		"_sql._tcp.db.shop.svc.cluster.local. 5 IN SRV 0 50 5432 db-0.db.shop.svc.cluster.local.",
		"_sql._tcp.db.shop.svc.cluster.local. 5 IN SRV 0 50 5432 10-1-0-2.db.shop.svc.cluster.local.",
		"db-0.db.shop.svc.cluster.local. 5 IN A 10.1.0.1",
		"10-1-0-2.db.shop.svc.cluster.local. 5 IN A 10.1.0.2",
		"dead.shop.svc.cluster.local. 5 IN CNAME none.shop.svc.cluster.local.",
		"ext.shop.svc.cluster.local. 5 IN CNAME www.example.org.",
		"web.shop.svc.cluster.local. 5 IN A 10.0.0.1",
		"web.shop.svc.cluster.local. 5 IN AAAA 2001:db8::1",
		"web.shop.svc.cluster.local. 5 IN SRV 0 16 80 web.shop.svc.cluster.local.",
		"web.shop.svc.cluster.local. 5 IN SRV 0 16 81 web.shop.svc.cluster.local.",
		"_http._tcp.web.shop.svc.cluster.local. 5 IN SRV 0 50 80 web.shop.svc.cluster.local.",
		"_http._udp.web.shop.svc.cluster.local. 5 IN SRV 0 50 80 web.shop.svc.cluster.local.",
	})
}

// carries returns an error if a message cannot be sent, or not be read: names of more than 255 octets are packed.
func carries(m *dns.Msg) error {
	wire, err := m.Pack()
	if err != nil {
		return err
	}
	return new(dns.Msg).Unpack(wire)
}

// TestTransfer_LongPortNames: the API server accepts names of ports of 63 characters, whose label has an underscore more. A user of one
// namespace does not keep the zone from secondaries: only the records that no message can carry are left out.
func TestTransfer_LongPortNames(t *testing.T) {
	n63 := strings.Repeat("n", 63)
	long, fits := tcp(n63, 80), tcp(n63[:62], 81)
	zone := strings.Repeat("z", 50) + ".example."
	db, deep := service("shop", "db", headless, long), service(n63, n63, headless, fits)
	k := answering(t, "kubernetes "+zone+" cluster.local clusterset.local 10.in-addr.arpa {\nmulticluster clusterset.local\n}",
		namespace("shop"), namespace(n63), db, slice(db, "a", endpoint("10.1.0.1")),
		deep, slice(deep, "a", endpoint("10.1.0.2", hostname(n63))), service(n63, n63[:62], []string{"10.0.0.3"}, fits),
		service("shop", "web", []string{"10.0.0.1"}, long, fits), service("shop", "other", []string{"10.0.0.2"}, tcp("http", 80)),
		imported("shop", "web", []string{"10.100.0.1"}, long, tcp("http", 80)))
	for _, z := range []string{"cluster.local.", "clusterset.local.", zone, "10.in-addr.arpa."} {
		records := transferred(t, k, z)
		for _, r := range records {
			if err := carries(&dns.Msg{Answer: []dns.RR{r}}); err != nil {
				t.Errorf("AXFR of %s fails for %v: %v", z, r, err)
			}
		}
		got := strings.Join(texts(records), "\n")
		for _, want := range map[string][]string{
			"cluster.local.": {
				"_" + n63[:62] + "._tcp.web.shop.svc.cluster.local. 5 IN SRV 0 100 81 web.shop.svc.cluster.local.",
				"web.shop.svc.cluster.local. 5 IN SRV 0 50 80 web.shop.svc.cluster.local.",
				"db.shop.svc.cluster.local. 5 IN SRV 0 100 80 10-1-0-1.db.shop.svc.cluster.local.",
				"_http._tcp.other.shop.svc.cluster.local. 5 IN SRV 0 100 80 other.shop.svc.cluster.local.",
			},
			"clusterset.local.": {
				"web.shop.svc.clusterset.local. 5 IN SRV 0 50 80 web.shop.svc.clusterset.local.",
				"_http._tcp.web.shop.svc.clusterset.local. 5 IN SRV 0 100 80 web.shop.svc.clusterset.local.",
			},
			"10.in-addr.arpa.": {"2.0.0.10.in-addr.arpa. 5 IN PTR other.shop.svc." + zone},
			zone:               {"_http._tcp.other.shop.svc." + zone + " 5 IN SRV 0 100 80 other.shop.svc." + zone},
		}[z] {
			if !strings.Contains(got, want) {
				t.Errorf("AXFR of %s lacks %s:\n%s", z, want, got)
			}
		}
	}
}

func TestTransfer_ReverseZones(t *testing.T) {
	db := service("shop", "db", headless, tcp("sql", 5432))
	zones := []string{"10.in-addr.arpa.", "0.10.in-addr.arpa.", "in-addr.arpa.", "8.b.d.0.1.0.0.2.ip6.arpa.", "ip6.arpa."}
	six := "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. 5 IN PTR web.shop.svc.cluster.local."
	vip := "1.0.0.10.in-addr.arpa. 5 IN PTR web.shop.svc.cluster.local."
	four := []string{vip, "1.0.1.10.in-addr.arpa. 5 IN PTR db-0.db.shop.svc.cluster.local."}
	want := map[string][]string{
		"10.in-addr.arpa.":          four,
		"0.10.in-addr.arpa.":        {vip},
		"in-addr.arpa.":             append(four, "1.0.0.192.in-addr.arpa. 5 IN PTR far.shop.svc.cluster.local."),
		"8.b.d.0.1.0.0.2.ip6.arpa.": {six},
		"ip6.arpa.":                 {six},
	}
	for _, zone := range zones {
		t.Run(zone, func(t *testing.T) {
			k := answering(t, "kubernetes cluster.local "+zone, namespace("shop"), db,
				service("shop", "web", []string{"10.0.0.1", "2001:db8::1"}, tcp("http", 80)),
				service("shop", "far", []string{"192.0.0.1"}, tcp("http", 80)),
				service("missing", "web", []string{"10.0.0.2"}, tcp("http", 80)),
				externalName("shop", "ext", "www.example.org"),
				slice(db, "a", endpoint("10.1.0.1", hostname("db-0")), endpoint("10.1.0.2", notReady)))
			sameRecords(t, "transfer", transferred(t, k, zone), want[zone])
		})
	}
}

// The TTL of the name servers' addresses is that of all records; in CoreDNS it is 0.
func TestTransfer_NameServers(t *testing.T) {
	dnsService := service("kube-system", "kube-dns", []string{"10.0.0.10"}, udp("dns", 53))
	k := answering(t, "kubernetes cluster.local", namespace("kube-system"), dnsService, slice(dnsService, "a", endpoint("10.1.0.1")))
	k.localIPs = []netip.Addr{netip.MustParseAddr("10.1.0.1")}
	sameRecords(t, "transfer", transferred(t, k, "cluster.local."), []string{
		"cluster.local. 5 IN NS kube-dns.kube-system.svc.cluster.local.",
		"ns.dns.cluster.local. 5 IN A 10.0.0.10",
		"kube-dns.kube-system.svc.cluster.local. 5 IN A 10.0.0.10",
		"kube-dns.kube-system.svc.cluster.local. 5 IN SRV 0 100 53 kube-dns.kube-system.svc.cluster.local.",
		"_dns._udp.kube-dns.kube-system.svc.cluster.local. 5 IN SRV 0 100 53 kube-dns.kube-system.svc.cluster.local.",
	})
}

func TestTransfer_Incremental(t *testing.T) {
	k := answering(t, "kubernetes cluster.local", namespace("shop"))
	now := uint32(k.index.Modified())
	for _, c := range []struct {
		name   string
		serial uint32
		soas   int
	}{
		{"full", 0, 2}, {"current", now, 1}, {"newer", now + 1, 1}, {"much newer, by serial arithmetic", now + 1<<30, 1},
		{"older", now - 1, 2}, {"older, by serial arithmetic", now + 1<<31 + 1, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			in, err := k.Transfer("cluster.local.", c.serial)
			kit.Must(t, err)
			soas := 0
			for batch := range in {
				for _, r := range batch {
					if text(r) != text(k.soa("cluster.local.")) {
						t.Errorf("unexpected record %v", r)
					}
					soas++
				}
			}
			if soas != c.soas {
				t.Errorf("%d SOA records, want %d", soas, c.soas)
			}
		})
	}
}

func TestTransfer_Refused(t *testing.T) {
	k := answering(t, allZones)
	for _, zone := range []string{"example.org.", "svc.cluster.local.", "local.", ".", "0.10.in-addr.arpa.", ""} {
		if in, err := k.Transfer(zone, 0); !errors.Is(err, transfer.ErrNotAuthoritative) || in != nil {
			t.Errorf("%q: error is %v, want %v", zone, err, transfer.ErrNotAuthoritative)
		}
	}
	if in, err := unsynced(k).Transfer("cluster.local.", 0); !errors.Is(err, errNotSynced) || in != nil {
		t.Errorf("not synced: error is %v, want %v", err, errNotSynced)
	}
	if _, err := unsynced(k).Transfer("example.org.", 0); !errors.Is(err, transfer.ErrNotAuthoritative) {
		t.Errorf("not synced and another's zone: error is %v, want %v", err, transfer.ErrNotAuthoritative)
	}
}

// Every record of a transfer is one of the answer to a query for its owner and type, and the other way round, without
// duplicates.
func TestTransfer_EqualsQueries(t *testing.T) {
	blocks := []string{"", "endpoint_pod_names", "ignore empty_service", "noendpoints", "pods insecure", "namespaces default ns-a svc",
		"namespace_labels colour=red", "zonal\npods verified"}
	property.Seeds(t, 0, 160, func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		block := blocks[seed%uint64(len(blocks))]
		objects := randomcluster.Random(r, 1+r.IntN(30))
		ip := []string{"10.1.0.1", "10.1.0.7", "fd00:1::3", "192.0.2.1"}[r.IntN(4)]
		for _, zone := range []string{"cluster.local.", "10.in-addr.arpa.", "0.0.d.f.ip6.arpa."} {
			name := fmt.Sprintf("%s, %s, server at %s", zone, block, ip)
			if !t.Run(name, func(t *testing.T) {
				k := answering(t, "kubernetes cluster.local "+zone+" {\n"+block+"\n}", objects...)
				k.localIPs = []netip.Addr{netip.MustParseAddr(ip)}
				k.upstream = upstreamOf(t)
				equalsQueries(t, k, zone)
			}) {
				return // others would report the same
			}
		}
	})
}

func equalsQueries(t *testing.T, k *Kubernetes, zone string) {
	t.Helper()
	sent := map[string][]string{} // by query
	for _, r := range transferred(t, k, zone) {
		question := r.Header().Name + " " + dns.TypeToString[r.Header().Rrtype]
		if slices.Contains(sent[question], text(r)) {
			t.Errorf("twice: %s", text(r))
			continue
		}
		sent[question] = append(sent[question], text(r))
	}
	for question, records := range sent {
		sameRecords(t, question+": answer, compared with the transfer,", ask(t, k, question).Answer, records)
	}
	for _, e := range k.index.Services() {
		for _, qtype := range []string{"A", "AAAA", "SRV", "CNAME"} {
			question := serviceName(e.Service, "cluster.local.") + " " + qtype
			m := ask(t, k, question)
			if zone == "cluster.local." && len(m.Answer) > 0 && m.Answer[0].Header().Rrtype == dns.StringToType[qtype] && len(sent[question]) == 0 {
				t.Errorf("the transfer lacks %s", question)
			}
		}
	}
}

// A receiver may be slow while the cluster changes.
func TestTransfer_WhileTheClusterChanges(t *testing.T) {
	var objects []runtime.Object
	objects = append(objects, namespace("shop"))
	for i := range 50 {
		objects = append(objects, service("shop", fmt.Sprint("s", i), []string{fmt.Sprint("10.0.0.", i)}, tcp("http", 80)))
	}
	k := answering(t, "kubernetes cluster.local", objects...)
	in, err := k.Transfer("cluster.local.", 0)
	kit.Must(t, err)
	var all []dns.RR
	for batch := range in {
		all = append(all, batch...)
		indexOf(k).DeleteService("shop", fmt.Sprint("s", len(all)%50))
	}
	if len(all) < 2 || text(all[0]) != text(all[len(all)-1]) {
		t.Errorf("the first and the last record differ: %v, %v", all[0], all[len(all)-1])
	}
}

// TestTransfer_Topology asserts that a transfer has every endpoint, for any caller: a secondary answers other callers.
func TestTransfer_Topology(t *testing.T) {
	for _, zone := range []string{"cluster.local.", "10.in-addr.arpa."} {
		all := transferred(t, placed(t, allZones), zone)
		if len(all) == 0 {
			t.Fatalf("%s: no records", zone)
		}
		for _, block := range []string{"topology", "topology keys kubernetes.io/hostname"} {
			sameRecords(t, zone+" with "+block, transferred(t, placed(t, allZones+" {\n"+block+"\n}"), zone), texts(all))
		}
	}
}

package kubernetes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/test/property"
)

func TestClusterset_Transfer(t *testing.T) {
	k := answering(t, clusterset("zonal", "pods verified"), clustersetObjects()...)
	k.localIPs = []netip.Addr{parsedAddr(t, "10.9.9.9")}
	var want []string
	add := func(name string, records ...string) {
		for _, r := range records {
			want = append(want, name+". 5 IN "+r)
		}
	}
	const in = ".shop.svc.clusterset.local"
	add("clusterset.local", "NS ns.dns.clusterset.local.")
	add("ns.dns.clusterset.local", "A 10.9.9.9")
	add("bare"+in, "A 10.4.1.1", "A 10.4.1.2", "SRV 0 50 5432 b-0.bare"+in+".", "SRV 0 50 5432 10-4-1-2.bare"+in+".")
	add("_sql._tcp.bare"+in, "SRV 0 50 5432 b-0.bare"+in+".", "SRV 0 50 5432 10-4-1-2.bare"+in+".")
	add("b-0.bare"+in, "A 10.4.1.1")
	add("10-4-1-2.bare"+in, "A 10.4.1.2")
	add("both"+in, "A 10.100.0.6", "SRV 0 50 42 both"+in+".")
	add("_tcp._tcp.both"+in, "SRV 0 100 42 both"+in+".")
	add("_udp._udp.both"+in, "SRV 0 100 42 both"+in+".")
	add("four"+in, "A 10.100.0.4", "SRV 0 100 80 four"+in+".")
	add("_http._tcp.four"+in, "SRV 0 100 80 four"+in+".")
	add("noports"+in, "A 10.100.0.5")
	add("only6"+in, "AAAA 2001:db8:2::6", "SRV 0 100 5432 s-0.east.only6"+in+".")
	add("_sql._tcp.only6"+in, "SRV 0 100 5432 s-0.east.only6"+in+".")
	add("s-0.east.only6"+in, "AAAA 2001:db8:2::6")
	add("six"+in, "AAAA 2001:db8:100::6", "SRV 0 100 80 six"+in+".")
	add("_http._tcp.six"+in, "SRV 0 100 80 six"+in+".")
	add("web"+in, "A 10.100.0.1", "AAAA 2001:db8:100::1", "SRV 0 25 80 web"+in+".", "SRV 0 25 443 web"+in+".")
	add("_http._tcp.web"+in, "SRV 0 50 80 web"+in+".")
	add("_quic._udp.web"+in, "SRV 0 50 443 web"+in+".")
	add("db"+in, "A 10.2.1.1", "A 10.2.1.2", "A 10.3.1.1", "A 10.3.1.2", "AAAA 2001:db8:2::1")
	add("db-0.east.db"+in, "A 10.2.1.1", "AAAA 2001:db8:2::1")
	add("10-2-1-2.east.db"+in, "A 10.2.1.2")
	add("db-0.eu.west-1.db"+in, "A 10.3.1.1")
	add("db-1.eu.west-1.db"+in, "A 10.3.1.2")
	for _, host := range []string{"db-0.east", "10-2-1-2.east", "db-0.eu.west-1", "db-1.eu.west-1"} {
		add("db"+in, "SRV 0 8 5432 "+host+".db"+in+".", "SRV 0 8 8080 "+host+".db"+in+".")
		add("_sql._tcp.db"+in, "SRV 0 16 5432 "+host+".db"+in+".")
		add("_admin._tcp.db"+in, "SRV 0 16 8080 "+host+".db"+in+".")
	}
	sameRecords(t, "transfer", transferred(t, k, modelZone), want)
}

// The transfer of the cluster's zone has no records of ServiceImports, and that of a reverse zone none of addresses
// that only they have.
func TestClusterset_TransferOfOtherZones(t *testing.T) {
	k, without := answering(t, clusterset(), clustersetObjects()...), answering(t, "kubernetes cluster.local 10.in-addr.arpa", clustersetObjects()...)
	for _, zone := range []string{"cluster.local.", "10.in-addr.arpa."} {
		sameRecords(t, zone, transferred(t, k, zone), texts(transferred(t, without, zone)))
	}
}

// Every record of a transfer is one of the answer to a query for its owner and type without a preferred cluster, and
// the other way round, without duplicates, ignoring case.
func TestClusterset_TransferEqualsQueries(t *testing.T) {
	total := 0
	for i, options := range [][]string{
		{}, {"noendpoints"}, {"ignore empty_service"}, {"namespaces shop"}, {"zonal", "pods verified"}, {"prefer-local-cluster"}, {"topology", "prefer-local-cluster east"},
	} {
		t.Run(fmt.Sprint(options), func(t *testing.T) {
			property.Seeds(t, 0, 6, func(t *testing.T, seed uint64) {
				s, _ := newStoring(t, clusterset(options...))
				c := newImportChanges(uint64(i)<<8|seed, s.k)
				c.many = c.many[:8] // a hundred endpoints would test no more
				c.ix.ReplaceSlices(nil)
				plain := s.beside(t, clusterset(slices.DeleteFunc(slices.Clone(options), filters)...))
				for _, k := range []*Kubernetes{s.k, plain} {
					k.localIPs, k.upstream = []netip.Addr{c.v4[0]}, upstreamOf(t)
				}
				c.m.prefer, c.m.topology = false, false
				for range 8 {
					for range 15 {
						c.change()
					}
					total += importsEqualQueries(t, s.k, plain, c.m)
				}
			})
		})
	}
	t.Logf("%d records were transferred", total)
	if total < 2000 && property.Fixed() {
		t.Errorf("%d records were transferred", total)
	}
}

// filters reports whether an option makes answers depend on the caller or its cluster.
func filters(option string) bool {
	return strings.HasPrefix(option, "topology") || strings.HasPrefix(option, preferLocalCluster)
}

// importsEqualQueries compares a transfer with queries for its records, and for all names of the model. It returns the
// number of records.
func importsEqualQueries(t *testing.T, k, plain *Kubernetes, m *importModel) (n int) {
	t.Helper()
	sent := map[string][]string{} // by query
	for _, r := range transferred(t, k, modelZone) {
		question := strings.ToLower(r.Header().Name) + " " + dns.TypeToString[r.Header().Rrtype]
		if record := strings.ToLower(text(r)); slices.Contains(sent[question], record) {
			t.Errorf("twice: %s", record)
		} else {
			sent[question] = append(sent[question], record)
			n++
		}
	}
	for question, records := range sent {
		var answered []string
		for _, rr := range ask(t, plain, question).Answer {
			answered = append(answered, strings.ToLower(text(rr)))
		}
		slices.Sort(answered)
		slices.Sort(records)
		if !slices.Equal(answered, records) {
			t.Errorf("%s: the transfer has\n\t%s\nand the answer\n\t%s", question, strings.Join(records, "\n\t"), strings.Join(answered, "\n\t"))
		}
	}
	for _, name := range m.owners() {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV} {
			endpoint := qtype == dns.TypeSRV && !strings.HasPrefix(name, "_") && strings.Count(name, ".") > 5
			port := qtype != dns.TypeSRV && strings.HasPrefix(name, "_")
			if endpoint || port {
				continue // as in the zone of the cluster
			}
			question := name + " " + dns.TypeToString[qtype]
			if want := m.answer(dns.Question{Name: name, Qtype: qtype}, modelCaller{}); len(want.records) != len(sent[question]) {
				t.Errorf("the transfer has %d records for %s, want %s", len(sent[question]), question, want)
			}
		}
	}
	return n
}

// owners returns the names of ServiceImports, of their named ports, and of their endpoints.
func (m *importModel) owners() (all []string) {
	for key, s := range m.imports {
		name := key.Name + "." + key.Namespace + ".svc." + modelZone
		all = append(all, name)
		ports := slices.Clone(s.Ports)
		for _, e := range m.under(s, importedName{}) {
			ports = append(ports, e.ports...)
			if s.Kind == index.ClusterIP {
				continue // endpoints below a ClusterSetIP are not transferred
			}
			id := ""
			if e.cluster != "" {
				id = strings.ToLower(e.cluster) + "."
			}
			all = append(all, e.label()+"."+id+name)
		}
		for _, p := range ports {
			if p.Name.String() != "" {
				all = append(all, "_"+p.Name.String()+"._"+p.Protocol.String()+"."+name)
			}
		}
	}
	return all
}

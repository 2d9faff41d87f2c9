package main

import (
	"strings"
	"testing"

	"github.com/miekg/dns"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/test/bench/generated"
)

func TestImportsInCorefiles(t *testing.T) {
	for name, text := range map[string]string{"alone": corefile, "kubeadm's": kubeadmCorefile} {
		t.Run(name, func(t *testing.T) {
			if got := (world{}).corefile(text); got != text {
				t.Errorf("without imports it is\n%s", got)
			}
			got := world{imports: true}.corefile(text)
			for _, want := range []string{
				"    kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {\n", "        ttl 30\n        multicluster clusterset.local\n    }",
			} {
				if strings.Count(got, want) != 1 {
					t.Errorf("not one %q in\n%s", want, got)
				}
			}
		})
	}
}

// TestImportQuestions compares the expected answers with the generated objects.
func TestImportQuestions(t *testing.T) {
	g := generated.Cluster{Services: 20, Endpoints: 100, Nodes: 3, Namespaces: 7, Imports: 30, Headless: 0.1, Seed: 1}
	records := importRecords(t, g)
	for _, k := range importKinds {
		t.Run(k.name, func(t *testing.T) {
			seen := map[string]bool{}
			for n := range 1000 {
				name, qtype, rcode, want := k.question(g, n)
				got := records[dns.Question{Name: name, Qtype: qtype}]
				if got != want || (got == 0) != (rcode == dns.RcodeNameError) {
					t.Fatalf("%s %s: %d records and response code %d expected, there are %d", name, dns.TypeToString[qtype], want, rcode, got)
				}
				seen[name] = true
			}
			if len(seen) < 3 {
				t.Errorf("all questions are for %d names", len(seen))
			}
		})
	}
}

// importRecords are the numbers of records of the names of a cluster's imports, from their objects.
func importRecords(t *testing.T, g generated.Cluster) map[dns.Question]int {
	t.Helper()
	records, headless := map[dns.Question]int{}, map[string]bool{}
	add := func(name string, qtype uint16) {
		records[dns.Question{Name: name + ".svc.clusterset.local.", Qtype: qtype}]++
	}
	err := g.Each(func(o runtime.Object) error {
		switch o := o.(type) {
		case *mcsv1beta1.ServiceImport:
			name := o.Name + "." + o.Namespace
			headless[name] = o.Spec.Type == mcsv1beta1.Headless
			for range o.Spec.IPs {
				add(name, dns.TypeA)
			}
		case *discoveryv1.EndpointSlice:
			name := o.Labels[mcsv1beta1.LabelServiceName] + "." + o.Namespace
			if !headless[name] {
				break
			}
			for _, e := range o.Endpoints {
				add(name, dns.TypeA)
				add("_http._tcp."+name, dns.TypeSRV)
				add(*e.Hostname+"."+o.Labels[mcsv1beta1.LabelSourceCluster]+"."+name, dns.TypeA)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func TestReportImports(t *testing.T) {
	b := bench{settings: settings{parts: []string{partImports}, rounds: 1}, results: results{}}
	b.cluster.Imports = 2000
	for what, v := range map[string]float64{
		importKinds[0].name: 5, stockPrefix + importKinds[0].name: 6, memorySync: 50, memoryImports: 60,
	} {
		b.results.add(what, nameClusterDNS, v)
		b.results.add(what, nameCoreDNS, 10*v)
	}
	var text strings.Builder
	if err := b.report(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| 2000 imports, *kubernetes* alone: CPU per query, us | clusterdns | CoreDNS | CoreDNS to clusterdns |\n|---|---|---|---|\n| ClusterSetIP A | 5.00 | 50.00 | 10.00 |\n",
		"| 2000 imports, kubeadm's Corefile: CPU per query, us | clusterdns | CoreDNS | CoreDNS to clusterdns |\n|---|---|---|---|\n| ClusterSetIP A | 6.00 | 60.00 | 10.00 |\n",
		"| after the first sync | 50 | 500 | 10.00 |\n| after the first sync, with imports | 60 | 600 | 10.00 |\n",
		"Queries lost: none.\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, &text)
		}
	}
	if strings.Contains(text.String(), "budget") {
		t.Errorf("a table of budgets, of which there are none:\n%s", &text)
	}
}

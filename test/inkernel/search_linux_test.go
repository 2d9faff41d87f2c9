package inkernel

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// clusterZone is the zone of the cluster. Its server block has autopath.
const clusterZone = "cluster.test."

// searcher is a client, and the namespace of its pod, "" without one: its search list is unknown.
type searcher struct {
	*netns.Namespace
	namespace string
}

// writePods writes the manifest of the pods that are searchers, for autopath, and replaces the present one at once.
func writePods(t *testing.T, folder string, all []searcher) {
	t.Helper()
	var text strings.Builder
	for i, s := range all {
		if s.namespace != "" {
			fmt.Fprintf(&text, `---
apiVersion: v1
kind: Pod
metadata: {name: pod%d, namespace: %s}
spec: {nodeName: n1}
status: {phase: Running, podIPs: [{ip: %v}, {ip: "%v"}]}
`, i, s.namespace, s.IPv4, s.IPv6)
		}
	}
	next := kit.File(t, "pods.yaml", text.String())
	kit.Must(t, os.Rename(next, filepath.Join(folder, "pods.yaml")))
}

// searchRecords are records of the upstream in the zone of the cluster.
func searchRecords() []string {
	return []string{
		"db.shop.svc." + clusterZone + " A 192.0.2.31", "db.bank.svc." + clusterZone + " A 192.0.2.32", "api.bank.svc." + clusterZone + " A 192.0.2.33",
		"common.svc." + clusterZone + " AAAA 2001:db8::34",
	}
}

// searchQueries are queries for the first names that resolvers make of names with the search lists of both namespaces. Each of
// them has the other answer for the other namespace.
func searchQueries(t *testing.T) (all [][]byte) {
	t.Helper()
	for _, name := range []string{"web.test", "db", "api", "api.bank", "common", "alias.test", "none.test", "empty.test"} {
		for _, namespace := range []string{"shop", "bank"} {
			for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
				for _, change := range []func(*dns.Msg){nil, func(m *dns.Msg) { m.SetEdns0(1232, false) }} {
					all = append(all, query(t, fmt.Sprintf("%s.%s.svc.%s", name, namespace, clusterZone), qtype, change))
				}
			}
		}
	}
	return all
}

// searchConfig returns a configuration with autopath.
func searchConfig(t *testing.T, folder, kernel string) config {
	t.Helper()
	resolv := kit.File(t, "resolv.conf", "nameserver 127.0.0.1\n")
	autopath := fmt.Sprintf("autopath @nodelocal {\n        node n1\n        manifests %s\n        resolv_conf %s\n    }", folder, resolv)
	return config{zones: []string{clusterZone}, ofZones: []string{autopath}, kernel: kernel}
}

// searchSamples returns the samples that are to be equal with and without answers in the kernel.
func searchSamples(all daemon.Samples) daemon.Samples {
	some := maps.Clone(all)
	maps.DeleteFunc(some, func(sample string, _ float64) bool {
		name, labels, _ := strings.Cut(sample, "{")
		switch {
		case strings.HasPrefix(name, "coredns_autopath_"), strings.HasPrefix(name, "nearside_autopath_"):
			return !strings.HasSuffix(name, "_total")
		case !strings.Contains(labels, `zone="`+clusterZone+`"`) && !strings.Contains(labels, `zones="`+clusterZone+`"`):
			return true
		}
		return name != "coredns_dns_requests_total" && name != "coredns_dns_responses_total" && !strings.HasPrefix(name, "coredns_dns_response_size_bytes_")
	})
	return some
}

// runSearch sends the same queries at every call, from each client to each address, and returns the replies, the increases of the
// metrics, the number of queries and the number of those that the kernel has answered.
func runSearch(t *testing.T, i *instance, clients []searcher) (replies map[string]string, increase daemon.Samples, sent, kernel int) {
	t.Helper()
	replies = map[string]string{}
	before := i.scrape(t)
	queries := searchQueries(t)
	for _, server := range locals {
		for _, s := range clients {
			c := dial(t, s.Namespace, server)
			for range exactRounds {
				for n, q := range queries {
					reply, err := c.exchange(q)
					if err != nil {
						t.Fatalf("%x from %s to %v: %v", q, s.Name, server, err)
					}
					sent++
					key, text := fmt.Sprintf("%s %v %d", s.Name, server, n), comparable(reply)
					if earlier, ok := replies[key]; ok && earlier != text {
						t.Fatalf("query from %s in %q to %v: reply\n%s\nafter\n%s", s.Name, s.namespace, server, text, earlier)
					}
					replies[key] = text
				}
			}
		}
	}
	i.eventually(t, fmt.Sprintf("the metrics of %d queries", sent), func() error {
		if n := int(i.scrape(t).Since(before).Sum("coredns_dns_requests_total", "zone", clusterZone)); n != sent {
			return fmt.Errorf("%d queries", n)
		}
		return nil
	})
	time.Sleep(time.Second) // longer than the interval at which the kernel's counters are read: the other metrics follow
	all := i.scrape(t).Since(before)
	return replies, searchSamples(all), sent, int(all.Sum(answeredTotal))
}

// TestSearchLists has pods of two namespaces and a client without a pod send the same queries to a nodecache with answers in the
// kernel and to one without: each client receives the same answers, those of its search list, and all counters have the same values.
func TestSearchLists(t *testing.T) {
	n := newNode(t)
	n.upstream.add(t, searchRecords()...)
	clients := []searcher{
		{n.addPod(t, routed).Namespace, "shop"}, {n.addPod(t, bridged).Namespace, "shop"},
		{n.addPod(t, routed).Namespace, "bank"}, {n.addPod(t, bridged).Namespace, ""},
	}
	folder := t.TempDir()
	writePods(t, folder, clients)
	off := n.start(t, searchConfig(t, folder, "off"))
	wantReplies, want, sent, kernel := runSearch(t, off, clients)
	if kernel != 0 {
		t.Errorf("without the option, the kernel has answered %d queries", kernel)
	}
	off.Stop(t)
	i := n.start(t, searchConfig(t, folder, "on"))
	i.waitInterfaces(t, "attached", 1+len(clients))
	replies, got, again, kernel := runSearch(t, i, clients)
	if again != sent || kernel < sent/2 || kernel >= sent {
		t.Errorf("the kernel has answered %d of %d queries, and %d were sent without the option", kernel, again, sent)
	}
	for key, reply := range replies {
		if reply != wantReplies[key] {
			t.Errorf("%s: reply with answers in the kernel\n%s\nwithout\n%s", key, reply, wantReplies[key])
		}
	}
	all := maps.Clone(want)
	maps.Copy(all, got)
	for sample := range all {
		if got[sample] != want[sample] {
			t.Errorf("%s: %v with answers in the kernel, %v without", sample, got[sample], want[sample])
		}
	}
	for _, namespace := range []string{"shop", "bank"} {
		if got.Sum("nearside_autopath_namespace_queries_total", "namespace", namespace) == 0 {
			t.Errorf("no queries from namespace %s are counted", namespace)
		}
	}
	for _, name := range []string{"coredns_autopath_success_total", "nearside_autopath_queries_saved_total", "nearside_autopath_unknown_clients_total"} {
		if got.Sum(name) == 0 {
			t.Errorf("%s is 0", name)
		}
	}
}

// TestAddressOfAnotherNamespace gives the address of a pod to a pod of another namespace, and takes it away, while the kernel answers
// its queries: soon it answers with the new search list, and then never again with the earlier one.
func TestAddressOfAnotherNamespace(t *testing.T) {
	n := newNode(t)
	n.upstream.add(t, searchRecords()...)
	pod := n.addPod(t, routed).Namespace
	folder := t.TempDir()
	writePods(t, folder, []searcher{{pod, "shop"}})
	i := n.start(t, searchConfig(t, folder, "on"))
	i.waitInterfaces(t, "attached", 2)
	// The first candidate of a pod in shop; a name that exists for a pod in bank only as itself.
	q := query(t, "web.test.shop.svc."+clusterZone, dns.TypeA, nil)
	rcodes := map[string]int{"shop": dns.RcodeSuccess, "bank": dns.RcodeNameError, "": dns.RcodeNameError}
	for _, server := range []netip.Addr{local4, local6} {
		c := dial(t, pod, server)
		rcode := func() int {
			reply, err := c.exchange(q)
			kit.Must(t, err)
			return int(reply[3] & 0xF)
		}
		for _, namespace := range []string{"shop", "bank", "shop", "", "shop"} {
			writePods(t, folder, []searcher{{pod, namespace}})
			i.eventually(t, fmt.Sprintf("answers for a pod in namespace %q", namespace), func() error {
				if got := rcode(); got != rcodes[namespace] {
					return fmt.Errorf("%s", dns.RcodeToString[got])
				}
				return nil
			})
			before := i.answered(t)
			end := time.Now().Add(bounded)
			for inKernel := false; !inKernel; {
				for range 50 {
					if got := rcode(); got != rcodes[namespace] {
						t.Fatalf("namespace %q: %s after the first answer with its search list", namespace, dns.RcodeToString[got])
					}
				}
				// Readers answer a client with an unknown search list, and count it by the reason.
				if inKernel = namespace == "" || i.answered(t) > before+50; !inKernel && time.Now().After(end) {
					t.Fatalf("namespace %q: the kernel does not answer", namespace)
				}
			}
		}
	}
}

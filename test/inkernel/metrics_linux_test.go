package inkernel

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/netns"
)

// exactZone has a server block of its own: self-queries of nodelocal do not count in its metrics.
const exactZone = "exact.test."

// counted reports whether a sample of the zone is to be equal with and without answers in the kernel.
func counted(sample string) bool {
	name, labels, _ := strings.Cut(sample, "{")
	if !strings.Contains(labels, `zone="`+exactZone+`"`) && !strings.Contains(labels, `zones="`+exactZone+`"`) {
		return false
	}
	switch name {
	case "coredns_dns_requests_total", "coredns_dns_do_requests_total", "coredns_dns_responses_total", "coredns_dns_request_duration_seconds_count",
		"coredns_cache_hits_total", "coredns_cache_misses_total", "coredns_cache_requests_total", "coredns_cache_entries",
		"nearside_cache_hits_beyond_ttl_total":
		return true
	}
	return strings.HasPrefix(name, "coredns_dns_request_size_bytes_") || strings.HasPrefix(name, "coredns_dns_response_size_bytes_")
}

// exact returns the samples that are counted.
func exact(all daemon.Samples) daemon.Samples {
	some := maps.Clone(all)
	maps.DeleteFunc(some, func(sample string, _ float64) bool { return !counted(sample) })
	return some
}

// exactQueries are the queries of one round from each place: in the forms that the kernel answers, and in others.
func exactQueries(t *testing.T) (all [][]byte) {
	t.Helper()
	for k := range 6 {
		name := strings.Repeat("x", 1+9*k) + "." + exactZone
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeMX} { // no data of the last two
			for _, change := range []func(*dns.Msg){
				nil,
				func(m *dns.Msg) { m.SetEdns0(1232, false) },
				func(m *dns.Msg) { m.SetEdns0(4096, true) },
				func(m *dns.Msg) { m.CheckingDisabled = true },
				func(m *dns.Msg) { m.RecursionDesired, m.AuthenticatedData = false, true },
				func(m *dns.Msg) { m.Question[0].Name = strings.ToUpper(m.Question[0].Name) },
				func(m *dns.Msg) {
					m.SetEdns0(1232, false).IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_NSID{Code: dns.EDNS0NSID}}
				},
			} {
				all = append(all, query(t, name, qtype, change))
			}
		}
		all = append(all, query(t, "none."+name, dns.TypeA, nil))
	}
	return all
}

// exactRounds is the number of rounds. The kernel answers from the fifth one on: the fourth hit of an entry copies it.
const exactRounds = 12

// runExact sends the same queries at every call, from each place to each address, and returns the increases of the metrics, the
// number of queries and the number of those that the kernel has answered.
func runExact(t *testing.T, i *instance, places []*netns.Namespace) (increase daemon.Samples, sent, kernel int) {
	t.Helper()
	before := i.scrape(t)
	queries := exactQueries(t)
	for _, server := range locals {
		var clients []*client
		for _, place := range places {
			clients = append(clients, dial(t, place, server))
		}
		for range exactRounds {
			for _, q := range queries {
				for _, c := range clients {
					if _, err := c.exchange(q); err != nil {
						t.Fatalf("%x to %v: %v", q, server, err)
					}
					sent++
				}
			}
		}
	}
	// Readers and the kernel's counters are read at intervals.
	i.eventually(t, fmt.Sprintf("the metrics of %d queries", sent), func() error {
		increase = exact(i.scrape(t).Since(before))
		if n := int(increase.Sum("coredns_dns_requests_total")); n < sent {
			return fmt.Errorf("%d queries", n)
		}
		return nil
	})
	time.Sleep(time.Second) // longer than the intervals: nothing is counted twice
	after := i.scrape(t).Since(before)
	return exact(after), sent, int(after.Sum(answeredTotal))
}

// TestExactMetrics sends the same queries to a nodecache with answers in the kernel and to one without: every counter, and each
// bucket of sizes, has the same value, and all queries are counted.
func TestExactMetrics(t *testing.T) {
	n := newNode(t)
	places := []*netns.Namespace{n.Namespace, n.addPod(t, routed).Namespace, n.addPod(t, bridged).Namespace}
	c := config{zones: []string{exactZone}}
	off := n.start(t, c)
	want, sent, kernel := runExact(t, off, places)
	if kernel != 0 {
		t.Errorf("without the option, the kernel has answered %d queries", kernel)
	}
	off.Stop(t)
	i := n.start(t, c.withKernel("on"))
	i.waitInterfaces(t, "attached", len(places))
	got, again, kernel := runExact(t, i, places)
	if again != sent || kernel < sent/2 || kernel >= sent {
		t.Errorf("the kernel has answered %d of %d queries, and %d were sent without the option", kernel, again, sent)
	}
	for _, name := range []string{
		"coredns_dns_requests_total", "coredns_dns_responses_total", "coredns_dns_request_duration_seconds_count",
		"coredns_dns_request_size_bytes_count", "coredns_dns_response_size_bytes_count", "coredns_cache_requests_total",
	} {
		if all := int(got.Sum(name)); all != sent {
			t.Errorf("%s: %d, want %d", name, all, sent)
		}
	}
	if hits, misses := got.Sum("coredns_cache_hits_total"), got.Sum("coredns_cache_misses_total"); int(hits+misses) != sent {
		t.Errorf("%v hits and %v misses of %d queries", hits, misses, sent)
	}
	all := maps.Clone(want)
	maps.Copy(all, got)
	for sample := range all {
		if got[sample] != want[sample] {
			t.Errorf("%s: %v with answers in the kernel, %v without", sample, got[sample], want[sample])
		}
	}
	if len(want) < 50 {
		t.Errorf("only %d samples are compared", len(want))
	}
}

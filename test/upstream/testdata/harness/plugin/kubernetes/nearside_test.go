package kubernetes

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin/pkg/nearside"

	"github.com/miekg/dns"
)

// TestMain waits for the checks of stanzas.
func TestMain(m *testing.M) {
	code := m.Run()
	nearside.Wait()
	os.Exit(code)
}

// validateAXFR replaces CoreDNS's function, which compares the order of the records, too. RFC 5936 section 2.2 leaves it open,
// and RFC 2181 section 5 allows a record once. TTLs count in neither.
func validateAXFR(t *testing.T, envelopes <-chan []dns.RR, multicluster bool) {
	t.Helper()
	var all []dns.RR
	for records := range envelopes {
		all = append(all, records...)
	}
	if last := len(all) - 1; last < 1 || all[0].Header().Rrtype != dns.TypeSOA || all[last].Header().Rrtype != dns.TypeSOA {
		t.Fatalf("no SOA at the beginning and end of %v", all)
	}
	text := expectedZone
	if multicluster {
		text = expectedMultiClusterZone
	}
	got, want := map[string]bool{}, map[string]bool{}
	for _, rr := range all {
		got[brief(rr)] = true
	}
	p := dns.NewZoneParser(strings.NewReader(text), "", "")
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		want[brief(rr)] = true
	}
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	var differences []string
	for _, record := range slices.Sorted(maps.Keys(want)) {
		if !got[record] {
			differences = append(differences, "without "+record)
		}
	}
	for _, record := range slices.Sorted(maps.Keys(got)) {
		if !want[record] {
			differences = append(differences, "with "+record)
		}
	}
	if len(differences) > 0 {
		t.Errorf("transfer %s", strings.Join(differences, ", "))
	}
}

// brief returns a record without TTL.
func brief(rr dns.RR) string {
	rr = dns.Copy(rr)
	rr.Header().Ttl = 0
	return strings.Join(strings.Fields(strings.Replace(rr.String(), "\t0\tIN\t", " ", 1)), " ")
}

package main

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func testLookups(t *testing.T, seed uint64, tag string, n int) []lookup {
	t.Helper()
	all, err := lookups(seed, tag, n)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// addressText writes addresses with spaces between them.
func addressText(all []netip.Addr) string {
	var text []string
	for _, a := range all {
		text = append(text, a.String())
	}
	return strings.Join(text, " ")
}

// TestLookups compares the look-ups with a plain model of the cluster.
func TestLookups(t *testing.T) {
	if err := searchCluster.Validate(); err != nil {
		t.Fatal(err)
	}
	addresses := map[string]string{} // of Services, by name and namespace
	for n := range searchCluster.Services {
		if s := searchCluster.Service(n); !s.Headless {
			addresses[s.Name+"."+s.Namespace] = s.ClusterIP
		}
	}
	const n = 20000
	var external, short int
	names, pods := map[string]int{}, map[string]int{}
	for _, l := range testLookups(t, 7, "tag", n) {
		pods[l.pod.address.String()]++
		if strings.Count(l.name, ".") >= ndots {
			t.Fatalf("%s is not searched for", l.name)
		}
		if l.external {
			external++
			names[l.name]++
			if !strings.HasSuffix(l.name, ".tag.example.com") {
				t.Fatalf("%s is without the tag", l.name)
			}
			continue
		}
		name := l.name
		if !strings.Contains(name, ".") {
			short++
			name += "." + l.pod.namespace
		}
		if got := addressText(l.want); got != addresses[name] {
			t.Fatalf("%s from %s: %q is wanted, the Service has %q", l.name, l.pod.namespace, got, addresses[name])
		}
	}
	near(t, "external names", float64(external)/n, externalShare)
	near(t, "short ones of the cluster's names", float64(short)/float64(n-external), shortShare)
	if len(pods) != searchPods {
		t.Errorf("%d pods, want %d", len(pods), searchPods)
	}
	if len(names) < externalNames/3 || len(names) > externalNames {
		t.Errorf("%d external names, want many of %d", len(names), externalNames)
	}
	if frequent := names["w0.tag.example.com"]; frequent < 20*external/externalNames {
		t.Errorf("the first name is wanted %d times of %d: no more than others", frequent, external)
	}
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 0.02 {
		t.Errorf("%s: a share of %.3f, want %.3f", what, got, want)
	}
}

func TestLookupsRepeat(t *testing.T) {
	first := testLookups(t, 1, "a", 500)
	if !reflect.DeepEqual(first, testLookups(t, 1, "a", 500)) {
		t.Error("the same seed and tag make other look-ups")
	}
	if reflect.DeepEqual(first, testLookups(t, 2, "a", 500)) {
		t.Error("another seed makes the same look-ups")
	}
	retagged := testLookups(t, 1, "b", 500)
	for i, l := range first {
		if want := strings.Replace(l.name, ".a.", ".b.", 1); retagged[i].name != want {
			t.Fatalf("with another tag, %s is %s, want %s", l.name, retagged[i].name, want)
		}
	}
}

func TestServiceIn(t *testing.T) {
	for namespace := range searchCluster.Namespaces {
		for _, n := range []int{0, 1, 61, 62, 100000} {
			s := serviceIn(namespace, n)
			if s.Headless || s.Namespace != searchCluster.Namespace(namespace) {
				t.Errorf("%d of namespace %d: %+v", n, namespace, s)
			}
		}
	}
}

func TestPods(t *testing.T) {
	seen := map[string]bool{}
	for n := range searchPods {
		p := podOf(n)
		address, ok := netip.AddrFromSlice(p.address.To4())
		if !ok || !address.IsLoopback() || seen[address.String()] {
			t.Errorf("pod %d has the address %s", n, p.address)
		}
		seen[address.String()] = true
		want := []string{fmt.Sprintf("ns-%03d.svc.cluster.local.", n%16), "svc.cluster.local.", "cluster.local.", "node.internal."}
		if got := p.searchList(); !slices.Equal(got, want) {
			t.Errorf("pod %d has the search list %q, want %q", n, got, want)
		}
	}
}

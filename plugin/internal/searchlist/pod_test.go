package searchlist

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/property"
)

const zone = "cluster.local."

// inCluster are the suffixes of the cluster for pods of namespace shop.
var inCluster = []string{"shop.svc.cluster.local.", "svc.cluster.local.", "cluster.local."}

// numbered returns names a0.example, a1.example and so on.
func numbered(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("a%d.example", i))
	}
	return all
}

// rooted returns names with a final dot.
func rooted(names []string) (all []string) {
	for _, name := range names {
		all = append(all, name+".")
	}
	return all
}

func TestOfPod(t *testing.T) {
	host := []string{"corp.example", "example"}
	both := append(slices.Clone(inCluster), "corp.example.", "example.")
	long := strings.Repeat(strings.Repeat("a", 62)+".", 4) // 252 characters
	for _, tc := range []struct {
		name string
		dns  *PodDNS
		host []string
		want []string
	}{
		{"ClusterFirst", nil, host, both},
		{"ClusterFirst, explicit", &PodDNS{Policy: "ClusterFirst"}, host, both},
		{"ClusterFirst with searches", &PodDNS{Policy: "ClusterFirst", Searches: []string{"a.example", "b.example."}}, host, append(slices.Clone(both), "a.example.", "b.example.")},
		{"ClusterFirst, no host", nil, nil, inCluster},
		{"ClusterFirstWithHostNet", &PodDNS{Policy: "ClusterFirstWithHostNet"}, host, both},
		{"ClusterFirstWithHostNet with searches", &PodDNS{Policy: "ClusterFirstWithHostNet", Searches: []string{"a.example"}}, host, append(slices.Clone(both), "a.example.")},
		{"Default", &PodDNS{Policy: "Default"}, host, []string{"corp.example.", "example."}},
		{"Default with searches", &PodDNS{Policy: "Default", Searches: []string{"a.example"}}, host, []string{"corp.example.", "example.", "a.example."}},
		{"Default, nothing", &PodDNS{Policy: "Default"}, nil, nil},
		{"None", &PodDNS{Policy: "None"}, host, nil},
		{"None with searches", &PodDNS{Policy: "None", Searches: []string{"a.example", "shop.svc.cluster.local"}}, host, []string{"a.example.", "shop.svc.cluster.local."}},
		{"unknown policy", &PodDNS{Policy: "Sometimes"}, host, both},
		{"duplicate", &PodDNS{Policy: "ClusterFirst", Searches: []string{"example", "svc.cluster.local"}}, []string{"cluster.local", "example"}, append(slices.Clone(inCluster), "example.")},
		{"duplicate in another case", nil, []string{"Example", "EXAMPLE", "example"}, append(slices.Clone(inCluster), "example.")},
		{"duplicate with a dot", &PodDNS{Policy: "None", Searches: []string{"example", "example.", "example"}}, nil, []string{"example."}},
		{"underscores", &PodDNS{Policy: "None", Searches: []string{"_sip._tcp.example"}}, nil, []string{"_sip._tcp.example."}},
		{"root first", &PodDNS{Policy: "None", Searches: []string{".", "a.example"}}, nil, []string{"a.example."}},
		{"root last", &PodDNS{Policy: "ClusterFirst", Searches: []string{"."}}, host, both},
		{"root between", &PodDNS{Policy: "ClusterFirst", Searches: []string{".", "a.example"}}, host, nil},
		{"root alone", &PodDNS{Policy: "None", Searches: []string{"."}}, nil, nil},
		{"invalid name first", &PodDNS{Policy: "Default"}, []string{"a..example", "example"}, nil},
		{"invalid name last", nil, []string{"corp.example", "a..example"}, nil},
		{"invalid name between", nil, []string{"corp.example", "a..example", "example"}, nil},
		{"leading dot", nil, []string{".example"}, nil},
		{"root twice at the end", &PodDNS{Policy: "None", Searches: []string{"a.example", ".", "."}}, nil, []string{"a.example."}},
		{"a label of 63", nil, []string{strings.Repeat("a", 63) + ".example"}, append(slices.Clone(inCluster), strings.Repeat("a", 63)+".example.")},
		{"a label of 64", nil, []string{strings.Repeat("a", 64) + ".example"}, nil},
		{"an escape", nil, []string{`a\.example`}, nil},
		{"not ASCII", nil, []string{"é.example"}, nil},
		{"253 characters", nil, []string{long + "b"}, append(slices.Clone(inCluster), long+"b.")},
		{"254 characters", nil, []string{long + "bc", "example"}, append(slices.Clone(inCluster), "example.")},
		{"253 characters and a dot", &PodDNS{Policy: "None", Searches: []string{long + "b.", "example"}}, nil, []string{"example."}},
		{"32 entries", nil, numbered(29), append(slices.Clone(inCluster), rooted(numbered(29))...)},
		{"33 entries", nil, numbered(30), append(slices.Clone(inCluster), rooted(numbered(29))...)},
		{"32 entries, one too long", nil, append([]string{long + "bc"}, numbered(29)...), append(slices.Clone(inCluster), rooted(numbered(28))...)},
		// 8 of 251 with 7 blanks are 2015 characters, another blank and 32 make 2048.
		{"2048 characters", &PodDNS{Policy: "None", Searches: append(wide(8), strings.Repeat("z", 32))}, nil, rooted(append(wide(8), strings.Repeat("z", 32)))},
		{"2049 characters", &PodDNS{Policy: "None", Searches: append(wide(8), strings.Repeat("z", 33))}, nil, rooted(wide(8))},
		{"20 long entries", &PodDNS{Policy: "None", Searches: append(wide(8), wide(20)[8:]...)}, nil, rooted(wide(8))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := OfPod("shop", tc.dns, zone, tc.host); !slices.Equal(got, tc.want) || (got == nil) != (tc.want == nil) {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// wide returns names of 251 characters.
func wide(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%03d.", i)+strings.Repeat(strings.Repeat("a", 60)+".", 4)+"aaa")
	}
	return all
}

func TestOfPodZones(t *testing.T) {
	for in, want := range map[string][]string{
		"Corp.Example.": {"shop.svc.corp.example.", "svc.corp.example.", "corp.example.", "example."},
		"corp.example":  {"shop.svc.corp.example.", "svc.corp.example.", "corp.example.", "example."},
		".":             {"example."},
		"":              {"example."},
	} {
		if got := OfPod("shop", nil, in, []string{"example"}); !slices.Equal(got, want) {
			t.Errorf("zone %q: %q, want %q", in, got, want)
		}
	}
}

// TestOfPodArguments asserts that OfPod does not change its arguments.
func TestOfPodArguments(t *testing.T) {
	host := append(make([]string, 0, 64), "corp.example", strings.Repeat("a", 254), "example")
	d := &PodDNS{Policy: "Default", Searches: append(make([]string, 0, 64), strings.Repeat("b", 254), "a.example")}
	want := fmt.Sprint(host, host[:cap(host)], d.Searches, d.Searches[:cap(d.Searches)])
	OfPod("shop", d, zone, host)
	if got := fmt.Sprint(host, host[:cap(host)], d.Searches, d.Searches[:cap(d.Searches)]); got != want {
		t.Errorf("%s, was %s", got, want)
	}
}

// resolver returns the names that a resolver queries for a name with fewer dots than ndots, given the search list of a
// resolv.conf.
type resolver func(name string, search []string) []string

// resolvers are those of glibc 2.41 (res_query.c) and of musl 1.2.5 (lookup_name.c). Go's is like musl's.
var resolvers = map[string]resolver{
	"glibc": func(name string, search []string) (queried []string) {
		root := false
		for _, s := range search {
			if s = strings.TrimPrefix(s, "."); s == "" {
				queried, root = append(queried, name+"."), true
				continue
			}
			if _, ok := dns.IsDomainName(name + "." + s); !ok {
				break
			}
			queried = append(queried, dns.CanonicalName(name+"."+s))
		}
		if !root {
			queried = append(queried, name+".")
		}
		return queried
	},
	"musl": func(name string, search []string) (queried []string) {
		for _, s := range search {
			if _, ok := dns.IsDomainName(name + "." + s); ok && s != "." {
				queried = append(queried, dns.CanonicalName(name+"."+s))
			}
		}
		return append(queried, name+".")
	},
}

// found returns the first of the queried names that exists, "" if none does. expand returns the name that the server finds
// for a name by expanding it, or "".
func found(queried []string, exists map[string]bool, expand func(name string) string) string {
	for _, name := range queried {
		if exists[name] {
			return name
		}
		if expanded := expand(name); expanded != "" {
			return expanded
		}
	}
	return ""
}

// TestOfPodMatchesResolvers asserts for random search lists that a client finds the same name with and without expansion.
func TestOfPodMatchesResolvers(t *testing.T) {
	property.Seeds(t, 7, 1, func(t *testing.T, seed uint64) {
		entries := []string{".", "a.example", "b.example", "B.Example.", "a..example", ".c.example", "c.example", strings.Repeat("d", 64) + ".example"}
		random := rand.New(rand.NewPCG(seed, 1))
		expanded := 0
		for range 20_000 {
			d := &PodDNS{Policy: "None"}
			for range random.IntN(5) {
				d.Searches = append(d.Searches, entries[random.IntN(len(entries))])
			}
			list := OfPod("shop", d, zone, nil)
			exists := map[string]bool{"www.": random.IntN(2) == 0}
			for _, s := range []string{"www.a.example.", "www.b.example.", "www.c.example."} {
				exists[s] = random.IntN(2) == 0
			}
			expand := func(name string) string {
				if len(list) == 0 || name != "www."+list[0] {
					return ""
				}
				expanded++
				for _, suffix := range append(slices.Clone(list), "") {
					if exists["www."+suffix] {
						return "www." + suffix
					}
				}
				return ""
			}
			written := withoutDuplicates(d.Searches)
			for name, walk := range resolvers {
				queried := walk("www", written)
				plain := found(queried, exists, func(string) string { return "" })
				if got := found(queried, exists, expand); got != plain {
					t.Fatalf("%s with search %q finds %q, and %q if the list %q is expanded; existing names %v", name, written, plain, got, list, exists)
				}
			}
		}
		if expanded == 0 {
			t.Error("no name was expanded")
		}
	})
}

func FuzzOfPod(f *testing.F) {
	f.Add("shop", "ClusterFirst", "cluster.local.", "corp.example example", "a.example .")
	f.Add("shop", "None", "", ". .. a", "_a._b -c")
	f.Add("", "Default", ".", "É ß", strings.Repeat("a ", 40))
	f.Fuzz(func(t *testing.T, namespace, policy, zone, host, searches string) {
		list := OfPod(namespace, &PodDNS{Policy: policy, Searches: strings.Split(searches, " ")}, zone, strings.Split(host, " "))
		if len(list) > maxEntries || (list == nil) != (len(list) == 0) {
			t.Fatalf("%d entries, nil is %t", len(list), list == nil)
		}
		for i, name := range list {
			if _, ok := dns.IsDomainName(name); !ok || name == "." || name != dns.CanonicalName(name) || slices.Contains(list[:i], name) {
				t.Errorf("%q of %q", name, list)
			}
		}
	})
}

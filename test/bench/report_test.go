package main

import (
	"strings"
	"testing"
)

func TestBudgets(t *testing.T) {
	hit := budget{what: "A", own: "nodecache", peer: "Unbound", share: 1}
	tenth := budget{what: "A", own: "nodecache", peer: "Unbound", share: 0.1}
	either := budget{what: "A", own: "nodecache", peer: "Unbound", share: 0.4, limit: 30}
	asGood := budget{what: "A", own: "nodecache", peer: "Unbound", share: 1, unit: "ms", asGood: true}
	limited := budget{what: "A", own: "nodecache", limit: 4, unit: "connections", highest: true}
	shortTime := budget{what: "A", own: "nodecache", limit: 5, unit: "ms"}
	gained := budget{what: "A", own: "nodecache", floor: 1.8, unit: "times"}
	memory := budget{what: "A", own: "nodecache", limit: 25}
	for _, c := range []struct {
		name      string
		budget    budget
		own, peer []float64
		measured  string
		met       string
	}{
		{"cheaper", hit, []float64{9, 3, 2}, []float64{4, 4, 4}, "3.00 us, 1/1.3 of 4.00 us", "yes"},
		{"as cheap", hit, []float64{4}, []float64{4}, "4.00 us, 1.0 times 4.00 us", "**no**"},
		{"a tenth", tenth, []float64{4}, []float64{40}, "4.00 us, 1/10.0 of 40.00 us", "yes"},
		{"an eighth", tenth, []float64{5}, []float64{40}, "5.00 us, 1/8.0 of 40.00 us", "**no**"},
		{"no peer", hit, []float64{4}, nil, "4.00 us", "unknown: Unbound is missing"},
		{"nothing", hit, nil, []float64{4}, "", "not measured"},
		{"within the limit", either, []float64{30}, []float64{40}, "30.00 us, 1/1.3 of 40.00 us", "yes"},
		{"within the share", either, []float64{32}, []float64{80}, "32.00 us, 1/2.5 of 80.00 us", "yes"},
		{"within neither", either, []float64{33}, []float64{80}, "33.00 us, 1/2.4 of 80.00 us", "**no**"},
		{"within the limit, no peer", either, []float64{30}, nil, "30.00 us", "yes"},
		{"beyond the limit, no peer", either, []float64{31}, nil, "31.00 us", "unknown: Unbound is missing"},
		{"as good", asGood, []float64{21}, []float64{21}, "21.00 ms, 1.0 times 21.00 ms", "yes"},
		{"not as good", asGood, []float64{22}, []float64{21}, "22.00 ms, 1.0 times 21.00 ms", "**no**"},
		{"few connections", limited, []float64{2, 4, 2}, nil, "4 connections", "yes"},
		{"many in one round", limited, []float64{2, 5, 2}, nil, "5 connections", "**no**"},
		{"a short time", shortTime, []float64{0.25}, nil, "0.25 ms", "yes"},
		{"a long time", shortTime, []float64{5.01}, nil, "5.01 ms", "**no**"},
		{"gained", gained, []float64{1.8}, nil, "1.80 times", "yes"},
		{"not gained", gained, []float64{1.79}, nil, "1.79 times", "**no**"},
		{"little memory", memory, []float64{23}, nil, "24.1 MB", "yes"},
		{"a mebibyte is more than a megabyte", memory, []float64{24}, nil, "25.2 MB", "**no**"},
	} {
		t.Run(c.name, func(t *testing.T) {
			measured, met := c.budget.judge(results{"A": {"nodecache": c.own, "Unbound": c.peer}})
			if measured != c.measured || met != c.met {
				t.Errorf("%q, %q; want %q, %q", measured, met, c.measured, c.met)
			}
		})
	}
}

func TestReportNamesMissing(t *testing.T) {
	b := bench{settings: settings{parts: []string{partHits}}, results: results{}, missing: []string{"Unbound is missing: no such program"}}
	b.results.add(kindHit, nameNodeCache, 3)
	var text strings.Builder
	if err := b.report(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Unbound is missing: no such program.", "| Unbound | missing |", "unknown: Unbound is missing"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, &text)
		}
	}
}

func TestReportMisses(t *testing.T) {
	b := bench{settings: settings{parts: []string{partMisses}, rounds: 3}, results: results{}}
	for i, v := range []float64{20, 30, 25} {
		for what, figure := range map[string]float64{
			missCPU: v, missP50: 20.5, missP99: v + 1, missMax: 2, missEnd: 1, missReached: 8000, missSent: 24000, missLost: float64(i),
		} {
			b.results.add(what, nameNodeCache, figure)
			b.results.add(what, nameCoreDNS, figure*4)
		}
	}
	var text strings.Builder
	if err := b.report(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| nodecache | 25.00 (20.00 to 30.00) | 1.00 | 20.50 (20.50 to 20.50) | 26.00 (21.00 to 31.00) | 2 (2 to 2) | 1 (1 to 1) | 8000 (8000 to 8000) | 3 of 72000 |\n",
		"| CoreDNS | 100.00 (80.00 to 120.00) | 4.00 |",
		"| Unbound | missing |  | missing | missing | missing | missing | missing | missing |\n",
		"| 25.00 us, 1/4.0 of 100.00 us | yes |",
		"| 2 connections | yes |",
		"unknown: Unbound is missing",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, &text)
		}
	}
	if n := strings.Count(text.String(), "| budget |"); n != 1 {
		t.Errorf("%d tables of budgets, want one:\n%s", n, &text)
	}
	if strings.Contains(text.String(), "endpoints") {
		t.Errorf("a cluster in the report of misses:\n%s", &text)
	}
}

func TestReportSearch(t *testing.T) {
	b := bench{settings: settings{parts: []string{partSearch}, rounds: 3}, results: results{}}
	for i, v := range []float64{100, 300, 200} {
		for what, figure := range map[string]float64{
			searchQueries: 2, searchExternal: 2, searchToCluster: 0.5, searchToUpstream: 0.25, searchNodeCPU: v, searchClusterCPU: v + 1,
			externalP50: 0.5, externalP99: 40.5, clusterP50: 0.25, clusterP99: 1, searchReached: 300 - float64(i),
		} {
			b.results.add(what, nameExpanded, figure)
			if what != searchNodeCPU {
				b.results.add(what, "no node cache, CoreDNS with autopath", 2*figure)
			}
		}
	}
	b.results.add(searchExternal, nameWalked, 10)
	var text strings.Builder
	if err := b.report(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"Of pods, 300 look-ups a second, 70 % of them of external names; upstream 20 ms away:\n",
		"| nodecache with autopath, clusterdns | 2.00 (2.00 to 2.00) | 2.00 (2.00 to 2.00) | 0.50 (0.50 to 0.50) | 0.25 (0.25 to 0.25) |\n",
		"| nodecache with autopath, clusterdns | 200 (100 to 300) | 201 (101 to 301) | 0.50 (0.50 to 0.50) | 40.50 (40.50 to 40.50) |" +
			" 0.25 (0.25 to 0.25) | 1.00 (1.00 to 1.00) | 299 (298 to 300) |\n",
		"| nodecache, clusterdns | missing | 10.00 | missing | missing |\n",
		"| no node cache, CoreDNS with autopath | | 402 (202 to 602) |",
		"| 2 queries | yes |",
		"| 200.00 us | unknown: nodecache, clusterdns is missing |",
		"Queries lost: none.\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, &text)
		}
	}
	if strings.Contains(text.String(), "endpoints") {
		t.Errorf("the large cluster in the report of search paths:\n%s", &text)
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string // in the error
	}{
		{"defaults", nil, ""},
		{"parts", []string{"-only", "hits,memory"}, ""},
		{"misses", []string{"-only", "misses", "-misses", "8000"}, ""},
		{"search", []string{"-only", "search", "-lookups", "600"}, ""},
		{"unknown part", []string{"-only", "nothing"}, `"nothing" is none of hits, cluster, topology, imports, memory, misses, search, tcp, rates, stall, node, waiting, cores`},
		{"no rounds", []string{"-rounds", "0"}, "at least 1"},
		{"no misses", []string{"-misses", "0"}, "at least 1"},
		{"tcp and rates", []string{"-only", "tcp,rates", "-seconds", "1"}, ""},
		{"no seconds", []string{"-seconds", "0"}, "at least 1"},
		{"no lookups", []string{"-lookups", "0"}, "at least 1"},
		{"imports", []string{"-only", "imports", "-imports", "10"}, ""},
		{"no headless import", []string{"-imports", "9"}, "imports: at least 10"},
		{"argument", []string{"hits"}, `unknown argument "hits"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(c.args)
			if c.want == "" && err != nil {
				t.Errorf("error %v, want none", err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}

package main

import (
	"slices"
	"strings"
	"testing"
)

// TestBars: each bar is for a figure of a part and a server that exist.
func TestBars(t *testing.T) {
	servers := append(cacheNames(hotServers), nameClusterDNS, nameExpanded, nameBothCoreDNS, nameCoherent, nameTimed, nameFleet, nameInKernel, nameFastPath, nameEcho, "")
	var titles []string
	for _, one := range bars {
		if !slices.Contains(everyPart, one.part) || !slices.Contains(servers, one.own) || !slices.Contains(servers, one.peer) || one.what == "" {
			t.Errorf("%+v", one)
		}
		if (one.limit > 0) == (one.floor > 0) && one.share == 0 {
			t.Errorf("%s: no bar, or two", one.title)
		}
		if slices.Contains(titles, one.title) {
			t.Errorf("two bars are called %q", one.title)
		}
		titles = append(titles, one.title)
	}
}

// TestReportWire writes the tables of the parts for queries in wire form.
func TestReportWire(t *testing.T) {
	b := bench{settings: settings{parts: []string{partTCP, partRates, partStall, partNode, partWaiting, partCores}, rounds: 1}, results: results{}}
	add := func(what string, figures map[string]float64) {
		for name, v := range figures {
			b.results.add(what, name, v)
		}
	}
	add(tcpRow(kindPipelined), map[string]float64{nameNodeCache: 2, nameUnbound: 5, nameClusterDNS: 4, nameClusterCoreDNS: 10})
	add(rateRow(200), map[string]float64{nameNodeCache: 20, nameUnbound: 20, nameCoreDNS: 100})
	add(idleCPU, map[string]float64{nameNodeCache: 0.5})
	add(stallMedian, map[string]float64{nameNodeCache: 0.25, nameClusterDNS: 4800})
	add(nodeCPU, map[string]float64{nameWalked: 30, nameBothCoreDNS: 90})
	add(nodeHits, map[string]float64{nameWalked: 66.7})
	add(waitingGrowth+"force_tcp", map[string]float64{nameNodeCache: 20})
	add(waitingLate+"force_tcp", map[string]float64{nameNodeCache: 424})
	add(coresGain(coresHits), map[string]float64{nameNodeCache: 1.9})
	var text strings.Builder
	if err := b.report(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| nodecache | 2.00 | 1.00 |", "| Unbound | 5.00 | 2.50 |", "| CoreDNS as cluster DNS | 10.00 | 2.50 |",
		"| CoreDNS | 100.00 | missing |",
		"| clusterdns | 4800.00 | missing | missing |\n",
		"| nodecache, clusterdns | 30.00 | 1.00 | missing | missing | 66.7 | missing |\n", "| 90.00 | 3.00 |",
		"| bar | measured | met |\n",
		"at most half of Unbound's | 2.00 us, 1/2.5 of 5.00 us | yes |", "| 4.00 us | **no** |",
		"| hits at 200/s not above Unbound's | 20.00 us, 1.0 times 20.00 us | yes |", "| hits at 1000/s not above Unbound's |  | not measured |",
		"| 0.25 ms | yes |", "| 4800.00 ms | **no** |",
		"| 21.0 MB | yes |", "| 424 queries | **no** |", "| 1.90 times | yes |",
		"Queries lost: none.\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in the report:\n%s", want, &text)
		}
	}
	if strings.Contains(text.String(), "| budget |") {
		t.Errorf("budgets of parts that were not measured:\n%s", &text)
	}
}

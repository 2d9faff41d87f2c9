package main

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// TestNodeLoad: a cache with the TTL would answer two thirds of the queries at that rate.
func TestNodeLoad(t *testing.T) {
	names, err := nodeNames()
	if err != nil {
		t.Fatal(err)
	}
	if want := 2 * searchCluster.Services * 9 / 10; len(names) != want {
		t.Fatalf("%d queries, want %d", len(names), want)
	}
	if names[0].records != 0 || names[1].records != 1 {
		t.Errorf("%d and %d records, want none for AAAA and one for A", names[0].records, names[1].records)
	}
	const seconds = 60
	b := bench{folder: t.TempDir()}
	l, err := b.nodeLoad(names, "node", 1, seconds)
	if err != nil {
		t.Fatal(err)
	}
	if len(l.packets) != l.rate*seconds || l.rate != nodeRate(names) {
		t.Fatalf("%d queries at %d per second in %d seconds", len(l.packets), l.rate, seconds)
	}
	text, err := os.ReadFile(l.file)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.Collect(strings.Lines(string(text)))
	if len(lines) != len(l.packets) || !strings.HasSuffix(lines[0], " A\n") && !strings.HasSuffix(lines[0], " AAAA\n") {
		t.Errorf("%d lines, the first %q", len(lines), lines[0])
	}
	expires := map[string]float64{}
	hits, all := 0, 0
	for i, line := range lines {
		now := float64(i) / float64(l.rate)
		hit := now < expires[line]
		if !hit {
			expires[line] = now + nodeTTL
		}
		if now >= 2*nodeTTL { // the load before is not measured
			all++
			if hit {
				hits++
			}
		}
	}
	if share := float64(hits) / float64(all); math.Abs(share-2./3) > 0.01 {
		t.Errorf("%.3f of the queries are hits, want 2/3", share)
	}
}

func TestAddNode(t *testing.T) {
	b := bench{results: results{}}
	s := &searchServers{searchSetup: nodeSetups[0]}
	b.addNode(s, nodeDone{
		Statistics: dnsperf.Statistics{Sent: 1001, Completed: 1000, Lost: 1, Rate: 720},
		queries:    searchCounts{cluster: 250},
		spent:      searchTimes{cache: 30 * time.Millisecond, cluster: 10 * time.Millisecond},
	})
	for what, want := range map[string]float64{nodeCPU: 40, nodeCacheCPU: 30, nodeClusterCPU: 10, nodeHits: 75, nodeReached: 720} {
		if got := b.results[what][s.name]; !slices.Equal(got, []float64{want}) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	if len(b.lost) != 1 || !strings.Contains(b.lost[0], "1 of 1001") {
		t.Errorf("lost: %q", b.lost)
	}
}

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
)

func (b *bench) report(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s. %s.\n\n", time.Now().UTC().Format("2006-01-02"), child.Machine())
	fmt.Fprintf(&text, "%s.\n\n", strings.Join(b.versions, "; "))
	if b.needsCluster() {
		fmt.Fprintf(&text, "%d services, %d endpoints, %d nodes. ", b.cluster.Services, b.cluster.Endpoints, b.cluster.Nodes)
	}
	fmt.Fprintf(&text, "%d rounds: median (lowest to highest).\n", b.rounds)
	for _, m := range b.missing {
		fmt.Fprintf(&text, "\n%s.\n", m)
	}
	for _, part := range []struct {
		name   string
		report func(*strings.Builder)
	}{
		{partHits, b.reportHits},
		{partCluster, b.reportCluster},
		{partTopology, b.reportTopology},
		{partImports, b.reportImports},
		{partMemory, b.reportMemory},
		{partMisses, b.reportMisses},
		{partSearch, b.reportSearch},
		{partTCP, b.reportTCP},
		{partRates, b.reportRates},
		{partStall, b.reportStall},
		{partNode, b.reportNode},
		{partWaiting, b.reportWaiting},
		{partCores, b.reportCores},
		{partCoherence, b.reportCoherence},
		{partSessions, b.reportSessions},
		{partKernel, b.reportKernel},
	} {
		if b.has(part.name) {
			part.report(&text)
		}
	}
	b.reportBudgets(&text, "budget", budgets)
	b.reportBudgets(&text, "bar", bars)
	if b.needsDNSPerf() || b.has(partSearch) || b.has(partKernel) {
		text.WriteString("\nQueries lost: ")
		if len(b.lost) == 0 {
			text.WriteString("none")
		}
		text.WriteString(strings.Join(b.lost, "; ") + ".\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}

func (b *bench) reportCluster(text *strings.Builder) {
	kinds := names(clusterKinds)
	b.table(text, "cluster names, *kubernetes* alone: CPU per query, us", nameClusterDNS, "%.2f", "", kinds)
	b.table(text, "cluster names, kubeadm's Corefile: CPU per query, us", nameClusterDNS, "%.2f", stockPrefix, kinds)
}

func (b *bench) reportMemory(text *strings.Builder) {
	b.table(text, "resident memory, MiB", nameClusterDNS, "%.0f", "", []string{memorySync, memoryRelist, memoryPeak})
	b.table(text, "resident memory, MiB", nameNodeCache, "%.1f", "", []string{memoryRest, memoryHits})
}

func names(kinds []kind) (all []string) {
	for _, k := range kinds {
		all = append(all, k.name)
	}
	return all
}

func cacheNames(servers []cache) (all []string) {
	for _, c := range servers {
		all = append(all, c.name)
	}
	return all
}

// reportHits writes a line for each server: its figures, and their ratio to those of nodecache.
func (b *bench) reportHits(text *strings.Builder) {
	text.WriteString("\n| cache hits: CPU per query, us |")
	for _, k := range hitKinds {
		fmt.Fprintf(text, " %s | to %s |", k.name, nameNodeCache)
	}
	text.WriteString("\n|---|" + strings.Repeat("---|---|", len(hitKinds)) + "\n")
	for _, c := range caches {
		fmt.Fprintf(text, "| %s |", c.name)
		for _, k := range hitKinds {
			own, v := b.results[k.name][nameNodeCache], b.results[k.name][c.name]
			fmt.Fprintf(text, " %s | %s |", cell("%.2f", v), times(v, own))
		}
		text.WriteString("\n")
	}
}

// reportMisses writes a line for each server. Lost queries are the sum over the valid rounds.
func (b *bench) reportMisses(text *strings.Builder) {
	columns := []struct{ title, what, format string }{
		{"p50, ms", missP50, "%.2f"},
		{"p99, ms", missP99, "%.2f"},
		{"max connections", missMax, "%.0f"},
		{"at the end", missEnd, "%.0f"},
		{"queries/s", missReached, "%.0f"},
	}
	away := "away"
	if b.near {
		away = "slow, but near"
	}
	fmt.Fprintf(text, "\n| misses, %d/s over TCP, upstream %d ms %s | CPU per query, us | to %s |", missRate, upstreamDelay.Milliseconds(), away, nameNodeCache)
	for _, c := range columns {
		fmt.Fprintf(text, " %s |", c.title)
	}
	text.WriteString(" lost |\n|---|---|---|" + strings.Repeat("---|", len(columns)) + "---|\n")
	own := b.results[missCPU][nameNodeCache]
	for _, s := range missServers {
		v := b.results[missCPU][s.name]
		fmt.Fprintf(text, "| %s | %s | %s |", s.name, cell("%.2f", v), times(v, own))
		for _, c := range columns {
			fmt.Fprintf(text, " %s |", cell(c.format, b.results[c.what][s.name]))
		}
		fmt.Fprintf(text, " %s |\n", share(b.results[missLost][s.name], b.results[missSent][s.name]))
	}
	b.grid(text, "misses: resident memory, MiB", cacheNames(missServers), []column{
		{title: "at rest", what: missRest, format: "%.1f"}, {title: "more, maximum", what: missGrowth, format: "%.1f"},
	})
}

// share is the ratio of two numbers, of all rounds together.
func share(parts, totals []float64) string {
	if len(totals) == 0 {
		return "missing"
	}
	var n, all float64
	for i := range totals {
		n, all = n+parts[i], all+totals[i]
	}
	return fmt.Sprintf("%.0f of %.0f", n, all)
}

// table writes a line for each row: our server, and CoreDNS. The results are under the prefix and the row.
func (b *bench) table(text *strings.Builder, title, server, format, prefix string, rows []string) {
	fmt.Fprintf(text, "\n| %s | %s | CoreDNS | CoreDNS to %s |\n|---|---|---|---|\n", title, server, server)
	for _, what := range rows {
		own, peer := b.results[prefix+what][server], b.results[prefix+what][nameCoreDNS]
		if len(own) > 0 {
			fmt.Fprintf(text, "| %s | %s | %s | %s |\n", what, cell(format, own), cell(format, peer), times(peer, own))
		}
	}
}

// cell returns the figures of the rounds.
func cell(format string, v []float64) string {
	switch len(v) {
	case 0:
		return "missing"
	case 1:
		return fmt.Sprintf(format, v[0])
	}
	return fmt.Sprintf(format+" ("+format+" to "+format+")", median(v), slices.Min(v), slices.Max(v))
}

func times(v, own []float64) string {
	if len(v) == 0 || len(own) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", median(v)/median(own))
}

// median returns the middle of at least one figure; of two in the middle, the higher.
func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

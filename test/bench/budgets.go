package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// budget is a bar for one figure of ours: a share of a peer's, or a limit. With both, either is enough.
type budget struct {
	title string
	part  string // part that measures it
	what  string // name of the figure
	own   string // server
	peer  string // if the bar is a share
	share float64
	limit float64 // in the unit; with neither unit nor peer in megabytes, of a figure in mebibytes
	unit  string  // of the figures; microseconds, if there is a peer and no unit
	floor float64 // the lowest figure that meets the bar, instead of a limit
	// asGood is set if equality with the peer is enough for a share of 1.
	asGood bool
	// highest is set if the bar is for each round, not for the median.
	highest bool
}

var budgets = []budget{
	{title: "cache hit cheaper than Unbound's, with prometheus on", part: partHits, what: kindHit, own: nameNodeCache, peer: nameUnbound, share: 1},
	{title: "the same with EDNS", part: partHits, what: kindHitEDNS, own: nameNodeCache, peer: nameUnbound, share: 1},
	{title: "ClusterIP A at most 1/10 of CoreDNS, kubeadm's Corefile", part: partCluster, what: stockPrefix + kindClusterIP, own: nameClusterDNS, peer: nameCoreDNS, share: 1. / 10},
	{title: "headless A, 10 endpoints, at most 1/12, kubeadm's Corefile", part: partCluster, what: stockPrefix + kindHeadless, own: nameClusterDNS, peer: nameCoreDNS, share: 1. / 12},
	{title: "NXDOMAIN of a search list at most 1/8, kubeadm's Corefile", part: partCluster, what: stockPrefix + kindNXDOMAIN, own: nameClusterDNS, peer: nameCoreDNS, share: 1. / 8},
	{title: "ClusterIP A at most 1/10, *kubernetes* alone", part: partCluster, what: kindClusterIP, own: nameClusterDNS, peer: nameCoreDNS, share: 1. / 10},
	{title: "headless A, 10 endpoints, at most 1/12, *kubernetes* alone", part: partCluster, what: kindHeadless, own: nameClusterDNS, peer: nameCoreDNS, share: 1. / 12},
	{title: "NXDOMAIN of a search list at most 1/8, *kubernetes* alone", part: partCluster, what: kindNXDOMAIN, own: nameClusterDNS, peer: nameCoreDNS, share: 1. / 8},
	{title: "headless A with topology at most 1.5 times the one without", part: partTopology, what: callerRow(kindHeadless, false), own: nameTopology, peer: nameForAll, share: 1.5},
	{title: "the same over TCP", part: partTopology, what: callerRow(kindHeadless, true), own: nameTopology, peer: nameForAll, share: 1.5},
	{title: "headless SRV with topology at most 1.5 times the one without", part: partTopology, what: callerRow(kindHeadlessSRV, false), own: nameTopology, peer: nameForAll, share: 1.5},
	{title: "the same over TCP", part: partTopology, what: callerRow(kindHeadlessSRV, true), own: nameTopology, peer: nameForAll, share: 1.5},
	{title: "memory of cluster DNS at most 100 MB, a relist included", part: partMemory, what: memoryPeak, own: nameClusterDNS, limit: 100},
	{title: "memory of the node cache at rest at most 22 MB", part: partMemory, what: memoryRest, own: nameNodeCache, limit: 22},
	{title: "miss over TCP at most 30 us, or 0.4 of CoreDNS in the same run", part: partMisses, what: missCPU, own: nameNodeCache, peer: nameCoreDNS, share: 0.4, limit: 30},
	{title: "misses over at most 4 connections to the upstream, in each round", part: partMisses, what: missMax, own: nameNodeCache, limit: 4, unit: "connections", highest: true},
	{title: "p99 of misses no worse than Unbound's", part: partMisses, what: missP99, own: nameNodeCache, peer: nameUnbound, share: 1, unit: "ms", asGood: true},
	{title: "2 queries of a pod for an external name, with autopath on the node", part: partSearch, what: searchExternal, own: nameExpanded, limit: 2, unit: "queries"},
	{title: "fewer queries to cluster DNS than without autopath", part: partSearch, what: searchToCluster, own: nameExpanded, peer: nameWalked, share: 1, unit: "queries"},
	{title: "less CPU of the node cache than without autopath", part: partSearch, what: searchNodeCPU, own: nameExpanded, peer: nameWalked, share: 1},
	{title: "lower median latency of external names than without autopath", part: partSearch, what: externalP50, own: nameExpanded, peer: nameWalked, share: 1, unit: "ms"},
}

// reportBudgets writes a table of the budgets that this run measured, if there are any.
func (b *bench) reportBudgets(text *strings.Builder, title string, all []budget) {
	header := "\n| " + title + " | measured | met |\n|---|---|---|\n"
	for _, one := range all {
		if b.has(one.part) {
			measured, met := one.judge(b.results)
			fmt.Fprintf(text, "%s| %s | %s | %s |\n", header, one.title, measured, met)
			header = ""
		}
	}
}

// judge compares the figures with the bar.
func (b budget) judge(r results) (measured, met string) {
	own, peer := r[b.what][b.own], r[b.what][b.peer]
	if len(own) == 0 {
		return "", "not measured"
	}
	if b.peer == "" {
		return b.judgeLimit(own)
	}
	v, unit := median(own), cmp.Or(b.unit, "us")
	within := b.limit > 0 && v <= b.limit
	if len(peer) == 0 {
		measured, met = fmt.Sprintf("%.2f %s", v, unit), "unknown: "+b.peer+" is missing"
		if within {
			met = yes(true)
		}
		return measured, met
	}
	ratio := v / median(peer)
	shared := ratio <= b.share
	if b.share == 1 && !b.asGood {
		shared = ratio < 1 // cheaper, not as cheap
	}
	return fmt.Sprintf("%.2f %s, %s %.2f %s", v, unit, part(ratio), median(peer), unit), yes(shared || within)
}

// judgeLimit compares the figures with a limit.
func (b budget) judgeLimit(own []float64) (measured, met string) {
	v, unit, format := median(own), b.unit, "%.0f %s"
	if unit == "us" || unit == "ms" || unit == "times" {
		format = "%.2f %s"
	}
	if b.highest {
		v = slices.Max(own)
	}
	if unit == "" {
		v, unit, format = v*(1<<20)/1e6, "MB", "%.1f %s"
	}
	return fmt.Sprintf(format, v, unit), yes(b.floor > 0 && v >= b.floor || b.floor == 0 && v <= b.limit)
}

// part formats a ratio: a fraction that can be compared with the bar's.
func part(ratio float64) string {
	if ratio < 1 {
		return fmt.Sprintf("1/%.1f of", 1/ratio)
	}
	return fmt.Sprintf("%.1f times", ratio)
}

func yes(met bool) string {
	if met {
		return "yes"
	}
	return "**no**"
}

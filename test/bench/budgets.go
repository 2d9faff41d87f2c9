package main

import (
	"fmt"
	"strings"
)

// budget is a bar for one figure of ours: a share of a peer's, or a number of megabytes.
type budget struct {
	title string
	part  string // of a run, that measures it
	what  string // was measured
	own   string // server
	peer  string // server, if the bar is a share
	share float64
	limit float64 // megabytes, if the bar is not a share
}

var budgets = []budget{
	{"cache hit cheaper than Unbound's, with prometheus on", partHits, kindHit, nameNodeCache, nameUnbound, 1, 0},
	{"the same with EDNS", partHits, kindHitEDNS, nameNodeCache, nameUnbound, 1, 0},
	{"ClusterIP A at most 1/10 of CoreDNS, kubeadm's Corefile", partCluster, stockPrefix + kindClusterIP, nameClusterDNS, nameCoreDNS, 1. / 10, 0},
	{"headless A, 10 endpoints, at most 1/12, kubeadm's Corefile", partCluster, stockPrefix + kindHeadless, nameClusterDNS, nameCoreDNS, 1. / 12, 0},
	{"NXDOMAIN of a search path at most 1/8, kubeadm's Corefile", partCluster, stockPrefix + kindNXDOMAIN, nameClusterDNS, nameCoreDNS, 1. / 8, 0},
	{"ClusterIP A at most 1/10, *kubernetes* alone", partCluster, kindClusterIP, nameClusterDNS, nameCoreDNS, 1. / 10, 0},
	{"headless A, 10 endpoints, at most 1/12, *kubernetes* alone", partCluster, kindHeadless, nameClusterDNS, nameCoreDNS, 1. / 12, 0},
	{"NXDOMAIN of a search path at most 1/8, *kubernetes* alone", partCluster, kindNXDOMAIN, nameClusterDNS, nameCoreDNS, 1. / 8, 0},
	{"memory of cluster DNS at most 100 MB, a relist included", partMemory, memoryPeak, nameClusterDNS, "", 0, 100},
	{"memory of the node cache at rest at most 25 MB", partMemory, memoryRest, nameNodeCache, "", 0, 25},
}

// reportBudgets writes the table of the budgets that this run measured.
func (b *bench) reportBudgets(text *strings.Builder) {
	text.WriteString("\n| budget | measured | met |\n|---|---|---|\n")
	for _, one := range budgets {
		if b.has(one.part) {
			measured, met := one.judge(b.results)
			fmt.Fprintf(text, "| %s | %s | %s |\n", one.title, measured, met)
		}
	}
}

// judge compares the medians.
func (b budget) judge(r results) (measured, met string) {
	own, peer := r[b.what][b.own], r[b.what][b.peer]
	if len(own) == 0 {
		return "", "not measured"
	}
	if b.peer == "" {
		megabytes := median(own) * (1 << 20) / 1e6
		return fmt.Sprintf("%.1f MB", megabytes), yes(megabytes <= b.limit)
	}
	if len(peer) == 0 {
		return fmt.Sprintf("%.2f us", median(own)), "unknown: " + b.peer + " is missing"
	}
	ratio := median(own) / median(peer)
	met = yes(ratio <= b.share)
	if b.share == 1 {
		met = yes(ratio < 1) // cheaper, not as cheap
	}
	return fmt.Sprintf("%.2f us, %s %.2f us", median(own), part(ratio), median(peer)), met
}

// part is a ratio in words: a fraction that can be compared with the bar's.
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

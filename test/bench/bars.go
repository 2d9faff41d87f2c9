package main

import "slices"

// bars are the goals for queries in wire form from the client to the upstream server: misses, TCP, memory and cores.
var bars = slices.Concat([]budget{
	{title: "miss over TCP cheaper than Unbound's", part: partMisses, what: missCPU, own: nameNodeCache, peer: nameUnbound, share: 1},
	{title: "goal: miss over TCP at most 15 us", part: partMisses, what: missCPU, own: nameNodeCache, limit: 15, unit: "us"},
	{title: "p99 of misses at most 22 ms", part: partMisses, what: missP99, own: nameNodeCache, limit: 22, unit: "ms"},
	{title: "cached answer over TCP, 200 in flight, at most half of Unbound's", part: partTCP, what: tcpRow(kindPipelined), own: nameNodeCache, peer: nameUnbound, share: 0.5},
	{title: "the same at most 3 us", part: partTCP, what: tcpRow(kindPipelined), own: nameNodeCache, limit: 3, unit: "us"},
	{title: "the same of cluster DNS at most 3 us", part: partTCP, what: tcpRow(kindPipelined), own: nameClusterDNS, limit: 3, unit: "us"},
	{title: "hit over UDP cheaper than Unbound's", part: partHits, what: kindHit, own: nameNodeCache, peer: nameUnbound, share: 1},
	{title: "cached name behind a stalled query after at most 5 ms", part: partStall, what: stallMedian, own: nameNodeCache, limit: 5, unit: "ms"},
	{title: "name of the cluster behind a stalled query after at most 5 ms", part: partStall, what: stallMedian, own: nameClusterDNS, limit: 5, unit: "ms"},
	{title: "look-ups with autopath: CPU of the node cache at most 0.35 of CoreDNS", part: partSearch, what: searchNodeCPU, own: nameExpanded, peer: nameBothCoreDNS, share: 0.35},
	{title: "memory of the node cache at rest at most 22 MB", part: partMemory, what: memoryRest, own: nameNodeCache, limit: 22},
	{title: "throughput of hits on 2 cores at least 1.8 times", part: partCores, what: coresGain(coresHits), own: nameNodeCache, floor: 1.8, unit: "times"},
	{title: "throughput of misses on 2 cores at least 1.8 times", part: partCores, what: coresGain(coresMisses), own: nameNodeCache, floor: 1.8, unit: "times"},
}, rateBars(), waitingBars(), coherenceBars(), sessionBars(), kernelBars())

func rateBars() (all []budget) {
	for _, rate := range hitRates {
		all = append(all, budget{
			title: rateRow(rate) + " not above Unbound's", part: partRates, what: rateRow(rate), own: nameNodeCache, peer: nameUnbound, share: 1, asGood: true,
		})
	}
	return all
}

func waitingBars() (all []budget) {
	for _, m := range waitingModes {
		all = append(all, budget{
			title: "10,000 waiting queries, " + m.name + ": at most 30 MB above the memory at rest", part: partWaiting,
			what: waitingGrowth + m.name, own: nameNodeCache, limit: 30,
		}, budget{
			title: "10,000 waiting queries, " + m.name + ": at least 9,000 wait for a second or longer, and are answered", part: partWaiting,
			what: waitingLate + m.name, own: nameNodeCache, floor: 9000, unit: "queries",
		})
	}
	return all
}

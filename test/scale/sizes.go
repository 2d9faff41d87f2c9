package main

import (
	"time"

	"github.com/nearside-dns/nearside/test/bench/generated"
)

// size is a cluster, and the load on it.
type size struct {
	name    string
	cluster generated.Cluster
	// steps is the number of writes of each EndpointSlice in the rolling update, each of which changes a part of the endpoints.
	steps int
	// roll is the time in which the rolling update changes the addresses of all endpoints.
	roll time.Duration
	// rate is the number of queries a second while changes are timed, for seconds. Without a rate there are no other queries.
	rate, seconds int
	// imports and pods are the numbers of ServiceImports and of pods where states are measured.
	imports, pods int
	// settle is the time after each phase in which a server can release memory.
	settle time.Duration
}

// sizes are the clusters. 1,000,000 endpoints change within 60 seconds, and fewer in proportion. The controller writes the
// EndpointSlices of a Service with many endpoints several times in a rolling update; those with few are written once.
var sizes = []size{
	{
		name: "small", cluster: cluster(20, 50, 550, 0.1), steps: 2, roll: time.Second, rate: 500, seconds: 2, imports: 20, pods: 300,
	},
	{
		name: "medium", cluster: cluster(5_000, 10_000, 110_000, 0.1), steps: 1, roll: 6600 * time.Millisecond,
		rate: 50_000, seconds: 15, imports: 2000, pods: 300_000, settle: 15 * time.Second,
	},
	{
		name: "large", cluster: cluster(15_000, 20_000, 1_010_000, 0.1), steps: 1, roll: time.Minute,
		rate: 50_000, seconds: 15, imports: 2000, pods: 300_000, settle: 20 * time.Second,
	},
	{
		name: "headless", cluster: cluster(100, 1, 10_000, 1), steps: 10, roll: 10 * time.Second,
		rate: 50_000, seconds: 15, imports: 2000, pods: 300_000, settle: 15 * time.Second,
	},
}

func cluster(nodes, services, endpoints int, headless float64) generated.Cluster {
	return generated.Cluster{Nodes: nodes, Services: services, Endpoints: endpoints, Namespaces: min(services, 100), Headless: headless, Seed: 1}
}

func sizeNames() (all []string) {
	for _, s := range sizes {
		all = append(all, s.name)
	}
	return all
}

package main

import (
	"context"
	"fmt"
	"strings"
)

// tcpKind is a form of load over TCP.
type tcpKind struct {
	name  string
	pipes pipelines
	share float64 // of the queries of the part hits
}

var tcpKinds = []tcpKind{
	{kindPipelined, pipelines{Connections: 2, InFlight: 100}, 1},
	{"one at a time, 1 connection", pipelines{Connections: 1, InFlight: 1}, 0.1},
	{"one at a time, 10 connections", pipelines{Connections: 10, InFlight: 1}, 0.5},
}

// kindPipelined is the kind that a bar names.
const kindPipelined = "200 in flight on 2 connections"

// nameClusterCoreDNS is CoreDNS as cluster DNS, beside CoreDNS as a node cache.
const nameClusterCoreDNS = "CoreDNS as cluster DNS"

// tcpRow is the name of the figures of a kind.
func tcpRow(name string) string { return "cached answers over TCP: " + name }

// measureTCP measures node caches with cached names, and cluster DNS with names of the cluster.
func (b *bench) measureTCP(ctx context.Context) error {
	if err := b.measureHot(ctx, "tcp", b.measureTCPKinds); err != nil {
		return err
	}
	return b.measureSmall(ctx, func(ctx context.Context, servers []*server, names *load) error {
		names.cached = false // each answer has the full TTL
		return b.measureTCPKinds(ctx, servers, names)
	})
}

// measureTCPKinds measures servers in turn with each kind of load. Then it takes the profiles.
func (b *bench) measureTCPKinds(ctx context.Context, servers []*server, names *load) error {
	var loads []*load
	for _, k := range tcpKinds {
		l := *names
		l.what, l.pipes = tcpRow(k.name), k.pipes
		loads = append(loads, &l)
	}
	err := inTurns(b.rounds, servers, func(s *server, _ int) error {
		for i, l := range loads {
			if err := b.measureCPU(ctx, s, l, max(1, int(tcpKinds[i].share*float64(b.hits)))); err != nil {
				return fmt.Errorf("%s, %s: %w", s.name, l.what, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return b.profileAll(ctx, servers, loads)
}

// reportTCP writes a line for each server.
func (b *bench) reportTCP(text *strings.Builder) {
	for _, rows := range [][]string{cacheNames(hotServers), {nameClusterDNS, nameClusterCoreDNS}} {
		var columns []column
		for _, k := range tcpKinds {
			columns = append(columns,
				column{title: k.name, what: tcpRow(k.name), format: "%.2f"},
				column{title: "to " + rows[0], what: tcpRow(k.name), own: rows[0]})
		}
		b.grid(text, "cached answers over TCP: CPU per query, us", rows, columns)
	}
}

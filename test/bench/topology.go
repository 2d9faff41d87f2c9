package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// The compared cluster DNS servers: one has the same answer for all callers, the other selects by caller.
const (
	nameForAll   = "without topology"
	nameTopology = "with topology"
)

// withTopology compares callers and endpoints by a label with one value on all nodes, so that both servers give the same
// answers.
const withTopology = "\n        topology keys kubernetes.io/os *"

// Figures of queries for a caller, whom nodecache's option names.
const (
	memoryTopology = "memory after the first sync, MiB"
)

var callerKinds = []string{kindHeadless, kindHeadlessSRV, kindClusterIP}

// callerRow is the name of the figures of a kind.
func callerRow(kind string, tcp bool) string {
	if tcp {
		return "for a caller, over TCP: " + kind
	}
	return "for a caller, over UDP: " + kind
}

// measureTopology compares the two servers. Queries to both have the option.
func (b *bench) measureTopology(ctx context.Context) error {
	defer b.stopTopology()
	for name, options := range map[string]string{nameForAll: "", nameTopology: withTopology} {
		s := &server{name: name, port: child.FreePort()}
		conf := strings.Replace(b.alone(s, b.plain), "ttl 30", "ttl 30"+options, 1)
		if err := b.run(ctx, s, b.clusterdns, conf, "-conf"); err != nil {
			return err
		}
		b.topology = append(b.topology, s)
		if err := b.synced(ctx, s, b.plain); err != nil {
			return err
		}
	}
	if err := b.memoryAtRest(ctx, b.topology, memoryTopology); err != nil {
		return err
	}
	node, _ := b.cluster.Node(1)
	option := append([]byte{1, byte(len(node))}, node...) // #nosec G115 -- a short name
	var loads []*load
	for _, k := range clusterKinds {
		if !slices.Contains(callerKinds, k.name) {
			continue
		}
		k.option = option
		for _, k.tcp = range []bool{false, true} {
			l, err := drawn(b.cluster, k, b.folder)
			if err != nil {
				return err
			}
			l.what = callerRow(k.name, k.tcp)
			loads = append(loads, l)
		}
	}
	return b.measureRounds(ctx, b.topology, loads, b.queries)
}

// optionCode is the code of the caller option in the README of kubernetes.
const optionCode = 65313

// optionArgument is dnsperf's argument for the option.
func optionArgument(data []byte) string {
	return fmt.Sprintf("%d:%s", optionCode, hex.EncodeToString(data))
}

func (b *bench) stopTopology() {
	for _, s := range b.topology {
		s.Stop()
	}
	b.topology = nil
}

// reportTopology writes a line for each figure.
func (b *bench) reportTopology(text *strings.Builder) {
	fmt.Fprintf(text, "\n| clusterdns, CPU per query, us | %s | %s | ratio |\n|---|---|---|---|\n", nameForAll, nameTopology)
	row := func(what, format string) {
		without, with := b.results[what][nameForAll], b.results[what][nameTopology]
		fmt.Fprintf(text, "| %s | %s | %s | %s |\n", what, cell(format, without), cell(format, with), times(with, without))
	}
	for _, name := range callerKinds {
		row(callerRow(name, false), "%.2f")
		row(callerRow(name, true), "%.2f")
	}
	row(memoryTopology, "%.0f")
}

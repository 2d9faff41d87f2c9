package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// The cluster DNS servers whose costs are compared: one gives every caller the same, the other each its own.
const (
	nameForAll   = "without topology"
	nameTopology = "with topology"
)

// withTopology compares callers and endpoints by a label that all nodes have alike, so that both servers give
// the same answers.
const withTopology = "\n        topology keys kubernetes.io/os *"

// What is asked for a caller, who is named by the option that nodecache adds.
const (
	memoryTopology = "memory after the first reading, MiB"
)

var callerKinds = []string{kindHeadless, kindHeadlessSRV, kindClusterIP}

// callerRow is what is measured of a kind.
func callerRow(kind string, tcp bool) string {
	if tcp {
		return "for a caller, over TCP: " + kind
	}
	return "for a caller, over UDP: " + kind
}

// measureTopology compares the two servers. Both are asked with the option.
func (b *bench) measureTopology(ctx context.Context) error {
	defer b.stopTopology()
	for name, options := range map[string]string{nameForAll: "", nameTopology: withTopology} {
		s := &server{name: name, port: freePort()}
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

// optionCode is the code of the option that names the caller, as the README of kubernetes says.
const optionCode = 65313

// optionArgument is how dnsperf is told of the option.
func optionArgument(data []byte) string {
	return fmt.Sprintf("%d:%s", optionCode, hex.EncodeToString(data))
}

func (b *bench) stopTopology() {
	for _, s := range b.topology {
		s.stop()
	}
	b.topology = nil
}

// reportTopology writes a line for each thing measured.
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

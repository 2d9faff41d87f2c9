//go:build linux

// Package doctor is "nodecache doctor": it checks everything on a node that nodecache depends on, and
// prints one line for each check, with a verdict and what to do. It changes nothing: it loads no kernel
// module and sends only DNS queries and requests to health endpoints. Every check is limited in time. It
// works without a running nodecache. The state of interface and rules is read by nodelocal's own packages.
package doctor

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"slices"
	"sync"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
	"github.com/nearside-dns/nearside/cmd/internal/subcommand"
)

// Command runs "nodecache doctor" with the arguments after the word doctor, and returns the exit
// code: 0, 1 if a check failed, 2 for wrong flags.
func Command(args []string) int {
	log.SetOutput(io.Discard) // the parser of Corefiles logs import patterns without files
	return command(args, "/proc", os.Stdout, os.Stderr)
}

func command(args []string, procPath string, out, errorOut io.Writer) int {
	o, err := parse(args, out)
	if err != nil {
		return subcommand.Exit(errorOut, name, err)
	}
	fs, err := proc.Open(procPath)
	if err != nil {
		subcommand.Print(errorOut, name, err)
		return 1
	}
	lines := examine(newNode(o, fs, os.Environ()))
	write := writeText
	if o.format == "json" {
		write = writeJSON
	}
	if err := write(out, lines); err != nil {
		subcommand.Print(errorOut, name, fmt.Errorf("write the result: %w", err))
		return 1
	}
	if slices.ContainsFunc(lines, func(l Line) bool { return l.Verdict == Fail }) {
		return 1
	}
	return 0
}

const (
	name        = "nodecache doctor"
	description = `nodecache doctor looks at this node and changes nothing. Run it as root on the node, or in
the nodecache container. Exit code: 0, 1 if a check failed, 2 for wrong flags.`
)

// check reads a part of the node's state. Its name is printed if it does not return in time.
type check struct {
	name string
	run  func(*node, context.Context) []Line
}

// state are the checks that only read the state of the node, in the order in which they are printed.
var state = []check{
	{"nodecache", (*node).checkInstances},
	{"privileges", (*node).checkPrivileges},
	{"kernel", (*node).checkKernel},
	{"kernel features", (*node).checkFeatures},
	{"interface", (*node).checkInterface},
	{"addresses", (*node).checkAddresses},
	{"rules", (*node).checkRules},
	{"rules of node-local-dns", (*node).checkLeftovers},
	{"rules of others", (*node).checkFirewall},
	{"port 53", (*node).checkPort},
	{"kube-proxy", (*node).checkProxy},
	{"sysctl", (*node).checkSysctls},
	{"resolvers", (*node).checkResolvers},
	{"kernel answers", (*node).checkKernelAnswers},
}

// probes are the checks that send queries. They run after the checks of state, whose use of the processor
// would distort the measured times.
var probes = []check{
	{"nodecache itself", (*node).probeSelf},
	{"queries to nodecache", (*node).probeLocal},
	{"health", (*node).probeHealth},
	{"configuration in use", (*node).probeConfiguration},
	{"queries to cluster DNS", (*node).probeCluster},
	{"coherence", (*node).probeCoherence},
	{"kernel answers interfaces", (*node).probeKernelAnswers},
	{"queries to upstreams", (*node).probeUpstreams},
}

// examine runs every check and returns their lines in order.
func examine(n *node) []Line {
	return append(parallel(state, n.bounded), parallel(probes, n.bounded)...)
}

// parallel calls f with all items at the same time, and returns the lines in the order of the items.
func parallel[T any](items []T, f func(T) []Line) []Line {
	results := make([][]Line, len(items))
	var wait sync.WaitGroup
	for i, item := range items {
		wait.Go(func() { results[i] = f(item) })
	}
	wait.Wait()
	return slices.Concat(results...)
}

// steps is how many times the timeout a check may take: it may read several things, or query a server
// that does not answer over UDP and then over TCP.
const steps = 3

// bounded runs a check. If the check does not return in time, its only line reports that.
func (n *node) bounded(c check) []Line {
	limit := steps * n.options.timeout
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	done := make(chan []Line, 1)
	go func() { done <- c.run(n, ctx) }()
	select {
	case lines := <-done:
		return lines
	case <-ctx.Done():
		return one(c.name, fmt.Sprintf("no result after %s", limit), Skip, "run it again with a longer -timeout")
	}
}

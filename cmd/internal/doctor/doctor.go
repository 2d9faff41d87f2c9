//go:build linux

// Package doctor is "nodecache doctor": it looks at a node, says what it sees of everything that
// nodecache depends on, what that means, and what to do. In go the flags and the machine; out comes
// one line for each check. It changes nothing: no kernel module is loaded, no rule is touched, and
// the only packets that it sends are DNS queries and questions to health endpoints. Every check is
// bounded in time. It needs no running nodecache, and asks one only as others do.
package doctor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
)

// Command runs "nodecache doctor" with the arguments after the word doctor, and returns the exit
// code: 0, 1 if a check failed, 2 for wrong flags.
func Command(args []string) int {
	return command(args, proc.Host(), os.Stdout, os.Stderr)
}

func command(args []string, root proc.Root, out, complaints io.Writer) int {
	o, err := parse(args, func(f *flag.FlagSet) { usage(f, out) })
	if errors.Is(err, errHelp) {
		return 0
	}
	if err != nil {
		complain(complaints, err)
		return 2
	}
	lines := examine(newNode(o, root, os.Environ()))
	write := writeText
	if o.format == "json" {
		write = writeJSON
	}
	if err := write(out, lines); err != nil {
		complain(complaints, fmt.Errorf("write the result: %w", err))
		return 1
	}
	for _, l := range lines {
		if l.Verdict == Fail {
			return 1
		}
	}
	return 0
}

func usage(f *flag.FlagSet, out io.Writer) {
	const text = `nodecache doctor looks at this node and changes nothing. Run it as root on the node, or in
the nodecache container. Exit code: 0, 1 if a check failed, 2 for wrong flags.

`
	if _, err := io.WriteString(out, text); err != nil {
		return // nobody reads
	}
	f.SetOutput(out)
	f.PrintDefaults()
}

func complain(w io.Writer, err error) {
	// An error that cannot be written cannot be reported either.
	_, _ = fmt.Fprintf(w, "nodecache doctor: %s\n", strings.Join(strings.Fields(err.Error()), " "))
}

// check is one look at the machine. Its name is used when it does not return in time.
type check struct {
	name string
	look func(*node, context.Context) []Line
}

// state are the checks that read, in the order in which they are printed.
var state = []check{
	{"nodecache", (*node).checkInstances},
	{"privileges", (*node).checkPrivileges},
	{"kernel", (*node).checkKernel},
	{"kernel features", (*node).checkFeatures},
	{"interface", (*node).checkInterface},
	{"addresses", (*node).checkAddresses},
	{"rules", (*node).checkRules},
	{"rules of node-local-dns", (*node).checkLeftovers},
	{"rules of others", (*node).checkPolicies},
	{"port 53", (*node).checkPort},
	{"kube-proxy", (*node).checkProxy},
	{"sysctl", (*node).checkSysctls},
	{"resolvers", (*node).checkResolvers},
}

// probes are the checks that send queries. They run after the others, so that nothing else uses the
// processor while they measure time.
var probes = []check{
	{"nodecache itself", (*node).probeSelf},
	{"queries to nodecache", (*node).probeLocal},
	{"health", (*node).probeHealth},
	{"queries to cluster DNS", (*node).probeCluster},
	{"queries to upstreams", (*node).probeUpstreams},
}

// examine makes every check and returns their lines in order.
func examine(n *node) []Line {
	return append(n.all(state), n.all(probes)...)
}

// all makes checks at the same time.
func (n *node) all(checks []check) []Line {
	results := make([][]Line, len(checks))
	var wait sync.WaitGroup
	for i, c := range checks {
		wait.Go(func() { results[i] = n.bounded(c) })
	}
	wait.Wait()
	var lines []Line
	for _, r := range results {
		lines = append(lines, r...)
	}
	return lines
}

// looks is how many times the timeout a check may take: it may look at several things, or ask a
// server that does not answer by UDP and then by TCP.
const looks = 3

// bounded makes a check, and says so if it does not return.
func (n *node) bounded(c check) []Line {
	limit := looks * n.options.timeout
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	done := make(chan []Line, 1)
	go func() { done <- c.look(n, ctx) }()
	select {
	case lines := <-done:
		return lines
	case <-ctx.Done():
		return one(c.name, fmt.Sprintf("no result after %s", limit), Skip, "run it again with a longer -timeout")
	}
}

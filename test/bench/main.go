// Command bench measures clusterdns and nodecache beside CoreDNS: CPU time per query and memory, on the
// same generated cluster, in one run. It prints tables in Markdown.
//
// CPU time is that of the whole server process, user and system, divided by the number of queries
// that it answered; wall clock time says nothing on a machine that others use. The server has one
// core and the load the other. Every answer is checked for its response code and number of records.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/nearside-dns/nearside/test/fakeapi"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// settings are what a run is made of.
type settings struct {
	cluster fakeapi.Generated
	queries int // of a kind, for each server and round
	rounds  int // both servers are measured in each, in turn
}

func run(ctx context.Context, args []string) error {
	var s settings
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.IntVar(&s.cluster.Services, "services", 10000, "`number` of Services")
	flags.IntVar(&s.cluster.Endpoints, "endpoints", 110000, "`number` of endpoints")
	flags.IntVar(&s.cluster.Nodes, "nodes", 5000, "`number` of nodes")
	flags.IntVar(&s.queries, "queries", 40000, "`number` of queries of each kind, for each server and round")
	flags.IntVar(&s.rounds, "rounds", 5, "`number` of rounds; the median is reported")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s.cluster.Namespaces, s.cluster.Headless, s.cluster.Seed = 100, 0.1, 1
	if err := s.cluster.Validate(); err != nil {
		return err
	}

	folder, err := os.MkdirTemp("", "nearside-bench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	b, err := start(ctx, s, folder)
	if err != nil {
		return err
	}
	defer b.stop()
	if err := b.measure(ctx); err != nil {
		return err
	}
	return b.report(os.Stdout)
}

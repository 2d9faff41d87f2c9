package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// hitRates are the numbers of cached answers per second. Each query comes alone, so that the work for a wake-up is that
// of one query at low rates.
var hitRates = []int{200, 1000, 5000, 20000}

// rateRow is the name of the figures at a rate.
func rateRow(rate int) string { return fmt.Sprintf("hits at %d/s", rate) }

const (
	idleCPU  = "CPU without queries"
	idleTime = 5 * time.Second
)

// measureRates measures node caches with cached names at each rate.
func (b *bench) measureRates(ctx context.Context) error {
	return b.measureHot(ctx, "rates", b.measureRatesOf)
}

func (b *bench) measureRatesOf(ctx context.Context, servers []*server, names *load) error {
	return inTurns(b.rounds, servers, func(s *server, _ int) error {
		if err := b.measureIdle(ctx, s); err != nil {
			return fmt.Errorf("%s, %s: %w", s.name, idleCPU, err)
		}
		for _, rate := range hitRates {
			l := *names
			l.what, l.rate = rateRow(rate), rate
			if err := b.measureCPU(ctx, s, &l, rate*b.seconds); err != nil {
				return fmt.Errorf("%s, %s: %w", s.name, l.what, err)
			}
		}
		return nil
	})
}

// measureIdle measures the CPU time of a server without queries, in milliseconds per second.
func (b *bench) measureIdle(ctx context.Context, s *server) error {
	before, err := s.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := child.Pause(ctx, idleTime); err != nil {
		return err
	}
	after, err := s.CPU()
	if err != nil {
		return err
	}
	each := 1000 * (after - before).Seconds() / time.Since(began).Seconds()
	fmt.Fprintf(os.Stderr, "%s, %s: %.2f ms per second\n", s.name, idleCPU, each)
	b.results.add(idleCPU, s.name, each)
	return nil
}

// reportRates writes a line for each server.
func (b *bench) reportRates(text *strings.Builder) {
	var columns []column
	for _, rate := range hitRates {
		columns = append(columns, column{title: fmt.Sprintf("%d/s", rate), what: rateRow(rate), format: "%.2f"})
	}
	columns = append(columns, column{title: "idle, ms per second", what: idleCPU, format: "%.2f"})
	b.grid(text, "cached answers at a rate: CPU per query, us", cacheNames(hotServers), columns)
}

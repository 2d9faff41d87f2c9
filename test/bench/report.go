package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// results are the figures: by what was measured, then by server, one for each round.
type results map[string]map[string][]float64

func (r results) add(what, server string, v float64) {
	if r[what] == nil {
		r[what] = map[string][]float64{}
	}
	r[what][server] = append(r[what][server], v)
}

const (
	memorySync   = "after the first reading"
	memoryRelist = "after one full relist"
	memoryPeak   = "highest, relist included"
)

// settle is how long the servers have to finish a relist and to give memory back.
const settle = 20 * time.Second

// measure fills in the results.
func (b *bench) measure(ctx context.Context) error {
	time.Sleep(settle / 4)
	if err := b.measureMemory(memorySync); err != nil {
		return err
	}
	for round := range b.rounds {
		for _, k := range kinds {
			questions, err := packets(b.cluster, k)
			if err != nil {
				return err
			}
			for i := range b.servers {
				s := b.servers[(i+round)%len(b.servers)] // neither is always the first
				if err := b.measureCPU(ctx, k, s, questions); err != nil {
					return fmt.Errorf("%s, %s: %w", s.name, k.name, err)
				}
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", round+1, b.rounds)
	}
	if err := b.measureCaches(ctx); err != nil {
		return err
	}
	if err := b.relist(); err != nil {
		return err
	}
	time.Sleep(settle)
	return b.measureMemory(memoryRelist)
}

func (b *bench) measureMemory(when string) error {
	for _, s := range b.servers {
		now, peak, err := s.memory()
		if err != nil {
			return err
		}
		b.results.add(when, s.name, now)
		if when == memoryRelist {
			b.results.add(memoryPeak, s.name, peak)
		}
	}
	return nil
}

func (b *bench) measureCPU(ctx context.Context, k kind, s *server, questions []packet) error {
	if err := ask(ctx, s.port, questions, b.queries/10); err != nil { // warm up
		return err
	}
	before, err := s.cpu()
	if err != nil {
		return err
	}
	if err := ask(ctx, s.port, questions, b.queries); err != nil {
		return err
	}
	after, err := s.cpu()
	if err != nil {
		return err
	}
	b.results.add(k.name, s.name, float64((after-before).Nanoseconds())/1000/float64(b.queries))
	return nil
}

func (b *bench) report(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "%s/%s, %s, %d services, %d endpoints, %d nodes; %d queries a kind and round, %d rounds: median (min to max)\n\n",
		runtime.GOOS, runtime.GOARCH, runtime.Version(), b.cluster.Services, b.cluster.Endpoints, b.cluster.Nodes, b.queries, b.rounds)
	text.WriteString("| CPU per query, us | clusterdns | CoreDNS | ratio |\n|---|---|---|---|\n")
	for _, k := range kinds {
		b.row(&text, k.name, k.name, "clusterdns", "%.1f")
	}
	text.WriteString("\n| resident memory, MiB | clusterdns | CoreDNS | ratio |\n|---|---|---|---|\n")
	for _, when := range []string{memorySync, memoryRelist, memoryPeak} {
		b.row(&text, when, when, "clusterdns", "%.0f")
	}
	b.reportCaches(&text)
	_, err := io.WriteString(w, text.String())
	return err
}

// row writes a line of a table: what was measured of a server of ours, beside CoreDNS.
func (b *bench) row(text *strings.Builder, title, what, server, format string) {
	own, peer := sorted(b.results[what][server]), sorted(b.results[what]["CoreDNS"])
	cell := func(v []float64) string {
		if len(v) == 1 {
			return fmt.Sprintf(format, v[0])
		}
		return fmt.Sprintf(format+" ("+format+" to "+format+")", v[len(v)/2], v[0], v[len(v)-1])
	}
	fmt.Fprintf(text, "| %s | %s | %s | %.2f |\n", title, cell(own), cell(peer), own[len(own)/2]/peer[len(peer)/2])
}

func sorted(v []float64) []float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v
}

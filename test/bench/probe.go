package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// probeMode is the argument that makes this program a client that queries slowly; the next one is a probeJob.
const probeMode = "probe"

// probeJob is a job of such a client.
type probeJob struct {
	Port    int
	Name    string // is answered from the store
	Queries int
}

// probePause is the average time between two queries.
const probePause = time.Millisecond

// serveProbe sends the queries, and writes their latencies, the shortest first.
func serveProbe(argument string, to io.Writer) error {
	var job probeJob
	if err := json.Unmarshal([]byte(argument), &job); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	conn, err := net.Dial("udp", addressAt(job.Port))
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	defer func() { _ = conn.Close() }()
	packed, err := new(dns.Msg).SetQuestion(job.Name, dns.TypeA).Pack()
	if err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	random := rand.New(rand.NewPCG(1, 1)) // #nosec G404
	latencies := make([]time.Duration, 0, job.Queries)
	answer, lost := make([]byte, 4096), 0
	for len(latencies) < job.Queries {
		time.Sleep(time.Duration(random.Int64N(int64(2 * probePause))))
		began := time.Now()
		if err := conn.SetDeadline(began.Add(time.Second)); err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		if _, err := conn.Write(packed); err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		_, err := conn.Read(answer)
		switch {
		case err == nil:
			latencies = append(latencies, time.Since(began))
		case errors.Is(err, os.ErrDeadlineExceeded) && lost < job.Queries/20: // a busy machine drops some
			lost++
		default:
			return fmt.Errorf("probe: %w", err)
		}
	}
	if lost > 0 {
		fmt.Fprintf(os.Stderr, "probe: %d of %d queries lost\n", lost, job.Queries)
	}
	slices.Sort(latencies)
	return json.NewEncoder(to).Encode(latencies)
}

// probe runs a job on the core of this process.
func probe(ctx context.Context, job probeJob) (latencies []time.Duration, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	argument, err := json.Marshal(job)
	if err != nil {
		return nil, err
	}
	args := prior(ctx, self, probeMode, string(argument))
	cmd := exec.CommandContext(ctx, args[0], args[1:]...) // #nosec G204
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("probe: %w", err)
	}
	return latencies, json.Unmarshal(out, &latencies)
}

// prior returns the command for a program that precedes others on its core, so that they delay no query, if this process has the
// right; otherwise it returns that of the program alone.
func prior(ctx context.Context, command ...string) []string {
	first := []string{"chrt", "-f", "10"}
	if exec.CommandContext(ctx, first[0], append(slices.Clone(first[1:]), "true")...).Run() != nil { // #nosec G204
		return command
	}
	return append(first, command...)
}

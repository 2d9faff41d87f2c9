// Package dnsperf runs dnsperf, the load generator of the benchmarks, and reads its figures. Input is a file of questions;
// output are the numbers of queries, answers and response codes, and latencies.
package dnsperf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
)

// Parameters of dnsperf.
const (
	outstanding = "100" // maximum of queries in flight
	clients     = "10"  // sockets
	timeout     = "15"  // seconds after which a query is lost; a busy machine may stop a server for long

	// With a rate, the number of queries in flight is not the limit: 8,000 per second make 1,000 in an eighth of a
	// second. A higher one would be a flood when dnsperf has to wait for its core and catches up. A query is lost after
	// the timeout of resolvers.
	outstandingAtRate = "1000"
	timeoutAtRate     = "5"
)

// Longest is the maximum number of seconds of a measurement.
const Longest = "120"

// PerMille is the maximum of lost queries of a valid measurement; they are reported.
const PerMille = 1

// ErrLost means that too many were lost.
var ErrLost = errors.New("too many queries lost")

// ErrCode means that a query was answered with another response code than the expected one.
var ErrCode = errors.New("another response code")

// Generator is dnsperf.
type Generator struct {
	Path    string
	Cores   string // that it may use, "" for that of the load
	Queue   string // maximum of queries in flight, "" for the usual one
	Sockets string // their number, "" for the usual one
}

// Load is the questions of a measurement.
type Load struct {
	File      string // with a question in each line
	Questions int    // their number
	RCode     string // of every answer, in dnsperf's notation
	Rate      int    // queries per second, 0 for those of a busy server
	EDNS, TCP bool
	Option    string // of EDNS: its code and its data in hexadecimal, such as "65313:01"; "" for none
}

// Ask sends every question of a load a number of times, at the load's rate if it has one. The limit of queries in flight
// is then reached only after dnsperf or the server had to wait for its core, and bounds the burst that follows.
func (d Generator) Ask(ctx context.Context, port int, l Load, times int) (Statistics, error) {
	bounds := []string{"-n", strconv.Itoa(times), "-l", Longest}
	if l.Rate > 0 {
		bounds = append(bounds, "-Q", strconv.Itoa(l.Rate))
	}
	s, err := d.Run(ctx, port, l, bounds...)
	if err != nil {
		return s, err
	}
	return s, s.Judge(l.RCode, times*l.Questions)
}

// AskFor sends the questions of a load again and again for a number of seconds.
func (d Generator) AskFor(ctx context.Context, port int, l Load, seconds int) (Statistics, error) {
	return d.Run(ctx, port, l, "-l", strconv.Itoa(seconds))
}

// AskAtRateFor is AskFor at the load's rate, with enough queries in flight for it.
func (d Generator) AskAtRateFor(ctx context.Context, port int, l Load, seconds int) (Statistics, error) {
	d.Queue = outstandingAtRate
	return d.Run(ctx, port, l, "-l", strconv.Itoa(seconds), "-Q", strconv.Itoa(l.Rate))
}

// AskAtRate sends every question of a load once, at a rate per second. It also returns the latency of each answer, the
// shortest first.
func (d Generator) AskAtRate(ctx context.Context, port int, l Load, rate int) (Statistics, []time.Duration, error) {
	// dnsperf writes a line for each answer: into a file, as the reader of a pipe would need CPU time.
	path := l.File + ".answers"
	out, err := os.Create(path)
	if err != nil {
		return Statistics{}, nil, err
	}
	defer func() { _ = os.Remove(path) }()
	var complaints strings.Builder
	d.Queue = outstandingAtRate
	cmd := d.command(ctx, port, l, timeoutAtRate, "-n", "1", "-Q", strconv.Itoa(rate), "-l", Longest, "-v")
	cmd.Stdout, cmd.Stderr = out, &complaints
	if err := errors.Join(cmd.Run(), out.Close()); err != nil {
		return Statistics{}, nil, fmt.Errorf("dnsperf: %w: %s", err, &complaints)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Statistics{}, nil, err
	}
	s, err := parseStatistics(string(text))
	if err != nil {
		return s, nil, err
	}
	latencies, err := parseLatencies(string(text))
	if err == nil && len(latencies) != s.Completed {
		err = fmt.Errorf("dnsperf: %d answers, and %d lines about answers", s.Completed, len(latencies))
	}
	return s, latencies, err
}

// Run sends the questions of a load within bounds, which are arguments of dnsperf.
func (d Generator) Run(ctx context.Context, port int, l Load, bounds ...string) (Statistics, error) {
	out, err := d.command(ctx, port, l, timeout, bounds...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return Statistics{}, fmt.Errorf("dnsperf: %w: %s", err, exit.Stderr)
	}
	if err != nil {
		return Statistics{}, fmt.Errorf("dnsperf: %w", err)
	}
	return parseStatistics(string(out))
}

func (d Generator) command(ctx context.Context, port int, l Load, timeout string, bounds ...string) *exec.Cmd {
	args := []string{"-c", cmp.Or(d.Cores, child.LoadCore), d.Path, "-s", "127.0.0.1", "-p", strconv.Itoa(port), "-d", l.File,
		"-T", "1", "-c", cmp.Or(d.Sockets, clients), "-q", cmp.Or(d.Queue, outstanding), "-t", timeout}
	if l.EDNS {
		args = append(args, "-e")
	}
	if l.TCP {
		args = append(args, "-m", "tcp")
	}
	if l.Option != "" {
		args = append(args, "-E", l.Option)
	}
	return exec.CommandContext(ctx, "taskset", append(args, bounds...)...)
}

// Statistics are the counts of dnsperf.
type Statistics struct {
	Sent, Completed, Lost int
	Rate                  float64        // queries per second, by wall clock
	RCodes                map[string]int // answers by response code
}

// parseStatistics reads dnsperf's output.
func parseStatistics(text string) (Statistics, error) {
	s := Statistics{Sent: -1, Completed: -1, Lost: -1, RCodes: map[string]int{}}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		var err error
		switch key {
		case "Queries sent":
			_, err = fmt.Sscan(value, &s.Sent)
		case "Queries completed":
			_, err = fmt.Sscan(value, &s.Completed)
		case "Queries lost":
			_, err = fmt.Sscan(value, &s.Lost)
		case "Queries per second":
			_, err = fmt.Sscan(value, &s.Rate)
		case "Response codes":
			err = s.readCodes(value)
		}
		if err != nil {
			return s, fmt.Errorf("dnsperf: %q: %w", strings.TrimSpace(line), err)
		}
	}
	if s.Sent < 0 || s.Completed < 0 || s.Lost < 0 {
		return s, fmt.Errorf("dnsperf: no statistics in its output:\n%s", text)
	}
	return s, nil
}

// readCodes reads a list like "NOERROR 998 (99.80%), SERVFAIL 2 (0.20%)".
func (s *Statistics) readCodes(list string) error {
	if strings.TrimSpace(list) == "" {
		return nil // nothing was answered
	}
	for one := range strings.SplitSeq(list, ",") {
		var code string
		var n int
		if _, err := fmt.Sscan(one, &code, &n); err != nil {
			return err
		}
		s.RCodes[code] = n
	}
	return nil
}

// Judge returns an error if a measurement is not valid, given the only expected response code.
func (s *Statistics) Judge(rcode string, queries int) error {
	if err := s.JudgeAnswered(rcode, queries); err != nil {
		return err
	}
	if s.Lost*1000 > s.Sent*PerMille {
		return fmt.Errorf("dnsperf: of %d queries, %d were answered and %d lost: %w", s.Sent, s.Completed, s.Lost, ErrLost)
	}
	return nil
}

// ErrRate means that the rate was not reached.
var ErrRate = errors.New("rate not reached")

// JudgeRate returns an error if dnsperf had no time to send its queries at the rate; 0 is any rate. After a loss, its figure
// includes the wait for the answer, and is no rate.
func (s *Statistics) JudgeRate(rate int) error {
	if s.Lost == 0 && s.Rate < float64(rate)*0.95 {
		return fmt.Errorf("dnsperf: %.0f queries per second, want %d: %w", s.Rate, rate, ErrRate)
	}
	return nil
}

// JudgeAnswered is Judge without the check of lost queries.
func (s *Statistics) JudgeAnswered(rcode string, queries int) error {
	if s.Sent != queries {
		return fmt.Errorf("dnsperf: %d queries sent, want %d", s.Sent, queries)
	}
	if s.Completed == 0 || s.Completed+s.Lost != s.Sent {
		return fmt.Errorf("dnsperf: of %d queries, %d were answered and %d lost: %w", s.Sent, s.Completed, s.Lost, ErrLost)
	}
	if s.RCodes[rcode] != s.Completed {
		return fmt.Errorf("dnsperf: response codes %v, want %s alone: %w", s.RCodes, rcode, ErrCode)
	}
	return nil
}

package main

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
)

// Parameters of dnsperf.
const (
	outstanding = "100" // maximum of queries in flight
	clients     = "10"  // sockets
	timeout     = "15"  // seconds after which a query is lost; a busy machine may stop a server for long
	longest     = "120" // maximum seconds of one measurement

	// With a rate, the number of queries in flight is not the limit: 8,000 per second make 1,000 in an eighth of a
	// second. A higher one would be a flood when dnsperf has to wait for its core and catches up. A query is lost after
	// the timeout of resolvers.
	outstandingAtRate = "1000"
	timeoutAtRate     = "5"
)

// perMille is the maximum of lost queries of a valid measurement; they are reported.
const perMille = 1

// errLost means that too many were lost.
var errLost = errors.New("too many queries lost")

// errCode means that a query was answered with another response code than the expected one.
var errCode = errors.New("another response code")

// generator is dnsperf.
type generator struct {
	path    string
	cores   string // that it may use, "" for that of the load
	queue   string // maximum of queries in flight, "" for the usual one
	sockets string // their number, "" for the usual one
}

// ask sends every question of a load a number of times, at the load's rate if it has one. The limit of queries in flight
// is then reached only after dnsperf or the server had to wait for its core, and bounds the burst that follows.
func (d generator) ask(ctx context.Context, port int, l *load, times int) (statistics, error) {
	bounds := []string{"-n", strconv.Itoa(times), "-l", longest}
	if l.rate > 0 {
		bounds = append(bounds, "-Q", strconv.Itoa(l.rate))
	}
	s, err := d.run(ctx, port, l, bounds...)
	if err != nil {
		return s, err
	}
	return s, s.judge(l.rcode, times*len(l.packets))
}

// askFor sends the questions of a load again and again for a number of seconds.
func (d generator) askFor(ctx context.Context, port int, l *load, seconds int) error {
	_, err := d.run(ctx, port, l, "-l", strconv.Itoa(seconds))
	return err
}

// askAtRate sends every question of a load once, at a rate per second. It also returns the latency of each answer, the
// shortest first.
func (d generator) askAtRate(ctx context.Context, port int, l *load, rate int) (statistics, []time.Duration, error) {
	// dnsperf writes a line for each answer: into a file, as the reader of a pipe would need CPU time.
	path := l.file + ".answers"
	out, err := os.Create(path)
	if err != nil {
		return statistics{}, nil, err
	}
	defer func() { _ = os.Remove(path) }()
	var complaints strings.Builder
	d.queue = outstandingAtRate
	cmd := d.command(ctx, port, l, timeoutAtRate, "-n", "1", "-Q", strconv.Itoa(rate), "-l", longest, "-v")
	cmd.Stdout, cmd.Stderr = out, &complaints
	if err := errors.Join(cmd.Run(), out.Close()); err != nil {
		return statistics{}, nil, fmt.Errorf("dnsperf: %w: %s", err, &complaints)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return statistics{}, nil, err
	}
	s, err := parseStatistics(string(text))
	if err != nil {
		return s, nil, err
	}
	latencies, err := parseLatencies(string(text))
	if err == nil && len(latencies) != s.completed {
		err = fmt.Errorf("dnsperf: %d answers, and %d lines about answers", s.completed, len(latencies))
	}
	return s, latencies, err
}

func (d generator) run(ctx context.Context, port int, l *load, bounds ...string) (statistics, error) {
	out, err := d.command(ctx, port, l, timeout, bounds...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return statistics{}, fmt.Errorf("dnsperf: %w: %s", err, exit.Stderr)
	}
	if err != nil {
		return statistics{}, fmt.Errorf("dnsperf: %w", err)
	}
	return parseStatistics(string(out))
}

func (d generator) command(ctx context.Context, port int, l *load, timeout string, bounds ...string) *exec.Cmd {
	args := []string{"-c", cmp.Or(d.cores, loadCore), d.path, "-s", "127.0.0.1", "-p", strconv.Itoa(port), "-d", l.file,
		"-T", "1", "-c", cmp.Or(d.sockets, clients), "-q", cmp.Or(d.queue, outstanding), "-t", timeout}
	if l.edns {
		args = append(args, "-e")
	}
	if l.tcp {
		args = append(args, "-m", "tcp")
	}
	if l.option != nil {
		args = append(args, "-E", optionArgument(l.option))
	}
	return exec.CommandContext(ctx, "taskset", append(args, bounds...)...)
}

// statistics are the counts of dnsperf.
type statistics struct {
	sent, completed, lost int
	rate                  float64        // queries per second, by wall clock
	rcodes                map[string]int // answers by response code
}

// parseStatistics reads dnsperf's output.
func parseStatistics(text string) (statistics, error) {
	s := statistics{sent: -1, completed: -1, lost: -1, rcodes: map[string]int{}}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		var err error
		switch key {
		case "Queries sent":
			_, err = fmt.Sscan(value, &s.sent)
		case "Queries completed":
			_, err = fmt.Sscan(value, &s.completed)
		case "Queries lost":
			_, err = fmt.Sscan(value, &s.lost)
		case "Queries per second":
			_, err = fmt.Sscan(value, &s.rate)
		case "Response codes":
			err = s.readCodes(value)
		}
		if err != nil {
			return s, fmt.Errorf("dnsperf: %q: %w", strings.TrimSpace(line), err)
		}
	}
	if s.sent < 0 || s.completed < 0 || s.lost < 0 {
		return s, fmt.Errorf("dnsperf: no statistics in its output:\n%s", text)
	}
	return s, nil
}

// readCodes reads a list like "NOERROR 998 (99.80%), SERVFAIL 2 (0.20%)".
func (s *statistics) readCodes(list string) error {
	if strings.TrimSpace(list) == "" {
		return nil // nothing was answered
	}
	for one := range strings.SplitSeq(list, ",") {
		var code string
		var n int
		if _, err := fmt.Sscan(one, &code, &n); err != nil {
			return err
		}
		s.rcodes[code] = n
	}
	return nil
}

// judge returns an error if a measurement is not valid, given the only expected response code.
func (s *statistics) judge(rcode string, queries int) error {
	if err := s.judgeAnswered(rcode, queries); err != nil {
		return err
	}
	if s.lost*1000 > s.sent*perMille {
		return fmt.Errorf("dnsperf: of %d queries, %d were answered and %d lost: %w", s.sent, s.completed, s.lost, errLost)
	}
	return nil
}

// errRate means that the rate was not reached.
var errRate = errors.New("rate not reached")

// judgeRate returns an error if dnsperf had no time to send its queries at the rate; 0 is any rate. After a loss, its figure
// includes the wait for the answer, and is no rate.
func (s *statistics) judgeRate(rate int) error {
	if s.lost == 0 && s.rate < float64(rate)*0.95 {
		return fmt.Errorf("dnsperf: %.0f queries per second, want %d: %w", s.rate, rate, errRate)
	}
	return nil
}

// judgeAnswered is judge without the check of lost queries.
func (s *statistics) judgeAnswered(rcode string, queries int) error {
	if s.sent != queries {
		return fmt.Errorf("dnsperf: %d queries sent, want %d", s.sent, queries)
	}
	if s.completed == 0 || s.completed+s.lost != s.sent {
		return fmt.Errorf("dnsperf: of %d queries, %d were answered and %d lost: %w", s.sent, s.completed, s.lost, errLost)
	}
	if s.rcodes[rcode] != s.completed {
		return fmt.Errorf("dnsperf: response codes %v, want %s alone: %w", s.rcodes, rcode, errCode)
	}
	return nil
}

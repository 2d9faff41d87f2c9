package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// measureKernel measures the answers to a pod: at the rate that all servers sustain, then one query at a time. After the rounds
// it measures all servers at the higher rate.
func (b *bench) measureKernel(ctx context.Context) error {
	if err := b.canMeasureKernel(); err != nil {
		b.miss("The part "+partKernel, err)
		return nil
	}
	defer b.stopKernel()
	if err := b.startKernel(ctx); err != nil {
		return err
	}
	rounds := make([]podRound, b.rounds)
	err := inTurns(b.rounds, b.pods, func(s *podServer, round int) error {
		return s.each(&rounds[round], func(l podLine) (*podRow, error) { return b.measurePod(ctx, s, l) })
	})
	if err != nil {
		return err
	}
	for _, round := range rounds {
		b.results.addShares(round, rateFigures)
	}
	var flood podRound
	for _, s := range b.pods {
		if err := s.each(&flood, func(l podLine) (*podRow, error) { return b.measureFlood(ctx, s, l) }); err != nil {
			return err
		}
	}
	b.results.addShares(flood, floodFigures)
	return nil
}

// canMeasureKernel returns an error without the right to make namespaces and to attach programs, and on kernels without tcx.
func (b *bench) canMeasureKernel() error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	n, err := newNetwork(true)
	if err != nil {
		return err
	}
	a, err := n.attach("bench", dropProgram())
	if err == nil {
		err = a.close()
	}
	return errors.Join(err, n.close())
}

// each measures the lines of a server in a round.
func (s *podServer) each(round *podRound, measure func(podLine) (*podRow, error)) error {
	if *round == nil {
		*round = podRound{}
	}
	for _, l := range s.lines {
		row, err := measure(l)
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
		if row != nil {
			(*round)[l.name] = *row
		}
	}
	return nil
}

// podTag is the tag of the names, which every cache has.
const podTag = "pod"

// singles is the number of queries one at a time, for each line and round.
const singles = 2000

// measurePod measures a line in one round, and again if queries were lost. After the last attempt the report notes it, and has no
// figures of that line and round.
func (b *bench) measurePod(ctx context.Context, s *podServer, l podLine) (row *podRow, err error) {
	for try := range tries {
		done, share, err := b.tryPod(ctx, s, l, podJob{Rate: kernelRate, Total: kernelRate * b.seconds, Single: singles})
		if err == nil {
			err = b.judgePod(l, done, try)
		}
		if err == nil {
			b.addPod(l, done, share)
			return done.row(), nil
		}
		if !again(err) && (!errors.Is(err, errShare) || try == tries-1) {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "%s: again: %v\n", l.name, err)
	}
	b.lost = append(b.lost, fmt.Sprintf("%s: more than %d of a thousand in each of %d attempts", l.name, dnsperf.PerMille, tries))
	return nil, nil
}

// judgePod returns an error if too many queries were lost, or if the client had no time to send them at the rate. The report
// notes a rate that was not reached after the last attempt.
func (b *bench) judgePod(l podLine, done podDone, try int) error {
	if l.answers != answersNone && done.lost()*1000 > done.Sent*dnsperf.PerMille {
		return fmt.Errorf("%d of %d: %w", done.lost(), done.Sent, dnsperf.ErrLost)
	}
	if done.Rate >= 0.95*kernelRate {
		return nil
	}
	err := fmt.Errorf("%.0f queries per second, want %d: %w", done.Rate, kernelRate, dnsperf.ErrRate)
	if try < rateTries-1 {
		return err
	}
	b.lost = append(b.lost, fmt.Sprintf("%s: %v", l.name, err))
	return nil
}

// errShare means that the process has answered too many queries instead of the kernel, as after a lease that was not renewed
// in time.
var errShare = errors.New("too many answers of the process")

// tryPod does a job, after two seconds of the load that are not measured. It returns the share of the answers that come from
// the kernel, which has to be nearly all of them if the kernel is to answer.
func (b *bench) tryPod(ctx context.Context, s *podServer, l podLine, job podJob) (done podDone, share float64, err error) {
	job.Server, job.Tag, job.Answers = l.address, podTag, l.answers
	if err := s.awaitLeases(ctx); err != nil {
		return done, 0, err
	}
	warm := job
	warm.Rate, warm.Total, warm.Single = kernelRate, 2*kernelRate, 0
	if _, err := b.askFromPod(ctx, s, warm); err != nil {
		return done, 0, err
	}
	quiet, err := b.quiet(ctx, quietTries)
	if err != nil {
		return done, 0, err
	}
	if done, share, err = b.askCounted(ctx, s, job); err != nil || !quiet {
		return done, share, err
	}
	done.Quiet, err = b.quiet(ctx, 1)
	return done, share, err
}

// askCounted has a client in the pod do a job, and returns the share of the kernel.
func (b *bench) askCounted(ctx context.Context, s *podServer, job podJob) (done podDone, share float64, err error) {
	if s.name != nameInKernel {
		done, err = b.askFromPod(ctx, s, job)
		return done, 0, err
	}
	before, err := s.sample(answeredMetric)
	if err != nil {
		return done, 0, err
	}
	if done, err = b.askFromPod(ctx, s, job); err != nil {
		return done, 0, err
	}
	after, err := s.sample(answeredMetric)
	if err != nil {
		return done, 0, err
	}
	share = (after - before) / float64(done.Checked+done.Answered+len(done.Latencies))
	if share < 0.99 {
		return done, share, fmt.Errorf("%.2f %% of the answers are the kernel's, want 99 %%: %w", 100*share, errShare)
	}
	return done, share, nil
}

// The wait for a quiet machine.
const (
	quietTries = 10
	quietTime  = 500 * time.Millisecond // of each
	quietLimit = 60                     // of the other load in milliseconds per second
)

// quiet measures the CPU time of the machine without queries and without the servers', in milliseconds per second, and reports
// whether nothing else uses the machine.
func (b *bench) quiet(ctx context.Context, tries int) (bool, error) {
	var each float64
	for range tries {
		before, ownBefore, err := b.usedBeside()
		if err != nil {
			return false, err
		}
		if err := child.Pause(ctx, quietTime); err != nil {
			return false, err
		}
		after, own, err := b.usedBeside()
		if err != nil {
			return false, err
		}
		other := after.used(before) - (own - ownBefore)
		if each = float64(other.Milliseconds()) / quietTime.Seconds(); each < quietLimit {
			break
		}
	}
	b.results.add(kernelOther, "", each)
	return each < quietLimit, nil
}

// usedBeside returns the CPU time of the machine, and that of the servers.
func (b *bench) usedBeside() (m machineTime, own time.Duration, err error) {
	all := slices.Clone(b.upstreams)
	for _, s := range b.pods {
		if s.Process != nil {
			all = append(all, s.Process)
		}
	}
	for _, p := range all {
		spent, err := p.CPU()
		if err != nil {
			return m, 0, err
		}
		own += spent
	}
	m, err = machineNow()
	return m, own, err
}

// row returns the CPU time of a query.
func (d *podDone) row() *podRow {
	return &podRow{
		machine: microseconds(d.Machine, d.Sent), processes: microseconds(d.Client+d.Servers+d.Soft, d.Sent),
		server: microseconds(d.Servers, d.Sent), quiet: d.Quiet,
	}
}

// String returns the CPU time of a query and the rate.
func (d *podDone) String() string {
	row, note := d.row(), ""
	if !row.quiet {
		note = " (not quiet)"
	}
	return fmt.Sprintf("machine%s %.2f us; client, server and ksoftirqd %.2f us; %.0f/s",
		note, row.machine, row.processes, d.Rate)
}

// addPod records the figures of a line in one round that have no share of the load.
func (b *bench) addPod(l podLine, done podDone, share float64) {
	fmt.Fprintf(os.Stderr, "%s: %s", l.name, &done)
	if len(done.Latencies) > 0 {
		p50, p99 := microPercentile(done.Latencies, 50), microPercentile(done.Latencies, 99)
		b.results.add(kernelP50, l.name, p50)
		b.results.add(kernelP99, l.name, p99)
		fmt.Fprintf(os.Stderr, "; one at a time: p50 %.1f us, p99 %.1f us", p50, p99)
	}
	if share > 0 {
		fmt.Fprintf(os.Stderr, "; %.2f %% in the kernel", 100*share)
	}
	fmt.Fprintln(os.Stderr)
	if l.answers != answersNone && done.lost() > 0 {
		b.lost = append(b.lost, fmt.Sprintf("%s: %d of %d", l.name, done.lost(), done.Sent))
	}
}

// floodLimit is the reciprocal of the share of lost queries above which there is no CPU time of a query at the higher rate: the
// bare echo loses some of a thousand there.
const floodLimit = 100

// measureFlood measures a line at the higher rate. Lost queries are a figure of their own; with too many of them there is no CPU
// time of a query. Then it measures the time of the program of nodecache, whose measurement takes time as well.
func (b *bench) measureFlood(ctx context.Context, s *podServer, l podLine) (row *podRow, err error) {
	done, share, err := b.tryPod(ctx, s, l, podJob{Rate: kernelFlood, Total: kernelFlood * b.flood})
	for try := 1; try < tries && errors.Is(err, errShare); try++ {
		fmt.Fprintf(os.Stderr, "%s: again: %v\n", l.name, err)
		done, share, err = b.tryPod(ctx, s, l, podJob{Rate: kernelFlood, Total: kernelFlood * b.flood})
	}
	if err != nil {
		return nil, err
	}
	if row = done.row(); l.answers != answersNone && done.lost()*floodLimit > done.Sent {
		row = nil
	}
	for what, v := range map[string]float64{
		floodSent: float64(done.Sent), floodAnswered: float64(done.Answered), floodLost: float64(done.lost()),
		floodRate: done.Rate,
	} {
		b.results.add(what, l.name, v)
	}
	fmt.Fprintf(os.Stderr, "%s: %s; sent %d, answered %d, lost %d\n", l.name, &done, done.Sent, done.Answered, done.lost())
	if s.name != nameInKernel {
		return row, nil
	}
	mean, err := s.network.programTime(func() error {
		job := podJob{Server: l.address, Tag: podTag, Answers: l.answers, Rate: kernelFlood, Total: 2 * kernelFlood}
		_, err := b.askFromPod(ctx, s, job)
		return err
	})
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "%s: %.2f %% in the kernel, the program takes %v\n", l.name, 100*share, mean)
	b.results.add(kernelShare, l.name, 100*share)
	b.results.add(kernelProgram, l.name, float64(mean.Nanoseconds()))
	return row, nil
}

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearside-dns/nearside/test/bench/dnsperf"
)

// The servers of the part kernel, beside those of other parts. The last three are programs in the kernel, at the same place as
// that of nodecache: two drop queries, so that the CPU time left is that of the load; one exchanges the addresses of a query and
// sends it back, so that it is that of the load and of the receipt of answers.
const (
	nameInKernel  = "nodecache, kernel on"
	nameInKernel6 = "nodecache, kernel on, IPv6"
	nameFastPath  = "nodecache, kernel off"
	nameTurned    = "kernel: query sent back"
	nameDropped   = "kernel: query dropped"
	nameDropped6  = "kernel: query dropped, IPv6"
)

// kernelNames are the lines of the tables.
var kernelNames = []string{nameInKernel, nameInKernel6, nameFastPath, nameCoreDNS, nameUnbound, nameDNSdist, nameEcho, nameTurned,
	nameDropped, nameDropped6}

// unloaded returns the name of the figures that are the share of the load in those of a server.
func unloaded(name string) string {
	if strings.HasSuffix(name, "IPv6") {
		return nameDropped6
	}
	return nameDropped
}

// The rates of the part kernel, in queries per second. Every server sustains the first one on one core.
const (
	kernelRate  = 20000
	kernelFlood = 100000
)

// The figures of the part kernel.
const (
	kernelMachine   = "kernel: CPU of the machine"
	kernelBeyond    = "kernel: CPU of the machine beyond the load"
	kernelProcesses = "kernel: CPU of client, server and ksoftirqd"
	kernelOwn       = "kernel: CPU of client, server and ksoftirqd beyond the load"
	kernelServer    = "kernel: CPU of the server process"
	kernelP50       = "kernel: median latency"
	kernelP99       = "kernel: p99 latency"
	kernelShare     = "kernel: answered in the kernel, per cent"
	kernelProgram   = "kernel: time of the program"
	kernelOther     = "kernel: other load before a measurement"

	floodMachine  = "kernel flood: CPU of the machine"
	floodBeyond   = "kernel flood: CPU of the machine beyond the load"
	floodSent     = "kernel flood: sent"
	floodAnswered = "kernel flood: answered"
	floodLost     = "kernel flood: lost"
	floodRate     = "kernel flood: rate reached"

	floodProcesses = "kernel flood: CPU of client, server and ksoftirqd"
	floodOwn       = "kernel flood: CPU of client, server and ksoftirqd beyond the load"
	floodServer    = "kernel flood: CPU of the server process"
)

// kernelBars are the goals of answers in the kernel. The CPU time is that of the client, with the kernel's work for it, of the server
// and of ksoftirqd: other processes use the machine as well, as much as some tenths of a microsecond for each query.
func kernelBars() []budget {
	bar := func(what, title string, b budget) budget {
		b.part, b.what, b.title, b.own = partKernel, what, title, nameInKernel
		return b
	}
	return []budget{
		bar(floodOwn, "hit in the kernel, of a pod, 100,000/s: at most 0.8 us beyond the load", budget{limit: 0.8, unit: "us"}),
		bar(floodOwn, "the same at most 1/4 of the echo", budget{peer: nameEcho, share: 1. / 4}),
		bar(floodOwn, "the same at most 1/5 of Unbound", budget{peer: nameUnbound, share: 1. / 5}),
		bar(kernelP50, "one query at a time: median latency at most half of the fast path's", budget{peer: nameFastPath, share: 0.5}),
		bar(floodLost, "100,000 queries/s, none lost", budget{limit: belowOne, unit: "lost", highest: true}),
	}
}

// belowOne is a limit of a number that has to be 0.
const belowOne = 0.5

// podRow has the CPU time of a query to a server in one round, in microseconds.
type podRow struct {
	machine, processes, server float64
	quiet                      bool // nothing else used the machine; otherwise machine has no meaning
}

// podRound has the figures of the servers in one round.
type podRound map[string]podRow

// podFigures are the names of these figures.
type podFigures struct{ machine, beyond, processes, own, server string }

var (
	rateFigures  = podFigures{kernelMachine, kernelBeyond, kernelProcesses, kernelOwn, kernelServer}
	floodFigures = podFigures{floodMachine, floodBeyond, floodProcesses, floodOwn, floodServer}
)

// addShares adds the figures of a round, and the same without the share of the load.
func (r results) addShares(round podRound, f podFigures) {
	for name, row := range round {
		if row.quiet {
			r.add(f.machine, name, row.machine)
		}
		r.add(f.processes, name, row.processes)
		r.add(f.server, name, row.server)
		load, ok := round[unloaded(name)]
		if !ok || strings.HasPrefix(name, nameDropped) {
			continue
		}
		r.add(f.own, name, row.processes-load.processes)
		if row.quiet && load.quiet {
			r.add(f.beyond, name, row.machine-load.machine)
		}
	}
}

// reportKernel writes a line for each server.
func (b *bench) reportKernel(text *strings.Builder) {
	answering := func(row string) bool { return !strings.HasPrefix(row, nameDropped) }
	process := func(row string) bool { return answering(row) && row != nameTurned }
	own := func(row string) bool { return row == nameInKernel || row == nameInKernel6 }
	for _, table := range []struct {
		rate int
		podFigures
	}{{kernelRate, rateFigures}, {kernelFlood, floodFigures}} {
		title := fmt.Sprintf("cached answers of a pod over veth, %d/s: CPU per query, us", table.rate)
		b.grid(text, title, kernelNames, []column{
			{title: "machine", what: table.machine, format: "%.2f"},
			{title: "beyond the load", what: table.beyond, format: "%.2f", in: answering},
			{title: "to " + nameInKernel, what: table.beyond, own: nameInKernel, in: answering},
			{title: "client, server, ksoftirqd", what: table.processes, format: "%.2f"},
			{title: "beyond the load", what: table.own, format: "%.2f", in: answering},
			{title: "server alone", what: table.server, format: "%.2f", in: process},
		})
	}
	b.grid(text, "one query of a pod at a time: latency, us", kernelNames, []column{
		{title: "p50", what: kernelP50, format: "%.1f", in: answering},
		{title: "to " + nameInKernel, what: kernelP50, own: nameInKernel, in: answering},
		{title: "p99", what: kernelP99, format: "%.1f", in: answering},
	})
	b.grid(text, fmt.Sprintf("%d queries/s of a pod for %d s", kernelFlood, b.flood), kernelNames, []column{
		{title: "sent", what: floodSent, format: "%.0f"},
		{title: "answered", what: floodAnswered, format: "%.0f", in: answering},
		{title: "lost", what: floodLost, format: "%.0f", in: answering},
		{title: "queries/s", what: floodRate, format: "%.0f"},
		{title: "answered in the kernel, %", what: kernelShare, format: "%.2f", in: own},
		{title: "the program, ns", what: kernelProgram, format: "%.0f", in: own},
	})
	if other := b.results[kernelOther][""]; len(other) > 0 {
		fmt.Fprintf(text, "\nOther load of the machine before the measurements: %s ms per second; 90 %% of them at most %.1f.\n",
			cell("%.1f", other), ninth(other))
	}
}

// ninth returns the figure that nine of ten do not exceed.
func ninth(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[(len(v)-1)*9/10]
}

// machineTime is CPU time of the machine.
type machineTime struct {
	at         time.Time
	processors int
	off        time.Duration // of all processors, without work for this machine: idle, iowait and steal of proc_stat(5)
}

// userHZ is the unit of proc_stat(5), which is the same on all of Go's platforms.
const userHZ = 100

// parseStat reads /proc/stat.
func parseStat(text string) (m machineTime, err error) {
	var user, nice, system, idle, iowait, irq, softirq, steal int64
	_, err = fmt.Sscanf(text, "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal)
	if err != nil {
		return m, fmt.Errorf("/proc/stat: %w", err)
	}
	m.off = time.Duration(idle+iowait+steal) * time.Second / userHZ
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "cpu") && !strings.HasPrefix(line, "cpu ") {
			m.processors++
		}
	}
	if m.processors == 0 {
		return m, errors.New("/proc/stat: no line of a processor")
	}
	return m, nil
}

// used returns the CPU time since an earlier time.
func (m machineTime) used(since machineTime) time.Duration {
	return m.at.Sub(since.at)*time.Duration(m.processors) - (m.off - since.off)
}

// microseconds returns CPU time for each of n queries.
func microseconds(d time.Duration, n int) float64 {
	return float64(d.Nanoseconds()) / 1000 / float64(n)
}

// microPercentile returns the latency, in microseconds, that a share of at least one answer did not exceed.
func microPercentile(sorted []time.Duration, perCent int) float64 {
	return 1000 * dnsperf.Percentile(sorted, perCent)
}

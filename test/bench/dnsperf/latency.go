package dnsperf

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// parseLatencies reads the latency of each answer from dnsperf's detailed output, the shortest first. An answer's line
// is "> NOERROR name. A 0.020345", in seconds; the line of a query without an answer is "> T name. A".
func parseLatencies(text string) (all []time.Duration, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != ">" || fields[1] == "T" {
			continue
		}
		if len(fields) != 5 {
			return nil, fmt.Errorf("dnsperf: %q: no line about an answer", line)
		}
		latency, err := time.ParseDuration(fields[4] + "s")
		if err != nil || latency < 0 {
			return nil, fmt.Errorf("dnsperf: %q: no latency", line)
		}
		all = append(all, latency)
	}
	slices.Sort(all)
	return all, nil
}

// Percentile returns the latency, in milliseconds, that a share of at least one answer did not exceed.
func Percentile(sorted []time.Duration, perCent int) float64 {
	rank := (len(sorted)*perCent + 99) / 100 // rounded up
	return float64(sorted[max(rank, 1)-1].Nanoseconds()) / 1e6
}

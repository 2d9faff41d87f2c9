//go:build linux

package forward

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/daemon"
)

// The metrics that the tests read.
const (
	connections  = "nearside_forward_connections"
	inFlight     = "nearside_forward_in_flight"
	depthCount   = "nearside_forward_pipelining_depth_count"
	fallbacks    = "nearside_forward_fallbacks_total"
	lateAnswers  = "nearside_forward_late_answers_total"
	dropped      = "nearside_forward_dropped_answers_total"
	packets      = "nearside_forward_packets_total"
	broken       = "coredns_forward_healthcheck_broken_total"
	rejects      = "coredns_forward_max_concurrent_rejects_total"
	checkFailed  = "coredns_proxy_healthcheck_failures_total"
	requestCount = "coredns_proxy_request_duration_seconds_count"
	panics       = "coredns_panics_total"
	cacheHits    = "coredns_proxy_conn_cache_hits_total"
	cacheMisses  = "coredns_proxy_conn_cache_misses_total"
)

// scrape reads the metrics of the program.
func (s *server) scrape(t *testing.T) daemon.Samples {
	t.Helper()
	return daemon.Scrape(t, http.DefaultClient, s.metrics)
}

// like returns the samples whose names have a prefix, for a report.
func like(all daemon.Samples, prefix string) string {
	var lines []string
	for key, value := range all {
		if strings.HasPrefix(key, prefix) && !strings.Contains(key, "_bucket") {
			lines = append(lines, key+" "+strconv.FormatFloat(value, 'g', -1, 64))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

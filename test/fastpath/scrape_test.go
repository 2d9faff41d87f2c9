//go:build linux

package fastpath

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// scrape reads the metrics of a program. The server label says PORT instead of the port.
func (s *server) scrape(t *testing.T) daemon.Samples {
	t.Helper()
	return scrape(t, http.DefaultClient, s.metrics, s.Port)
}

// counted reads the metrics when a number of queries is counted since an earlier reading. A query may be counted after its
// answer is sent.
func (s *server) counted(t *testing.T, since daemon.Samples, queries float64) (now daemon.Samples) {
	t.Helper()
	kit.Eventually(t, "the queries are counted", func() bool {
		now = s.scrape(t)
		more := now.Since(since)
		return more.Sum(answeredTotal)+more.Sum(handedOverTotal) >= queries
	})
	return now
}

// settled reads the metrics when the numbers of queries have been the same for some time.
func (s *server) settled(t *testing.T) (now daemon.Samples) {
	t.Helper()
	const same, pause = 10, 20 * time.Millisecond
	queries := func(s daemon.Samples) float64 {
		return s.Sum(answeredTotal) + s.Sum(handedOverTotal) + s.Sum("coredns_dns_requests_total")
	}
	for n, last := 0, -1.0; n < same; last = queries(now) {
		time.Sleep(pause)
		if now = s.scrape(t); queries(now) == last {
			n++
		} else {
			n = 0
		}
	}
	return now
}

// scrape reads the metrics at an address of a program that answers on a port.
func scrape(t *testing.T, client *http.Client, address string, dnsPort int) daemon.Samples {
	t.Helper()
	all, port := daemon.Samples{}, ":"+strconv.Itoa(dnsPort)+`"`
	for key, value := range daemon.Scrape(t, client, address) {
		all[strings.ReplaceAll(key, port, `:PORT"`)] = value
	}
	return all
}

// differences returns the samples that are not the same in both, one line for each.
func differences(a, b daemon.Samples) (lines []string) {
	both := maps.Clone(a)
	maps.Copy(both, b)
	for _, key := range slices.Sorted(maps.Keys(both)) {
		if a[key] != b[key] {
			lines = append(lines, key+": "+format(a[key])+" and "+format(b[key]))
		}
	}
	return lines
}

func format(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// The metrics of the fast path.
const (
	answeredTotal   = "nearside_fastpath_answered_total"
	handedOverTotal = "nearside_fastpath_handed_over_total"
	droppedTotal    = "nearside_fastpath_dropped_total"
	receiveDrops    = "nearside_fastpath_receive_drops_total"
	inFlight        = "nearside_fastpath_in_flight"
	goroutines      = "go_goroutines"
)

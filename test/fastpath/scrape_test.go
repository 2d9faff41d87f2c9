//go:build linux

package fastpath

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/daemon"
)

// scrape reads the metrics of a program. The server label says PORT instead of the port.
func (s *server) scrape(t *testing.T) daemon.Samples {
	t.Helper()
	return scrape(t, http.DefaultClient, s.metrics, s.Port)
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

//go:build linux

package fastpath

import (
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// samples are the values of metrics by name and labels, as they are written in the text format of
// Prometheus.
type samples map[string]float64

// scrape reads the metrics of a program. The server label says PORT instead of the port.
func (s *server) scrape(t *testing.T) samples {
	t.Helper()
	return scrape(t, http.DefaultClient, s.metrics, s.Port)
}

// scrape reads the metrics at an address of a program that answers on a port.
func scrape(t *testing.T, client *http.Client, address string, dnsPort int) samples {
	t.Helper()
	response, err := client.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	if cerr := response.Body.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		t.Fatal(err)
	}
	all := samples{}
	port := ":" + strconv.Itoa(dnsPort) + `"`
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		space := strings.LastIndexByte(line, ' ')
		if line == "" || line[0] == '#' || space < 0 {
			continue
		}
		value, err := strconv.ParseFloat(line[space+1:], 64)
		if err != nil {
			t.Fatalf("metric %q: %v", line, err)
		}
		all[strings.ReplaceAll(line[:space], port, `:PORT"`)] = value
	}
	return all
}

// sum adds up the samples of a metric that have all of these labels, each written as name="value".
func (all samples) sum(name string, labels ...string) (sum float64) {
	for key, value := range all {
		metric, rest, _ := strings.Cut(key, "{")
		if metric == name && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			sum += value
		}
	}
	return sum
}

// since returns by how much the samples have grown. What has not is left out.
func (all samples) since(before samples) samples {
	grown := samples{}
	for key, value := range all {
		if d := value - before[key]; d != 0 {
			grown[key] = d
		}
	}
	return grown
}

// differences returns the samples that are not the same in both, one line for each.
func differences(a, b samples) (lines []string) {
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

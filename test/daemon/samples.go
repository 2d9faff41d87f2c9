package daemon

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// Samples are the values of metrics by name and labels, as they are written in the text format of Prometheus.
type Samples map[string]float64

// Scrape reads the metrics of a program at an address.
func Scrape(t testing.TB, client *http.Client, address string) Samples {
	t.Helper()
	var text string
	kit.Succeeds(t, reloadTime, "metrics", func() (err error) {
		text, err = kit.Get(client, "http://"+address+"/metrics")
		return err
	})
	all := Samples{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		space := strings.LastIndexByte(line, ' ')
		if line == "" || line[0] == '#' || space < 0 {
			continue
		}
		value, err := strconv.ParseFloat(line[space+1:], 64)
		if err != nil {
			t.Fatalf("metric %q: %v", line, err)
		}
		all[line[:space]] = value
	}
	return all
}

// reloadTime bounds the time for which a reload closes the port of the metrics.
const reloadTime = 5 * time.Second

// Sum adds up the samples of a metric that have all of these labels, given as name and value in turn.
func (all Samples) Sum(name string, labels ...string) (sum float64) {
	for key, value := range all {
		metric, rest, _ := strings.Cut(key, "{")
		if metric == name && hasLabels(rest, labels) {
			sum += value
		}
	}
	return sum
}

func hasLabels(text string, labels []string) bool {
	for pair := range slices.Chunk(labels, 2) {
		if !strings.Contains(text, pair[0]+`="`+pair[1]+`"`) {
			return false
		}
	}
	return true
}

// Since returns the increase of each sample. Samples without an increase are left out.
func (all Samples) Since(before Samples) Samples {
	grown := Samples{}
	for key, value := range all {
		if d := value - before[key]; d != 0 {
			grown[key] = d
		}
	}
	return grown
}

//go:build linux

package monitoring

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// endpoints are where the programs' metrics are.
var endpoints = map[string][]string{nodecache: {"10.2.0.1:9253"}, clusterdns: {clusterDNS + ":9153", otherDNS + ":9153"}}

// page returns the metrics of a program, as text; of several programs, the first.
func (b *bed) page(program string) (string, error) {
	return kit.Get(b.Upstream.Client(), "http://"+endpoints[program][0]+"/metrics")
}

// scrape returns the samples of a program.
func (b *bed) scrape(program string) (daemon.Samples, error) {
	text, err := b.page(program)
	if err != nil {
		return nil, err
	}
	all := daemon.Samples{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		space := strings.LastIndexByte(line, ' ')
		if line == "" || line[0] == '#' || space < 0 {
			continue
		}
		if all[line[:space]], err = strconv.ParseFloat(line[space+1:], 64); err != nil {
			return nil, fmt.Errorf("metric %q: %w", line, err)
		}
	}
	return all, nil
}

// counted waits until a counter of a program has increased.
func (b *bed) counted(t *testing.T, program, metric string, labels ...string) {
	t.Helper()
	kit.Succeeds(t, bounded, fmt.Sprintf("%s counts %s %v", program, metric, labels), func() error {
		samples, err := b.scrape(program)
		if err == nil && samples.Sum(metric, labels...) == 0 {
			err = errors.New("0")
		}
		return err
	})
}

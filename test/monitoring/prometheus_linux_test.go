//go:build linux

package monitoring

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/monitoring/picture"
)

// prometheusServer is a Prometheus that scrapes both programs.
type prometheusServer struct {
	client *http.Client
	// interval is the time between scrapes, and between the points of a picture.
	interval time.Duration
}

// prometheusAddress is the server's address, in the namespace of cluster DNS.
const prometheusAddress = "127.0.0.1:9090"

// startPrometheus starts Debian's Prometheus, with the labels of deploy/monitoring.
func (b *bed) startPrometheus(t *testing.T, interval time.Duration) *prometheusServer {
	t.Helper()
	in := t.TempDir()
	path := filepath.Join(in, "prometheus.yaml")
	text := fmt.Sprintf("global: {scrape_interval: %s, scrape_timeout: 1s}\nscrape_configs:\n", interval)
	for _, program := range []string{nodecache, clusterdns} {
		text += fmt.Sprintf("- job_name: %s\n  static_configs:\n  - {targets: ['%s'], labels: {node: %s}}\n", program, strings.Join(endpoints[program], "', '"), nodeName)
	}
	kit.Write(t, path, text)
	b.Upstream.Start(t, "prometheus", "--config.file="+path, "--storage.tsdb.path="+filepath.Join(in, "data"), "--web.listen-address="+prometheusAddress, "--log.level=warn")
	p := &prometheusServer{client: b.Upstream.Client(), interval: interval}
	for _, program := range []string{nodecache, clusterdns} {
		kit.Succeeds(t, bounded, "Prometheus has scraped "+program, func() error {
			all, err := p.query(fmt.Sprintf(`up{job=%q} == 1`, program), time.Now(), time.Now(), true)
			if err == nil && len(all) != len(endpoints[program]) {
				err = fmt.Errorf("%d are up", len(all))
			}
			return err
		})
	}
	return p
}

// answer is a response of the HTTP API of Prometheus.
type answer struct {
	Error string `json:"error"`
	Data  struct {
		Result []struct {
			Metric map[string]string `json:"metric"`
			Value  sampleJSON        `json:"value"`
			Values []sampleJSON      `json:"values"`
		} `json:"result"`
	} `json:"data"`
}

// sampleJSON is a time and a value, which is a string.
type sampleJSON picture.Point

func (s *sampleJSON) UnmarshalJSON(text []byte) error {
	var value string
	if err := json.Unmarshal(text, &[]any{&s.T, &value}); err != nil {
		return err
	}
	var err error
	s.V, err = strconv.ParseFloat(value, 64)
	return err
}

// query returns an expression's values between two times, or at the end alone.
func (p *prometheusServer) query(expression string, start, end time.Time, instant bool) (all []picture.Series, err error) {
	seconds := func(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
	form, path := url.Values{"query": {expression}, "time": {seconds(end)}}, "query"
	if !instant {
		form, path = url.Values{"query": {expression}, "start": {seconds(start)}, "end": {seconds(end)}, "step": {p.interval.String()}}, "query_range"
	}
	response, err := p.client.PostForm("http://"+prometheusAddress+"/api/v1/"+path, form)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, fmt.Errorf("%s: %w: %s", expression, err, text)
	}
	if a.Error != "" {
		return nil, fmt.Errorf("%s: %s", expression, a.Error)
	}
	for _, r := range a.Data.Result {
		s := picture.Series{Labels: r.Metric}
		if instant {
			r.Values = []sampleJSON{r.Value}
		}
		for _, v := range r.Values {
			s.Points = append(s.Points, picture.Point(v))
		}
		all = append(all, s)
	}
	return all, nil
}

package main

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// requestsMetric counts the queries of a server.
const requestsMetric = "coredns_dns_requests_total{"

// requests returns the number of queries that the server on a metrics port has answered.
func requests(port int) (float64, error) { return sample(port, requestsMetric) }

// sample returns the sum of the samples of a metric of the server on a metrics port.
func sample(port int, metric string) (float64, error) {
	return sampleBy(http.DefaultClient, port, metric)
}

// sampleBy is sample with a client, which may be in another network namespace.
func sampleBy(client *http.Client, port int, metric string) (float64, error) {
	response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("metrics: %s", response.Status)
	}
	return sumSamples(string(text), metric)
}

// sumSamples adds up the samples of a metric in Prometheus' text format: the lines that begin with a text.
func sumSamples(text, metric string) (sum float64, err error) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, metric) {
			continue
		}
		line = strings.TrimSpace(line)
		v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			return 0, fmt.Errorf("metrics: %q: %w", line, err)
		}
		sum += v
	}
	return sum, nil
}

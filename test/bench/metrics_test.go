package main

import "testing"

func TestSumRequests(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       float64
		bad        bool
	}{
		{"none", "", 0, false},
		{"another metric", "coredns_dns_requests_totally{x=\"y\"} 5\ncoredns_dns_responses_total{x=\"y\"} 5\n", 0, false},
		{"two samples among others", "# TYPE coredns_dns_requests_total counter\n" +
			"coredns_dns_requests_total{family=\"1\",proto=\"udp\",type=\"A\"} 5\ncoredns_dns_requests_total{family=\"1\",proto=\"tcp\",type=\"A\"} 1e+06\n" +
			"coredns_panics_total 3\n", 1000005, false},
		{"no number", "coredns_dns_requests_total{family=\"1\"} many\n", 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := sumSamples(c.text, requestsMetric)
			if got != c.want || (err != nil) != c.bad {
				t.Errorf("%v, error %v; want %v, error: %v", got, err, c.want, c.bad)
			}
		})
	}
}

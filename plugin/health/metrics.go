package health

import (
	"github.com/coredns/coredns/plugin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The metrics of CoreDNS's plugin.
var (
	duration = promauto.NewHistogram(prometheus.HistogramOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "request_duration_seconds",
		Buckets: plugin.SlimTimeBuckets, NativeHistogramBucketFactor: plugin.NativeHistogramBucketFactor,
		Help: "Duration of the requests of the process to its own /health.",
	})
	failures = promauto.NewCounter(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "request_failures_total",
		Help: "Requests of the process to its own /health that failed.",
	})
)

package trace

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// dropped counts spans that the collector does not receive.
var dropped = promauto.NewCounter(prometheus.CounterOpts{
	Namespace: "nearside", Subsystem: pluginName, Name: "dropped_spans_total",
	Help: "Spans that were not sent: too many waited for the collector, or it refused them.",
})

package daemon

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// notReloaded counts what coredns_reload_failed_total does not see: reloads that the program asked for
// itself, after a signal or a change.
var notReloaded = promauto.NewCounter(prometheus.CounterOpts{
	Namespace: "nearside",
	Name:      "reload_failed_total",
	Help:      "Reloads of the configuration, after a signal or a change, that left the configuration before in use.",
})

// reloadRefused says for as long as it lasts what the counters say once: whoever reloads, the directive
// reload included.
var reloadRefused = promauto.NewGauge(prometheus.GaugeOpts{
	Namespace: "nearside",
	Name:      "reload_refused",
	Help:      "Whether the configuration, as it was last read, was refused, so that the one before is in use (1) or not (0).",
})

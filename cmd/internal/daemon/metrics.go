package daemon

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// notReloaded counts failed reloads of this program itself, which coredns_reload_failed_total does not include.
var notReloaded = promauto.NewCounter(prometheus.CounterOpts{
	Namespace: "nearside",
	Name:      "reload_failed_total",
	Help:      "Reloads of the configuration, after a signal or a change, that left the configuration before in use.",
})

// reloadRefused is the state after the last reload by this program or by the directive reload; the counters count events.
var reloadRefused = promauto.NewGauge(prometheus.GaugeOpts{
	Namespace: "nearside",
	Name:      "reload_refused",
	Help:      "Whether the configuration, as it was last read, was refused, so that the one before is in use (1) or not (0).",
})

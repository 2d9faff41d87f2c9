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

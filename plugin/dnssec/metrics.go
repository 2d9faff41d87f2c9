package dnssec

import (
	"github.com/coredns/coredns/plugin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The metrics of CoreDNS's dnssec.
var (
	cacheEntries = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "cache_entries",
		Help: "Stored RRsets' signatures.",
	}, []string{"server", "type"})
	cacheHits = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "cache_hits_total",
		Help: "RRsets that were signed with stored signatures.",
	}, []string{"server"})
	cacheMisses = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "cache_misses_total",
		Help: "RRsets without stored signatures.",
	}, []string{"server"})
)

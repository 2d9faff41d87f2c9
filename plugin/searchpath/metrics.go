package searchpath

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
)

// expandMetrics counts the expansions of search names.
var expandMetrics = expand.NewMetrics(pluginName)

// rejected counts queries for names under the suffix that do not exist.
var rejected = promauto.NewCounterVec(prometheus.CounterOpts{
	Namespace: "nearside", Subsystem: pluginName, Name: "rejected_total",
	Help: "Queries for names under the suffix that carry no search path, by reason: name (not of the form), schema (unknown version), nested (queried for the answer to another search name).",
}, []string{"server", "reason"})

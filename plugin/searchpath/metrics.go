package searchpath

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
)

// results counts what search names have led to.
var results = expand.NewResults(pluginName)

// rejected counts the names under the suffix that do not exist.
var rejected = promauto.NewCounterVec(prometheus.CounterOpts{
	Namespace: "nearside", Subsystem: pluginName, Name: "rejected_total",
	Help: "Queries for names under the suffix that carry no search path, by reason: name (it is not of the form), schema (its version is not known), nested (it was asked for on the way to the answer to another).",
}, []string{"server", "reason"})

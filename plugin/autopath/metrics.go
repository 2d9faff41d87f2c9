package autopath

import (
	"github.com/coredns/coredns/plugin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/searchlist/expand"
)

// expandMetrics counts expansions, also under the name that CoreDNS's autopath has for them.
var expandMetrics = func() *expand.Metrics {
	m := expand.NewMetrics(pluginName)
	m.Found = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace, Subsystem: pluginName, Name: "success_total",
		Help: "Counter of requests that did autopath.",
	}, []string{"server"})
	return m
}()

// unknownClients counts queries in the plugin's zones from clients whose search list is unknown.
var unknownClients = promauto.NewCounterVec(prometheus.CounterOpts{
	Namespace: "nearside", Subsystem: pluginName, Name: "unknown_clients_total",
	Help: "Queries in the zones of autopath that were not expanded because the search list of the client is unknown, by reason (no_pod, host_network, ambiguous, ending, no_search_list, outdated).",
}, []string{"server", "reason"})

func unknownClient(server string, reason searchlist.Unknown) prometheus.Counter {
	return unknownClients.WithLabelValues(server, reason.String())
}

// countClient counts a query for the namespace of its client's search list, or for the reason why the list is unknown.
func countClient(server string, list *searchlist.List, reason searchlist.Unknown) {
	if list == nil {
		unknownClient(server, reason).Inc()
		return
	}
	list.Namespace.Inc()
}

// namespaceQueries exports the counters that package searchlist has for namespaces.
type namespaceQueries struct{ desc *prometheus.Desc }

func init() {
	prometheus.MustRegister(namespaceQueries{prometheus.NewDesc(
		prometheus.BuildFQName("nearside", pluginName, "namespace_queries_total"),
		"Queries in the zones of autopath from pods with a known search list, by the namespace of the pod.",
		[]string{"namespace"}, nil)})
}

// Describe implements prometheus.Collector.
func (q namespaceQueries) Describe(ch chan<- *prometheus.Desc) { ch <- q.desc }

// Collect implements prometheus.Collector.
func (q namespaceQueries) Collect(ch chan<- prometheus.Metric) {
	for _, n := range searchlist.Namespaces() {
		ch <- prometheus.MustNewConstMetric(q.desc, prometheus.CounterValue, float64(n.Queries()), n.Name)
	}
}

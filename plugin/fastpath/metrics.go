package fastpath

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const (
	namespace = "nearside"
	subsystem = "fastpath"
)

var (
	answered = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "answered_total",
		Help: "Queries that were answered from stored answers.",
	}, []string{"server"})
	resolved = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "resolved_total",
		Help: "Queries without a stored answer that were answered without the plugin chain.",
	}, []string{"server"})
	handedOver = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "handed_over_total",
		Help: "Queries that were handed to the plugin chain.",
	}, []string{"server"})
	dropped = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "dropped_total",
		Help: "Queries without an answer: the client had too many queries or the query waited too long (overload), or the answer could not be sent (send).",
	}, []string{"server", "reason"})
	inFlight = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "in_flight",
		Help: "Queries without a stored answer that are in progress, or that wait for a free place.",
	}, []string{"server"})
	socketsOpen = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "sockets",
		Help: "Sockets that the fast path reads; 0 if all queries go to the plugin chain.",
	}, []string{"server"})
	steered = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "steered",
		Help: "Whether the kernel delivers all datagrams to the fast path (1), or a share to CoreDNS's own socket (0).",
	}, []string{"server"})
)

// listenerMetrics are the metrics of a listener.
type listenerMetrics struct {
	answered, resolved, handedOver, droppedOverload, droppedSend prometheus.Counter
	inFlight                                                     prometheus.Gauge
}

func newListenerMetrics(server string) *listenerMetrics {
	return &listenerMetrics{
		answered:        answered.WithLabelValues(server),
		resolved:        resolved.WithLabelValues(server),
		handedOver:      handedOver.WithLabelValues(server),
		droppedOverload: dropped.WithLabelValues(server, "overload"),
		droppedSend:     dropped.WithLabelValues(server, "send"),
		inFlight:        inFlight.WithLabelValues(server),
	}
}

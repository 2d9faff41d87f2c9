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
	handedOver = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "handed_over_total",
		Help: "Queries without a stored answer, which were handed to the plugins.",
	}, []string{"server"})
	dropped = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "dropped_total",
		Help: "Queries without an answer, over TCP answered SERVFAIL: the client had too many queries or the query waited too long (overload), or the answer could not be sent (send).",
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
	connectionsOpen = promauto.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "connections",
		Help: "Open connections over TCP.",
	}, []string{"server"})
	connectionsClosed = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "connections_closed_total",
		Help: "Connections over TCP that were closed because of a limit: the client or the process had too many (client, process), a query was incomplete for too long (unfinished), the client did not read its answers (unread), or the buffers were too large (memory).",
	}, []string{"server", "reason"})
	connectionsPaused = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "connections_paused_total",
		Help: "Pauses in reading a connection over TCP: too many of its queries were in progress (in_flight), or the client did not read its answers (unsent).",
	}, []string{"server", "reason"})
	acceptFailures = promauto.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Subsystem: subsystem, Name: "accept_failures_total",
		Help: "Failures to accept a connection over TCP, for example at the limit of open files.",
	}, []string{"server"})
)

// closeReason is the reason why a connection was closed.
type closeReason int

// The reasons. Those in closeLabels are reached limits.
const (
	closedByClient closeReason = iota
	closedByServer
	closedIdle
	closedForClient
	closedForProcess
	closedUnfinished
	closedUnread
	closedForMemory
	closedSilent
	closedMalformed
	closeReasons
)

var closeLabels = [closeReasons]string{
	closedForClient: "client", closedForProcess: "process", closedUnfinished: "unfinished", closedUnread: "unread",
	closedForMemory: "memory",
}

// listenerMetrics are the metrics of a listener.
type listenerMetrics struct {
	answered, handedOver, droppedOverload, droppedSend prometheus.Counter
	inFlight                                           prometheus.Gauge

	connections                                  prometheus.Gauge
	closed                                       [closeReasons]prometheus.Counter // nil without a label
	pausedInFlight, pausedUnsent, acceptFailures prometheus.Counter
}

func newListenerMetrics(server string) *listenerMetrics {
	m := &listenerMetrics{
		answered:        answered.WithLabelValues(server),
		handedOver:      handedOver.WithLabelValues(server),
		droppedOverload: dropped.WithLabelValues(server, "overload"),
		droppedSend:     dropped.WithLabelValues(server, "send"),
		inFlight:        inFlight.WithLabelValues(server),
		connections:     connectionsOpen.WithLabelValues(server),
		pausedInFlight:  connectionsPaused.WithLabelValues(server, "in_flight"),
		pausedUnsent:    connectionsPaused.WithLabelValues(server, "unsent"),
		acceptFailures:  acceptFailures.WithLabelValues(server),
	}
	for reason, label := range closeLabels {
		if label != "" {
			m.closed[reason] = connectionsClosed.WithLabelValues(server, label)
		}
	}
	return m
}

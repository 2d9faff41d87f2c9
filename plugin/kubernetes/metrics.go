package kubernetes

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/push"
)

// metricNamespace is the namespace of metrics that CoreDNS does not have.
const metricNamespace = "nearside"

// sessionMetrics are the metrics of the sessions with node caches. They are exported only while sessions are offered, so that
// coherence_live is not 0 in a process without option coherent.
type sessionMetrics struct {
	registry                                                      *push.Registry
	sessions, subscriptions, live, invalidations, refused, closed *prometheus.Desc
}

func init() { prometheus.MustRegister(newSessionMetrics(push.Process)) }

func newSessionMetrics(r *push.Registry) *sessionMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metricNamespace, pluginName, "coherence_"+name), help, labels, nil)
	}
	return &sessionMetrics{
		registry:      r,
		sessions:      desc("sessions", "Sessions with node caches."),
		subscriptions: desc("subscriptions", "Subscriptions of all sessions to changes of data that answers depend on."),
		live:          desc("live", "1 while heartbeats are sent, 0 while the view of the cluster is not known to be current."),
		invalidations: desc("invalidations_total", "Handles of changed data that were sent to sessions."),
		refused:       desc("refused_total", "Subscriptions beyond a limit (session, source: a quarter of the free ones for all sessions with clients of one address, process), whose answers have no handles.", "reason"),
		closed:        desc("closed_total", "Sessions that the server has closed: the client did not read (unread), was silent, or sent a malformed message.", "reason"),
	}
}

// Describe implements prometheus.Collector.
func (m *sessionMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.sessions, m.subscriptions, m.live, m.invalidations, m.refused, m.closed} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *sessionMetrics) Collect(ch chan<- prometheus.Metric) {
	if !m.registry.Offers() {
		return
	}
	s := m.registry.Statistics()
	live := 0.0
	if s.Live {
		live = 1
	}
	ch <- prometheus.MustNewConstMetric(m.sessions, prometheus.GaugeValue, float64(s.Sessions))
	ch <- prometheus.MustNewConstMetric(m.subscriptions, prometheus.GaugeValue, float64(s.Subscriptions))
	ch <- prometheus.MustNewConstMetric(m.live, prometheus.GaugeValue, live)
	ch <- prometheus.MustNewConstMetric(m.invalidations, prometheus.CounterValue, float64(s.Invalidations))
	for i, n := range s.Refused {
		ch <- prometheus.MustNewConstMetric(m.refused, prometheus.CounterValue, float64(n), push.RefuseReason(i).String())
	}
	for i, n := range s.Closed {
		ch <- prometheus.MustNewConstMetric(m.closed, prometheus.CounterValue, float64(n), push.CloseReason(i).String())
	}
}

//go:build linux

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// vouched is the time after a heartbeat in which a session extends the validity of answers.
const vouched = time.Second

// offering is the advice for cluster DNS that offers no sessions.
const offering = "set coherent in the kubernetes block of clusterdns, in a server block without hosts and with a fast path (its log names the plugin that prevents one); if cluster DNS is CoreDNS, nodecache caches answers for their TTL, and coherent can be removed from its Corefile"

// maxMetrics limits the size of a page of metrics, in bytes.
const maxMetrics = 8 << 20

// families are the metrics of a program, by name.
type families map[string]*dto.MetricFamily

// value returns the sum of the gauges and counters of a name that have all of these labels, and whether any has them.
func (f families) value(name string, labels map[string]string) (sum float64, found bool) {
	for _, m := range f[name].GetMetric() {
		if hasLabels(m, labels) {
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
			found = true
		}
	}
	return sum, found
}

// byLabel returns the positive values of a gauge or counter that has all of these labels, by the value of another label.
func (f families) byLabel(name string, labels map[string]string, label string) map[string]float64 {
	all := map[string]float64{}
	for _, m := range f[name].GetMetric() {
		if n := m.GetGauge().GetValue() + m.GetCounter().GetValue(); n > 0 && hasLabels(m, labels) {
			all[labelOf(m, label)] += n
		}
	}
	return all
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func hasLabels(m *dto.Metric, labels map[string]string) bool {
	for name, value := range labels {
		if labelOf(m, name) != value {
			return false
		}
	}
	return true
}

// scrape reads the metrics of a program, over TLS if the endpoint has it.
func (n *node) scrape(ctx context.Context, endpoint netip.AddrPort) (all families, err error) {
	for _, scheme := range []string{"http", "https"} {
		_, err = n.get(ctx, scheme+"://"+endpoint.String()+"/metrics", func(body io.Reader) error {
			parser := expfmt.NewTextParser(model.UTF8Validation)
			all, err = parser.TextToMetricFamilies(io.LimitReader(body, maxMetrics))
			return err
		})
		if !errors.Is(err, statusError(http.StatusBadRequest)) { // Go's TLS server answers a request without TLS with status 400
			break
		}
	}
	return all, err
}

// probeCoherence reports the sessions over which cluster DNS notifies nodecache of answers that are no longer valid, from
// the metrics of both.
func (n *node) probeCoherence(ctx context.Context) []Line {
	s := n.setup()
	switch {
	case !s.corefile:
		return nil
	case len(s.coherent) == 0:
		return one("coherence", "not configured: answers are cached for their TTL", OK, "")
	case !s.metrics.IsValid():
		return one("coherence", "nodecache exports no metrics", Skip, "add prometheus to the server block with coherent")
	}
	metrics, err := n.scrape(ctx, s.metrics)
	if err != nil {
		return one("coherence", "metrics of nodecache at "+s.metrics.String()+": "+reason(err), Skip, "read the log of nodecache: it may not run, or another process has the port")
	}
	var lines []Line
	for _, server := range s.coherent {
		lines = append(lines, judgeSessions(metrics, server))
	}
	if s.clusterMetrics.IsValid() {
		lines = append(lines, n.coherenceOfCluster(ctx, s.clusterMetrics))
	}
	return lines
}

// judgeSessions judges the sessions with one server, by the metrics of nodecache.
func judgeSessions(metrics families, server netip.AddrPort) Line {
	to := map[string]string{"to": server.String()}
	sessions, _ := metrics.value("nearside_forward_coherence_sessions", to)
	seconds, heard := metrics.value("nearside_forward_coherence_heartbeat_age_seconds", to)
	heard = heard && seconds < math.MaxInt32 // neither infinite nor NaN
	age := time.Duration(min(seconds, math.MaxInt32) * float64(time.Second))
	fallbacks := metrics.byLabel("nearside_forward_coherence_fallbacks_total", to, "reason")
	line := Line{Check: "coherence " + shown(server), Value: count(sessions, "session"), Verdict: OK}
	switch {
	case sessions == 0 && fallbacks["unsupported"] > 0: // since nodecache's start; cluster DNS may be replaced or down now
		line.Value, line.Verdict = "no session: cluster DNS offered none before", Warn
		line.Advice = "if cluster DNS answers by the lines on it: " + offering + "; nodecache requests a session again within an hour, or after a restart"
	case sessions == 0:
		line.Value, line.Verdict = "no session", Warn
		line.Advice = "nodecache requests one with a query to cluster DNS over TCP, up to an hour after a failure, and caches answers for their TTL until then: see the lines on cluster DNS, and the log of nodecache"
	case !heard:
		line.Value, line.Verdict = line.Value+", no heartbeat", Warn
		line.Advice = "answers are cached for their TTL: clusterdns sends no heartbeat until it has read the cluster, see its log"
	case age >= vouched:
		line.Value += ", last heartbeat " + age.Round(100*time.Millisecond).String() + " ago"
		line.Verdict = Warn
		line.Advice = "answers are cached for their TTL: clusterdns sends no heartbeat while a watch is frozen or the API server is silent, see its log; or this node does not reach it"
	default:
		line.Value += ", last heartbeat " + milliseconds(age) + " ago"
	}
	if len(fallbacks) > 0 {
		line.Value += "; fallbacks: " + counts(fallbacks)
	}
	return line
}

// coherenceOfCluster judges a replica of cluster DNS by its own metrics. The Service selects the replica, with which
// nodecache need not have a session.
func (n *node) coherenceOfCluster(ctx context.Context, endpoint netip.AddrPort) Line {
	line := Line{Check: "coherence of cluster DNS"}
	metrics, err := n.scrape(ctx, endpoint)
	if err != nil {
		line.Value, line.Verdict = "metrics at "+endpoint.String()+": "+reason(err), Skip
		line.Advice = "its Service has a port for metrics: is prometheus in the Corefile of clusterdns, and does a network policy drop the request?"
		return line
	}
	live, offered := metrics.value("nearside_kubernetes_coherence_live", nil)
	sessions, _ := metrics.value("nearside_kubernetes_coherence_sessions", nil)
	subscriptions, _ := metrics.value("nearside_kubernetes_coherence_subscriptions", nil)
	line.Value = count(sessions, "session") + ", " + count(subscriptions, "subscription")
	switch {
	case !offered:
		line.Value, line.Verdict = "offers no sessions", Warn
		line.Advice = offering
	case live == 0:
		line.Value, line.Verdict = "not live, "+line.Value, Warn
		line.Advice = "it sends no heartbeats, so nodes cache answers for their TTL: read its log on watches and the API server"
	default:
		line.Value, line.Verdict = "live, "+line.Value, OK
	}
	return line
}

// count prints a number with a noun.
func count(n float64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%.0f %s", n, noun)
}

// counts prints numbers with their names, in the order of the names.
func counts(all map[string]float64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		parts = append(parts, fmt.Sprintf("%s %.0f", name, all[name]))
	}
	return strings.Join(parts, ", ")
}

package apiserver

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/metrics"

	"github.com/nearside-dns/nearside/plugin/internal/corefile"
	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

const subsystem = "kubernetes"

// exclusive registers metrics that CoreDNS's plugin kubernetes has as well.
type exclusive struct{ prometheus.Registerer }

// MustRegister ends the process with one line if the program has CoreDNS's plugin too.
func (e exclusive) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := e.Register(c); err != nil {
			corefile.ExitReplaced(subsystem)
		}
	}
}

var factory = promauto.With(exclusive{prometheus.DefaultRegisterer})

var (
	// programmingDuration is the SLI "DNS programming latency" of SIG Scalability: from the change of a Service or a ready
	// pod, in the annotation of the EndpointSlice controller, to the first answer with the change.
	programmingDuration = factory.NewHistogramVec(prometheus.HistogramOpts{
		Namespace:                   plugin.Namespace,
		Subsystem:                   subsystem,
		Name:                        "dns_programming_duration_seconds",
		Help:                        "Time from the change of a Service or its pods to the moment that answers show it, in seconds.",
		Buckets:                     prometheus.ExponentialBuckets(0.001, 2, 20), // 1 ms to 9 minutes
		NativeHistogramBucketFactor: plugin.NativeHistogramBucketFactor,
	}, []string{"service_kind"})

	requestDuration = factory.NewHistogramVec(prometheus.HistogramOpts{
		Namespace:                   plugin.Namespace,
		Subsystem:                   subsystem,
		Name:                        "rest_client_request_duration_seconds",
		Help:                        "Time that requests to the API server took, in seconds, by verb and host.",
		Buckets:                     prometheus.DefBuckets,
		NativeHistogramBucketFactor: plugin.NativeHistogramBucketFactor,
	}, []string{"verb", "host"})

	rateLimiterDuration = factory.NewHistogramVec(prometheus.HistogramOpts{
		Namespace:                   plugin.Namespace,
		Subsystem:                   subsystem,
		Name:                        "rest_client_rate_limiter_duration_seconds",
		Help:                        "Time that requests to the API server waited for apiserver_qps and apiserver_burst, in seconds, by verb and host.",
		Buckets:                     prometheus.DefBuckets,
		NativeHistogramBucketFactor: plugin.NativeHistogramBucketFactor,
	}, []string{"verb", "host"})

	requestsTotal = factory.NewCounterVec(prometheus.CounterOpts{
		Namespace: plugin.Namespace,
		Subsystem: subsystem,
		Name:      "rest_client_requests_total",
		Help:      "Requests to the API server by status code, method and host.",
	}, []string{"code", "method", "host"})

	watchesFrozen = factory.NewCounterVec(prometheus.CounterOpts{
		Namespace: "nearside",
		Subsystem: subsystem,
		Name:      "watches_frozen_total",
		Help:      "Watches that were replaced because they reported nothing for minutes while the API server answered.",
	}, []string{"resource"})
)

func init() {
	metrics.Register(metrics.RegisterOpts{
		RequestLatency:     latency{requestDuration},
		RateLimiterLatency: latency{rateLimiterDuration},
		RequestResult:      results{requestsTotal},
	})
}

type latency struct{ *prometheus.HistogramVec }

func (l latency) Observe(_ context.Context, verb string, u url.URL, d time.Duration) {
	l.WithLabelValues(verb, labelValue(u.Host)).Observe(d.Seconds())
}

type results struct{ *prometheus.CounterVec }

func (r results) Increment(_ context.Context, code, method, host string) {
	r.WithLabelValues(code, method, labelValue(host)).Inc()
}

// labelValue makes a host a valid label value: these are UTF-8.
func labelValue(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// programmed observes the time between changes of endpoints and their answers.
type programmed struct{ index *index.Index }

func (p programmed) observe(o metav1.Object, s *index.Slice) {
	changed, err := time.Parse(time.RFC3339Nano, o.GetAnnotations()[corev1.EndpointsLastChangeTriggerTime])
	if err != nil || s == nil {
		return // not an EndpointSlice of the controller
	}
	e := p.index.Service(s.Namespace, s.Service)
	if e == nil {
		return
	}
	kind := "cluster_ip"
	if e.Service.Kind == index.Headless {
		kind = "headless_with_selector"
	}
	programmingDuration.WithLabelValues(kind).Observe(time.Since(changed).Seconds())
}

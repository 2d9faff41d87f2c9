package main

import (
	"bytes"
	"context"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nearside-dns/nearside/test/kubeapi"
)

// labelOf returns the value of a metric's label.
func labelOf(m *dto.Metric, name string) string {
	i := slices.IndexFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == name })
	if i < 0 {
		return ""
	}
	return m.GetLabel()[i].GetValue()
}

// flowSchema is the flow schema of API priority and fairness for the instances, whose user is a service account of kube-system.
const flowSchema = "kube-system-service-accounts"

// flow is what the API server's metrics have about the requests of the instances, since its start.
type flow struct {
	at                            time.Time
	dispatched, rejected, inQueue float64
	waited                        float64 // seconds, all requests together
	watchLists, lists             float64 // streamed lists, and others, of all clients
}

// metricsOf reads the metrics of the API server.
func metricsOf(ctx context.Context, api *kubeapi.Server) (map[string]*dto.MetricFamily, error) {
	text, err := api.Plane().Client().CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(bytes.NewReader(text))
}

// readFlow reads a flow.
func readFlow(ctx context.Context, api *kubeapi.Server) (f flow, err error) {
	families, err := metricsOf(ctx, api)
	if err != nil {
		return f, err
	}
	sum := func(name string, value func(*dto.Metric) float64, label, want string) (sum float64) {
		for _, m := range families[name].GetMetric() {
			if labelOf(m, label) == want {
				sum += value(m)
			}
		}
		return sum
	}
	counter := func(m *dto.Metric) float64 { return m.GetCounter().GetValue() }
	f.at = time.Now()
	f.dispatched = sum("apiserver_flowcontrol_dispatched_requests_total", counter, "flow_schema", flowSchema)
	f.rejected = sum("apiserver_flowcontrol_rejected_requests_total", counter, "flow_schema", flowSchema)
	f.inQueue = sum("apiserver_flowcontrol_current_inqueue_requests", func(m *dto.Metric) float64 { return m.GetGauge().GetValue() }, "flow_schema", flowSchema)
	f.waited = sum("apiserver_flowcontrol_request_wait_duration_seconds", func(m *dto.Metric) float64 { return m.GetHistogram().GetSampleSum() }, "flow_schema", flowSchema)
	f.lists = sum("apiserver_request_total", counter, "verb", "LIST")
	for _, m := range families["apiserver_watch_list_duration_seconds"].GetMetric() {
		f.watchLists += float64(m.GetHistogram().GetSampleCount())
	}
	return f, nil
}

// flows are samples of the API server's metrics.
type flows struct {
	all  []flow
	stop chan struct{}
	done chan struct{}
}

// flowPause is the time between two samples.
const flowPause = 500 * time.Millisecond

// sampleFlow samples the metrics until end, also while the API server does not answer.
func sampleFlow(ctx context.Context, api *kubeapi.Server) *flows {
	s := &flows{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for {
			if f, err := readFlow(ctx, api); err == nil {
				s.all = append(s.all, f)
			}
			select {
			case <-s.stop:
				return
			case <-time.After(flowPause):
			}
		}
	}()
	return s
}

// end ends the sampling, with a last sample.
func (s *flows) end(ctx context.Context, api *kubeapi.Server) error {
	close(s.stop)
	<-s.done
	last, err := readFlow(ctx, api)
	s.all = append(s.all, last)
	return err
}

// restarted drops the samples of the API server that ended before another one accepted connections, which began with no requests.
func (s *flows) restarted(accepts time.Time) {
	s.all = slices.DeleteFunc(s.all, func(f flow) bool { return f.at.Before(accepts) })
	s.all = slices.Insert(s.all, 0, flow{at: accepts})
}

// highest returns the highest rate of requests per second, dispatched and rejected, and the most in a queue.
func (s *flows) highest() (rate, inQueue float64) {
	last := s.all[0]
	for _, f := range s.all {
		inQueue = max(inQueue, f.inQueue)
		if passed := f.at.Sub(last.at).Seconds(); passed > 0 {
			rate = max(rate, (f.dispatched+f.rejected-last.dispatched-last.rejected)/passed)
		}
		last = f
	}
	return rate, inQueue
}

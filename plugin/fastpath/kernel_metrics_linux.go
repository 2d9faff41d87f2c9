//go:build amd64 || arm64

package fastpath

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/fastpath/kernel"
)

// kernelCollector exports the numbers of the program in the kernel, while there is one.
type kernelCollector struct {
	sources                                        atomic.Pointer[kernelSources]
	state                                          atomic.Pointer[float64] // whether the program is loaded; nil without the option
	entries, answered, passed, refused, interfaces *prometheus.Desc
	isLoaded                                       *prometheus.Desc
}

type kernelSources struct {
	table      *kernel.Table
	interfaces *kernel.Interfaces
}

// set sets the sources, nil for none.
func (c *kernelCollector) set(table *kernel.Table, interfaces *kernel.Interfaces) {
	if table == nil {
		c.sources.Store(nil)
		return
	}
	c.sources.Store(&kernelSources{table, interfaces})
}

// loaded sets whether the program is loaded, while a server has the option.
func (c *kernelCollector) loaded(is bool) {
	state := 0.0
	if is {
		state = 1
	}
	c.state.Store(&state)
}

// unused ends all metrics: no server has the option.
func (c *kernelCollector) unused() {
	c.set(nil, nil)
	c.state.Store(nil)
}

var kernelMetrics = newKernelCollector()

func init() { prometheus.MustRegister(kernelMetrics) }

func newKernelCollector() *kernelCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "kernel", name), help, labels, nil)
	}
	return &kernelCollector{
		entries:    desc("entries", "Stored answers from which the kernel answers queries."),
		answered:   desc("answered_total", "Queries that the kernel has answered."),
		passed:     desc("passed_total", "Queries to the node-local addresses that the kernel has passed on to their sockets, by reason.", "reason"),
		refused:    desc("refused_total", "Offers of stored answers that were not copied to the kernel: no form for it, or no room."),
		isLoaded:   desc("loaded", "Whether the program is loaded."),
		interfaces: desc("interfaces", "Interfaces of pods, and lo: with the program (attached), and without it, by the reason.", "state"),
	}
}

// Describe implements prometheus.Collector.
func (c *kernelCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.entries, c.answered, c.passed, c.refused, c.interfaces, c.isLoaded} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *kernelCollector) Collect(ch chan<- prometheus.Metric) {
	if state := c.state.Load(); state != nil {
		ch <- prometheus.MustNewConstMetric(c.isLoaded, prometheus.GaugeValue, *state)
	}
	from := c.sources.Load()
	if from == nil {
		return
	}
	s, state := from.table.Statistics(), from.interfaces.State()
	ch <- prometheus.MustNewConstMetric(c.entries, prometheus.GaugeValue, float64(s.Entries))
	ch <- prometheus.MustNewConstMetric(c.answered, prometheus.CounterValue, float64(s.Answered))
	ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(s.Refused))
	for reason, n := range s.Passed {
		ch <- prometheus.MustNewConstMetric(c.passed, prometheus.CounterValue, float64(n), reason)
	}
	ch <- prometheus.MustNewConstMetric(c.interfaces, prometheus.GaugeValue, float64(state.Attached), "attached")
	for reason, n := range state.Refused {
		ch <- prometheus.MustNewConstMetric(c.interfaces, prometheus.GaugeValue, float64(n), string(reason))
	}
}

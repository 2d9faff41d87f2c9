package fastpath

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/coredns/coredns/plugin/metrics/vars"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nearside-dns/nearside/test/property"
)

// gathered returns the histograms of a collector by the value of their label.
func gathered(t *testing.T, c prometheus.Collector) map[string]*dto.Histogram {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%d families: %v", len(families), err)
	}
	all := map[string]*dto.Histogram{}
	for _, m := range families[0].GetMetric() {
		all[m.GetLabel()[0].GetValue()] = m.GetHistogram()
	}
	return all
}

// equalHistograms fails the test unless two histograms are equal, except for the rounding of the sum.
func equalHistograms(t *testing.T, label string, got, want *dto.Histogram) {
	t.Helper()
	if got.GetSampleCount() != want.GetSampleCount() || math.Abs(got.GetSampleSum()-want.GetSampleSum()) > 1e-9*want.GetSampleSum() {
		t.Errorf("%s: %d with the sum %v, want %d with %v", label, got.GetSampleCount(), got.GetSampleSum(), want.GetSampleCount(), want.GetSampleSum())
	}
	for i, b := range want.GetBucket() {
		if g := got.GetBucket()[i]; g.GetCumulativeCount() != b.GetCumulativeCount() || g.GetUpperBound() != b.GetUpperBound() {
			t.Errorf("%s: bucket %v, want %v", label, g, b)
		}
	}
	if got.GetSchema() != want.GetSchema() || got.GetZeroCount() != want.GetZeroCount() {
		t.Errorf("%s: schema %d and %d zeros, want %d and %d", label, got.GetSchema(), got.GetZeroCount(), want.GetSchema(), want.GetZeroCount())
	}
	isEmpty := func(_ int, n int64) bool { return n == 0 }
	native, wanted := nativeBuckets(got), nativeBuckets(want)
	maps.DeleteFunc(native, isEmpty) // the client fills small gaps
	maps.DeleteFunc(wanted, isEmpty)
	if !maps.Equal(native, wanted) {
		t.Errorf("%s: native buckets %v, want %v", label, native, wanted)
	}
}

// TestHistogram observes random values, each many times, and compares with a histogram of the Prometheus client that observes them
// one by one.
func TestHistogram(t *testing.T) { property.Seeds(t, 1, 3, checkHistogram) }

func checkHistogram(t *testing.T, seed uint64) {
	p := rand.New(rand.NewPCG(seed, 0))                      // #nosec G404 -- repeatable
	for _, factor := range []float64{0, 1.05, 1.5, 4, 100} { // none, and schemas 4 to -2
		opts := prometheus.HistogramOpts{Name: "h", Help: "h", Buckets: []float64{0, 1e-6, 0.5, 1, 64, 511, 4096}, NativeHistogramBucketFactor: factor}
		here, there := newHistogramVec(prometheus.NewHistogramVec(opts, []string{"l"})), prometheus.NewHistogramVec(opts, []string{"l"})
		for range 2000 {
			label := []string{"a", "b", "c"}[p.IntN(3)]
			value := []float64{0, float64(p.IntN(1300)), math.Ldexp(1, p.IntN(80)-40), p.Float64() * 1e-6, p.Float64() * 1e6}[p.IntN(5)]
			n := uint64(p.IntN(3 * minAtOnce)) // #nosec G115 -- small
			here.with(label).observe(n, value)
			own := there.WithLabelValues(label)
			for range n {
				own.Observe(value)
			}
		}
		got, want := gathered(t, here), gathered(t, there)
		if len(got) != 3 || len(want) != 3 {
			t.Fatalf("%d series, want %d", len(got), len(want))
		}
		for label, h := range want {
			equalHistograms(t, label, got[label], h)
		}
	}
}

// TestHistogram_Coarser adds observations to a histogram whose native buckets have become coarser.
func TestHistogram_Coarser(t *testing.T) {
	p := rand.New(rand.NewPCG(1, 0)) // #nosec G404 -- repeatable
	fine := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "h", Help: "h", NativeHistogramBucketFactor: 1.05}, []string{"l"})
	coarse := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "h", Help: "h", NativeHistogramBucketFactor: 1.5})
	h := newHistogramVec(fine).with("a")
	for range 1000 {
		value := math.Exp2(40*p.Float64() - 20)
		h.observe(minAtOnce, value)
		for range minAtOnce {
			coarse.Observe(value)
		}
	}
	var got, want dto.Metric
	if err := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "h", Help: "h", NativeHistogramBucketFactor: 1.5}).Write(&got); err != nil {
		t.Fatal(err)
	}
	if err := coarse.Write(&want); err != nil {
		t.Fatal(err)
	}
	h.more.addTo(got.GetHistogram(), h.schema)
	equalHistograms(t, "a", got.GetHistogram(), want.GetHistogram())
}

// TestHistogram_Exported: the histograms of plugin prometheus are exported once, with the observations here.
func TestHistogram_Exported(t *testing.T) {
	server := fmt.Sprint(rand.Uint64()) // #nosec G404 -- another one each time
	requestSize.with(server, "zone", "view", "proto").observe(10, 44)
	vars.RequestSize.WithLabelValues(server, "zone", "view", "proto").Observe(45)
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "coredns_dns_request_size_bytes" })
	if i < 0 {
		t.Fatal("no histogram of sizes")
	}
	for _, m := range families[i].GetMetric() {
		if strings.Contains(m.String(), server) && m.GetHistogram().GetSampleCount() == 11 && m.GetHistogram().GetSampleSum() == 10*44+45 {
			return
		}
	}
	t.Errorf("%v", families[i])
}

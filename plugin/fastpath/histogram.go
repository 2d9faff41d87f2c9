package fastpath

import (
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// histogramVec exports one of CoreDNS's histograms, together with equal observations that were counted all at once. The Prometheus
// client cannot do that, and an observation in a native histogram takes 0.1 us: as long as the kernel's answer to a query.
type histogramVec struct {
	*prometheus.HistogramVec
	mu  sync.Mutex
	all map[string]*histogram // by keyOf
}

// export replaces a histogram in the default registry.
func export(v *prometheus.HistogramVec) *histogramVec {
	prometheus.Unregister(v)
	all := newHistogramVec(v)
	prometheus.MustRegister(all)
	return all
}

func newHistogramVec(v *prometheus.HistogramVec) *histogramVec {
	return &histogramVec{HistogramVec: v, all: map[string]*histogram{}}
}

// histogram is a histogram of a histogramVec, with one set of label values.
type histogram struct {
	own prometheus.Observer // CoreDNS's histogram

	mu     sync.Mutex
	bounds []float64 // upper bounds of the classic buckets
	schema int32     // of the native buckets
	zero   float64   // upper bound of the native bucket for 0
	more   observations
}

// observations are observations of values that are not negative.
type observations struct {
	number  uint64
	sum     float64
	classic []uint64       // by the index of the bucket; not cumulative
	zeros   uint64         // in the native bucket for 0
	native  map[int]uint64 // by the index of the bucket
}

// with returns the histogram with the values of the labels.
func (v *histogramVec) with(labels ...string) *histogram {
	own := v.WithLabelValues(labels...)
	metric, _ := own.(prometheus.Metric)
	var out dto.Metric
	if metric.Write(&out) != nil { // never, without exemplars
		return &histogram{own: own}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	key := keyOf(&out)
	h := v.all[key]
	if h == nil {
		h = &histogram{own: own, schema: out.Histogram.GetSchema(), zero: out.Histogram.GetZeroThreshold()}
		for _, b := range out.Histogram.GetBucket() {
			h.bounds = append(h.bounds, b.GetUpperBound())
		}
		h.more = observations{classic: make([]uint64, len(h.bounds)), native: map[int]uint64{}}
		v.all[key] = h
	}
	return h
}

// keyOf returns the labels of a metric as a key.
func keyOf(m *dto.Metric) string {
	var key strings.Builder
	for _, l := range m.GetLabel() { // in the order of their names
		key.WriteString(l.GetValue())
		key.WriteByte(0xff) // not in a label, which is UTF-8
	}
	return key.String()
}

// minAtOnce is the minimum number of equal observations that are counted at once.
const minAtOnce = 4

// observe observes a value n times.
func (h *histogram) observe(n uint64, value float64) {
	if n < minAtOnce || h.more.native == nil {
		for range n {
			h.own.Observe(value)
		}
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.more.number += n
	h.more.sum += float64(n) * value
	if i, _ := slices.BinarySearch(h.bounds, value); i < len(h.bounds) {
		h.more.classic[i] += n
	}
	if value <= h.zero {
		h.more.zeros += n
	} else {
		h.more.native[nativeIndex(value, h.schema)] += n
	}
}

// nativeIndex returns the index of the bucket of a native histogram that contains a value above 0: the upper bound of bucket i is
// 2^(i/2^schema), and belongs to it (specification of Prometheus's native histograms, section Schema).
func nativeIndex(value float64, schema int32) int {
	fraction, exponent := math.Frexp(value) // fraction is in [1/2, 1)
	each := math.Ldexp(1, int(schema))      // buckets for each power of 2; less than 1 with a negative schema
	if schema <= 0 {
		if fraction == 0.5 {
			exponent--
		}
		return int(math.Ceil(float64(exponent) * each))
	}
	return exponent*int(each) + int(math.Ceil(math.Log2(fraction)*each))
}

// Collect implements prometheus.Collector.
func (v *histogramVec) Collect(ch chan<- prometheus.Metric) {
	own := make(chan prometheus.Metric)
	go func() {
		defer close(own)
		v.HistogramVec.Collect(own)
	}()
	for m := range own {
		ch <- extended{m, v}
	}
}

// extended is a histogram of CoreDNS together with the observations that were counted at once.
type extended struct {
	prometheus.Metric
	vec *histogramVec
}

// Write implements prometheus.Metric.
func (s extended) Write(out *dto.Metric) error {
	if err := s.Metric.Write(out); err != nil {
		return err
	}
	s.vec.mu.Lock()
	h := s.vec.all[keyOf(out)]
	s.vec.mu.Unlock()
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.more.addTo(out.GetHistogram(), h.schema)
	}
	return nil
}

// addTo adds the observations to a histogram, given the schema of their native buckets. The histogram's schema may have become
// coarser.
func (o *observations) addTo(out *dto.Histogram, schema int32) {
	if o.number == 0 {
		return
	}
	*out.SampleCount += o.number
	*out.SampleSum += o.sum
	cumulative := uint64(0)
	for i, b := range out.GetBucket() {
		cumulative += o.classic[i]
		*b.CumulativeCount += cumulative
	}
	if out.Schema == nil {
		return
	}
	if out.ZeroCount != nil {
		*out.ZeroCount += o.zeros
	}
	buckets := nativeBuckets(out)
	for i, n := range o.native {
		buckets[ceilShift(i, schema-out.GetSchema())] += int64(n) // #nosec G115 -- a number of queries
	}
	setNativeBuckets(out, buckets)
}

// ceilShift returns the index of the bucket that contains bucket i, in a schema that is lower by a number.
func ceilShift(i int, by int32) int { return -(-i >> by) }

// nativeBuckets returns the native buckets of a histogram, by index.
func nativeBuckets(h *dto.Histogram) map[int]int64 {
	all := map[int]int64{}
	index, n, count := 0, 0, int64(0)
	for _, s := range h.GetPositiveSpan() {
		index += int(s.GetOffset())
		for range s.GetLength() {
			count += h.GetPositiveDelta()[n]
			all[index] = count
			index, n = index+1, n+1
		}
	}
	return all
}

func setNativeBuckets(h *dto.Histogram, all map[int]int64) {
	h.PositiveSpan, h.PositiveDelta = nil, nil
	next, before := 0, int64(0)
	for _, i := range slices.Sorted(maps.Keys(all)) {
		if offset := int32(i - next); offset != 0 || len(h.PositiveSpan) == 0 { // #nosec G115 -- an exponent
			h.PositiveSpan = append(h.PositiveSpan, &dto.BucketSpan{Offset: &offset, Length: new(uint32)})
		}
		*h.PositiveSpan[len(h.PositiveSpan)-1].Length++
		h.PositiveDelta = append(h.PositiveDelta, all[i]-before)
		next, before = i+1, all[i]
	}
}

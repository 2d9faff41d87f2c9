package trace

import (
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openzipkin/zipkin-go/model"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/zipkin"
)

// newTestCollector returns a collector that sends when the batch is full, every millisecond, or at its end. change may be nil.
func newTestCollector(t *testing.T, address string, change func(*settings, *collector)) *collector {
	t.Helper()
	endpoint, err := url.Parse("http://" + address + endpointPath)
	kit.Must(t, err)
	s := &settings{endpoint: endpoint, backlog: defaultBacklog, batch: defaultBatch, interval: time.Millisecond}
	if change != nil {
		change(s, nil)
	}
	c := newCollector(s)
	if change != nil {
		change(s, c)
	}
	running.start(c)
	t.Cleanup(Stopped)
	return c
}

// send sends spans that have their number as name.
func send(c *collector, from, to int) {
	for n := from; n < to; n++ {
		c.Send(model.SpanModel{SpanContext: model.SpanContext{TraceID: model.TraceID{Low: 1}, ID: model.ID(n + 1)}, Name: strconv.Itoa(n)})
	}
}

// names returns the numbers of spans.
func names(spans []zipkin.Span) string {
	var all []string
	for _, s := range spans {
		all = append(all, s.Name)
	}
	return strings.Join(all, " ")
}

// never has the interval of a collector that sends for other reasons only.
func never(s *settings, _ *collector) { s.interval = time.Hour }

func TestCollector_Batch(t *testing.T) {
	z := zipkin.New(t)
	c := newTestCollector(t, z.Address(), func(s *settings, c *collector) { never(s, c); s.batch = 3 })
	send(c, 0, 2)
	send(c, 2, 3)
	s := z.Await(t, "full batch", func(s zipkin.State) bool { return len(s.Spans) == 3 })
	if got := names(s.Spans); got != "0 1 2" || s.Requests != 1 {
		t.Errorf("%s in %d requests", got, s.Requests)
	}
}

func TestCollector_Interval(t *testing.T) {
	z := zipkin.New(t)
	send(newTestCollector(t, z.Address(), nil), 0, 1)
	z.Await(t, "span", func(s zipkin.State) bool { return len(s.Spans) == 1 })
}

// TestCollector_End sends the last spans at the end of the process.
func TestCollector_End(t *testing.T) {
	z := zipkin.New(t)
	c := newTestCollector(t, z.Address(), func(s *settings, c *collector) { never(s, c); s.backlog, s.batch = 5000, 5000 })
	send(c, 0, 2500)
	Stopped()
	s := z.Await(t, "last spans", func(s zipkin.State) bool { return len(s.Spans) == 2500 })
	if s.Requests != 1 { // as many as a batch
		t.Errorf("%d requests", s.Requests)
	}
	before := testutil.ToFloat64(dropped)
	send(c, 0, 1)
	if got := testutil.ToFloat64(dropped) - before; got != 1 {
		t.Errorf("%v dropped after the end, want 1", got)
	}
	if err := c.Close(); err != nil {
		t.Errorf("second end: %v", err)
	}
}

// TestCollector_Large sends many spans in requests of a limited size.
func TestCollector_Large(t *testing.T) {
	z := zipkin.New(t)
	c := newTestCollector(t, z.Address(), func(s *settings, c *collector) { never(s, c); s.backlog = 5000 })
	z.Hold()
	send(c, 0, 100)
	z.Await(t, "first request", func(s zipkin.State) bool { return s.Requests == 1 })
	send(c, 100, 2600)
	z.Release()
	s := z.Await(t, "all spans", func(s zipkin.State) bool { return len(s.Spans) == 2600 })
	if s.Requests != 4 {
		t.Errorf("%d requests, want 4: of 100, 1000, 1000 and 500", s.Requests)
	}
}

// TestCollector_Slow has a collector that does not reply: spans wait up to the limit, without waiting for it, and the newest are
// sent when it replies.
func TestCollector_Slow(t *testing.T) {
	lines := kit.Logged(t)
	z := zipkin.New(t)
	c := newTestCollector(t, z.Address(), func(s *settings, c *collector) { never(s, c); s.backlog, s.batch = 10, 3 })
	before := testutil.ToFloat64(dropped)
	z.Hold()
	send(c, 0, 3)
	z.Await(t, "held request", func(s zipkin.State) bool { return s.Requests == 1 })
	send(c, 3, 1003)
	c.mu.Lock()
	if n := len(c.waiting); n != 10 {
		t.Errorf("%d spans wait, want 10", n)
	}
	c.mu.Unlock()
	z.Release()
	s := z.Await(t, "newest spans", func(s zipkin.State) bool { return len(s.Spans) == 13 })
	if got, want := names(s.Spans), "0 1 2 993 994 995 996 997 998 999 1000 1001 1002"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := testutil.ToFloat64(dropped) - before; got != 990 {
		t.Errorf("%v dropped, want 990", got)
	}
	kit.Eventually(t, "log line", func() bool {
		return lines.Count("more spans than it accepts; 990 dropped since the last such line, 10 may wait") == 1
	})
}

// TestCollector_Timeout has a collector that does not reply in time: its spans are sent again.
func TestCollector_Timeout(t *testing.T) {
	z := zipkin.New(t)
	c := newTestCollector(t, z.Address(), func(_ *settings, c *collector) {
		if c != nil {
			c.timeout = 10 * time.Millisecond
		}
	})
	z.Hold()
	send(c, 0, 2)
	z.Await(t, "second request", func(s zipkin.State) bool { return s.Ended >= 2 })
	z.Release()
	s := z.Await(t, "spans", func(s zipkin.State) bool { return len(s.Spans) >= 2 })
	if got := names(s.Spans[:2]); got != "0 1" { // again, if the reply is not in time
		t.Errorf("%s, want 0 1", got)
	}
}

// TestCollector_EndSlow ends with a collector that does not reply.
func TestCollector_EndSlow(t *testing.T) {
	z := zipkin.New(t)
	c := newTestCollector(t, z.Address(), func(_ *settings, c *collector) {
		if c != nil {
			c.timeout, c.ending = time.Hour, 10*time.Millisecond
		}
	})
	z.Hold()
	send(c, 0, 1)
	z.Await(t, "held request", func(s zipkin.State) bool { return s.Requests == 1 })
	before := testutil.ToFloat64(dropped)
	Stopped()
	z.Await(t, "end of the request", func(s zipkin.State) bool { return s.Ended == 1 })
	if got := testutil.ToFloat64(dropped) - before; got != 1 {
		t.Errorf("%v dropped, want 1", got)
	}
}

// TestCollector_Dead has no collector at first: the spans wait, one line is logged, and one when the collector runs.
func TestCollector_Dead(t *testing.T) {
	lines := kit.Logged(t)
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(daemon.FreePort(t)))
	c := newTestCollector(t, address, func(s *settings, _ *collector) { s.batch = 1 })
	send(c, 0, 3)
	kit.Eventually(t, "log line", func() bool { return lines.Count("connection refused") == 1 })
	send(c, 3, 100)
	z := zipkin.NewAt(t, address)
	s := z.Await(t, "spans", func(s zipkin.State) bool { return len(s.Spans) == 100 })
	if got := names(s.Spans); !strings.HasPrefix(got, "0 1 2 3 4 ") {
		t.Errorf("order %s", got)
	}
	kit.Eventually(t, "second log line", func() bool { return lines.Count("accepts spans again") == 1 })
	if n := lines.Count("not sent"); n != 1 {
		t.Errorf("%d lines", n)
	}
}

// TestCollector_Log logs failures once a minute, and spans dropped in between.
func TestCollector_Log(t *testing.T) {
	lines := kit.Logged(t)
	now := time.Unix(0, 0)
	c := newCollector(&settings{endpoint: &url.URL{Scheme: "http", User: url.UserPassword("user", "secret"), Host: "z.example"}, backlog: 10})
	c.now = func() time.Time { return now }
	for _, step := range []struct {
		after time.Duration
		lost  int
		err   error
		want  string // in the last line, "" for no line
	}{
		{0, 0, nil, ""},
		{0, 0, refusal(http.StatusServiceUnavailable), "http://user:xxxxx@z.example: status 503 Service Unavailable; 0 dropped since the last such line, 10 may wait (logged once a minute)"},
		{time.Second, 1, refusal(http.StatusBadGateway), ""},
		{59 * time.Second, 3, refusal(http.StatusBadGateway), "status 502 Bad Gateway; 4 dropped"},
		{time.Second, 0, nil, "accepts spans again"},
		{time.Second, 0, nil, ""},
		{time.Second, 2, nil, ""}, // within the minute
		{time.Minute, 0, nil, "more spans than it accepts; 2 dropped"},
	} {
		now = now.Add(step.after)
		before := lines.Count("\n")
		c.lost += step.lost
		c.report(c.lost, step.err)
		if got := lines.Count("\n") - before; step.want == "" && got != 0 || step.want != "" && (got != 1 || lines.Count(step.want) != 1) {
			t.Errorf("%+v: %d lines:\n%s", step, got, lines)
		}
	}
}

// TestCollector_Refused has a collector that refuses spans.
func TestCollector_Refused(t *testing.T) {
	for _, tc := range []struct {
		status int
		sent   bool // again
	}{
		{http.StatusBadRequest, false},
		{http.StatusRequestEntityTooLarge, false},
		{http.StatusInternalServerError, false},
		{http.StatusTooManyRequests, true},
		{http.StatusBadGateway, true},
		{http.StatusServiceUnavailable, true},
		{http.StatusGatewayTimeout, true},
	} {
		t.Run(strconv.Itoa(tc.status), func(t *testing.T) {
			z := zipkin.New(t)
			c := newTestCollector(t, z.Address(), nil)
			before := testutil.ToFloat64(dropped)
			z.Answer(tc.status)
			send(c, 0, 1)
			want, lost := "1", 1.0
			if tc.sent {
				want, lost = "0 1", 0
				z.Await(t, "repeated request", func(s zipkin.State) bool { return s.Requests > 1 })
			}
			kit.Eventually(t, "dropped spans", func() bool { return testutil.ToFloat64(dropped)-before == lost })
			z.Answer(http.StatusAccepted)
			send(c, 1, 2)
			s := z.Await(t, "span", func(s zipkin.State) bool { return strings.HasSuffix(names(s.Spans), "1") })
			if got := names(s.Spans); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// TestCollector_Concurrent sends and ends at the same time: each span is sent or counted as dropped.
func TestCollector_Concurrent(t *testing.T) {
	z := zipkin.New(t)
	c := newTestCollector(t, z.Address(), func(s *settings, c *collector) {
		s.batch = 7
		if c != nil {
			c.ending = time.Minute
		}
	})
	before := testutil.ToFloat64(dropped)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { send(c, 0, 500) })
	}
	z.Await(t, "spans", func(s zipkin.State) bool { return len(s.Spans) > 100 })
	Stopped()
	all.Wait()
	lost := int(testutil.ToFloat64(dropped) - before)
	z.Await(t, "sum of 2000", func(s zipkin.State) bool { return len(s.Spans)+lost == 2000 })
}

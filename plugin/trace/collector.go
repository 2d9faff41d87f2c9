package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/openzipkin/zipkin-go/model"
	"github.com/openzipkin/zipkin-go/reporter"
)

const (
	// requestTimeout bounds a request to the collector.
	requestTimeout = 5 * time.Second
	// requestSpans is the max. number of spans in a request, unless zipkin_max_batch_size is higher.
	requestSpans = 1000
	// endTimeout bounds the sending of the last spans.
	endTimeout = 2 * time.Second
	// lateTime is the time after a reload in which the former configuration may end queries, such as those to a slow upstream.
	lateTime = 10 * time.Second
	// logPause is the minimum time between log lines about spans that are not sent.
	logPause = time.Minute
	// maxReply bounds the reading of a reply, in bytes. A connection is reused if the reply is shorter.
	maxReply = 4096
)

// collector sends finished spans to a Zipkin collector, many in a request, from one goroutine. It implements reporter.Reporter.
// zipkin-go's reporter is not used: after its end a query that finishes a span waits forever, and it logs each span that it drops.
type collector struct {
	url      *url.URL
	client   http.Client
	backlog  int // max. number of spans that wait
	batch    int // number of waiting spans at which a request is sent before the interval is over
	interval time.Duration
	timeout  time.Duration // of a request
	ending   time.Duration // of the sending of the last spans
	now      func() time.Time

	ctx     context.Context // of the requests
	cancel  context.CancelFunc
	due     chan struct{} // a request is due
	closing chan struct{}
	ended   chan struct{}

	mu      sync.Mutex
	waiting []*model.SpanModel
	failing bool // the last request has failed: the next one is not sent before the interval is over
	closed  bool // no more spans are accepted
	lost    int  // spans dropped since the last log line

	// Only the goroutine uses these.
	last     bool      // the spans that wait are the last ones that are sent
	logged   time.Time // of the last log line about spans that are not sent
	reported bool      // such a line was logged since the last request that succeeded
}

var _ reporter.Reporter = (*collector)(nil)

// newCollector returns a collector that collects, and sends after its start.
func newCollector(s *settings) *collector {
	c := &collector{
		url: s.endpoint, backlog: s.backlog, batch: min(s.batch, s.backlog), interval: s.interval,
		timeout: requestTimeout, ending: endTimeout, now: time.Now,
		due: make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{}),
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	if transport, ok := http.DefaultTransport.(*http.Transport); ok {
		c.client.Transport = transport.Clone() // its connections end with the collector
	}
	return c
}

// running are the collectors of the process that have started and not ended.
var running collectors

type collectors struct {
	mu  sync.Mutex
	all []*collector
}

func (r *collectors) start(c *collector) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, c)
	go func() {
		c.run()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all = slices.DeleteFunc(r.all, func(other *collector) bool { return other == c })
	}()
}

func (r *collectors) list() []*collector {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.all)
}

// Stopped sends the last spans of the process, for at most two seconds. The program calls it after its servers have stopped.
func Stopped() {
	all := running.list()
	for _, c := range all {
		c.close()
	}
	for _, c := range all {
		<-c.ended
	}
}

// Send implements reporter.Reporter. It never waits: at the limit the oldest span is dropped.
func (c *collector) Send(span model.SpanModel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		c.drop(1)
		return
	}
	c.waiting = append(c.waiting, &span)
	c.shorten()
	if len(c.waiting) >= c.batch && !c.failing {
		c.wake()
	}
}

// shorten drops the oldest spans beyond the limit.
func (c *collector) shorten() {
	if n := len(c.waiting) - c.backlog; n > 0 {
		clear(c.waiting[:n])
		c.waiting = c.waiting[n:]
		c.drop(n)
	}
}

func (c *collector) drop(n int) {
	c.lost += n
	dropped.Add(float64(n))
}

// wake has the goroutine send a request before the interval is over.
func (c *collector) wake() {
	select {
	case c.due <- struct{}{}:
	default: // a request is due already
	}
}

// Close implements reporter.Reporter.
func (c *collector) Close() error {
	c.close()
	<-c.ended
	return nil
}

// close ends the goroutine after it has sent the spans that wait. It does not wait for that.
func (c *collector) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	close(c.closing)
	time.AfterFunc(c.ending, c.cancel)
}

func (c *collector) run() {
	defer close(c.ended)
	defer c.client.CloseIdleConnections()
	defer c.cancel()
	ticker := time.NewTicker(c.interval)
	defer ticker.Stop()
	for {
		select {
		case <-c.due:
		case <-ticker.C:
		case <-c.closing:
			c.last = true
			c.sendWaiting()
			return
		}
		c.sendWaiting()
	}
}

// sendWaiting sends the spans that wait when it is called, until a request fails.
func (c *collector) sendWaiting() {
	c.mu.Lock()
	left := len(c.waiting)
	c.mu.Unlock()
	for left > 0 {
		batch := c.take()
		err := c.post(batch)
		c.report(c.settle(batch, err), err)
		if err != nil {
			return
		}
		left -= len(batch)
	}
}

// take returns the spans of the next request.
func (c *collector) take() []*model.SpanModel {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(len(c.waiting), max(c.batch, requestSpans))
	batch := c.waiting[:n:n]
	c.waiting = c.waiting[n:]
	return batch
}

// settle puts the spans of a failed request back if they may be sent again, drops them otherwise, and returns the number of spans
// dropped since the last log line.
func (c *collector) settle(batch []*model.SpanModel, err error) (lost int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var refused refusal
	switch c.failing = err != nil; {
	case err == nil:
	case c.last:
		c.drop(len(batch) + len(c.waiting))
		c.waiting = nil
	case errors.As(err, &refused) && !refused.temporary():
		c.drop(len(batch))
	default:
		c.waiting = append(batch, c.waiting...)
		c.shorten()
	}
	return c.lost
}

// refusal is the status of a reply that is not 2xx.
type refusal int

func (r refusal) Error() string { return fmt.Sprintf("status %d %s", int(r), http.StatusText(int(r))) }

// temporary reports whether the collector may accept the same spans later.
func (r refusal) temporary() bool {
	switch int(r) {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// post sends spans in one request.
func (c *collector) post(spans []*model.SpanModel) error {
	serializer := reporter.JSONSerializer{}
	body, err := serializer.Serialize(spans)
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	ctx, cancel := context.WithTimeout(c.ctx, c.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", serializer.ContentType())
	r.Header.Set("B3", "0") // a proxy in front of the collector does not trace the request
	reply, err := c.client.Do(r)
	if err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, reply.Body, maxReply) // the status decides
	_ = reply.Body.Close()
	if reply.StatusCode < 200 || reply.StatusCode > 299 {
		return refusal(reply.StatusCode)
	}
	return nil
}

// report logs spans that are not sent, once a minute, and the next request that succeeds.
func (c *collector) report(lost int, err error) {
	if err == nil && lost == 0 {
		if c.reported {
			log.Infof("%s accepts spans again", c.url.Redacted())
		}
		c.reported = false
		return
	}
	now := c.now()
	if !c.logged.IsZero() && now.Sub(c.logged) < logPause {
		return
	}
	reason := "more spans than it accepts"
	if err != nil {
		reason = err.Error()
	}
	log.Warningf("Spans are not sent to %s: %s; %d dropped since the last such line, %d may wait (logged once a minute)", c.url.Redacted(), reason, lost, c.backlog)
	c.logged, c.reported = now, true
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost -= lost
}

// Package trace sends spans of queries to a Zipkin collector: one for the query, and one for each plugin that handles it. Input:
// the queries of a server block, and the trace of a client of DNS over HTTPS; output: requests of the Zipkin API. It is a drop-in
// replacement for CoreDNS's plugin of the same name, without Datadog. No query waits for the collector.
package trace

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	clog "github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/plugin/pkg/rcode"
	"github.com/coredns/coredns/plugin/pkg/trace"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	ot "github.com/opentracing/opentracing-go"
	"github.com/opentracing/opentracing-go/ext"
	otlog "github.com/opentracing/opentracing-go/log"
	zipkinot "github.com/openzipkin-contrib/zipkin-go-opentracing"
	"github.com/openzipkin/zipkin-go"
	"github.com/openzipkin/zipkin-go/model"
)

const pluginName = "trace"

var log = clog.NewWithPlugin(pluginName)

// Names of CoreDNS.
const (
	rootSpan     = "servedns"
	traceIDLabel = pluginName + "/traceid"

	tagName   = "coredns.io/name"
	tagType   = "coredns.io/type"
	tagRcode  = "coredns.io/rcode"
	tagProto  = "coredns.io/proto"
	tagRemote = "coredns.io/remote"
)

// Trace is the handler of a server block.
type Trace struct {
	Next plugin.Handler

	every     uint64 // every n-th query is traced; 0 for none
	queries   atomic.Uint64
	collector *collector
	tracer    ot.Tracer
}

var _ trace.Trace = (*Trace)(nil) // CoreDNS's servers search for a handler with this interface

// newTrace returns the handler of a server block that answers at a local endpoint.
func newTrace(s *settings, local *model.Endpoint) (*Trace, error) {
	c := newCollector(s)
	tracer, err := zipkin.NewTracer(c, zipkin.WithLocalEndpoint(local), zipkin.WithSharedSpans(s.shared))
	if err != nil {
		return nil, err
	}
	return &Trace{every: s.every, collector: c, tracer: safeTracer{zipkinot.Wrap(tracer)}}, nil
}

// safeTracer is a tracer for headers of clients: zipkin-go panics at some values of the header b3, and a panic in CoreDNS's server
// for gRPC ends the process.
type safeTracer struct{ ot.Tracer }

// Extract implements ot.Tracer.
func (t safeTracer) Extract(format, carrier any) (c ot.SpanContext, err error) {
	defer func() {
		if recover() != nil {
			c, err = nil, ot.ErrSpanContextCorrupted
		}
	}()
	return t.Tracer.Extract(format, carrier)
}

// Name implements plugin.Handler.
func (t *Trace) Name() string { return pluginName }

// Tracer implements trace.Trace.
func (t *Trace) Tracer() ot.Tracer { return t.tracer }

// ServeDNS implements plugin.Handler. The spans of the next plugins are started by plugin.NextOrFailure.
func (t *Trace) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	traced := t.every > 0 && t.queries.Add(1)%t.every == 0
	if !traced || ot.SpanFromContext(ctx) != nil { // DNS over gRPC has the span of its client
		return plugin.NextOrFailure(pluginName, t.Next, ctx, w, r)
	}
	span := t.tracer.StartSpan(rootSpan, ext.RPCServerOption(t.parent(ctx)))
	defer span.Finish()
	if c, ok := span.Context().(zipkinot.SpanContext); ok {
		metadata.SetValueFunc(ctx, traceIDLabel, c.TraceID.String)
	}
	recorder := dnstest.NewRecorder(w)
	code, err := plugin.NextOrFailure(pluginName, t.Next, ot.ContextWithSpan(ctx, span), recorder, r)
	written := recorder.Rcode
	if !plugin.ClientWrite(code) { // the server answers with the code
		written = code
	}
	setTags(span, request.Request{W: w, Req: r}, written, err)
	return code, err
}

// parent returns the span of a client of DNS over HTTPS, from the B3 headers of its request, nil without one.
func (t *Trace) parent(ctx context.Context) ot.SpanContext {
	r, ok := ctx.Value(dnsserver.HTTPRequestKey{}).(*http.Request)
	if !ok {
		return nil
	}
	parent, err := t.tracer.Extract(ot.HTTPHeaders, ot.HTTPHeadersCarrier(r.Header))
	if err != nil { // invalid headers: the trace begins here
		return nil
	}
	return parent
}

// setTags sets the tags of a query and its reply.
func setTags(span ot.Span, q request.Request, code int, err error) {
	span.SetTag(tagName, q.Name())
	span.SetTag(tagType, q.Type())
	span.SetTag(tagProto, q.Proto())
	span.SetTag(tagRemote, q.IP())
	span.SetTag(tagRcode, rcode.ToString(code))
	if err != nil {
		ext.Error.Set(span, true)
		span.LogFields(otlog.Event("error"), otlog.Error(err))
	}
}

package explain

import (
	"context"
	"slices"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
	ot "github.com/opentracing/opentracing-go"
)

// span is the OpenTracing span of a plugin that has received the query. If the context has a span, plugin.NextOrFailure starts one
// for the next plugin, and ends it when the plugin returns: this is how a trace follows the query through plugins that do not know
// package explain.
type span struct {
	ot.Span // without effect
	tracer  *tracer
	plugin  string
	first   bool
	passed  bool // the plugin has passed the query to the next one
	replied bool
	steps   int // number of steps of the trace at the start of the span
}

// tracer starts the spans of a trace.
type tracer struct {
	ot.NoopTracer
	trace    *Trace
	isPlugin func(name string) bool
}

// Chain returns a context in which each plugin of a chain adds a step when it passes the query to the next plugin, or replies. first
// is the name of the first plugin. isPlugin reports whether a name is that of a plugin; spans with other names add no steps. The
// caller of Chain calls end after the first plugin has returned.
func (t *Trace) Chain(ctx context.Context, first string, isPlugin func(name string) bool) (chain context.Context, end func()) {
	tr := &tracer{trace: t, isPlugin: isPlugin}
	s := tr.start(first)
	s.first = true
	return ot.ContextWithSpan(With(ctx, t), s), s.Finish
}

// Background returns the context of work for which the query does not wait: it adds no steps.
func Background(ctx context.Context) context.Context {
	if From(ctx) == nil {
		return ctx
	}
	return ot.ContextWithSpan(With(ctx, nil), nil)
}

// Replied adds the step of a reply: by the last plugin that has received the query and has not returned, or by the server, which
// replies after the chain if the plugins have only returned a code.
func (t *Trace) Replied(m *dns.Msg) {
	t.mu.Lock()
	by := "server"
	if n := len(t.open); n > 0 {
		last := t.open[n-1]
		byCode := last.first && last.passed && !plugin.ClientWrite(m.Rcode) && len(m.Answer)+len(m.Ns) == 0
		if !byCode {
			by, last.replied = last.plugin, true
		}
	}
	t.mu.Unlock()
	t.Add(by, "replies %s", Describe(m))
}

// start starts the span of a plugin.
func (tr *tracer) start(name string) *span {
	t := tr.trace
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &span{Span: tr.NoopTracer.StartSpan(name), tracer: tr, plugin: name, steps: len(t.steps)}
	t.open = append(t.open, s)
	return s
}

// StartSpan implements opentracing.Tracer.
func (tr *tracer) StartSpan(name string, options ...ot.StartSpanOption) ot.Span {
	if !tr.isPlugin(name) {
		return tr.NoopTracer.StartSpan(name)
	}
	var all ot.StartSpanOptions
	for _, option := range options {
		option.Apply(&all)
	}
	for _, reference := range all.References {
		if previous, is := reference.ReferencedContext.(*span); is {
			previous.pass()
		}
	}
	return tr.start(name)
}

// pass adds the step of a plugin that passes the query to the next one, once.
func (s *span) pass() {
	t := s.tracer.trace
	t.mu.Lock()
	passed := s.passed
	s.passed = true
	t.mu.Unlock()
	if !passed {
		t.Add(s.plugin, "passes the query on")
	}
}

// Finish implements opentracing.Span. A plugin that has neither replied to the client, passed the query on, nor added a step has written
// the reply to a plugin before it, or has returned a code.
func (s *span) Finish() {
	t := s.tracer.trace
	t.mu.Lock()
	t.open = slices.DeleteFunc(t.open, func(o *span) bool { return o == s })
	silent := !s.passed && !s.replied && !slices.ContainsFunc(t.steps[s.steps:], func(step Step) bool { return step.Plugin == s.plugin })
	t.mu.Unlock()
	if silent {
		t.Add(s.plugin, "does not pass the query on: it replies to the plugins before it, or returns an error")
	}
}

// Context implements opentracing.Span.
func (s *span) Context() ot.SpanContext { return s }

// ForeachBaggageItem implements opentracing.SpanContext.
func (*span) ForeachBaggageItem(func(k, v string) bool) {}

// Tracer implements opentracing.Span.
func (s *span) Tracer() ot.Tracer { return s.tracer }

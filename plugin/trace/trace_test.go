package trace

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metadata"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	ot "github.com/opentracing/opentracing-go"
	zipkinot "github.com/openzipkin-contrib/zipkin-go-opentracing"
	"github.com/openzipkin/zipkin-go/model"

	"github.com/nearside-dns/nearside/test/zipkin"
)

// newTestTrace returns a started handler that sends to a collector.
func newTestTrace(t *testing.T, z *zipkin.Collector, change func(*settings)) *Trace {
	t.Helper()
	endpoint, err := url.Parse(z.URL + endpointPath)
	kit.Must(t, err)
	s := &settings{endpoint: endpoint, every: 1, backlog: defaultBacklog, batch: 1, interval: defaultInterval}
	if change != nil {
		change(s)
	}
	h, err := newTrace(s, &model.Endpoint{ServiceName: "dns"})
	kit.Must(t, err)
	running.start(h.collector)
	t.Cleanup(Stopped)
	return h
}

// answering returns a plugin that answers with a response code, or returns one without an answer, and an error.
func answering(code int, write bool, err error) plugin.Handler {
	return test.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
		if !write {
			return code, err
		}
		if err := w.WriteMsg(new(dns.Msg).SetRcode(r, code)); err != nil {
			return dns.RcodeServerFailure, err
		}
		return dns.RcodeSuccess, err
	})
}

func TestServeDNS(t *testing.T) {
	failure := errors.New("plugin/test: failed")
	for _, tc := range []struct {
		name  string
		next  plugin.Handler
		code  int
		err   error
		rcode string
	}{
		{"NOERROR", answering(dns.RcodeSuccess, true, nil), dns.RcodeSuccess, nil, "NOERROR"},
		{"NXDOMAIN", answering(dns.RcodeNameError, true, nil), dns.RcodeSuccess, nil, "NXDOMAIN"},
		{"answer and error", answering(dns.RcodeServerFailure, true, failure), dns.RcodeSuccess, failure, "SERVFAIL"},
		{"only a code", answering(dns.RcodeRefused, false, nil), dns.RcodeRefused, nil, "REFUSED"},
		{"only an error", answering(dns.RcodeServerFailure, false, failure), dns.RcodeServerFailure, failure, "SERVFAIL"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			z := zipkin.New(t)
			h := newTestTrace(t, z, nil)
			h.Next = tc.next
			q := new(dns.Msg).SetQuestion("WWW.example.org.", dns.TypeAAAA)
			code, err := h.ServeDNS(t.Context(), &test.ResponseWriter{TCP: true, RemoteIP: "192.0.2.7"}, q)
			if code != tc.code || !errors.Is(err, tc.err) {
				t.Errorf("%d, %v", code, err)
			}
			trace := z.Traces(t, 1, tagName, "www.example.org.")[0]
			failed, annotations := "", 0
			if tc.err != nil {
				failed, annotations = " error=true", 2
			}
			want := "servedns coredns.io/name=www.example.org. coredns.io/proto=tcp coredns.io/rcode=" + tc.rcode + " coredns.io/remote=192.0.2.7 coredns.io/type=AAAA" + failed + "\n  handlerfunc\n"
			if got := zipkin.Tree(trace); got != want {
				t.Errorf("%s\nwant\n%s", got, want)
			}
			for _, s := range trace {
				root := s.ParentID == ""
				if root && (s.Kind != "SERVER" || len(s.Annotations) != annotations) || s.LocalEndpoint.ServiceName != "dns" || s.Timestamp == 0 {
					t.Errorf("%+v", s)
				}
			}
		})
	}
}

// TestEvery traces the last of each group of queries.
func TestEvery(t *testing.T) {
	for _, tc := range []struct {
		name  string
		every uint64
		want  string
	}{{"all", 1, "1 2 3 4 5 6 7 8 9"}, {"one of three", 3, "3 6 9"}, {"none", 0, ""}} {
		t.Run(tc.name, func(t *testing.T) {
			z := zipkin.New(t)
			h := newTestTrace(t, z, func(s *settings) { s.every = tc.every })
			h.Next = answering(dns.RcodeSuccess, true, nil)
			for n := range 9 {
				ask(t, h, t.Context(), string(rune('1'+n)))
			}
			Stopped()
			var got []string
			for _, s := range z.Await(t, "spans", func(zipkin.State) bool { return true }).Spans {
				if s.ParentID == "" {
					got = append(got, strings.TrimSuffix(s.Tags[tagName], "."))
				}
			}
			if strings.Join(got, " ") != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}

// ask sends a query to the handler, and fails the test unless it is answered.
func ask(t testing.TB, h plugin.Handler, ctx context.Context, name string) { //nolint:revive // as NextOrFailure
	t.Helper()
	if code, err := h.ServeDNS(ctx, &test.ResponseWriter{}, new(dns.Msg).SetQuestion(name+".", dns.TypeA)); code != dns.RcodeSuccess || err != nil {
		t.Errorf("%s: %d, %v", name, code, err)
	}
}

// fromHTTPS returns the context of a query over HTTPS.
func fromHTTPS(ctx context.Context, headers ...string) context.Context {
	r := httptest.NewRequest(http.MethodPost, "/dns-query", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return context.WithValue(ctx, dnsserver.HTTPRequestKey{}, r)
}

// TestHTTPS continues the trace of a client of DNS over HTTPS.
func TestHTTPS(t *testing.T) {
	const traceID, span = "463ac35c9f6413ad", "0020000000000001"
	for _, tc := range []struct {
		name           string
		shared         bool
		headers        []string
		id, parent     string // "" for new ones
		withoutSampled bool
	}{
		{"headers", false, []string{"X-B3-TraceId", traceID, "X-B3-SpanId", span, "X-B3-Sampled", "1"}, "", span, false},
		{"one header", false, []string{"b3", traceID + "-" + span + "-1"}, "", span, false},
		{"shared span", true, []string{"X-B3-TraceId", traceID, "X-B3-SpanId", span, "X-B3-Sampled", "1"}, span, "", false},
		{"not sampled", false, []string{"X-B3-TraceId", traceID, "X-B3-SpanId", span, "X-B3-Sampled", "0"}, "", "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			z := zipkin.New(t)
			h := newTestTrace(t, z, func(s *settings) { s.shared = tc.shared })
			h.Next = answering(dns.RcodeSuccess, true, nil)
			ask(t, h, fromHTTPS(t.Context(), tc.headers...), "a.example")
			Stopped()
			s := z.Await(t, "spans", func(zipkin.State) bool { return true })
			if tc.withoutSampled {
				if len(s.Spans) > 0 {
					t.Errorf("spans %+v", s.Spans)
				}
				return
			}
			if len(s.Spans) != 2 {
				t.Fatalf("spans %+v", s.Spans)
			}
			root := s.Spans[1] // it ends last
			if root.TraceID != traceID || root.ParentID != tc.parent || tc.id != "" && root.ID != tc.id || root.Shared != tc.shared || s.Spans[0].ParentID != root.ID {
				t.Errorf("%+v", s.Spans)
			}
		})
	}
	for name, headers := range map[string][]string{"no headers": nil, "invalid headers": {"X-B3-TraceId", "nothing", "X-B3-SpanId", "x"}, "no trace": {"X-B3-SpanId", span}} {
		t.Run(name, func(t *testing.T) {
			z := zipkin.New(t)
			h := newTestTrace(t, z, nil)
			h.Next = answering(dns.RcodeSuccess, true, nil)
			ask(t, h, fromHTTPS(t.Context(), headers...), "a.example")
			z.Traces(t, 1, tagName, "a.example.")
		})
	}
}

// TestExtract reads the trace of a client from the headers of DNS over HTTPS and of gRPC.
func TestExtract(t *testing.T) {
	h := newTestTrace(t, zipkin.New(t), nil)
	for _, tc := range []struct{ name, b3, want string }{
		{"short", "463ac35c9f6413ad-0020000000000001-1", "463ac35c9f6413ad"},
		{"long", "463ac35c9f6413ad463ac35c9f6413ae-0020000000000001-d", "463ac35c9f6413ad463ac35c9f6413ae"},
		{"sampling alone", "1", "0000000000000000"},
		{"zipkin-go panics", "463ac35c9f6413ad463ac35c9f6413ade", ot.ErrSpanContextCorrupted.Error()},
		{"no number", "463ac35c9f6413ax-0020000000000001-1", "0000000000000000"},
	} {
		for format, carrier := range map[ot.BuiltinFormat]any{ot.HTTPHeaders: ot.HTTPHeadersCarrier{"B3": {tc.b3}}, ot.TextMap: ot.TextMapCarrier{"b3": tc.b3}} {
			t.Run(fmt.Sprintf("%s/%T", tc.name, carrier), func(t *testing.T) {
				c, err := h.Tracer().Extract(format, carrier)
				got := ""
				if zc, ok := c.(zipkinot.SpanContext); ok && err == nil {
					got = zc.TraceID.String()
				} else if err != nil {
					got = err.Error()
				}
				if got != tc.want {
					t.Errorf("%s, want %s", got, tc.want)
				}
			})
		}
	}
}

// FuzzHTTPS answers a query with any headers.
func FuzzHTTPS(f *testing.F) {
	f.Add("463ac35c9f6413ad", "0020000000000001", "1", "0", "")
	f.Add("463ac35c9f6413ad463ac35c9f6413ad", "", "d", "1", "0")
	f.Add("0", "0", "true", "", "463ac35c9f6413ad-0020000000000001-d-1")
	h, err := newTrace(&settings{endpoint: new(url.URL), every: 1, backlog: 1, batch: 1}, nil)
	kit.Must(f, err)
	h.Next = answering(dns.RcodeSuccess, true, nil)
	f.Fuzz(func(t *testing.T, trace, span, sampled, flags, single string) {
		ask(t, h, fromHTTPS(t.Context(), "X-B3-TraceId", trace, "X-B3-SpanId", span, "X-B3-Sampled", sampled, "X-B3-Flags", flags, "b3", single), "a.example")
		h.collector.mu.Lock()
		defer h.collector.mu.Unlock()
		for _, s := range h.collector.waiting {
			if _, err := s.MarshalJSON(); err != nil {
				t.Errorf("encode the span: %v", err)
			}
		}
	})
}

// TestSpanOfClient adds to the span of a client over gRPC, without one of its own.
func TestSpanOfClient(t *testing.T) {
	z := zipkin.New(t)
	h := newTestTrace(t, z, nil)
	h.Next = answering(dns.RcodeSuccess, true, nil)
	client := h.Tracer().StartSpan("client")
	ask(t, h, ot.ContextWithSpan(t.Context(), client), "a.example")
	client.Finish()
	s := z.Await(t, "spans", func(s zipkin.State) bool { return len(s.Spans) == 2 })
	if got, want := zipkin.Tree(s.Spans), "client\n  handlerfunc\n"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestMetadata compares the ID that other plugins see with that of the spans.
func TestMetadata(t *testing.T) {
	z := zipkin.New(t)
	h := newTestTrace(t, z, nil)
	h.Next = answering(dns.RcodeSuccess, true, nil)
	ctx := metadata.ContextWithMetadata(t.Context())
	ask(t, h, ctx, "a.example")
	f := metadata.ValueFunc(ctx, traceIDLabel)
	if f == nil {
		t.Fatal("no metadata")
	}
	if got, want := f(), z.Traces(t, 1, tagName, "a.example.")[0][0].TraceID; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

package explain

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	ot "github.com/opentracing/opentracing-go"
)

// link is a plugin of a chain.
type link struct {
	name string
	next plugin.Handler
	// serve replaces ServeDNS; nil to pass the query on.
	serve func(ctx context.Context, w dns.ResponseWriter, m *dns.Msg) (int, error)
}

func (l link) Name() string { return l.name }

func (l link) ServeDNS(ctx context.Context, w dns.ResponseWriter, m *dns.Msg) (int, error) {
	if l.serve != nil {
		return l.serve(ctx, w, m)
	}
	return plugin.NextOrFailure(l.name, l.next, ctx, w, m)
}

// tracedWriter adds replies to a trace.
type tracedWriter struct {
	dns.ResponseWriter
	trace *Trace
}

func (w tracedWriter) WriteMsg(m *dns.Msg) error {
	w.trace.Replied(m)
	return nil
}

func reply(_ context.Context, w dns.ResponseWriter, m *dns.Msg) (int, error) {
	return dns.RcodeSuccess, w.WriteMsg(new(dns.Msg).SetRcode(m, dns.RcodeNameError))
}

// TestChain: each plugin of a chain has a step, whether or not it knows of traces.
func TestChain(t *testing.T) {
	failing := link{name: "acl", serve: func(context.Context, dns.ResponseWriter, *dns.Msg) (int, error) {
		return dns.RcodeRefused, errors.New("refused")
	}}
	replying := link{name: "hosts", serve: reply}
	recording := func(next plugin.Handler) link {
		return link{name: "cache", serve: func(ctx context.Context, w dns.ResponseWriter, m *dns.Msg) (int, error) {
			recorded := nonwriter.New(w)
			if _, err := plugin.NextOrFailure("cache", next, ctx, recorded, m); err != nil {
				return dns.RcodeServerFailure, err
			}
			return dns.RcodeSuccess, w.WriteMsg(recorded.Msg)
		}}
	}
	for name, tt := range map[string]struct {
		first plugin.Handler
		want  []string
	}{
		"the first replies": {replying, []string{"hosts: replies NXDOMAIN, 0 records"}},
		"the last replies": {link{name: "errors", next: link{name: "rewrite", next: replying}}, []string{
			"errors: passes the query on", "rewrite: passes the query on", "hosts: replies NXDOMAIN, 0 records",
		}},
		"a recorder": {link{name: "errors", next: recording(replying)}, []string{
			"errors: passes the query on", "cache: passes the query on", "hosts: does not pass the query on: it replies to the plugins before it, or returns an error",
			"cache: replies NXDOMAIN, 0 records",
		}},
		"a code": {link{name: "errors", next: failing}, []string{
			"errors: passes the query on", "acl: does not pass the query on: it replies to the plugins before it, or returns an error", "server: replies REFUSED, 0 records",
		}},
		"a plugin with steps": {link{name: "errors", next: link{name: "forward", serve: func(ctx context.Context, w dns.ResponseWriter, m *dns.Msg) (int, error) {
			From(ctx).Add("forward", "query")
			ot.SpanFromContext(ctx).Tracer().StartSpan("connect", ot.ChildOf(ot.SpanFromContext(ctx).Context())).Finish()
			return dns.RcodeServerFailure, nil
		}}}, []string{"errors: passes the query on", "forward: query", "server: replies SERVFAIL, 0 records"}},
		"background work": {link{name: "errors", serve: func(ctx context.Context, w dns.ResponseWriter, m *dns.Msg) (int, error) {
			behind := Background(ctx)
			From(behind).Add("errors", "a step")
			_, _ = plugin.NextOrFailure("errors", replying, behind, nonwriter.New(w), m)
			return reply(ctx, w, m)
		}}, []string{"errors: replies NXDOMAIN, 0 records"}},
	} {
		t.Run(name, func(t *testing.T) {
			trace := New(Query{Name: "a.test.", Type: dns.TypeA, Client: netip.MustParseAddr("10.0.0.1")})
			isPlugin := func(name string) bool { return name != "connect" }
			ctx, end := trace.Chain(context.Background(), tt.first.Name(), isPlugin)
			w := tracedWriter{dnstest.NewRecorder(&test.ResponseWriter{}), trace}
			m := new(dns.Msg).SetQuestion("a.test.", dns.TypeA)
			if code, _ := tt.first.ServeDNS(ctx, w, m); !plugin.ClientWrite(code) {
				_ = w.WriteMsg(new(dns.Msg).SetRcode(m, code)) // as CoreDNS's server
			}
			end()
			var got []string
			for _, s := range trace.Steps() {
				got = append(got, s.Plugin+": "+s.Text)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if From(ctx).Query().Name != "a.test." || trace.open != nil && len(trace.open) > 0 {
				t.Errorf("query %+v, %d plugins have not returned", From(ctx).Query(), len(trace.open))
			}
		})
	}
	var ordinary *Trace
	if ordinary.Add("a", "b"); ordinary.Steps() != nil || ordinary.Query() != (Query{}) || Background(t.Context()) != t.Context() {
		t.Error("an ordinary query has a trace")
	}
}

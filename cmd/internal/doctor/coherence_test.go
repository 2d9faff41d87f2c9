//go:build linux

package doctor

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// metricsServer serves a page of metrics.
func metricsServer(t *testing.T, page string) netip.AddrPort {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			t.Errorf("request for %s", r.URL.Path)
		}
		_, _ = w.Write([]byte(page)) // the doctor may have gone
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).AddrPort()
}

// Pages of nodecache's metrics, with another server that has no session.
const (
	sessionMetrics = `# HELP nearside_forward_coherence_sessions Sessions.
# TYPE nearside_forward_coherence_sessions gauge
nearside_forward_coherence_sessions{to="10.96.5.5:53"} 3
nearside_forward_coherence_sessions{to="10.96.5.6:53"} 0
# TYPE nearside_forward_coherence_fallbacks_total counter
nearside_forward_coherence_fallbacks_total{reason="silent",to="10.96.5.5:53"} 0
nearside_forward_coherence_fallbacks_total{reason="closed",to="10.96.5.6:53"} 7
`
	heartbeatMetrics = `# TYPE nearside_forward_coherence_heartbeat_age_seconds gauge
nearside_forward_coherence_heartbeat_age_seconds{to="10.96.5.5:53"} `
)

// TestRefusedConfigurationInUse has a nodecache that answers with an earlier configuration, and others.
func TestRefusedConfigurationInUse(t *testing.T) {
	for _, c := range []struct{ name, page, want string }{
		{"refused", "nearside_reload_refused 1\n", "fail | configuration in use | an earlier one: nodecache has refused the present one | advice\n"},
		{"accepted", "nearside_reload_refused 0\n", "ok | configuration in use | the present one\n"},
		{"node-local-dns", "up 1\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := machine{setup: setup{metrics: metricsServer(t, c.page)}}.node(t)
			if got := briefs(n.probeConfiguration(context.Background())); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	if got := (machine{}).node(t).probeConfiguration(context.Background()); got != nil {
		t.Errorf("without metrics: %v", got)
	}
}

func TestProbeCoherence(t *testing.T) {
	server := netip.MustParseAddrPort("10.96.5.5:53")
	for _, c := range []struct{ name, page, want string }{
		{"heard", sessionMetrics + heartbeatMetrics + "0.12\n", "ok | coherence 10.96.5.5 | 3 sessions, last heartbeat N ms ago\n"},
		{"heard, after a fallback", strings.Replace(sessionMetrics, `5.5:53"} 0`, `5.5:53"} 4`, 1) + heartbeatMetrics + "0.999\n",
			"ok | coherence 10.96.5.5 | 3 sessions, last heartbeat N ms ago; fallbacks: silent 4\n"},
		{"silent", sessionMetrics + heartbeatMetrics + "1\n", "warn | coherence 10.96.5.5 | 3 sessions, last heartbeat 1s ago | advice\n"},
		{"silent for long", sessionMetrics + heartbeatMetrics + "754.321\n", "warn | coherence 10.96.5.5 | 3 sessions, last heartbeat 12m34.3s ago | advice\n"},
		{"never heard", sessionMetrics, "warn | coherence 10.96.5.5 | 3 sessions, no heartbeat | advice\n"},
		{"never heard, by a number", sessionMetrics + heartbeatMetrics + "NaN\n", "warn | coherence 10.96.5.5 | 3 sessions, no heartbeat | advice\n"},
		{"no metrics of sessions", "up 1\n", "warn | coherence 10.96.5.5 | no session | advice\n"},
		{"no session", strings.Replace(sessionMetrics, "53\"} 3", "53\"} 0", 1) + "nearside_forward_coherence_fallbacks_total{reason=\"closed\",to=\"10.96.5.5:53\"} 2\n",
			"warn | coherence 10.96.5.5 | no session; fallbacks: closed 2 | advice\n"},
		{"unsupported", "# TYPE nearside_forward_coherence_fallbacks_total counter\nnearside_forward_coherence_fallbacks_total{reason=\"unsupported\",to=\"10.96.5.5:53\"} 1\n",
			"warn | coherence 10.96.5.5 | no session: cluster DNS offered none before; fallbacks: unsupported 1 | advice\n"},
		{"not metrics", "<html>\n", "skip | coherence | metrics of nodecache at ADDRESS: text format parsing error in line 1: invalid metric name | advice\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := metricsServer(t, c.page)
			n := machine{setup: setup{corefile: true, coherent: []netip.AddrPort{server}, metrics: at}}.node(t)
			got := briefs(n.probeCoherence(context.Background()))
			if got = strings.ReplaceAll(got, at.String(), "ADDRESS"); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
	closed := netip.MustParseAddrPort("127.0.0.1:1")
	for _, c := range []struct {
		name  string
		setup setup
		want  string
	}{
		{"no Corefile", setup{}, ""},
		{"not configured", setup{corefile: true}, "ok | coherence | not configured: answers are cached for their TTL\n"},
		{"no metrics of nodecache", setup{corefile: true, coherent: []netip.AddrPort{server}}, "skip | coherence | nodecache exports no metrics | advice\n"},
		{"metrics of nodecache can't be read", setup{corefile: true, coherent: []netip.AddrPort{server}, metrics: closed},
			"skip | coherence | metrics of nodecache at 127.0.0.1:1: connection refused | advice\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := briefs(machine{setup: c.setup}.node(t).probeCoherence(context.Background())); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
}

func TestProbeCoherenceOfCluster(t *testing.T) {
	const live = `# TYPE nearside_kubernetes_coherence_live gauge
nearside_kubernetes_coherence_live 1
# TYPE nearside_kubernetes_coherence_sessions gauge
nearside_kubernetes_coherence_sessions 1
# TYPE nearside_kubernetes_coherence_subscriptions gauge
nearside_kubernetes_coherence_subscriptions 240
`
	for _, c := range []struct{ name, page, want string }{
		{"live", live, "ok | coherence of cluster DNS | live, 1 session, 240 subscriptions\n"},
		{"not live", strings.Replace(live, "live 1", "live 0", 1), "warn | coherence of cluster DNS | not live, 1 session, 240 subscriptions | advice\n"},
		{"CoreDNS", "coredns_build_info 1\n", "warn | coherence of cluster DNS | offers no sessions | advice\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := machine{}.node(t)
			if got := briefs([]Line{n.coherenceOfCluster(context.Background(), metricsServer(t, c.page))}); got != c.want {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
	for _, c := range []struct {
		name    string
		clients tls.ClientAuthType
		want    string
	}{
		{"over TLS", tls.NoClientCert, "ok | coherence of cluster DNS | live, 1 session, 240 subscriptions\n"},
		{"over TLS with a certificate of the client", tls.RequireAnyClientCert, "certificate required | advice\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = w.Write([]byte(live)) // the doctor may have gone
			}))
			s.TLS = &tls.Config{ClientAuth: c.clients}
			s.Config.ErrorLog = log.New(io.Discard, "", 0)
			s.StartTLS()
			defer s.Close()
			got := briefs([]Line{machine{}.node(t).coherenceOfCluster(context.Background(), s.Listener.Addr().(*net.TCPAddr).AddrPort())})
			if !strings.HasSuffix(got, c.want) {
				t.Errorf("got\n%swant\n%s", got, c.want)
			}
		})
	}
	t.Run("advice without sessions", func(t *testing.T) {
		to := netip.MustParseAddrPort("10.96.5.5:53")
		metrics, err := machine{}.node(t).scrape(context.Background(), metricsServer(t,
			"# TYPE nearside_forward_coherence_fallbacks_total counter\nnearside_forward_coherence_fallbacks_total{reason=\"unsupported\",to=\"10.96.5.5:53\"} 1\n"))
		kit.Must(t, err)
		for _, line := range []Line{judgeSessions(metrics, to), machine{}.node(t).coherenceOfCluster(context.Background(), metricsServer(t, "up 1\n"))} {
			if !strings.Contains(line.Advice, offering) {
				t.Errorf("%s: advice %q, want %q in it", line.Check, line.Advice, offering)
			}
		}
	})
	t.Run("beside the line of nodecache", func(t *testing.T) {
		s := setup{
			corefile: true, coherent: []netip.AddrPort{netip.MustParseAddrPort("10.96.5.5:53")},
			metrics: metricsServer(t, sessionMetrics+heartbeatMetrics+"0.1\n"), clusterMetrics: netip.MustParseAddrPort("127.0.0.1:1"),
		}
		got := briefs(machine{setup: s}.node(t).probeCoherence(context.Background()))
		want := "ok | coherence 10.96.5.5 | 3 sessions, last heartbeat N ms ago\nskip | coherence of cluster DNS | metrics at 127.0.0.1:1: connection refused | advice\n"
		if got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	})
}

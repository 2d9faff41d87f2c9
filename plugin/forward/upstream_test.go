package forward

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/coredns/plugin/pkg/doh"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

// certified are server names in stanzas, and whether they match a certificate for 127.0.0.1 and dns.example.
var certified = map[string]struct {
	name, options string // with ADDRESS and CA to replace
	right         bool
}{
	"the address":               {"", "tls CA", true},
	"a name":                    {"%dns.example", "tls CA", true},
	"another name":              {"%other.example", "tls CA", false},
	"tls_servername":            {"", "tls CA\ntls_servername dns.example", true},
	"tls_servername, another":   {"", "tls CA\ntls_servername other.example", false},
	"tls_servername before tls": {"", "tls_servername other.example\ntls CA", false},
	"an unknown authority":      {"", "", false},
	"a client's certificate":    {"", "tls CERT KEY CA", true},
}

// secure returns a stanza with the options of certified.
func secure(protocol, at, name, options string, c rogue.Certificate) string {
	host, port, _ := strings.Cut(at, ":")
	options = strings.NewReplacer("CERT", c.Cert, "KEY", c.Key, "CA", c.CA).Replace(options)
	return stanzaOf("timeout 10s\nread_timeout 10s\nmax_connect_attempts 1\n"+options, protocol+"://"+host+name+":"+port)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	certificate := rogue.NewCertificate(t, "127.0.0.1", "dns.example")
	t.Run("many on few connections", func(t *testing.T) {
		measured(t, func(t testing.TB) {
			s := rogue.StartAt(t, rogue.Options{TLS: certificate.Config}, rogue.Behaviour{Shuffle: 20 * time.Millisecond})
			f := chainOf(t, secure("tls", s.Addr, "", "tls CA\nforce_tcp", certificate))
			var wait sync.WaitGroup
			for i := range 200 {
				wait.Go(func() { wantRight(t, f, i%2 == 0, fmt.Sprintf("q%d.example.", i)) })
			}
			wait.Wait()
			// A copy of a query may be sent to detect a stalled connection.
			if c := s.Counts(); c.TCP < 200 || c.TCP > 210 || c.Connections > 2 || c.MaxOnConnection < 10 || c.UDP > 0 {
				t.Errorf("%+v", c)
			}
			if n := metric(t, "nearside_forward_connections", "to", s.Addr, "proto", "tcp-tls"); n < 1 {
				t.Errorf("%v connections are counted", n)
			}
		})
	})
	for name, c := range certified {
		t.Run(name, func(t *testing.T) {
			s := rogue.StartAt(t, rogue.Options{TLS: certificate.Config}, good)
			m := question("a.example.")
			checkCertified(t, queryOver(chainOf(t, secure("tls", s.Addr, c.name, c.options, certificate)), m, false), m, c.right)
		})
	}
	t.Run("a certificate without an address", func(t *testing.T) {
		named := rogue.NewCertificate(t, "dns.example")
		s := rogue.StartAt(t, rogue.Options{TLS: named.Config}, good)
		m := question("a.example.")
		checkCertified(t, queryOver(chainOf(t, secure("tls", s.Addr, "", "tls CA", named)), m, false), m, false)
		checkCertified(t, queryOver(chainOf(t, secure("tls", s.Addr, "%dns.example", "tls CA", named)), m, false), m, true)
	})
	t.Run("server name and client certificate", func(t *testing.T) {
		for _, own := range []bool{true, false} {
			var name atomic.Value
			config := certificate.Config.Clone()
			config.ClientAuth = tls.RequireAnyClientCert
			config.VerifyConnection = func(state tls.ConnectionState) error {
				name.Store(state.ServerName + " " + state.PeerCertificates[0].Subject.CommonName)
				return nil
			}
			s := rogue.StartAt(t, rogue.Options{TLS: config}, good)
			options := "tls CA"
			if own {
				options = "tls CERT KEY CA"
			}
			m := question("a.example.")
			a := queryOver(chainOf(t, secure("tls", s.Addr, "%dns.example", options, certificate)), m, false)
			if got, _ := name.Load().(string); own != (a.wrong(m) == "") || own && got != "dns.example server" {
				t.Errorf("with a certificate: %t; the server receives %q; %s", own, got, a.wrong(m))
			}
		}
	})
}

func checkCertified(t testing.TB, a answer, m *dns.Msg, right bool) {
	t.Helper()
	switch {
	case right && a.wrong(m) != "":
		t.Error(a.wrong(m))
	case !right && (a.Msg != nil || a.code != dns.RcodeServerFailure || a.err == nil || !strings.Contains(a.err.Error(), "x509") && !strings.Contains(a.err.Error(), "tls")):
		t.Errorf("message %v, code %d, error %v", a.Msg, a.code, a.err)
	}
}

// web is a DNS over HTTPS server.
type web struct {
	at                   string
	requests, made, open atomic.Int64
	methods              sync.Map
}

// startWeb starts a server that sends the replies of a function; without one, the status 500.
func startWeb(t testing.TB, config *tls.Config, reply func(r *dns.Msg) *dns.Msg) *web {
	t.Helper()
	w := new(web)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		w.requests.Add(1)
		w.methods.Store(fmt.Sprint(in.Method, " ", in.Proto, " ", in.Host), true)
		m, err := doh.RequestToMsg(in)
		if err != nil {
			select {
			case <-in.Context().Done(): // the client has cancelled the request
			case <-time.After(10 * time.Second):
				t.Errorf("invalid request: %v", err)
			}
			return
		}
		if m.Id != 0 {
			t.Errorf("a request with ID %d", m.Id)
		}
		var packed []byte
		if m = reply(m); m != nil {
			packed, err = m.Pack()
		}
		if err != nil || m == nil {
			http.Error(out, "no answer", http.StatusInternalServerError)
			return
		}
		out.Header().Set("Content-Type", doh.MimeType)
		_, _ = out.Write(packed) // the client may be gone
	}))
	s.TLS, s.EnableHTTP2 = config.Clone(), true
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			w.made.Add(1)
			w.open.Add(1)
		case http.StateClosed:
			w.open.Add(-1)
		}
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	w.at = s.Listener.Addr().String()
	return w
}

func TestHTTPS(t *testing.T) {
	t.Parallel()
	certificate := rogue.NewCertificate(t, "127.0.0.1", "dns.example")
	for options, want := range map[string]string{"": "POST HTTP/2.0 AT", "doh_method GET": "GET HTTP/2.0 AT", "tls_servername dns.example": "POST HTTP/2.0 dns.example"} {
		t.Run("options "+options, func(t *testing.T) {
			w := startWeb(t, certificate.Config, addressReply)
			f := chainOf(t, secure("https", w.at, "", "tls CA\n"+options, certificate))
			wantRight(t, f, false, "a.example.")
			var wait sync.WaitGroup
			for i := range 100 {
				wait.Go(func() { wantRight(t, f, i%2 == 0, fmt.Sprintf("q%d.eXample.", i)) })
			}
			wait.Wait()
			if w.made.Load() > 2 || w.requests.Load() != 101 {
				t.Errorf("%d connections for %d requests", w.made.Load(), w.requests.Load())
			}
			w.methods.Range(func(key, _ any) bool {
				if got := fmt.Sprint(key); got != strings.Replace(want, "AT", w.at, 1) {
					t.Errorf("request %s, want %s", got, want)
				}
				return true
			})
			if n := metric(t, "coredns_proxy_request_duration_seconds", "to", w.at, "proxy_name", "forward", "rcode", "NOERROR"); n < 101 {
				t.Errorf("%v answers are counted", n)
			}
		})
	}
	for name, c := range certified {
		t.Run(name, func(t *testing.T) {
			w := startWeb(t, certificate.Config, addressReply)
			m := question("a.example.")
			checkCertified(t, queryOver(chainOf(t, secure("https", w.at, c.name, c.options, certificate)), m, false), m, c.right)
		})
	}
}

// TestHTTPSStatusIsReported: the error of an upstream with an HTTP error has its status, not that of its body.
func TestHTTPSStatusIsReported(t *testing.T) {
	t.Parallel()
	certificate := rogue.NewCertificate(t, "127.0.0.1")
	w := startWeb(t, certificate.Config, func(*dns.Msg) *dns.Msg { return nil })
	f := chainOf(t, stanzaOf("timeout 200ms\ntls "+certificate.CA, "https://"+w.at))
	const want = "HTTP status 500 Internal Server Error"
	if a := queryOver(f, question("a.example."), false); a.err == nil || !strings.Contains(a.err.Error(), want) {
		t.Errorf("error %v, want %s", a.err, want)
	}
}

// TestHTTPS_Wrong: answers that do not match the query are dropped. The second upstream has the right one.
func TestHTTPS_Wrong(t *testing.T) {
	t.Parallel()
	certificate := rogue.NewCertificate(t, "127.0.0.1")
	for name, c := range map[string]struct {
		reply  func(r *dns.Msg) *dns.Msg
		reason string
	}{
		"question":  {func(r *dns.Msg) *dns.Msg { m := addressReply(r); m.Question[0].Name = "b.example."; return m }, "question"},
		"type":      {func(r *dns.Msg) *dns.Msg { m := addressReply(r); m.Question[0].Qtype = dns.TypeTXT; return m }, "question"},
		"class":     {func(r *dns.Msg) *dns.Msg { m := addressReply(r); m.Question[0].Qclass = dns.ClassCHAOS; return m }, "question"},
		"none":      {func(r *dns.Msg) *dns.Msg { m := addressReply(r); m.Question = nil; return m }, "question"},
		"direction": {func(r *dns.Msg) *dns.Msg { m := addressReply(r); m.Response = false; return m }, "malformed"},
		"no answer": {func(*dns.Msg) *dns.Msg { return nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := startWeb(t, certificate.Config, c.reply), rogue.Start(t, good)
			f := chainOf(t, stanzaOf("policy sequential\ntls "+certificate.CA, "https://"+w.at, s.Addr))
			wantRight(t, f, false, "a.example.")
			if n := metric(t, "nearside_forward_dropped_answers_total", "to", w.at, "proto", "https", "reason", c.reason); c.reason != "" && n == 0 {
				t.Errorf("%v dropped answers are counted", n)
			}
			if c.reason != "" { // a check accepts any answer
				kit.Eventually(t, "the upstream is not doubted", func() bool { return !upstreamOf(f, 0).doubted() })
			}
		})
	}
	t.Run("a refusal that is a header", func(t *testing.T) {
		w := startWeb(t, certificate.Config, func(r *dns.Msg) *dns.Msg {
			m := new(dns.Msg).SetRcode(r, dns.RcodeFormatError)
			m.Question = nil
			return m
		})
		m := question("a.example.")
		a := queryOver(chainOf(t, stanzaOf("timeout 1s\ntls "+certificate.CA, "https://"+w.at)), m, false)
		if a.Msg == nil || a.code != dns.RcodeFormatError || len(a.Question) != 1 || a.Question[0] != m.Question[0] || a.Id != m.Id {
			t.Errorf("message %v, error %v", a.Msg, a.err)
		}
	})
}

// TestHTTPS_Late: timeouts apply to HTTPS as well.
func TestHTTPS_Late(t *testing.T) {
	t.Parallel()
	certificate := rogue.NewCertificate(t, "127.0.0.1")
	cases := concurrently(t)
	defer cases.Wait()
	for name, c := range map[string]struct {
		options string
		delay   time.Duration
		rcode   int
	}{
		"in time":            {"", 50 * time.Millisecond, dns.RcodeSuccess},
		"after read_timeout": {"read_timeout 200ms", 300 * time.Millisecond, dns.RcodeSuccess},
		"never":              {"timeout 500ms", 2 * time.Second, dns.RcodeServerFailure},
	} {
		cases.Run(name, func(t testing.TB) {
			w := startWeb(t, certificate.Config, func(r *dns.Msg) *dns.Msg { time.Sleep(c.delay); return addressReply(r) })
			m := question("a.example.")
			a := queryOver(chainOf(t, stanzaOf(c.options+"\ntls "+certificate.CA, "https://"+w.at)), m, false)
			if a.code != c.rcode || a.took > 500*time.Millisecond+margin || c.rcode == dns.RcodeSuccess && a.wrong(m) != "" {
				t.Errorf("code %d, error %v, after %v", a.code, a.err, a.took)
			}
		})
	}
}

// TestHTTPS_Health: an upstream that has failed is the last in the order until it answers a check.
func TestHTTPS_Health(t *testing.T) {
	t.Parallel()
	certificate := rogue.NewCertificate(t, "127.0.0.1")
	var works atomic.Bool
	var seen sight
	w := startWeb(t, certificate.Config, func(r *dns.Msg) *dns.Msg {
		if r.Question[0].Qtype == dns.TypeNS {
			seen.add(r)
		}
		if !works.Load() {
			return nil
		}
		return addressReply(r)
	})
	s := rogue.Start(t, good)
	f := chainOf(t, stanzaOf("policy sequential\nhealth_check 20ms no_rec domain check.example\ntls "+certificate.CA, "https://"+w.at, s.Addr))
	u := upstreamOf(f, 0)
	wantRight(t, f, false, "a.example.")
	if !u.doubted() {
		t.Error("the upstream is not doubted")
	}
	kit.Eventually(t, "the upstream is down", u.down)
	before := s.Counts().Queries()
	wantRight(t, f, false, "b.example.")
	if s.Counts().Queries() != before+1 {
		t.Error("the other upstream got no query")
	}
	if n := metric(t, checkFailures, "to", w.at, "proxy_name", "forward"); n < 3 {
		t.Errorf("%v failed checks are counted", n)
	}
	works.Store(true)
	kit.Eventually(t, "the upstream is up", func() bool { return !u.down() && !u.doubted() })
	wantRight(t, f, false, "c.example.")
	if s.Counts().Queries() != before+1 {
		t.Error("the upstream is not the first")
	}
	if q := seen.all()[0]; q.Question[0].Name != "check.example." || q.RecursionDesired {
		t.Errorf("the query of a check is %v", q)
	}
}

// TestHTTPS_Stop is not parallel, since it examines all goroutines.
func TestHTTPS_Stop(t *testing.T) {
	certificate := rogue.NewCertificate(t, "127.0.0.1")
	for name, c := range map[string]struct {
		expire       string
		before, stop bool
	}{"stop during queries": {"200ms", false, true}, "stop while idle": {"1m", true, true}, "expire": {"200ms", true, false}} {
		t.Run(name, func(t *testing.T) {
			w := startWeb(t, certificate.Config, func(r *dns.Msg) *dns.Msg { time.Sleep(100 * time.Millisecond); return addressReply(r) })
			f := chainOf(t, stanzaOf("expire "+c.expire+"\ntls "+certificate.CA, "https://"+w.at))
			var wait sync.WaitGroup
			wait.Go(func() { wantRight(t, f, false, "a.example.") })
			kit.Eventually(t, "a request has arrived", func() bool { return w.requests.Load() > 0 })
			if c.before {
				wait.Wait()
			}
			if c.stop {
				f.stop()
			}
			wait.Wait()
			kit.Eventually(t, "the connection is closed", func() bool { return w.open.Load() == 0 })
			kit.Eventually(t, "goroutines have ended", func() bool { return len(running()) == 0 })
		})
	}
}

// TestMetrics causes and checks each metric once.
func TestMetrics(t *testing.T) {
	t.Parallel()
	measured(t, func(t testing.TB) {
		f, servers := forwardTo(t, "policy sequential\nhedge 200ms", rogue.Behaviour{Slow: 800 * time.Millisecond}, good)
		wantRight(t, f, true, "a.example.", "b.example.")
		wantRight(t, f, false, "c.example.", "d.example.")
		servers[1].Behave(failing(dns.RcodeServerFailure))
		m := question("e.example.")
		queryOver(f, m, true)
		to := servers[0].Addr
		for _, c := range []struct {
			name   string
			labels []string
			want   float64
		}{
			{"coredns_proxy_request_duration_seconds", []string{"proxy_name", "forward", "to", to, "rcode", "NOERROR"}, 5},
			{"coredns_proxy_conn_cache_hits_total", []string{"proxy_name", "forward", "to", to, "proto", "tcp"}, 2},
			{"coredns_proxy_conn_cache_hits_total", []string{"proxy_name", "forward", "to", to, "proto", "udp"}, 1},
			{"coredns_proxy_conn_cache_misses_total", []string{"proxy_name", "forward", "to", to, "proto", "tcp"}, 1},
			{"coredns_proxy_conn_cache_misses_total", []string{"proxy_name", "forward", "to", to, "proto", "udp"}, 1},
			{"nearside_forward_connections", []string{"to", to, "proto", "tcp"}, 1},
			{"nearside_forward_connections", []string{"to", to, "proto", "udp"}, 1},
			{"nearside_forward_in_flight", []string{"to", to}, 0},
			{"nearside_forward_pipelining_depth", []string{"to", to, "proto", "tcp"}, 3},
			{"nearside_forward_packets_total", []string{"to", to, "proto", "udp", "direction", "sent"}, 2},
			{"nearside_forward_packets_total", []string{"to", to, "proto", "udp", "direction", "received"}, 2},
		} {
			if got := metric(t, c.name, c.labels...); got != c.want {
				t.Errorf("%s%q is %v, want %v", c.name, c.labels, got, c.want)
			}
		}
		for _, direction := range []string{"sent", "received"} {
			kit.Eventually(t, "segments are counted", func() bool {
				return metric(t, "nearside_forward_packets_total", "to", to, "proto", "tcp", "direction", direction) >= 3
			})
		}
		servers[1].Behave(good)
		wantRight(t, f, true, "slow.example.")
		kit.Eventually(t, "the late answer is counted", func() bool { return metric(t, "nearside_forward_late_answers_total", "to", to, "proto", "tcp") == 1 })
		one, closes := forwardTo(t, "force_tcp", rogue.Behaviour{CloseAfter: 1})
		for i := range 5 {
			wantRight(t, one, false, fmt.Sprintf("q%d.example.", i))
		}
		if n := metric(t, "nearside_forward_fallbacks_total", "to", closes[0].Addr, "reason", "one_query_per_connection"); n != 1 {
			t.Errorf("%v changes to one query per connection", n)
		}
		down, refuses := forwardTo(t, "force_tcp\npolicy sequential\nhealth_check 20ms", refusing, good)
		wantRight(t, down, true, "a.example.")
		kit.Eventually(t, "a failed check is counted", func() bool { return metric(t, checkFailures, "to", refuses[0].Addr, "proxy_name", "forward") >= 1 })
		sessions := startSessions(t)
		sessions.open(t, chainOf(t, stanzaOf("coherent", sessions.addr)))
		families, err := prometheus.DefaultGatherer.Gather()
		kit.Must(t, err)
		for _, c := range counted {
			if !slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == nameOf(c) && f.GetHelp() != "" }) {
				t.Errorf("%s is not registered", nameOf(c))
			}
		}
		code, failing := forwardTo(t, "", rogue.Behaviour{Rcode: 23})
		queryOver(code, question("a.example.").SetEdns0(1232, false), false)
		if n := metric(t, "coredns_proxy_request_duration_seconds", "to", failing[0].Addr, "rcode", "BADCOOKIE"); n != 1 {
			t.Errorf("%v answers with an extended code", n)
		}
	})
}

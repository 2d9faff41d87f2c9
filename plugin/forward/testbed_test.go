package forward

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/nearside-dns/nearside/test/forward/rogue"
	"github.com/nearside-dns/nearside/test/kit"
)

const (
	// bounded limits the wait for an expected event on a busy machine.
	bounded = 10 * time.Second
	// margin is the delay that a busy machine may add.
	margin = time.Second
)

// silent reads queries and never answers, refusing refuses connections.
var silent, refusing, good = rogue.Behaviour{Drop: 1}, rogue.Behaviour{Refuse: true}, rogue.Behaviour{}

// stanzaOf returns a stanza for servers.
func stanzaOf(options string, to ...string) string {
	return "forward . " + strings.Join(to, " ") + " {\n" + options + "\n}"
}

// addressesOfServers returns the addresses of servers.
func addressesOfServers(servers []*rogue.Server) (all []string) {
	for _, s := range servers {
		all = append(all, s.Addr)
	}
	return all
}

// chainOf returns the first stanza of a text; each is followed by the next, the last by a plugin that answers YXDOMAIN.
func chainOf(t testing.TB, text string) *Forward {
	t.Helper()
	configs := configured(t, text)
	next := test.NextHandler(dns.RcodeYXDomain, nil)
	for _, c := range slices.Backward(configs) {
		endpoints, err := newTargets(c).first(context.Background())
		kit.Must(t, err)
		f := newForward(c)
		f.Next = next
		f.use(endpoints)
		t.Cleanup(f.stop)
		next = f
	}
	f, _ := next.(*Forward)
	return f
}

// servedHosts is the number of addresses that nextHost has returned.
var servedHosts atomic.Uint32

// nextHost returns a loopback address that no other server of the process uses: metrics are by address and port, and the
// kernel reuses the port of a server that has ended.
func nextHost() string {
	n := servedHosts.Add(1)
	return netip.AddrFrom4([4]byte{127, 1 + byte(n>>16), byte(n >> 8), byte(n)}).String()
}

// forwardTo returns a stanza for servers with some behaviours, and the servers.
func forwardTo(t testing.TB, options string, behaviours ...rogue.Behaviour) (*Forward, []*rogue.Server) {
	t.Helper()
	var servers []*rogue.Server
	for _, b := range behaviours {
		servers = append(servers, rogue.StartAt(t, rogue.Options{Host: nextHost()}, b))
	}
	return chainOf(t, stanzaOf(options, addressesOfServers(servers)...)), servers
}

// withoutKeepAlive omits edns-tcp-keepalive, whose refusal causes further queries: it is for tests of other refusals.
func withoutKeepAlive(f *Forward) *Forward {
	for _, u := range *f.upstreams.Load() {
		if u.pool != nil {
			u.pool.KeepAliveChecked(false)
		}
	}
	return f
}

func upstreamOf(f *Forward, i int) *upstream { return (*f.upstreams.Load())[i] }

// answer is the result of a query: a message, or a response code and an error.
type answer struct {
	*dns.Msg
	code int
	err  error
	took time.Duration
}

func question(name string) *dns.Msg { return new(dns.Msg).SetQuestion(name, dns.TypeA) }

// queryOver queries over UDP or TCP.
func queryOver(h plugin.Handler, m *dns.Msg, tcp bool) answer {
	return queryEither(context.Background(), h, m, tcp)
}

func queryWith(ctx context.Context, h plugin.Handler, m *dns.Msg, tcp bool) answer {
	w := dnstest.NewRecorder(&test.ResponseWriter{TCP: tcp})
	began := time.Now()
	code, err := h.ServeDNS(ctx, w, m)
	a := answer{Msg: w.Msg, code: code, err: err, took: time.Since(began)}
	if w.Msg != nil {
		a.code = w.Rcode
	}
	return a
}

// wrong returns the difference between an answer and that of a good server, "" for none.
func (a answer) wrong(m *dns.Msg) string {
	switch {
	case a.Msg == nil:
		return fmt.Sprintf("no answer but %s after %v: %v", dns.RcodeToString[a.code], a.took, a.err)
	case a.Id != m.Id:
		return fmt.Sprintf("id %d, want %d", a.Id, m.Id)
	case len(a.Question) != 1 || a.Question[0] != m.Question[0]:
		return fmt.Sprintf("question %v, want %v", a.Question, m.Question)
	case len(a.Answer) != 1:
		return fmt.Sprintf("no address but %s, truncated: %t", dns.RcodeToString[a.Rcode], a.Truncated)
	}
	record, ok := a.Answer[0].(*dns.A)
	if !ok {
		return fmt.Sprintf("no address but %v", a.Answer)
	}
	if got, _ := netip.AddrFromSlice(record.A.To4()); got != rogue.Address(m.Question[0].Name) {
		return fmt.Sprintf("address %v, want %v", got, rogue.Address(m.Question[0].Name))
	}
	return ""
}

// wantRight queries names, and fails the test without the answers of a good server.
func wantRight(t testing.TB, h plugin.Handler, tcp bool, names ...string) {
	t.Helper()
	for _, name := range names {
		m := question(name)
		if wrong := queryOver(h, m, tcp).wrong(m); wrong != "" {
			t.Errorf("%s: %s", name, wrong)
		}
	}
}

// concurrently returns a runner of concurrent cases that mostly wait: t.Parallel is limited to the number of processors.
// Call Wait before the test ends.
func concurrently(t *testing.T) *concurrent { return &concurrent{t: t} }

type concurrent struct {
	sync.WaitGroup
	t *testing.T
}

// Run starts a case, which may measure times.
func (c *concurrent) Run(name string, run func(t testing.TB)) {
	c.Go(func() { c.t.Run(name, func(t *testing.T) { measured(t, run) }) })
}

// configured returns the configurations of stanzas.
func configured(t testing.TB, stanzas string) []config {
	t.Helper()
	all, err := parse(caddy.NewTestController("dns", stanzas))
	kit.Must(t, err)
	return all
}

// sight records the queries that a scripted server receives.
type sight struct {
	mu      sync.Mutex
	queries []*dns.Msg
}

func (s *sight) add(m *dns.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries = append(s.queries, m.Copy()) // the server changes it
}

func (s *sight) all() []*dns.Msg {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.queries)
}

// script is a server with handlers of the test, for behaviours that rogue servers do not have.
type script struct {
	udp, tcp dns.HandlerFunc // nil is the same as the other
	tls      *tls.Config     // for TCP
	host     string          // 127.0.0.1 if empty
}

// address starts the server and returns its address.
func (s script) address(t testing.TB) string {
	t.Helper()
	p, l := kit.ListenBoth(t, net.JoinHostPort(cmp.Or(s.host, "127.0.0.1"), "0"))
	at := l.Addr().String()
	if s.tls != nil {
		l = tls.NewListener(l, s.tls)
	}
	if s.udp == nil {
		s.udp = s.tcp
	}
	if s.tcp == nil {
		s.tcp = s.udp
	}
	accept := func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept }
	for _, server := range []*dns.Server{
		{Listener: l, Handler: s.tcp, MaxTCPQueries: -1, MsgAcceptFunc: accept},
		{PacketConn: p, Handler: s.udp, MsgAcceptFunc: accept},
	} {
		started, ended := make(chan struct{}), make(chan error, 1)
		server.NotifyStartedFunc = func() { close(started) }
		go func() { ended <- server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			if err := server.ShutdownContext(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		})
	}
	return at
}

// addressReply returns the reply of a good server.
func addressReply(r *dns.Msg) *dns.Msg {
	m := new(dns.Msg).SetReply(r)
	if q := r.Question[0]; q.Qtype == dns.TypeA {
		a := rogue.Address(q.Name).As4()
		m.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}, A: a[:]}}
	}
	return m
}

// replies returns a handler that sends the replies of a function; nil is no reply.
func replies(function func(r *dns.Msg) *dns.Msg) dns.HandlerFunc {
	return func(w dns.ResponseWriter, r *dns.Msg) {
		if m := function(r); m != nil {
			_ = w.WriteMsg(m) // the client may be gone
		}
	}
}

// counted are the plugin's metrics.
var counted = []prometheus.Collector{
	healthcheckBroken, maxConcurrentRejects, requestDuration, healthcheckFailures, connCacheHits, connCacheMisses,
	connections, inFlight, depth, fallbacks, lateAnswers, droppedAnswers, packets,
	coherenceSessions, coherenceInvalidations, coherenceFallbacks, ages,
}

// nameOf returns a metric's full name.
func nameOf(c prometheus.Collector) string {
	described := make(chan *prometheus.Desc, 1)
	c.Describe(described)
	_, name, _ := strings.Cut((<-described).String(), `fqName: "`)
	name, _, _ = strings.Cut(name, `"`)
	return name
}

// metric returns the sum of the series of a metric with these labels; of a histogram, the number of observations. It
// does not gather other metrics, which have thousands of series.
func metric(t testing.TB, name string, labels ...string) (sum float64) {
	t.Helper()
	i := slices.IndexFunc(counted, func(c prometheus.Collector) bool { return nameOf(c) == name })
	if i < 0 {
		t.Fatalf("no metric %s", name)
	}
	for _, m := range seriesOf(t, counted[i]) {
		if has(m, labels) {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// seriesOf returns the series of a metric.
func seriesOf(t testing.TB, c prometheus.Collector) (all []*dto.Metric) {
	t.Helper()
	series := make(chan prometheus.Metric, 16)
	go func() {
		defer close(series)
		c.Collect(series)
	}()
	for one := range series {
		m := new(dto.Metric)
		if err := one.Write(m); err != nil {
			t.Error(err)
		}
		all = append(all, m)
	}
	return all
}

func has(m *dto.Metric, labels []string) bool {
	for i := 0; i < len(labels); i += 2 {
		if !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool {
			return l.GetName() == labels[i] && l.GetValue() == labels[i+1]
		}) {
			return false
		}
	}
	return true
}

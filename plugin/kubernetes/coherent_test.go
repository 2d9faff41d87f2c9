package kubernetes

import (
	"fmt"
	stdlog "log"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nearside-dns/nearside/plugin/internal/block"
	"github.com/nearside-dns/nearside/plugin/internal/push"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

// registerFailingLast registers a plugin that fails to start after this one has started, once in the process.
var registerFailingLast = sync.OnceFunc(func() {
	plugin.Register("erratic", func(c *caddy.Controller) error {
		c.OnStartup(func() error { return errStart })
		return nil
	})
})

// TestCoherent_Offers starts, reloads and ends configurations with and without the option.
func TestCoherent_Offers(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("sessions need the fast path")
	}
	registerFailingLast()
	dir := t.TempDir()
	kit.Write(t, dir+"/ns.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")
	corefile := func(options, others string) caddy.CaddyfileInput {
		text := ".:0 {\n" + others + "\nkubernetes cluster.local {\nmanifests " + dir + "\n" + options + "\n}\n}"
		return caddy.CaddyfileInput{Filepath: "Corefile", Contents: []byte(text), ServerTypeName: "dns"}
	}
	offers := func(when string, want bool) {
		t.Helper()
		r := push.Process
		if r.Offers() != want || r.Statistics().Live != want {
			t.Errorf("%s: sessions are offered: %t, live: %t, want %t", when, r.Offers(), r.Statistics().Live, want)
		}
	}
	caddy.Quiet, dnsserver.Quiet = true, true
	inst, err := caddy.Start(corefile("", ""))
	kit.Must(t, err)
	offers("without the option", false)
	restart := func(options, others string) {
		t.Helper()
		next, err := inst.Restart(corefile(options, others))
		if (err != nil) != (others == "erratic") {
			t.Fatal(err)
		}
		if err == nil {
			inst = next
		}
	}
	restart("coherent", "erratic")
	offers("a refused configuration with the option", false)
	restart("coherent", "")
	offers("with the option", true)
	restart("coherent\nttl 7", "")
	offers("another configuration with the option", true)
	restart("", "erratic")
	offers("a refused configuration without the option", true)
	restart("", "")
	offers("without the option again", false)
	restart("coherent", "")
	offers("with it again", true)
	if errs := inst.ShutdownCallbacks(); len(errs) > 0 {
		t.Error(errs)
	}
	offers("at the end", false)
	if len(views.all) != 0 {
		t.Errorf("%d views remain", len(views.all))
	}
	if err := inst.Stop(); err != nil {
		t.Error(err)
	}
}

// TestCoherent_NoFastPath: without a fast path nothing is offered.
func TestCoherent_NoFastPath(t *testing.T) {
	c := caddy.NewTestController("dns", "kubernetes cluster.local {\nendpoint http://127.0.0.1:1\ncoherent\n}")
	kit.Must(t, setup(c))
	config, b := dnsserver.GetConfig(c), block.Of(c)
	k, ok := config.Plugin[0](nil).(*Kubernetes)
	if !ok {
		t.Fatal("no handler")
	}
	b.FastPathOff = true
	obstacle := sessionObstacle(b.Eligibility())
	if !strings.Contains(obstacle, "directive fastpath is off") && runtime.GOOS == "linux" {
		t.Errorf("the obstacle is %q", obstacle)
	}
	if hosts := sessionObstacle(block.Eligibility{Silent: "hosts"}); !strings.Contains(hosts, "plugin hosts") && runtime.GOOS == "linux" {
		t.Errorf("the obstacle is %q", hosts)
	}
	if none := sessionObstacle(block.Eligibility{ByGeneration: true}); none != "" && runtime.GOOS == "linux" {
		t.Errorf("the obstacle is %q", none)
	}
	o := &offering{k: k, registry: push.NewRegistry()}
	o.begin(obstacle)
	if o.registry.Offers() {
		t.Error("sessions are offered without a fast path")
	}
	o.end()
	o.begin("")
	if o.registry.Offers() || len(views.all) != 0 {
		t.Error("sessions are offered after the end")
	}
}

// TestCoherent_Live asserts with which states of the resources heartbeats are sent.
func TestCoherent_Live(t *testing.T) {
	const plain, all = "kubernetes cluster.local", "kubernetes cluster.local clusterset.local {\nmulticluster clusterset.local\ntopology\npods verified\nprefer-local-cluster\n}"
	ok := func(resource string) source.Status { return source.Status{Resource: resource, Synced: true} }
	with := func(s source.Status, change func(*source.Status)) source.Status {
		change(&s)
		return s
	}
	tests := map[string]struct {
		block  string
		status []source.Status // of resources whose state is not the usual one
		want   bool
	}{
		"synced":                               {plain, nil, true},
		"all synced":                           {all, nil, true},
		"a resource that no answer depends on": {plain, []source.Status{{Resource: source.Nodes, Denied: true}}, true},
	}
	states := map[string]func(*source.Status){
		"not synced": func(s *source.Status) { s.Synced = false },
		"frozen":     func(s *source.Status) { s.Frozen = true },
		"denied":     func(s *source.Status) { s.Denied = true },
		"uncertain":  func(s *source.Status) { s.Uncertain = true },
	}
	for _, r := range []string{source.Services, source.EndpointSlices, source.Namespaces, source.Pods, source.Nodes, source.ServiceImports, source.ClusterProperties} {
		for state, change := range maps.All(states) {
			tests[r+" "+state] = struct {
				block  string
				status []source.Status
				want   bool
			}{all, []source.Status{with(ok(r), change)}, false}
		}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			k := withStatus(answering(t, tt.block), tt.status...)
			k.coherent = true
			o := &offering{k: k, registry: push.NewRegistry()}
			o.begin("")
			defer o.end()
			if got := o.registry.Statistics().Live; got != tt.want {
				t.Errorf("live: %t, want %t", got, tt.want)
			}
		})
	}
}

// blockedWriter is a log output that blocks until it is released.
type blockedWriter struct {
	released chan struct{}
	mu       sync.Mutex
	text     strings.Builder
}

func (w *blockedWriter) Write(b []byte) (int, error) {
	<-w.released
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

// lines returns the lines about sessions.
func (w *blockedWriter) lines() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range strings.Lines(w.text.String()) {
		if strings.Contains(line, "coherent: ") {
			all = append(all, line)
		}
	}
	return all
}

// awaitLines waits until the lines of earlier tests are logged.
func awaitLines(t *testing.T, v *handlers) {
	t.Helper()
	kit.Eventually(t, "the lines of earlier tests", func() bool {
		v.mu.Lock()
		defer v.mu.Unlock()
		return len(v.lines) == 0
	})
}

// TestCoherent_BlockedLog has a view that ceases to be live and is live again while the output of the process is blocked: the
// goroutine that notifies sessions does not wait for it. A limited number of lines is logged later.
func TestCoherent_BlockedLog(t *testing.T) {
	awaitLines(t, &views)
	w := &blockedWriter{released: make(chan struct{})}
	stdlog.SetOutput(w)
	t.Cleanup(func() { stdlog.SetOutput(os.Stderr) })
	denied := false
	k := &Kubernetes{status: func() []source.Status { return []source.Status{{Synced: true, Denied: denied}} }}
	var v handlers
	v.add(k)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 100 {
			if denied = !denied; v.areLive() == denied {
				t.Errorf("live: %t", denied)
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the caller waits for the log")
	}
	close(w.released)
	<-ended
	kit.Eventually(t, fmt.Sprintf("%d lines", maxLines), func() bool { return len(w.lines()) >= maxLines })
	for i, line := range w.lines() {
		if want := []string{"no heartbeats", "heartbeats continue"}[i%2]; !strings.Contains(line, want) {
			t.Errorf("line %d is %q, want %q", i, line, want)
		}
	}
}

// TestCoherent_OtherViews: the views of all blocks count, since one heartbeat is for all answers.
func TestCoherent_OtherViews(t *testing.T) {
	registry := push.NewRegistry()
	coherent, other := answering(t, "kubernetes cluster.local {\ncoherent\n}"), answering(t, "kubernetes other.local")
	both := []*offering{{k: coherent, registry: registry}, {k: other, registry: registry}}
	for _, o := range both {
		o.begin("")
		defer o.end()
	}
	lives := func(when string, want bool) {
		t.Helper()
		if got := registry.Statistics().Live; got != want {
			t.Errorf("%s: live: %t, want %t", when, got, want)
		}
	}
	lives("both synced", true)
	withStatus(other, source.Status{Resource: source.Services, Synced: true, Uncertain: true})
	lives("the other one uncertain", false)
	withStatus(other)
	lives("both synced again", true)
	withStatus(other, source.Status{Resource: source.Services, Synced: true, Frozen: true})
	both[1].end()
	lives("the other one ended", true)
	both[0].end()
	lives("ended", false)
}

// TestCoherent_Metrics: the metrics exist while sessions are offered.
func TestCoherent_Metrics(t *testing.T) {
	k := answering(t, "kubernetes cluster.local {\ncoherent\n}")
	o := &offering{k: k, registry: push.NewRegistry()}
	gathering := prometheus.NewPedanticRegistry()
	kit.Must(t, gathering.Register(newSessionMetrics(o.registry)))
	values := func() map[string]float64 {
		families, err := gathering.Gather()
		kit.Must(t, err)
		all := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				name := strings.TrimPrefix(f.GetName(), metricNamespace+"_kubernetes_coherence_")
				for _, l := range m.Label {
					name += " " + l.GetValue()
				}
				all[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		return all
	}
	if got := values(); len(got) != 0 {
		t.Errorf("before the offer: %v", got)
	}
	o.begin("")
	defer o.end()
	session := o.registry.Open(&sessionConn{t: t}, netip.Addr{})
	session.Subscribe(indexOf(k).AccessGeneration())
	o.registry.CountClosed(push.Unread)
	want := map[string]float64{"sessions": 1, "subscriptions": 1, "live": 1, "invalidations_total": 0, "refused_total session": 0, "refused_total source": 0,
		"refused_total process": 0, "closed_total unread": 1, "closed_total silent": 0, "closed_total malformed": 0}
	if got := values(); !maps.Equal(got, want) {
		t.Errorf("metrics %v, want %v", got, want)
	}
	indexOf(k).Outdate()
	within := waitFor(20*time.Second, func() bool { return values()["invalidations_total"] == 1 })
	if got := values(); !within || got["subscriptions"] != 0 {
		t.Errorf("after an event: %v", got)
	}
	session.Close()
	withStatus(k, source.Status{Resource: source.Services})
	if got := values(); got["live"] != 0 || got["sessions"] != 0 {
		t.Errorf("after the end of the session, and not synced: %v", got)
	}
}

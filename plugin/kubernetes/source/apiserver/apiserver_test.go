package apiserver

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

func TestMain(m *testing.M) { kubeapi.Main(m) }

// clock is a clock that the test advances.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.offset.Load())) }
func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

// run starts a source for the API server and stops it with the test.
func run(t *testing.T, api *kubeapi.Server, o source.Options, c *clock) (*Source, *index.Index) {
	t.Helper()
	s, err := New(Connection{Endpoint: api.URL(), QPS: 1000, Burst: 1000}, o)
	kit.Must(t, err)
	if c != nil {
		for _, r := range s.resources {
			r.health.now = c.now
		}
	}
	return s, runSource(t, s)
}

// runSource runs a source until the test ends.
func runSource(t *testing.T, s *Source) *index.Index {
	ix := index.New()
	kit.Background(t, func(ctx context.Context) { s.Run(ctx, ix) })
	return ix
}

func synced(s *Source) bool {
	for _, st := range s.Status() {
		if !st.Synced {
			return false
		}
	}
	return true
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func service(name, ip string, label map[string]string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: label},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip},
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
}

func slice(name, service string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func hasIP(ix *index.Index, service, ip string) bool {
	e := ix.Service("shop", service)
	return e != nil && len(e.Service.IPs) == 1 && e.Service.IPs[0] == netip.MustParseAddr(ip)
}

func TestFollowsCluster(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lists bool // an API server without streamed lists
	}{{"streamed lists", false}, {"paged lists", true}} {
		t.Run(tc.name, func(t *testing.T) {
			api := kubeapi.New(t)
			api.DisableWatchList(tc.lists)
			api.Put(namespace("shop"))
			var all []runtime.Object
			for i := range 1200 { // more than two pages
				all = append(all, service("svc-"+strconv.Itoa(i), "10.96."+strconv.Itoa(i/250)+"."+strconv.Itoa(i%250+1), nil))
			}
			api.Load(all...)
			api.Put(slice("web-a", "svc-7", "10.1.0.1", "10.1.0.2"))
			s, ix := run(t, api, source.Options{Endpoints: true, Pods: true}, nil)
			kit.Eventually(t, "synced", func() bool { return synced(s) })
			if n := len(ix.Services()); n != 1200 {
				t.Fatalf("%d Services after the first list, want 1200", n)
			}
			if e := ix.Service("shop", "svc-7"); len(e.Slices) != 1 || e.Ready() != 2 {
				t.Fatalf("svc-7 has %d slices, %d ready endpoints", len(e.Slices), e.Ready())
			}

			api.Put(service("svc-7", "10.96.200.7", nil))
			api.Delete(service("svc-8", "", nil))
			api.Put(slice("web-a", "svc-7", "10.1.0.2"))
			kit.Eventually(t, "update of a Service", func() bool { return hasIP(ix, "svc-7", "10.96.200.7") })
			kit.Eventually(t, "deletion of a Service", func() bool { return ix.Service("shop", "svc-8") == nil })
			kit.Eventually(t, "update of a slice", func() bool { return ix.Service("shop", "svc-7").Ready() == 1 })

			kept := ix.ServiceRecord("shop", "svc-9")
			api.Refuse(true)
			api.DropWatches("services")
			api.Delete(service("svc-10", "", nil))
			api.Put(service("svc-11", "10.96.200.11", nil))
			api.Expire()
			if ix.Service("shop", "svc-10") == nil {
				t.Fatal("a Service vanished while the API server was away")
			}
			api.Refuse(false)
			kit.Eventually(t, "deletion while away", func() bool { return ix.Service("shop", "svc-10") == nil })
			kit.Eventually(t, "update while away", func() bool { return hasIP(ix, "svc-11", "10.96.200.11") })
			if ix.ServiceRecord("shop", "svc-9") != kept {
				t.Error("the relist replaced the record of an unchanged Service")
			}
		})
	}
}

func TestSelectors(t *testing.T) {
	api := kubeapi.New(t)
	blue := map[string]string{"tier": "blue"}
	api.Put(namespace("shop"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab", Labels: blue}})
	api.Put(service("in", "10.96.0.1", blue), service("out", "10.96.0.2", nil))
	only := labels.SelectorFromSet(blue)
	s, ix := run(t, api, source.Options{Labels: only, NamespaceLabels: only}, nil)
	kit.Eventually(t, "synced", func() bool { return synced(s) })
	if ix.Service("shop", "in") == nil || ix.Service("shop", "out") != nil {
		t.Error("labels do not select Services")
	}
	if ix.HasNamespace("shop") || !ix.HasNamespace("lab") {
		t.Error("namespace_labels do not select namespaces")
	}
	api.Put(service("out", "10.96.0.2", blue), service("in", "10.96.0.1", nil))
	kit.Eventually(t, "a label that came", func() bool { return ix.Service("shop", "out") != nil })
	kit.Eventually(t, "a label that went", func() bool { return ix.Service("shop", "in") == nil })
}

func TestPods(t *testing.T) {
	api := kubeapi.New(t)
	p := func(name string, phase corev1.PodPhase, ip string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Status:     corev1.PodStatus{Phase: phase, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}},
		}
	}
	api.Put(p("runs", corev1.PodRunning, "10.1.0.1"), p("done", corev1.PodSucceeded, "10.1.0.2"))
	s, ix := run(t, api, source.Options{Pods: true}, nil)
	kit.Eventually(t, "synced", func() bool { return synced(s) })
	at := func(ip string) int { return len(ix.PodsByIP(netip.MustParseAddr(ip))) }
	if at("10.1.0.1") != 1 || at("10.1.0.2") != 0 {
		t.Fatal("want the running pod, and not the one that has succeeded")
	}
	ending := p("runs", corev1.PodRunning, "10.1.0.9")
	ending.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	unknown := p("new", corev1.PodRunning, "10.1.0.3")
	unknown.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	api.Put(ending, unknown, p("last", corev1.PodRunning, "10.1.0.4"))
	kit.Eventually(t, "the last event", func() bool { return at("10.1.0.4") == 1 })
	if at("10.1.0.1") != 1 || at("10.1.0.9") != 0 {
		t.Error("a pod that is being deleted does not keep its record")
	}
	if ix.PodRecord("shop", "runs").Ending {
		t.Error("a pod is ending without search paths")
	}
	if at("10.1.0.3") != 0 {
		t.Error("a pod that is being deleted was taken up")
	}
	api.Delete(ending)
	kit.Eventually(t, "deletion", func() bool { return at("10.1.0.1") == 0 })
}

func status(s *Source, resource string) source.Status {
	for _, st := range s.Status() {
		if st.Resource == resource {
			return st
		}
	}
	return source.Status{}
}

func theResource(s *Source, name string) *resource {
	for _, r := range s.resources {
		if r.name == name {
			return r
		}
	}
	return nil
}

// TestOverloaded has an API server that is reachable and answers with errors, as one that has just started, or a load balancer before it.
// A source without records lists if a streamed list fails. One with records requests the watch again, which continues where it ended, for two
// minutes.
func TestOverloaded(t *testing.T) {
	const path = "/api/v1/services"
	api := kubeapi.New(t)
	api.Put(namespace("shop"), service("web", "10.96.0.1", nil))
	f := startFront(t, api)
	f.failsStreams(http.StatusGatewayTimeout)
	s, err := New(Connection{Endpoint: f.url, QPS: 1000, Burst: 1000}, source.Options{})
	kit.Must(t, err)
	ix := index.New()
	defer kit.Background(t, func(ctx context.Context) { s.Run(ctx, ix) })()
	kit.Eventually(t, "the first records, by a list", func() bool { return synced(s) && hasIP(ix, "web", "10.96.0.1") })
	f.failsStreams(0)

	api.Put(service("web", "10.96.0.3", nil)) // client-go lists after a watch of less than a second without an event
	kit.Eventually(t, "an event", func() bool { return hasIP(ix, "web", "10.96.0.3") })
	streams, lists, watches := f.count(path, "stream"), f.count(path, "list"), f.count(path, "watch")
	f.fails(http.StatusServiceUnavailable, path)
	api.DropWatches("services")
	kit.Eventually(t, "a second request for the watch", func() bool { return f.count(path, "watch") > watches+1 })
	api.Put(service("web", "10.96.0.2", nil))
	f.answers(nil)
	kit.Eventually(t, "the change", func() bool { return hasIP(ix, "web", "10.96.0.2") })
	if got := f.count(path, "stream"); got != streams {
		t.Errorf("%d more streamed lists were requested after the watch, want none", got-streams)
	}
	if got := f.count(path, "list"); got != lists {
		t.Errorf("%d more lists were requested after the watch, want none", got-lists)
	}
}

// TestMayWait: a source lists at once without records, and after a time without a watch.
func TestMayWait(t *testing.T) {
	c, h := new(clock), newHealth()
	h.now = c.now
	if h.begins(); h.mayWait() {
		t.Error("waits without records")
	}
	if h.synced(); !h.mayWait() {
		t.Error("does not wait after the first list")
	}
	w := h.opened(watch.NewFake(), false)
	c.advance(time.Hour)
	if !h.mayWait() {
		t.Error("does not wait with a watch")
	}
	w.Stop()
	if c.advance(waitFor - time.Second); !h.mayWait() {
		t.Error("does not wait soon after the end of a watch")
	}
	if c.advance(2 * time.Second); h.mayWait() {
		t.Error("waits long after the end of a watch")
	}
}

// TestOverloadedErrors has the errors after which the same watch is requested again.
func TestOverloadedErrors(t *testing.T) {
	for code, again := range map[int]bool{
		http.StatusTooManyRequests: true, http.StatusInternalServerError: true, http.StatusServiceUnavailable: true, http.StatusGatewayTimeout: true,
		http.StatusUnauthorized: true, http.StatusForbidden: true, http.StatusBadRequest: false, http.StatusNotFound: false,
		http.StatusGone: false, http.StatusUnprocessableEntity: false, // without streamed lists
	} {
		err := apierrors.NewGenericServerResponse(code, http.MethodGet, schema.GroupResource{Resource: "services"}, "", "", 0, true)
		if got := apierrors.IsTooManyRequests(new(resource).overloaded(err)); got != again {
			t.Errorf("%d: requested again %v, want %v", code, got, again)
		}
		custom := &resource{definition: &serviceImports} // which is looked for again
		if got := apierrors.IsTooManyRequests(custom.overloaded(err)); got != (again && !isDenied(err)) {
			t.Errorf("%d for a custom resource: requested again %v", code, got)
		}
	}
	future := apierrors.NewTimeoutError("Too large resource version", 1)
	future.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeResourceVersionTooLarge}}}
	if apierrors.IsTooManyRequests(new(resource).overloaded(future)) {
		t.Error("a version that the server does not have yet is requested again")
	}
}

func TestWatchdog(t *testing.T) {
	quiet := quietAfter + time.Second
	start := func(t *testing.T) (*kubeapi.Server, *Source, *index.Index, *clock) {
		api := kubeapi.New(t)
		api.Put(namespace("shop"), service("web", "10.96.0.1", nil))
		c := new(clock)
		s, ix := run(t, api, source.Options{}, c)
		kit.Eventually(t, "synced", func() bool { return synced(s) })
		return api, s, ix, c
	}

	t.Run("a frozen watch is replaced", func(t *testing.T) {
		api, s, ix, c := start(t)
		r, state := theResource(s, source.Services), new(watching)
		api.Freeze("services", true)
		api.Put(service("web", "10.96.0.2", nil))
		c.advance(quiet)
		r.check(t.Context(), state)
		if state.answered == 0 {
			t.Fatal("the server was not probed, or did not answer")
		}
		if status(s, source.Services).Frozen {
			t.Fatal("a quiet watch is called frozen before the server had time to show otherwise")
		}
		c.advance(frozenAfter + time.Second)
		api.Freeze("services", false)
		r.check(t.Context(), state)
		kit.Eventually(t, "the update that the frozen watch kept back", func() bool { return hasIP(ix, "web", "10.96.0.2") })
		kit.Eventually(t, "not frozen after the new list", func() bool { return !status(s, source.Services).Frozen })
	})

	t.Run("a frozen watch is out of step until it is replaced", func(t *testing.T) {
		api, s, _, c := start(t)
		r, state := theResource(s, source.Services), new(watching)
		api.Freeze("services", true)
		c.advance(quiet)
		r.check(t.Context(), state)
		api.Refuse(true) // so that no list succeeds yet
		c.advance(frozenAfter + time.Second)
		r.check(t.Context(), state)
		if !status(s, source.Services).Frozen {
			t.Fatal("the frozen watch is not reported")
		}
		if st := status(s, source.Namespaces); st.Frozen {
			t.Fatal("a watch that works is called frozen")
		}
		api.Freeze("services", false)
		api.Refuse(false)
		kit.Eventually(t, "not frozen after the new list", func() bool { return !status(s, source.Services).Frozen })
	})

	t.Run("watches that stay frozen are made up for by lists", func(t *testing.T) {
		api, s, ix, c := start(t)
		r, state := theResource(s, source.Services), new(watching)
		api.Freeze("services", true) // permanently: streamed lists send nothing either
		api.Put(service("web", "10.96.0.2", nil))
		c.advance(quiet)
		r.check(t.Context(), state)
		c.advance(frozenAfter + time.Second)
		r.check(t.Context(), state)
		kit.Eventually(t, "the update, by a list", func() bool { return hasIP(ix, "web", "10.96.0.2") })
		kit.Eventually(t, "not frozen after the list", func() bool { return !status(s, source.Services).Frozen })
		kit.Eventually(t, "a watch", func() bool { w, _ := r.health.silence(); return w != nil })
	})

	t.Run("frozen, and then the API server goes away", func(t *testing.T) {
		api, s, _, c := start(t)
		r, state := theResource(s, source.Services), new(watching)
		api.Freeze("services", true)
		c.advance(quiet)
		r.check(t.Context(), state)
		api.Refuse(true)
		c.advance(frozenAfter + time.Second)
		r.check(t.Context(), state)
		if !status(s, source.Services).Frozen {
			t.Fatal("the frozen watch is not reported")
		}
		kit.Eventually(t, "the end of the watch", func() bool { w, _ := r.health.silence(); return w == nil })
		c.advance(lostAfter + time.Second)
		if status(s, source.Services).Frozen {
			t.Error("still called frozen when no server answers")
		}
	})

	t.Run("a watch that ends by itself does not count as frozen", func(t *testing.T) {
		api, s, _, _ := start(t)
		r := theResource(s, source.Services)
		before, _ := r.health.silence()
		api.DropWatches("services")
		kit.Eventually(t, "another watch", func() bool { w, _ := r.health.silence(); return w != nil && w != before })
		r.health.freeze(before)
		if status(s, source.Services).Frozen || r.health.listsAnew() {
			t.Error("the new watch pays for the old one")
		}
	})

	t.Run("a quiet watch is left alone", func(t *testing.T) {
		api, s, _, c := start(t)
		r, state := theResource(s, source.Services), new(watching)
		opened := r.health.current
		c.advance(quiet)
		r.check(t.Context(), state)
		before := status(s, source.Services).Heard
		api.Put(service("web", "10.96.0.3", nil)) // in place of the bookmark that the probe triggers
		kit.Eventually(t, "word", func() bool { return status(s, source.Services).Heard.After(before) })
		r.check(t.Context(), state)
		if state.answered != 0 || r.health.current != opened || status(s, source.Services).Frozen {
			t.Fatal("the watch counts as frozen")
		}
	})

	t.Run("an API server that does not answer is no frozen watch", func(t *testing.T) {
		api, s, ix, c := start(t)
		r, state := theResource(s, source.Services), new(watching)
		api.Freeze("services", true)
		api.Refuse(true)
		for range 5 {
			c.advance(quiet)
			r.check(t.Context(), state)
		}
		if status(s, source.Services).Frozen {
			t.Fatal("frozen, though the API server is away")
		}
		if !hasIP(ix, "web", "10.96.0.1") {
			t.Fatal("the last known state is gone")
		}
	})
}

// TestLimits: apiserver_qps, apiserver_burst and apiserver_max_inflight limit requests.
func TestLimits(t *testing.T) {
	api := kubeapi.New(t)
	api.Put(service("web", "10.96.0.1", nil))

	t.Run("requests a second", func(t *testing.T) {
		s, err := New(Connection{Endpoint: api.URL(), QPS: 20, Burst: 1}, source.Options{})
		kit.Must(t, err)
		r := theResource(s, source.Services)
		begin := time.Now()
		for range 11 { // the first is free, then ten at 20 a second
			kit.Must(t, r.probe(t.Context()))
		}
		if took := time.Since(begin); took < 450*time.Millisecond {
			t.Errorf("11 requests at 20 a second took %s, want 500 ms at least", took)
		}
	})

	t.Run("requests in flight", func(t *testing.T) {
		s, err := New(Connection{Endpoint: api.URL(), QPS: 1000, Burst: 1000, MaxInflight: 1}, source.Options{})
		kit.Must(t, err)
		api.Hang("services", true)
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- theResource(s, source.Services).probe(ctx) }()
		kit.Eventually(t, "the first request", func() bool {
			short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			err := theResource(s, source.Namespaces).probe(short)
			return err != nil && strings.Contains(err.Error(), context.DeadlineExceeded.Error())
		})
		cancel()
		<-first
		api.Hang("services", false)
		if err := theResource(s, source.Namespaces).probe(t.Context()); err != nil {
			t.Fatalf("after the first request has ended: %v", err)
		}
	})

	t.Run("metrics", func(t *testing.T) {
		for name, c := range map[string]prometheus.Collector{
			"rest_client_request_duration_seconds":      requestDuration,
			"rest_client_rate_limiter_duration_seconds": rateLimiterDuration,
			"rest_client_requests_total":                requestsTotal,
		} {
			if testutil.CollectAndCount(c) == 0 {
				t.Errorf("%s has no value", name)
			}
		}
	})
}

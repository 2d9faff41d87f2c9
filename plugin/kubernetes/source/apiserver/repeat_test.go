package apiserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
)

// fakeAPI is an API server with the namespace shop and the Service web. It streams lists of both, and then events of namespaces. A test
// answers requests for Services itself.
type fakeAPI struct {
	*httptest.Server
	services func(w http.ResponseWriter, r *http.Request) // nil answers as for namespaces

	mu         sync.Mutex
	counts     map[string]int // requests by resource and verb: "list", "watch" or "stream" for a streamed list
	compressed int            // requests for a compressed watch
	events     chan struct{}  // each adds a namespace
}

const (
	fakeNamespace = `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":%q,"resourceVersion":"5"}}`
	fakeService   = `{"kind":"Service","apiVersion":"v1","metadata":{"namespace":"shop","name":%q,"resourceVersion":"5"},"spec":{"clusterIP":"10.96.0.1"}}`
	endOfList     = `{"kind":"%s","apiVersion":"v1","metadata":{"resourceVersion":"5","annotations":{"k8s.io/initial-events-end":"true"}}}`
)

func startFake(t *testing.T, services func(w http.ResponseWriter, r *http.Request)) *fakeAPI {
	f := &fakeAPI{services: services, counts: map[string]int{}, events: make(chan struct{})}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

// verbOf returns the verb of a request: "list", "watch", or "stream" for a streamed list.
func verbOf(r *http.Request) string {
	switch q := r.URL.Query(); {
	case q.Has("sendInitialEvents"):
		return "stream"
	case q.Has("watch"):
		return "watch"
	}
	return "list"
}

func (f *fakeAPI) count(resource, verb string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts[resource+" "+verb]
}

// ServeHTTP implements http.Handler.
func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
	f.mu.Lock()
	f.counts[resource+" "+verbOf(r)]++
	if verbOf(r) != "list" && r.Header.Get("Accept-Encoding") != "identity" {
		f.compressed++
	}
	f.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case resource == source.Services && f.services != nil:
		f.services(w, r)
	case resource == source.Services:
		send(w, "ADDED", fmt.Sprintf(fakeService, "web"))
		send(w, "BOOKMARK", fmt.Sprintf(endOfList, "Service"))
		<-r.Context().Done()
	default:
		send(w, "ADDED", fmt.Sprintf(fakeNamespace, "shop"))
		send(w, "BOOKMARK", fmt.Sprintf(endOfList, "Namespace"))
		for n := 0; ; n++ {
			select {
			case <-f.events:
				send(w, "ADDED", fmt.Sprintf(fakeNamespace, fmt.Sprint("ns-", n)))
			case <-r.Context().Done():
				return
			}
		}
	}
}

// send sends an event of a watch.
func send(w http.ResponseWriter, event, object string) {
	_, _ = fmt.Fprintf(w, `{"type":%q,"object":%s}`+"\n", event, object) // an error is one of the client
	_ = http.NewResponseController(w).Flush()
}

// refusal returns a Status.
func refusal(code int, reason metav1.StatusReason, causes ...metav1.StatusCause) string {
	text, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason,
		Message: "refused", Details: &metav1.StatusDetails{Causes: causes},
	})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// follow runs a source of a fake API server until the test ends, with these pauses after failures.
func (f *fakeAPI) follow(t *testing.T, c Connection, retry time.Duration, prepare ...func(*Source)) (*Source, *index.Index) {
	t.Helper()
	c.Endpoint = f.URL
	s, err := New(c, source.Options{})
	kit.Must(t, err)
	s.pace.retry, s.pace.check = retry, retry
	for _, p := range prepare {
		p(s)
	}
	return s, runSource(t, s)
}

// addNamespaces adds namespaces, one after the other has been read: a watch that works is served meanwhile.
func (f *fakeAPI) addNamespaces(t *testing.T, ix *index.Index, n int) {
	t.Helper()
	for i := range n {
		f.events <- struct{}{}
		kit.Eventually(t, "another namespace", func() bool { return ix.HasNamespace(fmt.Sprint("ns-", i)) })
	}
}

var fast = Connection{QPS: 1e6, Burst: 1e6}

// TestAnAPIServerThatRefusesStreamedListsIsNotFlooded: client-go repeats these watches without a pause. The first one is repeated at once,
// with another version; the next repetition waits.
func TestAnAPIServerThatRefusesStreamedListsIsNotFlooded(t *testing.T) {
	tooLarge := refusal(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, metav1.StatusCause{Type: metav1.CauseTypeResourceVersionTooLarge})
	answer := func(code int, body string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = fmt.Fprint(w, body)
		}
	}
	for name, services := range map[string]func(http.ResponseWriter, *http.Request){
		"410": answer(http.StatusGone, refusal(http.StatusGone, metav1.StatusReasonExpired)),
		"410 in an event": func(w http.ResponseWriter, _ *http.Request) {
			send(w, "ERROR", refusal(410, metav1.StatusReasonExpired))
		},
		"a version that is too large": answer(http.StatusGatewayTimeout, tooLarge),
		"an end after an object":      func(w http.ResponseWriter, _ *http.Request) { send(w, "ADDED", fmt.Sprintf(fakeService, "web")) },
	} {
		t.Run(name, func(t *testing.T) {
			f := startFake(t, services)
			_, ix := f.follow(t, fast, time.Hour)
			kit.Eventually(t, "a repetition", func() bool { return f.count(source.Services, "stream") >= 2 })
			kit.Eventually(t, "namespaces", func() bool { return ix.HasNamespace("shop") })
			f.addNamespaces(t, ix, 30)
			if n := f.count(source.Services, "stream"); n != 2 {
				t.Errorf("%d streamed lists were requested, want 2", n)
			}
		})
	}
}

// TestWatchesThatEndAtOnceAreNotRepeatedWithoutAPause: each has an event, which client-go takes for progress.
func TestWatchesThatEndAtOnceAreNotRepeatedWithoutAPause(t *testing.T) {
	f := startFake(t, func(w http.ResponseWriter, r *http.Request) {
		send(w, "ADDED", fmt.Sprintf(fakeService, "web"))
		if verbOf(r) == "stream" {
			send(w, "BOOKMARK", fmt.Sprintf(endOfList, "Service"))
			send(w, "ADDED", fmt.Sprintf(fakeService, "db"))
		}
	})
	s, ix := f.follow(t, fast, time.Hour)
	kit.Eventually(t, "a repetition", func() bool { return f.count(source.Services, "watch") >= 1 })
	kit.Eventually(t, "synced", func() bool { return synced(s) })
	f.addNamespaces(t, ix, 30)
	if n := f.count(source.Services, "watch"); n != 1 {
		t.Errorf("%d watches were requested, want 1", n)
	}
}

// TestTheAPIServersLimitIsThatOfTheProcess: watches count, and two sources of a connection have one limit. Another connection has its own.
func TestTheAPIServersLimitIsThatOfTheProcess(t *testing.T) {
	f := startFake(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusGone)
		_, _ = fmt.Fprint(w, refusal(http.StatusGone, metav1.StatusReasonExpired))
	})
	limited := Connection{QPS: 1e-6, Burst: 7}
	f.follow(t, limited, time.Nanosecond)
	f.follow(t, limited, time.Nanosecond)
	total := func() int { return f.count(source.Services, "stream") + f.count(source.Namespaces, "stream") }
	kit.Eventually(t, "all requests of the burst", func() bool { return total() >= 4+7 })
	other := startFake(t, nil)
	s, ix := other.follow(t, fast, time.Hour)
	kit.Eventually(t, "synced with another API server", func() bool { return synced(s) })
	other.addNamespaces(t, ix, 30)
	if n := total(); n != 4+7 {
		t.Errorf("%d requests, want 11: the first one of each resource, and repetitions up to apiserver_burst", n)
	}
}

// TestPauses has the pauses after a number of failures: without an answer they stay short, so that the return of the API server is seen soon.
func TestPauses(t *testing.T) {
	refused := apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", nil)
	away := &url.Error{Op: "Get", URL: "https://api", Err: syscall.ECONNREFUSED}
	busy := apierrors.NewTooManyRequests("busy", 7)
	for name, c := range map[string]struct {
		errors   []error
		min, max time.Duration // of the last pause
		podsOnly bool
	}{
		"first":                      {[]error{refused}, 0, 0, false},
		"second":                     {[]error{refused, refused}, time.Second, 2 * time.Second, false},
		"refused for long":           {slices.Repeat([]error{refused}, 30), 30 * time.Second, time.Minute, false},
		"ended at once, for long":    {slices.Repeat([]error{nil}, 30), 30 * time.Second, time.Minute, false},
		"away":                       {[]error{away}, 0, 0, false},
		"away for long":              {slices.Repeat([]error{away}, 30), 2 * time.Second, 4 * time.Second, false},
		"away, on each node":         {slices.Repeat([]error{away}, 30), 10 * time.Second, 20 * time.Second, true},
		"away after refusals":        {append(slices.Repeat([]error{refused}, 30), away), 0, 0, false},
		"refused after it was away":  {append(slices.Repeat([]error{away}, 30), refused, refused), time.Second, 2 * time.Second, false},
		"Retry-After":                {[]error{busy}, 7 * time.Second, 14 * time.Second, false},
		"Retry-After is the minimum": {slices.Repeat([]error{busy}, 30), 30 * time.Second, time.Minute, false},
	} {
		pauses := map[time.Duration]bool{}
		for range 100 {
			h := newHealth()
			h.now, h.pauses = func() time.Time { return time.Unix(1e9, 0) }, defaultPace(source.Options{PodsOnly: c.podsOnly}).pauses()
			h.begins()
			for _, err := range c.errors {
				h.requestFailed(err)
			}
			pause, repeats := h.untilRequest()
			if pauses[pause] = true; !repeats || pause < c.min || pause > c.max {
				t.Errorf("%s: pause of %v, want %v to %v", name, pause, c.min, c.max)
			}
			h.synced()
			if _, repeats := h.untilRequest(); repeats {
				t.Errorf("%s: a pause after a list", name)
			}
		}
		if c.max > 0 && len(pauses) < 50 {
			t.Errorf("%s: %d different pauses of 100 clients", name, len(pauses))
		}
	}
}

// TestReturn: after a time away, the records are up to date soon after the API server accepts connections.
func TestReturn(t *testing.T) {
	f := startFake(t, nil)
	address := f.Listener.Addr().String()
	s, ix := f.follow(t, fast, time.Second, func(s *Source) { s.pace.maxAway = 200 * time.Millisecond; s.pace.retry = 50 * time.Millisecond })
	kit.Eventually(t, "synced", func() bool { return synced(s) })
	kit.Must(t, f.Listener.Close())
	f.CloseClientConnections()
	r := theResource(s, source.Namespaces)
	kit.Eventually(t, "many failures", func() bool {
		r.health.mu.Lock()
		defer r.health.mu.Unlock()
		return r.health.pause > 150*time.Millisecond
	})
	again := &fakeAPI{counts: map[string]int{}, events: make(chan struct{})}
	l, err := net.Listen("tcp", address)
	kit.Must(t, err)
	again.Server = &httptest.Server{Listener: l, Config: &http.Server{Handler: again}}
	again.Start()
	t.Cleanup(func() { // the source ends later
		_ = l.Close()
		again.CloseClientConnections()
	})
	again.addNamespaces(t, ix, 3)
}

// TestNoResponse: a connection that ends before the response is a failure, for which client-go returns a watch that has ended. The watch is
// requested again, without another list.
func TestNoResponse(t *testing.T) {
	logged := kit.Logged(t)
	ends := make(chan struct{})
	var served atomic.Int32
	f := startFake(t, func(w http.ResponseWriter, r *http.Request) {
		if n := served.Add(1); n == 2 || n == 3 {
			panic(http.ErrAbortHandler)
		}
		send(w, "ADDED", fmt.Sprintf(fakeService, "web"))
		send(w, "BOOKMARK", fmt.Sprintf(endOfList, "Service"))
		select {
		case <-ends:
		case <-r.Context().Done():
		}
	})
	s, _ := f.follow(t, fast, 10*time.Millisecond)
	kit.Eventually(t, "synced", func() bool { return synced(s) })
	time.Sleep(1100 * time.Millisecond) // after a shorter watch client-go lists anew
	ends <- struct{}{}
	kit.Eventually(t, "another watch", func() bool { return f.count(source.Services, "watch") == 3 })
	if _, err := theResource(s, source.Services).health.away(); !errors.Is(err, errNoWatch) {
		t.Errorf("the last error is %v, want %v", err, errNoWatch)
	}
	if n := f.count(source.Services, "stream") + f.count(source.Services, "list"); n != 1 {
		t.Errorf("%d lists, want 1", n)
	}
	if f.mu.Lock(); f.compressed > 0 {
		t.Errorf("%d watches are compressed", f.compressed)
	}
	f.mu.Unlock()
	if strings.Contains(logged.String(), "very short watch") {
		t.Errorf("a watch counts as opened: %s", logged)
	}
}

// TestTurns: at the start all resources list at once; when the API server returns, one after the other, as long as none takes long.
func TestTurns(t *testing.T) {
	s := &Source{turn: make(chan struct{}, 1), garbage: processGarbage}
	one, other := s.resource(source.Services), s.resource(source.Namespaces)
	begins := func(r *resource) bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		r.takeTurn(ctx)
		return r.hasTurn.Load()
	}
	for _, r := range []*resource{one, other} {
		began := time.Now()
		if r.takeTurn(t.Context()); time.Since(began) > maxTurnWait/2 {
			t.Errorf("%s: the first list waits", r.name)
		}
		r.endTurn()
		r.health.synced()
	}
	if !begins(one) || begins(other) {
		t.Errorf("turns: %v and %v, want the first one only", one.hasTurn.Load(), other.hasTurn.Load())
	}
	if !begins(one) {
		t.Error("a list that begins anew has lost its turn")
	}
	other.endTurn()
	if begins(other) {
		t.Error("a resource that waited in vain has ended the list of another")
	}
	if one.endTurn(); !begins(other) {
		t.Error("a list waits although no other resource lists")
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		late := &resource{health: one.health, garbage: processGarbage, turn: make(chan struct{}, 1)}
		late.turn <- struct{}{}
		if late.takeTurn(t.Context()); time.Since(began) != maxTurnWait {
			t.Errorf("a list has waited %v for one that does not end, want %v", time.Since(began), maxTurnWait)
		}
		late.endTurn()
	})
	other.endTurn()
}

package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// The verbs of requests. A watch that begins with the current objects
// (sendInitialEvents=true) has its own verb.
const (
	VerbGet       = "get"
	VerbList      = "list"
	VerbWatch     = "watch"
	VerbWatchList = "watchlist"
)

// Request is a kind of request.
type Request struct {
	Verb     string
	Resource string
	// ContentType is what the client prefers for objects, such as
	// "application/vnd.kubernetes.protobuf" or
	// "application/json;as=PartialObjectMetadata".
	ContentType string
}

// faults are those of one resource.
type faults struct {
	frozen    bool     // watches deliver nothing
	hung      bool     // lists, gets and discovery are not answered
	forbidden bool     // requests are answered with 403
	served    []string // versions of a custom resource
}

// openWatch is a watch of a client.
type openWatch struct {
	resource string
	cut      func()        // ends it
	done     chan struct{} // closed when it has ended
}

// proxy forwards requests to the API server, and injects faults.
type proxy struct {
	forward *httputil.ReverseProxy

	mu          sync.Mutex
	changed     chan struct{} // closed and replaced when any of the following changes
	faults      map[string]*faults
	refuse      bool   // all requests are answered with 503
	noWatchList bool   // streamed lists are answered with 422
	expired     uint64 // watches from an older resource version are answered with 410
	counts      map[Request]int
	open        map[*openWatch]bool
}

func (p *proxy) init(to *url.URL, transport http.RoundTripper) {
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Header.Del("Authorization") // the proxy has its own client certificate
		},
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: p.hold,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:       log.New(io.Discard, "", 0), // clients that end a watch
	}
	p.changed, p.faults = make(chan struct{}), map[string]*faults{}
	p.counts, p.open = map[Request]int{}, map[*openWatch]bool{}
	for _, r := range resources {
		p.faults[r.name] = &faults{}
		if r.custom && !r.absent {
			p.faults[r.name].served = r.versions
		}
	}
}

// set changes faults.
func (p *proxy) set(change func(*proxy)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
	close(p.changed)
	p.changed = make(chan struct{})
}

// fault changes the faults of a resource, or of all if it is "".
func (p *proxy) fault(resource string, change func(*faults)) {
	p.set(func(*proxy) {
		for name, f := range p.faults {
			if resource == "" || resource == name {
				change(f)
			}
		}
	})
}

// wait waits while a resource has a fault, and returns an error if ctx ends first.
func (p *proxy) wait(ctx context.Context, resource string, has func(*faults) bool) error {
	for {
		p.mu.Lock()
		waits, changed := has(p.faults[resource]), p.changed
		p.mu.Unlock()
		if !waits {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func hung(f *faults) bool { return f.hung }

// ServeHTTP answers one request.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, ok := find(r.URL)
	if ok {
		p.count(t, r)
	}
	p.mu.Lock()
	refuse := p.refuse
	p.mu.Unlock()
	switch {
	case refuse:
		http.Error(w, "the server refuses requests", http.StatusServiceUnavailable)
	case ok:
		p.serve(w, r, t)
	default:
		p.serveOther(w, r)
	}
}

// verb returns the verb of a request about a resource.
func verb(t target, query url.Values) string {
	switch {
	case t.single:
		return VerbGet
	case !isTrue(query.Get("watch")):
		return VerbList
	case isTrue(query.Get("sendInitialEvents")):
		return VerbWatchList
	}
	return VerbWatch
}

func isTrue(value string) bool { return value == "true" || value == "1" }

// count counts a request.
func (p *proxy) count(t target, r *http.Request) {
	accepted, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	contentType, parameters, _ := strings.Cut(accepted, ";")
	if strings.Contains(parameters, "as=PartialObjectMetadata") {
		contentType += ";as=PartialObjectMetadata"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[Request{verb(t, r.URL.Query()), t.name, contentType}]++
}

func (p *proxy) requests() map[Request]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// serve answers a request about a resource. For most faults, the API server itself
// answers a changed request with the error.
func (p *proxy) serve(w http.ResponseWriter, r *http.Request, t target) {
	p.mu.Lock()
	f, noWatchList, expired := *p.faults[t.name], p.noWatchList, p.expired
	p.mu.Unlock()
	if f.forbidden {
		r.Header.Set("Impersonate-User", "test") // who may read nothing
	}
	if t.custom && !f.forbidden && !slices.Contains(f.served, t.version) {
		http.NotFound(w, r)
		return
	}
	query := r.URL.Query()
	switch v := verb(t, query); v {
	case VerbGet, VerbList:
		if p.wait(r.Context(), t.name, hung) == nil {
			p.forward.ServeHTTP(w, r)
		}
		return
	case VerbWatchList:
		if noWatchList {
			query.Del("resourceVersionMatch") // which a streamed list needs
		}
	case VerbWatch:
		version, err := strconv.ParseUint(query.Get("resourceVersion"), 10, 64)
		if err == nil && version > 0 && version < expired {
			writeExpired(w, version)
			return
		}
	}
	r.URL.RawQuery = query.Encode()
	p.serveWatch(w, r, t)
}

// writeExpired answers a watch from a resource version that is too old: with an
// event, as the API server does. Clients accept JSON whatever they prefer.
func writeExpired(w http.ResponseWriter, version uint64) {
	status := apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d", version)).Status()
	status.Kind, status.APIVersion = "Status", "v1"
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_ = json.NewEncoder(w).Encode(metav1.WatchEvent{Type: string(watch.Error), Object: runtime.RawExtension{Object: &status}}) // an error is one of the client
}

// watched is the key of a resource's name in the context of a watch.
type watched struct{}

// serveWatch forwards a watch until it ends or is cut.
func (p *proxy) serveWatch(w http.ResponseWriter, r *http.Request, t target) {
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), watched{}, t.name))
	control := http.NewResponseController(w)
	open := &openWatch{resource: t.name, done: make(chan struct{}), cut: func() {
		cancel()
		_ = control.SetWriteDeadline(time.Unix(1, 0)) // for a client that does not read; else it has ended
	}}
	p.mu.Lock()
	p.open[open] = true
	p.mu.Unlock()
	defer func() {
		cancel()
		p.mu.Lock()
		delete(p.open, open)
		p.mu.Unlock()
		close(open.done)
	}()
	p.forward.ServeHTTP(w, r.WithContext(ctx))
}

// hold makes the answer to a watch wait while the resource is frozen.
func (p *proxy) hold(r *http.Response) error {
	if resource, ok := r.Request.Context().Value(watched{}).(string); ok && r.StatusCode == http.StatusOK {
		r.Body = &heldBody{ReadCloser: r.Body, wait: func() error {
			return p.wait(r.Request.Context(), resource, func(f *faults) bool { return f.frozen })
		}}
	}
	return nil
}

// heldBody returns bytes that it has read only after wait has returned.
type heldBody struct {
	io.ReadCloser
	wait func() error
}

func (b *heldBody) Read(buffer []byte) (int, error) {
	n, err := b.ReadCloser.Read(buffer)
	if n > 0 {
		if err := b.wait(); err != nil {
			return 0, err
		}
	}
	return n, err
}

// watches returns the open watches on a resource, or all if it is "". The caller
// has locked mu.
func (p *proxy) watches(resource string) (found []*openWatch) {
	for w := range p.open {
		if resource == "" || resource == w.resource {
			found = append(found, w)
		}
	}
	return found
}

// drop cuts the watches on a resource, or all if it is "".
func (p *proxy) drop(resource string) {
	p.mu.Lock()
	dropped := p.watches(resource)
	for _, w := range dropped {
		w.cut() // its handler has not returned, since it is in p.open
	}
	p.mu.Unlock()
	for _, w := range dropped {
		<-w.done
	}
}

// serveOther answers requests that are not about a resource: discovery of custom
// resources without versions that are not served, and everything else.
func (p *proxy) serveOther(w http.ResponseWriter, r *http.Request) {
	group, version, _ := strings.Cut(strings.TrimPrefix(strings.Trim(r.URL.Path, "/"), "apis/"), "/")
	var members []*resource
	for _, m := range resources {
		if m.custom && m.group == group {
			members = append(members, m)
		}
	}
	if len(members) == 0 {
		p.forward.ServeHTTP(w, r)
		return
	}
	for _, m := range members {
		if p.wait(r.Context(), m.name, hung) != nil {
			return
		}
	}
	answer := p.discover(members, version)
	if answer == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_ = json.NewEncoder(w).Encode(answer) // an error is one of the client
}

// discover returns the versions of a group, or the resources of a version, or nil
// where nothing is served.
func (p *proxy) discover(members []*resource, version string) any {
	p.mu.Lock()
	defer p.mu.Unlock()
	group := metav1.APIGroup{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroup"}, Name: members[0].group}
	list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: group.Name + "/" + version}
	for _, v := range members[0].versions {
		served := false
		for _, m := range members {
			if !slices.Contains(p.faults[m.name].served, v) {
				continue
			}
			served = true
			if v == version {
				list.APIResources = append(list.APIResources, metav1.APIResource{
					Name: m.name, Kind: m.kind, Namespaced: m.name != ClusterProperties, Verbs: metav1.Verbs{"get", "list", "watch"},
				})
			}
		}
		if served {
			group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: group.Name + "/" + v, Version: v})
		}
	}
	switch {
	case version != "" && len(list.APIResources) > 0:
		return list
	case version == "" && len(group.Versions) > 0:
		group.PreferredVersion = group.Versions[0]
		return group
	}
	return nil
}

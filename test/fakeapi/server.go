package fakeapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
)

// defaultBookmarkInterval is how often a real server sends bookmarks.
const defaultBookmarkInterval = time.Minute

// Server is the fake kube-apiserver. All methods may be used at any time and
// from any goroutine.
type Server struct {
	state *state

	refuse      atomic.Bool
	noWatchList atomic.Bool
	bookmarks   atomic.Int64 // interval in nanoseconds

	requests requestCounts
	watches  watchSet

	mu       sync.Mutex // guards what follows
	listener net.Listener
	http     *http.Server
	stop     context.CancelFunc
	done     chan struct{} // closed when the http server has ended
}

// New gives an empty server which doesn't listen yet.
func New() *Server {
	codecs, err := newCodecs()
	if err != nil {
		panic(err) // only a broken build can lack these API types
	}
	s := &Server{state: newState(codecs)}
	s.bookmarks.Store(int64(defaultBookmarkInterval))
	return s
}

// Start listens on a free port of 127.0.0.1.
func (s *Server) Start() error { return s.Listen("127.0.0.1:0") }

// Listen serves on the TCP address given as host:port. After Close it may be
// called again, with the same address too; the state is kept.
func (s *Server) Listen(address string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http != nil {
		return errors.New("listen: already listening")
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	server := &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: time.Minute,
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Serve returns once Close is called; there is nothing else to tell.
		_ = server.Serve(l)
	}()
	s.listener, s.http, s.stop, s.done = l, server, stop, done
	return nil
}

// URL gives the address of a listening server, such as
// "http://127.0.0.1:41234", or "" when it doesn't listen.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil {
		return ""
	}
	return "http://" + s.listener.Addr().String()
}

// Close ends all connections and stops listening: from then on connections are
// refused. The state is kept.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http == nil {
		return nil
	}
	s.stop()
	err := s.http.Close()
	<-s.done
	s.watches.drop("")
	s.listener, s.http, s.stop, s.done = nil, nil, nil, nil
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// Put creates or updates objects: Services, Pods, Nodes, Namespaces,
// EndpointSlices, and ServiceImports and ServiceExports of v1beta1 and
// ClusterProperties, by namespace and name. Each gets the next resource version
// and makes an event, even when nothing else of it changed. UID and creation
// time are filled in when empty. The given objects are copied and not changed.
// It fails, at the first, on objects of other types.
func (s *Server) Put(objs ...runtime.Object) error {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	if err := s.state.put(objs, false); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	return nil
}

// Delete removes the objects of the same type, namespace and name. Those which
// aren't there make no event.
func (s *Server) Delete(objs ...runtime.Object) error {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	for _, o := range objs {
		name, err := resourceName(o)
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		obj, ok := o.(object)
		if !ok {
			return fmt.Errorf("delete: objects of type %T have no metadata", o)
		}
		s.state.remove(s.state.collections[name], key{obj.GetNamespace(), obj.GetName()})
	}
	return nil
}

// Replace makes objs the whole state, in one step: others are deleted, and of
// objs those put which differ from what is there.
func (s *Server) Replace(objs ...runtime.Object) error {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	if err := s.state.replace(objs); err != nil {
		return fmt.Errorf("replace: %w", err)
	}
	return nil
}

// Clear deletes everything.
func (s *Server) Clear() error { return s.Replace() }

// Objects gives the present objects of a resource as they are served, by
// namespace and name.
func (s *Server) Objects(resource string) ([]runtime.Object, error) {
	s.state.mu.Lock()
	c := s.state.collections[resource]
	if c == nil {
		s.state.mu.Unlock()
		return nil, fmt.Errorf("objects: no resource %q", resource)
	}
	versions := c.current()
	s.state.mu.Unlock()
	objs := make([]runtime.Object, len(versions))
	for i, v := range versions {
		obj, err := v.decode(s.state.codecs)
		if err != nil {
			return nil, fmt.Errorf("objects: %w", err)
		}
		objs[i] = obj
	}
	return objs, nil
}

// ResourceVersion gives the present value of the counter.
func (s *Server) ResourceVersion() uint64 {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return s.state.rv
}

// SetBookmarkInterval sets how often watches which asked for them get
// bookmarks, for watches which begin afterwards. It is a minute at first; 0
// means none.
func (s *Server) SetBookmarkInterval(interval time.Duration) { s.bookmarks.Store(int64(interval)) }

// SetHistory sets how many events of each resource are kept for watches which
// begin at an older resource version, and for watches which read slowly: one
// that falls further behind is closed. It is 10,000 at first.
func (s *Server) SetHistory(events int) {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	s.state.history = events
	for _, c := range s.state.collections {
		s.state.trim(c)
	}
}

// target is what a path names.
type target struct {
	collection *collection
	version    string // of the API
	namespace  string // "" is all
	name       string // "" is a list
}

// find reads a path: /api/v1/services, /api/v1/namespaces/ns/services/name and
// so on. Whether the version is served at present does not matter.
func (s *state) find(path string) (target, bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var t target
	var group string
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		t.version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis" && parts[1] != "":
		group, t.version, parts = parts[1], parts[2], parts[3:]
	default:
		return target{}, false
	}
	if len(parts) >= 3 && parts[0] == Namespaces {
		t.namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 2 {
		return target{}, false
	}
	t.collection = s.collections[parts[0]]
	if len(parts) == 2 {
		t.name = parts[1]
	}
	if t.collection == nil || t.collection.res.group != group || !slices.Contains(t.collection.res.versions, t.version) {
		return target{}, false
	}
	namespaced := t.collection.res.namespaced
	if (t.namespace != "") != namespaced && (t.namespace != "" || t.name != "") {
		return target{}, false // a cluster-wide object in a namespace, or the reverse
	}
	return t, true
}

// serve answers one request.
func (s *Server) serve(w http.ResponseWriter, req *http.Request) {
	t, ok := s.state.find(req.URL.Path)
	if !ok {
		s.serveOther(w, req)
		return
	}
	verb, err := requestVerb(req, t)
	if err != nil {
		writeError(w, s.state.codecs.negotiateError(req), err)
		return
	}
	rep, acceptable := s.state.codecs.negotiate(req, false, t.collection.res.custom != nil)
	rep.version = t.version
	s.requests.add(Request{Verb: verb, Resource: t.collection.res.name, ContentType: rep.contentType()})
	switch {
	case s.refuse.Load():
		err = apierrors.NewServiceUnavailable("the server is refusing requests")
	case s.forbids(t.collection):
		err = errForbidden(verb, t)
	case !s.serves(t):
		answerNoPage(w)
	case !acceptable:
		err = errMediaType(t.collection.res)
	case verb == VerbGet:
		err = s.get(w, req, t, rep)
	case verb == VerbList:
		err = s.list(w, req, t, rep)
	default:
		err = s.watch(w, req, t, rep)
	}
	if err != nil {
		writeError(w, s.state.codecs.negotiateError(req), err)
	}
}

// forbids tells whether requests about a collection are refused with 403.
func (s *Server) forbids(c *collection) bool {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return c.forbidden
}

// serves tells whether the version of its API that a path names is served.
func (s *Server) serves(t target) bool {
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	return slices.Contains(t.collection.served, t.version)
}

// serveOther answers what is not about a resource: health, version and
// discovery.
func (s *Server) serveOther(w http.ResponseWriter, req *http.Request) {
	if s.refuse.Load() {
		writeError(w, s.state.codecs.negotiateError(req), apierrors.NewServiceUnavailable("the server is refusing requests"))
		return
	}
	var body, contentType string
	switch req.URL.Path {
	case "/healthz", "/livez", "/readyz":
		body, contentType = "ok", "text/plain; charset=utf-8"
	case "/version":
		body = `{"major":"1","minor":"37","gitVersion":"v1.37.1","platform":"linux/amd64"}`
		contentType = "application/json"
	default:
		s.discover(w, req)
		return
	}
	w.Header().Set("Content-Type", contentType)
	if _, err := w.Write([]byte(body)); err != nil {
		return // the client is gone
	}
}

// requestVerb tells what a request wants.
func requestVerb(req *http.Request, t target) (string, error) {
	if req.Method != http.MethodGet {
		return "", errMethod(req.Method)
	}
	if t.name != "" {
		return VerbGet, nil
	}
	query := req.URL.Query()
	if !isTrue(query.Get("watch")) {
		return VerbList, nil
	}
	if isTrue(query.Get("sendInitialEvents")) {
		return VerbWatchList, nil
	}
	return VerbWatch, nil
}

// isTrue reads a boolean from a query as apimachinery does.
func isTrue(value string) bool { return value == "true" || value == "1" }

// Package kubeapi runs a real kube-apiserver for tests and benchmarks of programs
// that watch a cluster, behind a proxy that injects faults.
//
// Objects are given to Put, Delete, Replace, Clear and Load. They are written
// into etcd directly, in the form in which kube-apiserver stores them, so that
// nothing validates or changes them: a test can have objects that kube-apiserver
// would refuse, and a large cluster within seconds. Clients read them over plain
// HTTP, with the answers and errors of a real server.
//
// Faults are methods of Server: DropWatches, Freeze, Hang, Refuse, Forbid,
// Expire, DisableWatchList and, for custom resources, ServeVersions. Requests and
// OpenWatches count what clients do.
//
// The tests of a process share one control plane, which starts with the first of
// them (2.5 s of CPU time). TestMain must call Main, which stops it.
package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/kit"
)

// Server is a kube-apiserver with a cluster and a proxy before it. All methods
// may be called at any time from any goroutine.
type Server struct {
	store *store
	proxy proxy

	listener net.Listener
	http     http.Server
}

// shared is the control plane of the tests of this process.
var shared struct {
	inUse  sync.Mutex // locked while a test has it
	store  *store     // nil until it has started
	folder string
}

// Main runs the tests of a package, stops their control plane, and ends the process.
func Main(m *testing.M) {
	code := m.Run()
	if shared.store != nil {
		if err := errors.Join(shared.store.plane.Close(), os.RemoveAll(shared.folder)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// New returns a server with an empty cluster, which listens on a free port of
// 127.0.0.1 until the test ends. One test at a time can have it. The test is
// skipped when a binary is missing.
func New(t testing.TB) *Server {
	t.Helper()
	controlplane.Require(t)
	if !shared.inUse.TryLock() {
		t.Fatal("kubeapi: the API server belongs to another test, which has not ended")
	}
	t.Cleanup(shared.inUse.Unlock)
	kit.Must(t, startShared())
	s, err := serve(shared.store, "127.0.0.1:0")
	kit.Must(t, err)
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// startShared starts the shared control plane, unless it is running.
func startShared() (err error) {
	if shared.store != nil {
		return nil
	}
	if shared.folder, err = os.MkdirTemp("", "nearside-kubeapi-"); err != nil {
		return err
	}
	if shared.store, err = start(shared.folder); err != nil {
		return errors.Join(err, os.RemoveAll(shared.folder))
	}
	return nil
}

// Listen starts a control plane with its files in an existing folder, and
// returns a server with an empty cluster on a TCP address. They end with the
// process.
func Listen(folder, address string) (*Server, error) {
	store, err := start(folder)
	if err != nil {
		return nil, err
	}
	return serve(store, address)
}

// start starts a control plane with its files in an existing folder.
func start(folder string) (*store, error) {
	plane, err := controlplane.Run(folder)
	if err != nil {
		return nil, err
	}
	if err := prepare(plane); err != nil {
		return nil, errors.Join(err, plane.Close())
	}
	return newStore(plane)
}

// serve empties the cluster and starts the proxy.
func serve(store *store, address string) (*Server, error) {
	transport, err := rest.TransportFor(store.plane.Config())
	if err != nil {
		return nil, fmt.Errorf("kubeapi: %w", err)
	}
	to, err := url.Parse(store.plane.URL())
	if err != nil {
		return nil, fmt.Errorf("kubeapi: %w", err)
	}
	s := &Server{store: store}
	s.proxy.init(to, transport)
	if err := s.store.empty(); err != nil {
		return nil, err
	}
	if s.listener, err = net.Listen("tcp", address); err != nil {
		return nil, fmt.Errorf("kubeapi: %w", err)
	}
	s.http.Handler = &s.proxy
	go func() { _ = s.http.Serve(s.listener) }() // it ends with close
	return s, nil
}

// close ends all connections and the proxy.
func (s *Server) close() error {
	err := s.http.Close()
	s.proxy.drop("")
	return err
}

// URL returns the address of the server, such as "http://127.0.0.1:41234".
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// Plane returns the control plane, whose API server has the same cluster without the proxy and its faults.
func (s *Server) Plane() *controlplane.ControlPlane { return s.store.plane }

// Put creates or updates objects, in order: Services, Pods, Nodes, Namespaces,
// EndpointSlices, IPAddresses, ServiceImports, and unstructured objects of these kinds and
// ServiceExports and ClusterProperties. Each makes an event, even if it does not
// change. An empty UID or creation time becomes that of the object with this
// name, or else a new UID and a time long ago. When Put returns, lists have the objects.
func (s *Server) Put(objects ...runtime.Object) error { return s.put(objects, 1) }

// Load is Put for many objects while no client watches: several get one
// resource version.
func (s *Server) Load(objects ...runtime.Object) error { return s.put(objects, maxOps) }

func (s *Server) put(objects []runtime.Object, perTxn int) error {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return s.store.put(objects, perTxn, false)
}

// Apply writes an object through kube-apiserver, with its validation and
// admission, as kubectl apply --server-side does. Delete and Replace do not know
// the object.
func (s *Server) Apply(ctx context.Context, object runtime.Object) error {
	r, err := resourceOf(object)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	o := unstructured.Unstructured{Object: fields}
	o.SetGroupVersionKind(r.gvk())
	o.SetManagedFields(nil)
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[appliedAnnotation] = "true"
	o.SetAnnotations(annotations)
	text, err := o.MarshalJSON()
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	return s.store.plane.Client().CoreV1().RESTClient().Patch(types.ApplyPatchType).AbsPath(r.objectPath(&o)).
		Param("fieldManager", "kubeapi").Param("force", "true").Body(text).Do(ctx).Error()
}

// Delete deletes the objects with these kinds, namespaces and names, where they
// exist.
func (s *Server) Delete(objects ...runtime.Object) error { return s.store.remove(objects) }

// Replace makes objects the whole cluster: it deletes others, and puts those
// that differ.
func (s *Server) Replace(objects ...runtime.Object) error { return s.store.replace(objects) }

// Clear deletes all objects.
func (s *Server) Clear() error { return s.Replace() }

// DropWatches ends the connection of each watch on a resource, or on all if it
// is "". Clients may watch again.
func (s *Server) DropWatches(resource string) { s.proxy.drop(resource) }

// Freeze makes watches on a resource, or on all if it is "", deliver nothing
// while frozen, not even bookmarks, as with a stuck watch cache. Connections stay
// open, and new ones are accepted. Lists and gets are answered. Afterwards
// watches deliver what they missed.
func (s *Server) Freeze(resource string, frozen bool) {
	s.proxy.fault(resource, func(f *faults) { f.frozen = frozen })
}

// Hang is Freeze with lists and gets that are not answered meanwhile.
func (s *Server) Hang(resource string, hung bool) {
	s.proxy.fault(resource, func(f *faults) { f.frozen, f.hung = hung, hung })
}

// Forbid makes the server answer requests about a resource, or about all if it
// is "", with 403, as RBAC does. Open watches stay.
func (s *Server) Forbid(resource string, forbid bool) {
	s.proxy.fault(resource, func(f *faults) { f.forbidden = forbid })
}

// Refuse makes the server answer every request with 503. Open watches stay.
func (s *Server) Refuse(refuse bool) {
	s.proxy.set(func(p *proxy) { p.refuse = refuse })
}

// DisableWatchList makes the server refuse streamed lists (sendInitialEvents)
// with 422, as versions of Kubernetes before 1.32 do.
func (s *Server) DisableWatchList(disable bool) {
	s.proxy.set(func(p *proxy) { p.noWatchList = disable })
}

// Expire makes watches from any resource version so far, the current one too,
// fail with 410. Open watches stay.
func (s *Server) Expire() error {
	revision, err := s.store.advance()
	s.proxy.set(func(p *proxy) { p.expired = revision })
	return err
}

// ServeVersions sets which versions of a custom resource are served; without any
// its paths give 404 and discovery does not list it, as without its definition.
// At first ServiceImports and ClusterProperties are served in all their versions,
// ServiceExports in none. Watches on the resource end, as with every change of a
// definition. Objects stay.
func (s *Server) ServeVersions(resource string, versions ...string) error {
	r, err := customResource(resource, versions)
	if err != nil {
		return err
	}
	s.proxy.fault(r.name, func(f *faults) { f.served = versions })
	s.proxy.drop(r.name)
	return nil
}

// Requests returns the number of requests of each kind so far, with those that a
// fault has answered. Only requests about resources count.
func (s *Server) Requests() map[Request]int { return s.proxy.requests() }

// OpenWatches returns the number of open watches on a resource, or on all if it
// is "".
func (s *Server) OpenWatches(resource string) int {
	s.proxy.mu.Lock()
	defer s.proxy.mu.Unlock()
	return len(s.proxy.watches(resource))
}

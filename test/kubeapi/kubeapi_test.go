package kubeapi

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

func TestMain(m *testing.M) { Main(m) }

// bed is a server with a client.
type bed struct {
	*testing.T
	*Server
	*kubernetes.Clientset
}

func newBed(t *testing.T) *bed {
	t.Helper()
	s := New(t)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL(), QPS: -1, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}})
	kit.Must(t, err)
	return &bed{t, s, client}
}

// must fails the test for an error.
func (b *bed) must(err error) {
	b.Helper()
	kit.Must(b, err)
}

func service(name, ip string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip}}
}

// names returns the names of the Services in a list at a resource version.
func (b *bed) names(version string) string {
	b.Helper()
	list, err := b.CoreV1().Services("").List(b.Context(), metav1.ListOptions{ResourceVersion: version})
	b.must(err)
	var all []string
	for _, s := range list.Items {
		all = append(all, s.Name)
	}
	return strings.Join(all, " ")
}

// watch watches Services from a resource version.
func (b *bed) watch(options metav1.ListOptions) watch.Interface {
	b.Helper()
	w, err := b.CoreV1().Services("").Watch(b.Context(), options)
	b.must(err)
	b.Cleanup(w.Stop)
	return w
}

// next describes the next event, "none" without one for a while, and "end" at the end.
func next(w watch.Interface, wait time.Duration) string {
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			return "end"
		}
		if s, ok := e.Object.(*corev1.Service); ok {
			return fmt.Sprintf("%s %s", e.Type, s.Name)
		}
		return fmt.Sprintf("%s %v", e.Type, apierrors.FromObject(e.Object))
	case <-time.After(wait):
		return "none"
	}
}

const (
	soon  = 20 * time.Second
	short = 300 * time.Millisecond
)

func (b *bed) want(w watch.Interface, event string) {
	b.Helper()
	if got := next(w, soon); !strings.HasPrefix(got, event) {
		b.Fatalf("event %q, want %q", got, event)
	}
}

// TestObjects: lists have all changes at once, from the watch cache as well, and nothing else.
func TestObjects(t *testing.T) {
	b := newBed(t)
	for i, step := range []struct {
		do   func() error
		want string
	}{
		{func() error { return nil }, ""},
		{func() error { return b.Put(service("a", "None"), service("b", "None")) }, "a b"},
		{func() error { return b.Load(service("c", "None"), service("d", "None")) }, "a b c d"},
		{func() error { return b.Delete(service("a", ""), service("none", "")) }, "b c d"},
		{func() error { return b.Replace(service("b", "None"), service("e", "None")) }, "b e"},
		{b.Clear, ""},
	} {
		b.must(step.do())
		for _, version := range []string{"0", ""} {
			if got := b.names(version); got != step.want {
				t.Errorf("step %d: Services %q, want %q", i, got, step.want)
			}
		}
	}
}

// TestNewIsEmpty: a test finds nothing of the tests before it, and nothing that kube-apiserver makes by itself.
func TestNewIsEmpty(t *testing.T) {
	for range 3 {
		t.Run("", func(t *testing.T) {
			b := newBed(t)
			if got := b.names("0"); got != "" {
				t.Errorf("Services %q", got)
			}
			namespaces, err := b.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
			b.must(err)
			if len(namespaces.Items) != 0 {
				t.Errorf("Namespaces %v", namespaces.Items)
			}
			var all []runtime.Object
			for i := range 300 {
				all = append(all, service(fmt.Sprint("web-", i), "None"))
			}
			b.must(b.Load(append(all, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})...))
			if got := len(strings.Fields(b.names("0"))); got != 300 {
				t.Errorf("%d Services, want 300", got)
			}
		})
	}
}

// TestUpdates: an update is an event even if it changes nothing, and keeps the identity of the object.
func TestUpdates(t *testing.T) {
	b := newBed(t)
	b.must(b.Put(service("a", "None")))
	first, err := b.CoreV1().Services("shop").Get(t.Context(), "a", metav1.GetOptions{})
	b.must(err)
	w := b.watch(metav1.ListOptions{ResourceVersion: first.ResourceVersion})
	b.must(b.Put(service("a", "None")))
	b.want(w, "MODIFIED a")
	second, err := b.CoreV1().Services("shop").Get(t.Context(), "a", metav1.GetOptions{})
	b.must(err)
	if first.UID == "" || first.UID != second.UID || first.CreationTimestamp != second.CreationTimestamp {
		t.Errorf("%v and %v", first.ObjectMeta, second.ObjectMeta)
	}
	b.must(b.Replace(service("a", "None"), service("b", "None")))
	b.want(w, "ADDED b")
}

// TestInvalidObjects: objects that kube-apiserver would refuse are served too.
func TestInvalidObjects(t *testing.T) {
	b := newBed(t)
	var objects []runtime.Object
	for _, name := range []string{"with.dot", "UPPER", "sp ace", `back\slash`, "*", "ümlaut", "\x00", strings.Repeat("a.", 130)} {
		objects = append(objects, service(name, "10.96.0.256"))
	}
	b.must(b.Put(objects...))
	list, err := b.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	b.must(err)
	if len(list.Items) != len(objects) {
		t.Errorf("%d Services, want %d", len(list.Items), len(objects))
	}
	for _, s := range list.Items {
		if s.Spec.ClusterIP != "10.96.0.256" || !slices.ContainsFunc(objects, func(o runtime.Object) bool { return o.(*corev1.Service).Name == s.Name }) {
			t.Errorf("Service %q has the address %s", s.Name, s.Spec.ClusterIP)
		}
	}
}

func TestFreeze(t *testing.T) {
	b := newBed(t)
	w := b.watch(metav1.ListOptions{})
	b.Freeze(Services, true)
	b.must(b.Put(service("a", "None")))
	again := b.watch(metav1.ListOptions{})
	for _, w := range []watch.Interface{w, again} {
		if got := next(w, short); got != "none" {
			t.Errorf("%s while frozen", got)
		}
	}
	if got := b.names(""); got != "a" {
		t.Errorf("listed %q while frozen", got)
	}
	b.Freeze("", false)
	b.want(w, "ADDED a")
	b.want(again, "ADDED a")
}

func TestHang(t *testing.T) {
	b := newBed(t)
	b.Hang(Services, true)
	ctx, cancel := context.WithTimeout(t.Context(), short)
	defer cancel()
	if _, err := b.CoreV1().Services("").List(ctx, metav1.ListOptions{}); err == nil {
		t.Error("a list was answered")
	}
	if _, err := b.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("another resource: %v", err)
	}
	b.Hang(Services, false)
	b.names("")
}

func TestRefusals(t *testing.T) {
	b := newBed(t)
	list := func() error {
		_, err := b.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
		return err
	}
	b.Refuse(true)
	if err := list(); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("refused: %v", err)
	}
	b.Refuse(false)
	b.Forbid(Services, true)
	if err := list(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `cannot list resource "services"`) {
		t.Errorf("forbidden: %v", err)
	}
	b.Forbid(Services, false)
	initial := true
	streamed := metav1.ListOptions{SendInitialEvents: &initial, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true}
	b.DisableWatchList(true)
	if _, err := b.CoreV1().Services("").Watch(t.Context(), streamed); !apierrors.IsInvalid(err) {
		t.Errorf("streamed list: %v", err)
	}
	b.DisableWatchList(false)
	b.must(b.Put(service("a", "None")))
	b.want(b.watch(streamed), "ADDED a")
	b.must(list())
	protobuf := runtime.ContentTypeProtobuf
	for _, want := range []struct {
		Request
		count int
	}{{Request{VerbList, Services, protobuf}, 3}, {Request{VerbWatchList, Services, protobuf}, 2}} {
		if got := b.Requests()[want.Request]; got != want.count {
			t.Errorf("%d requests %v, want %d", got, want.Request, want.count)
		}
	}
}

func TestWatchesEnd(t *testing.T) {
	b := newBed(t)
	b.must(b.Put(service("a", "None")))
	list, err := b.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	b.must(err)
	options := metav1.ListOptions{ResourceVersion: list.ResourceVersion}
	w := b.watch(options)
	b.must(b.Expire())
	b.must(b.Put(service("b", "None")))
	b.want(w, "ADDED b") // open watches stay
	b.want(b.watch(options), "ERROR too old resource version")
	list, err = b.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
	b.must(err)
	later := b.watch(metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	b.must(b.Put(service("c", "None")))
	b.want(later, "ADDED c")
	b.want(w, "ADDED c")
	b.Freeze(Services, true)
	b.DropWatches(Services)
	b.want(w, "end")
	b.want(later, "end")
	if n := b.OpenWatches(""); n != 0 {
		t.Errorf("%d watches are open", n)
	}
}

func TestServeVersions(t *testing.T) {
	b := newBed(t)
	property := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"value": "east"}}}
	property.SetAPIVersion("about.k8s.io/v1")
	property.SetKind("ClusterProperty")
	property.SetName("cluster.clusterset.k8s.io")
	b.must(b.Put(property, &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}))
	get := func(path string) string {
		body, err := b.CoreV1().RESTClient().Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).DoRaw(t.Context())
		if apierrors.IsNotFound(err) {
			return "not found"
		}
		b.must(err)
		return string(body)
	}
	const imports = "/apis/multicluster.x-k8s.io"
	for _, step := range []struct {
		do   func() error
		want map[string]string // paths, and parts of answers
	}{
		{func() error { return nil }, map[string]string{
			imports + "/v1beta1/serviceimports": `"web"`, imports + "/v1alpha1/namespaces/shop/serviceimports/web": "multicluster.x-k8s.io/v1alpha1",
			imports + "/v1beta1/serviceexports": "not found", imports: `"preferredVersion":{"groupVersion":"multicluster.x-k8s.io/v1beta1"`,
			"/apis/about.k8s.io/v1beta1/clusterproperties": `"east"`, "/apis/about.k8s.io": "about.k8s.io/v1alpha1",
		}},
		{func() error { return b.ServeVersions(ServiceImports, "v1alpha1") }, map[string]string{
			imports + "/v1beta1/serviceimports": "not found", imports + "/v1alpha1/serviceimports": `"web"`,
			imports: `"preferredVersion":{"groupVersion":"multicluster.x-k8s.io/v1alpha1"`, imports + "/v1alpha1": `"serviceimports"`, imports + "/v1beta1": "not found",
		}},
		{func() error { return b.ServeVersions(ServiceImports) }, map[string]string{imports: "not found", imports + "/v1alpha1/serviceimports": "not found"}},
		{func() error { return b.ServeVersions(ServiceExports, "v1beta1") }, map[string]string{imports + "/v1beta1": `"serviceexports"`}},
	} {
		b.must(step.do())
		for path, want := range step.want {
			if got := get(path); !strings.Contains(got, want) {
				t.Errorf("%s is %q, want %q", path, got, want)
			}
		}
	}
	if b.ServeVersions(Services, "v1") == nil || b.ServeVersions(ServiceImports, "v2") == nil {
		t.Error("want an error for a resource that is built in, and for an unknown version")
	}
}

// TestApply writes through kube-apiserver, which validates, while it refuses other writes.
func TestApply(t *testing.T) {
	b := newBed(t)
	b.must(b.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}))
	applied := service("applied", "10.96.77.1")
	applied.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}}
	b.must(b.Apply(b.Context(), applied))
	applied.Spec.Ports[0].Port = 81
	b.must(b.Apply(b.Context(), applied))
	got, err := b.CoreV1().Services("shop").Get(b.Context(), "applied", metav1.GetOptions{})
	b.must(err)
	if len(got.Spec.Ports) != 1 || got.Spec.Ports[0].Port != 81 || got.Spec.ClusterIP != "10.96.77.1" {
		t.Errorf("ports %v, address %s", got.Spec.Ports, got.Spec.ClusterIP)
	}
	applied.Spec.Ports[0].Port = 0
	if err := b.Apply(b.Context(), applied); !apierrors.IsInvalid(err) {
		t.Errorf("port 0: error %v, want it to be refused as invalid", err)
	}
	other := service("other", "10.96.77.2")
	other.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}}
	if _, err := b.store.plane.Client().CoreV1().Services("shop").Create(b.Context(), other, metav1.CreateOptions{}); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
		t.Errorf("a write without Apply: error %v, want it to be refused", err)
	}
	b.must(b.store.plane.Client().CoreV1().Services("shop").Delete(b.Context(), "applied", metav1.DeleteOptions{}))
}

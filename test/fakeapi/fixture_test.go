package fakeapi

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

const (
	protobufType = "application/vnd.kubernetes.protobuf"
	jsonType     = "application/json"
)

// start gives a listening server which ends with the test.
func start(t *testing.T) *Server {
	t.Helper()
	srv := New()
	if err := srv.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	return srv
}

func clientConfig(srv *Server, contentType string) *rest.Config {
	return &rest.Config{Host: srv.URL(), QPS: -1, ContentConfig: rest.ContentConfig{ContentType: contentType}}
}

func client(t *testing.T, srv *Server, contentType string) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(clientConfig(srv, contentType))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func put(t *testing.T, srv *Server, objs ...runtime.Object) {
	t.Helper()
	if err := srv.Put(objs...); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, srv *Server, objs ...runtime.Object) {
	t.Helper()
	if err := srv.Delete(objs...); err != nil {
		t.Fatal(err)
	}
}

// eventually fails the test when holds doesn't give "" within 20 seconds; what
// it gives says what is wrong.
func eventually(t *testing.T, holds func() string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		wrong := holds()
		if wrong == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(wrong)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// lister is what client-go's typed clients have in common.
type lister[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// follow runs a reflector on a resource and gives the store it fills.
func follow[L runtime.Object](t *testing.T, c lister[L], of runtime.Object, selectors metav1.ListOptions) cache.Store {
	t.Helper()
	with := func(o metav1.ListOptions) metav1.ListOptions {
		o.LabelSelector, o.FieldSelector = selectors.LabelSelector, selectors.FieldSelector
		return o
	}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return c.List(ctx, with(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, with(o))
		},
	}
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	r := cache.NewReflectorWithOptions(lw, of, store, cache.ReflectorOptions{
		Backoff: &wait.Backoff{Duration: 5 * time.Millisecond, Factor: 1, Steps: 1 << 30},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return store
}

// difference tells how a client's store differs from the server's objects.
func difference(t *testing.T, srv *Server, resource string, store cache.Store) string {
	t.Helper()
	want, err := srv.Objects(resource)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(store.ListKeys()); got != len(want) {
		return fmt.Sprintf("%s: client has %d objects, server %d", resource, got, len(want))
	}
	for _, w := range want {
		w.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		k, err := cache.MetaNamespaceKeyFunc(w)
		if err != nil {
			t.Fatal(err)
		}
		g, ok, err := store.GetByKey(k)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return fmt.Sprintf("%s: client lacks %s", resource, k)
		}
		got := g.(runtime.Object).DeepCopyObject()
		got.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		if !reflect.DeepEqual(got, w) {
			return fmt.Sprintf("%s: %s differs:\nclient %#v\nserver %#v", resource, k, got, w)
		}
	}
	return ""
}

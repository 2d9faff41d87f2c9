package fakeapi

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestReplace checks that a Replace makes events for what differs, and none
// for what doesn't.
func TestReplace(t *testing.T) {
	srv := start(t)
	put(t, srv, service("a", "one", "red"), service("a", "two", "red"), service("a", "three", "red"))
	rv := srv.ResourceVersion()
	w := opened(t, client(t, srv, protobufType).CoreV1().Services(""), metav1.ListOptions{ResourceVersion: text(rv)})
	if err := srv.Replace(service("a", "one", "red"), service("a", "two", "green"), service("a", "four", "red")); err != nil {
		t.Fatal(err)
	}
	expect(t, w, "DELETED three@"+text(rv+1)+" red")
	expect(t, w, "MODIFIED two@"+text(rv+2)+" green")
	expect(t, w, "ADDED four@"+text(rv+3)+" red")
	if err := srv.Clear(); err != nil {
		t.Fatal(err)
	}
	expect(t, w, "DELETED four@"+text(rv+4)+" red")
	expect(t, w, "DELETED one@"+text(rv+5)+" red")
	expect(t, w, "DELETED two@"+text(rv+6)+" green")
}

// TestIdentityKept checks that an update keeps the UID of the object and that
// one made anew gets another.
func TestIdentityKept(t *testing.T) {
	srv := New()
	uid := func() string {
		objs, err := srv.Objects(Services)
		if err != nil || len(objs) != 1 {
			t.Fatalf("%v, %v", objs, err)
		}
		svc, ok := objs[0].(*corev1.Service)
		if !ok {
			t.Fatalf("got a %T", objs[0])
		}
		return string(svc.UID)
	}
	put(t, srv, service("a", "one", "red"))
	first := uid()
	put(t, srv, service("a", "one", "green"))
	if got := uid(); got != first || got == "" {
		t.Errorf("UID %q became %q", first, got)
	}
	remove(t, srv, service("a", "one", ""))
	put(t, srv, service("a", "one", "red"))
	if got := uid(); got == first {
		t.Errorf("UID %q came back", got)
	}
	if err := srv.Put(&corev1.ConfigMap{}); err == nil {
		t.Error("a ConfigMap was accepted")
	}
	if err := srv.Delete(&corev1.ConfigMap{}); err == nil {
		t.Error("a ConfigMap was accepted")
	}
	if _, err := srv.Objects("configmaps"); err == nil {
		t.Error("configmaps were accepted")
	}
}

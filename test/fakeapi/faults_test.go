package fakeapi

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// TestDropWatches checks that watches of one resource end and others don't.
func TestDropWatches(t *testing.T) {
	srv := start(t)
	c := client(t, srv, protobufType).CoreV1()
	rv := text(srv.ResourceVersion())
	services := opened(t, c.Services(""), metav1.ListOptions{ResourceVersion: rv})
	pods := opened(t, c.Pods(""), metav1.ListOptions{ResourceVersion: rv})
	if n, m := srv.OpenWatches(""), srv.OpenWatches(Services); n != 2 || m != 1 {
		t.Fatalf("%d watches are open, %d on services", n, m)
	}
	srv.DropWatches(Services)
	if n, m := srv.OpenWatches(""), srv.OpenWatches(Services); n != 1 || m != 0 {
		t.Fatalf("%d watches are open, %d on services", n, m)
	}
	expectEnd(t, services)
	put(t, srv, pod("one", "", corev1.PodPending))
	expect(t, pods, "ADDED one@"+text(srv.ResourceVersion())+" ")
}

// TestFreeze checks that a frozen resource's watches are still, new ones too,
// that lists go on, and that nothing is lost afterwards.
func TestFreeze(t *testing.T) {
	srv := start(t)
	srv.SetBookmarkInterval(time.Millisecond)
	c := client(t, srv, protobufType).CoreV1()
	rv := srv.ResourceVersion()
	opts := metav1.ListOptions{ResourceVersion: text(rv)}
	before := opened(t, c.Services(""), opts)
	srv.Freeze(Services, true)
	put(t, srv, service("a", "one", ""), pod("one", "", corev1.PodPending))
	during := opened(t, c.Services(""), metav1.ListOptions{AllowWatchBookmarks: true})
	srv.Freeze(Nodes, true)
	idle := opened(t, c.Nodes(), metav1.ListOptions{ResourceVersion: text(rv), AllowWatchBookmarks: true})
	others := opened(t, c.Pods(""), opts)
	expect(t, others, "ADDED one@"+text(rv+2)+" ")
	list, err := c.Services("").List(context.Background(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("list: %v, %v", list, err)
	}
	for range 20 { // time for many bookmarks
		select {
		case e := <-before.ResultChan():
			t.Fatalf("frozen, but got %v", e)
		case e := <-during.ResultChan():
			t.Fatalf("frozen, but got %v", e)
		case e := <-idle.ResultChan():
			t.Fatalf("frozen, but got %v", e)
		case <-time.After(2 * time.Millisecond):
		}
	}
	srv.Freeze(Services, false)
	expect(t, before, "ADDED one@"+text(rv+1)+" ")
	expect(t, during, "ADDED one@"+text(rv+1)+" ")
}

// TestHang checks that lists and gets wait, and go on afterwards.
func TestHang(t *testing.T) {
	srv := start(t)
	c := client(t, srv, protobufType).CoreV1()
	put(t, srv, service("a", "one", ""))
	srv.Hang(Services, true)
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Services("").List(short, metav1.ListOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("list: got %v, want it to hang", err)
	}
	if _, err := c.Pods("").List(context.Background(), metav1.ListOptions{}); err != nil {
		t.Errorf("list of others: %v", err)
	}
	done := make(chan error)
	go func() {
		_, err := c.Services("a").Get(context.Background(), "one", metav1.GetOptions{})
		done <- err
	}()
	srv.Hang(Services, false)
	if err := <-done; err != nil {
		t.Errorf("get: %v", err)
	}
	srv.Hang("", true)
	go func() {
		_, err := c.Services("").List(context.Background(), metav1.ListOptions{})
		done <- err
	}()
	eventually(t, func() string {
		if n := srv.Requests()[Request{VerbList, Services, protobufType}]; n != 2 {
			return fmt.Sprintf("%d lists", n)
		}
		return ""
	})
	if err := srv.Close(); err != nil { // does not wait for those who hang
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("a list which hung came through after Close")
	}
}

// TestRefuse checks for 503, and that it is over afterwards.
func TestRefuse(t *testing.T) {
	srv := start(t)
	c := client(t, srv, protobufType).CoreV1()
	srv.Refuse(true)
	if _, err := c.Services("").List(context.Background(), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("list: got %v, want it to be unavailable", err)
	}
	if _, err := c.Services("").Watch(context.Background(), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("watch: got %v, want it to be unavailable", err)
	}
	srv.Refuse(false)
	if _, err := c.Services("").List(context.Background(), metav1.ListOptions{}); err != nil {
		t.Errorf("list: %v", err)
	}
	requests := srv.Requests()
	if n := requests[Request{VerbList, Services, protobufType}]; n != 2 {
		t.Errorf("%d lists counted, want 2: %v", n, requests)
	}
	if n := requests[Request{VerbWatch, Services, protobufType}]; n != 1 {
		t.Errorf("%d watches counted, want 1: %v", n, requests)
	}
}

// TestForbid checks for 403 about one resource, in the words of a real server,
// while others and open watches go on.
func TestForbid(t *testing.T) {
	srv := start(t)
	c := client(t, srv, protobufType).CoreV1()
	before := opened(t, c.Services(""), metav1.ListOptions{ResourceVersion: text(srv.ResourceVersion())})
	srv.Forbid(Services, true)
	_, err := c.Services("").List(context.Background(), metav1.ListOptions{})
	const want = `services is forbidden: User "test" cannot list resource "services" in API group "" at the cluster scope`
	if !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("list: got %v, want %s", err, want)
	}
	if _, err := c.Services("").Watch(context.Background(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("watch: got %v, want it to be forbidden", err)
	}
	if _, err := c.Pods("").List(context.Background(), metav1.ListOptions{}); err != nil {
		t.Errorf("list of another resource: %v", err)
	}
	put(t, srv, service("a", "one", ""))
	expect(t, before, "ADDED one@"+text(srv.ResourceVersion())+" ")
	srv.Forbid(Services, false)
	if _, err := c.Services("").List(context.Background(), metav1.ListOptions{}); err != nil {
		t.Errorf("list: %v", err)
	}
}

// TestCloseAndListen checks that a closed server refuses connections and comes
// back at the same address with what it had.
func TestCloseAndListen(t *testing.T) {
	srv := start(t)
	c := client(t, srv, protobufType).CoreV1()
	put(t, srv, service("a", "one", ""))
	w := opened(t, c.Services(""), metav1.ListOptions{ResourceVersion: text(srv.ResourceVersion())})
	address := srv.URL()[len("http://"):]
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	expectEnd(t, w)
	if n := srv.OpenWatches(""); n != 0 {
		t.Errorf("%d watches are open", n)
	}
	if _, err := c.Services("").List(context.Background(), metav1.ListOptions{}); !utilnet.IsConnectionRefused(err) {
		t.Errorf("got %v, want the connection to be refused", err)
	}
	if err := srv.Listen(address); err != nil {
		t.Fatal(err)
	}
	list, err := c.Services("").List(context.Background(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
}

package fakeapi

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func service(namespace, name, colour string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"colour": colour}}}
}

func pod(name, node string, phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: phase},
	}
}

// watcherOf is the part of client-go's typed clients which watches.
type watcherOf interface {
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// opened gives a watch which ends with the test.
func opened(t *testing.T, c watcherOf, opts metav1.ListOptions) watch.Interface {
	t.Helper()
	w, err := c.Watch(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// next gives the next event of a watch, and fails the test when there is none.
func next(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch has ended")
		}
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("no event")
	}
	return watch.Event{}
}

// expect checks that the next event is one of this type for this object. The
// text is "TYPE name@resourceVersion colour".
func expect(t *testing.T, w watch.Interface, want string) {
	t.Helper()
	if got := describe(t, next(t, w)); got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
}

func describe(t *testing.T, e watch.Event) string {
	t.Helper()
	m, err := meta.Accessor(e.Object)
	if err != nil {
		t.Fatalf("%s of %v: %v", e.Type, e.Object, err)
	}
	return fmt.Sprintf("%s %s@%s %s", e.Type, m.GetName(), m.GetResourceVersion(), m.GetLabels()["colour"])
}

// expectEnd checks that a watch ends without anything but bookmarks.
func expectEnd(t *testing.T, w watch.Interface) {
	t.Helper()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return
			}
			if e.Type != watch.Bookmark {
				t.Fatalf("got %s, want the end", describe(t, e))
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the watch does not end")
		}
	}
}

func text(rv uint64) string { return strconv.FormatUint(rv, 10) }

// TestWatchLabelSelector checks what a change means to a watch for some labels.
func TestWatchLabelSelector(t *testing.T) {
	for _, contentType := range []string{protobufType, jsonType} {
		t.Run(contentType, func(t *testing.T) {
			srv := start(t)
			rv := srv.ResourceVersion()
			w := opened(t, client(t, srv, contentType).CoreV1().Services(""), metav1.ListOptions{
				LabelSelector: "colour in (red, pink)", ResourceVersion: text(rv),
			})
			put(t, srv,
				service("a", "one", "red"),   // +1
				service("a", "two", "green"), // +2
				service("a", "one", "pink"),  // +3
				service("a", "one", "green"), // +4
				service("a", "two", "red"),   // +5
			)
			remove(t, srv, service("a", "one", ""), service("a", "two", "")) // +6, +7
			expect(t, w, "ADDED one@"+text(rv+1)+" red")
			expect(t, w, "MODIFIED one@"+text(rv+3)+" pink")
			expect(t, w, "DELETED one@"+text(rv+4)+" pink")
			expect(t, w, "ADDED two@"+text(rv+5)+" red")
			expect(t, w, "DELETED two@"+text(rv+7)+" red")
		})
	}
}

// TestWatchFieldSelector checks field selectors, names and namespaces.
func TestWatchFieldSelector(t *testing.T) {
	srv := start(t)
	pods := client(t, srv, protobufType).CoreV1().Pods
	rv := srv.ResourceVersion()
	running := opened(t, pods(""), metav1.ListOptions{FieldSelector: "status.phase!=Succeeded,status.phase!=Failed", ResourceVersion: text(rv)})
	onNode := opened(t, pods("a"), metav1.ListOptions{FieldSelector: "spec.nodeName=n1", ResourceVersion: text(rv)})
	named := opened(t, pods(""), metav1.ListOptions{FieldSelector: "metadata.name=two", ResourceVersion: text(rv)})
	elsewhere := opened(t, pods("b"), metav1.ListOptions{ResourceVersion: text(rv)})
	put(t, srv,
		pod("one", "", corev1.PodPending),     // +1
		pod("one", "n1", corev1.PodRunning),   // +2
		pod("two", "n2", corev1.PodRunning),   // +3
		pod("one", "n1", corev1.PodSucceeded), // +4
	)
	other := pod("three", "n1", corev1.PodRunning)
	other.Namespace = "b"
	put(t, srv, other) // +5

	expect(t, running, "ADDED one@"+text(rv+1)+" ")
	expect(t, running, "MODIFIED one@"+text(rv+2)+" ")
	expect(t, running, "ADDED two@"+text(rv+3)+" ")
	expect(t, running, "DELETED one@"+text(rv+4)+" ")
	expect(t, running, "ADDED three@"+text(rv+5)+" ")
	expect(t, onNode, "ADDED one@"+text(rv+2)+" ")
	expect(t, onNode, "MODIFIED one@"+text(rv+4)+" ")
	expect(t, named, "ADDED two@"+text(rv+3)+" ")
	expect(t, elsewhere, "ADDED three@"+text(rv+5)+" ")

	_, err := pods("").Watch(context.Background(), metav1.ListOptions{FieldSelector: "spec.colour=red"})
	if !apierrors.IsBadRequest(err) {
		t.Errorf("unknown field: got %v, want a bad request", err)
	}
}

// TestWatchInitialEvents checks a streaming list, in both encodings: the
// present objects, the annotated bookmark, and then what changes.
func TestWatchInitialEvents(t *testing.T) {
	for _, contentType := range []string{protobufType, jsonType} {
		t.Run(contentType, func(t *testing.T) {
			srv := start(t)
			put(t, srv, service("b", "two", "red"), service("a", "one", "red"), service("a", "three", "green"))
			rv := srv.ResourceVersion()
			yes := true
			services := client(t, srv, contentType).CoreV1().Services("")
			opts := metav1.ListOptions{
				SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
				AllowWatchBookmarks: true, LabelSelector: "colour=red",
			}
			w := opened(t, services, opts)
			expect(t, w, "ADDED one@"+text(rv-1)+" red")
			expect(t, w, "ADDED two@"+text(rv-2)+" red")
			mark := next(t, w)
			svc, ok := mark.Object.(*corev1.Service)
			if mark.Type != watch.Bookmark || !ok || svc.ResourceVersion != text(rv) || svc.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
				t.Fatalf("got %s %v, want the bookmark at the end of the initial events", mark.Type, mark.Object)
			}
			put(t, srv, service("a", "one", "red"))
			expect(t, w, "MODIFIED one@"+text(rv+1)+" red")

			opts.ResourceVersion = text(rv + 100)
			w = opened(t, services, opts)
			e := next(t, w)
			if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
				t.Errorf("from the future: got %s %v, want a too large resource version", e.Type, err)
			}
			expectEnd(t, w)

			srv.DisableWatchList(true)
			opts.ResourceVersion = ""
			if _, err := services.Watch(context.Background(), opts); !apierrors.IsInvalid(err) {
				t.Errorf("disabled: got %v, want it to be invalid", err)
			}
			w = opened(t, services, metav1.ListOptions{LabelSelector: "colour=red"})
			expect(t, w, "ADDED one@"+text(rv+1)+" red")
			expect(t, w, "ADDED two@"+text(rv-2)+" red")
		})
	}
}

// TestWatchHistory checks where a watch can begin.
func TestWatchHistory(t *testing.T) {
	srv := start(t)
	srv.SetHistory(3)
	services := client(t, srv, protobufType).CoreV1().Services("")
	rv := srv.ResourceVersion()
	put(t, srv, service("a", "one", ""), service("a", "two", ""), service("a", "three", ""))
	w := opened(t, services, metav1.ListOptions{ResourceVersion: text(rv)})
	expect(t, w, "ADDED one@"+text(rv+1)+" ")

	put(t, srv, service("a", "four", ""))
	expired := func(from uint64) {
		t.Helper()
		w := opened(t, services, metav1.ListOptions{ResourceVersion: text(from)})
		e := next(t, w)
		if err := apierrors.FromObject(e.Object); e.Type != watch.Error || !apierrors.IsResourceExpired(err) {
			t.Fatalf("from %d: got %s %v, want it to be expired", from, e.Type, err)
		}
		expectEnd(t, w)
	}
	expired(rv)
	w = opened(t, services, metav1.ListOptions{ResourceVersion: text(rv + 1)})
	expect(t, w, "ADDED two@"+text(rv+2)+" ")
	expect(t, w, "ADDED three@"+text(rv+3)+" ")
	expect(t, w, "ADDED four@"+text(rv+4)+" ")

	srv.Expire()
	expired(rv + 4)
	put(t, srv, service("a", "five", ""))
	expect(t, w, "ADDED five@"+text(rv+6)+" ") // a running watch goes on
	w = opened(t, services, metav1.ListOptions{ResourceVersion: text(rv + 5)})
	expect(t, w, "ADDED five@"+text(rv+6)+" ")
}

// TestWatchBookmarks checks that bookmarks carry the resource version of
// changes elsewhere, and that only who asks gets them.
func TestWatchBookmarks(t *testing.T) {
	srv := start(t)
	srv.SetBookmarkInterval(10 * time.Millisecond)
	services := client(t, srv, protobufType).CoreV1().Services("")
	rv := text(srv.ResourceVersion())
	with := opened(t, services, metav1.ListOptions{ResourceVersion: rv, AllowWatchBookmarks: true})
	without := opened(t, services, metav1.ListOptions{ResourceVersion: rv})
	expect(t, with, "BOOKMARK @"+rv+" ")
	put(t, srv, pod("one", "", corev1.PodPending))
	for {
		e := describe(t, next(t, with))
		if e == "BOOKMARK @"+text(srv.ResourceVersion())+" " {
			break
		}
		if e != "BOOKMARK @"+rv+" " {
			t.Fatalf("got %s", e)
		}
	}
	put(t, srv, service("a", "one", ""))
	expect(t, without, "ADDED one@"+text(srv.ResourceVersion())+" ")
}

// TestWatchTimeout checks that a watch ends when it asked to, with a last
// bookmark before when there is time for one.
func TestWatchTimeout(t *testing.T) {
	srv := start(t)
	services := client(t, srv, protobufType).CoreV1().Services("")
	one, three := int64(1), int64(3)
	rv := text(srv.ResourceVersion())
	short := opened(t, services, metav1.ListOptions{ResourceVersion: rv, TimeoutSeconds: &one, AllowWatchBookmarks: true})
	long := opened(t, services, metav1.ListOptions{ResourceVersion: rv, TimeoutSeconds: &three, AllowWatchBookmarks: true})
	expectEnd(t, short)
	expect(t, long, "BOOKMARK @"+rv+" ")
	expectEnd(t, long)
	eventually(t, func() string {
		if n := srv.OpenWatches(""); n != 0 {
			return fmt.Sprintf("%d watches are open", n)
		}
		return ""
	})
}

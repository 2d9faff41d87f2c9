package fakeapi

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
)

// TestMetadataOnly has client-go's metadata client follow nodes: it gets their
// metadata and nothing else.
func TestMetadataOnly(t *testing.T) {
	srv := start(t)
	c, err := metadata.NewForConfig(clientConfig(srv, ""))
	if err != nil {
		t.Fatal(err)
	}
	node := func(name, zone string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"colour": zone}},
			Status:     corev1.NodeStatus{Images: []corev1.ContainerImage{{Names: []string{"image"}}}},
		}
	}
	nodes := c.Resource(corev1.SchemeGroupVersion.WithResource(Nodes))
	put(t, srv, node("n1", "red"), node("n2", "green"))
	rv := srv.ResourceVersion()
	ctx := context.Background()

	list, err := nodes.List(ctx, metav1.ListOptions{LabelSelector: "colour=red"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "n1" || list.ResourceVersion != text(rv) {
		t.Errorf("list: %v, %v", list, err)
	}
	one, err := nodes.Get(ctx, "n2", metav1.GetOptions{})
	if err != nil || one.Labels["colour"] != "green" {
		t.Errorf("get: %v, %v", one, err)
	}
	yes := true
	w := opened(t, nodes, metav1.ListOptions{
		SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true,
	})
	expect(t, w, "ADDED n1@"+text(rv-1)+" red")
	expect(t, w, "ADDED n2@"+text(rv)+" green")
	mark := next(t, w)
	m, ok := mark.Object.(*metav1.PartialObjectMetadata)
	if mark.Type != watch.Bookmark || !ok || m.ResourceVersion != text(rv) || m.Annotations[metav1.InitialEventsAnnotationKey] != "true" {
		t.Fatalf("got %s %#v, want the bookmark at the end of the initial events", mark.Type, mark.Object)
	}
	remove(t, srv, node("n1", ""))
	expect(t, w, "DELETED n1@"+text(rv+1)+" red")

	requests := srv.Requests()
	for _, verb := range []string{VerbGet, VerbList, VerbWatchList} {
		if n := requests[Request{verb, Nodes, protobufType + ";as=PartialObjectMetadata"}]; n != 1 {
			t.Errorf("%d requests to %s metadata in %v", n, verb, requests)
		}
	}
}

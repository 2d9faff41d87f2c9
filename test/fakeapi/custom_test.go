package fakeapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
	mcsalpha "sigs.k8s.io/mcs-api/pkg/client/clientset/versioned/typed/apis/v1alpha1"
	mcsbeta "sigs.k8s.io/mcs-api/pkg/client/clientset/versioned/typed/apis/v1beta1"
)

func serviceImport(namespace, name, colour string, ips ...string) *mcsv1beta1.ServiceImport {
	return &mcsv1beta1.ServiceImport{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"colour": colour}},
		Spec:       mcsv1beta1.ServiceImportSpec{Type: mcsv1beta1.ClusterSetIP, IPs: ips, Ports: []mcsv1beta1.ServicePort{{Port: 80, Name: "http"}}},
	}
}

func betaClient(t *testing.T, srv *Server, contentType string) *mcsbeta.MulticlusterV1beta1Client {
	t.Helper()
	c, err := mcsbeta.NewForConfig(clientConfig(srv, contentType))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func alphaClient(t *testing.T, srv *Server) *mcsalpha.MulticlusterV1alpha1Client {
	t.Helper()
	c, err := mcsalpha.NewForConfig(clientConfig(srv, protobufType))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestCustomResource checks lists and watches of ServiceImports in both
// versions, for clients that would like protobuf too.
func TestCustomResource(t *testing.T) {
	srv := start(t)
	ctx := context.Background()
	put(t, srv, serviceImport("b", "two", "red"), serviceImport("a", "one", "red", "10.0.0.1"), serviceImport("a", "three", "green"))
	rv := srv.ResourceVersion()
	yes := true
	initial := metav1.ListOptions{
		SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		AllowWatchBookmarks: true, LabelSelector: "colour=red",
	}

	t.Run("v1beta1", func(t *testing.T) {
		c := betaClient(t, srv, protobufType).ServiceImports("")
		list, err := c.List(ctx, metav1.ListOptions{LabelSelector: "colour=red"})
		if err != nil || len(list.Items) != 2 || list.ResourceVersion != text(rv) {
			t.Fatalf("list: %+v, %v", list, err)
		}
		if one := list.Items[0]; one.Name != "one" || one.Spec.IPs[0] != "10.0.0.1" || one.Spec.Ports[0].Name != "http" || one.UID == "" || one.CreationTimestamp.IsZero() {
			t.Errorf("got %+v", one)
		}
		page, err := c.List(ctx, metav1.ListOptions{Limit: 2})
		if err != nil || len(page.Items) != 2 || page.RemainingItemCount == nil || *page.RemainingItemCount != 1 {
			t.Fatalf("first page: %+v, %v", page, err)
		}
		rest, err := c.List(ctx, metav1.ListOptions{Limit: 2, Continue: page.Continue})
		if err != nil || len(rest.Items) != 1 || rest.Items[0].Name != "two" {
			t.Errorf("last page: %+v, %v", rest, err)
		}
	})
	t.Run("v1alpha1", func(t *testing.T) {
		one, err := alphaClient(t, srv).ServiceImports("a").Get(ctx, "one", metav1.GetOptions{})
		if err != nil || one.Spec.IPs[0] != "10.0.0.1" {
			t.Errorf("got %+v, %v", one, err)
		}
		if _, body := fetch(t, srv, "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/a/serviceimports/one", nil); !strings.HasPrefix(body, `{"apiVersion":"multicluster.x-k8s.io/v1alpha1","kind":"ServiceImport","metadata":{`) {
			t.Errorf("got %s", body)
		}
	})
	t.Run("watches", func(t *testing.T) {
		both := []watch.Interface{
			opened(t, betaClient(t, srv, jsonType).ServiceImports(""), initial),
			opened(t, alphaClient(t, srv).ServiceImports(""), initial),
		}
		put(t, srv, serviceImport("a", "one", "pink"))
		if err := srv.Replace(serviceImport("b", "two", "red"), serviceImport("a", "three", "green"), serviceImport("a", "one", "red")); err != nil {
			t.Fatal(err)
		}
		remove(t, srv, serviceImport("b", "two", ""))
		for _, w := range both {
			expect(t, w, "ADDED one@"+text(rv-1)+" red")
			expect(t, w, "ADDED two@"+text(rv-2)+" red")
			mark := next(t, w)
			m, ok := mark.Object.(metav1.Object)
			if mark.Type != watch.Bookmark || !ok || m.GetResourceVersion() != text(rv) || m.GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
				t.Fatalf("got %s %#v, want the bookmark at the end of the initial events", mark.Type, mark.Object)
			}
			expect(t, w, "DELETED one@"+text(rv+1)+" red")
			expect(t, w, "ADDED one@"+text(rv+2)+" red") // and the others stay as they were
			expect(t, w, "DELETED two@"+text(rv+3)+" red")
		}
	})
	t.Run("metadata", func(t *testing.T) {
		c, err := metadata.NewForConfig(clientConfig(srv, ""))
		if err != nil {
			t.Fatal(err)
		}
		list, err := c.Resource(mcsv1beta1.SchemeGroupVersion.WithResource(ServiceImports)).List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 2 || list.Items[0].Labels["colour"] != "red" {
			t.Errorf("list: %v, %v", list, err)
		}
	})
	t.Run("protobuf alone", func(t *testing.T) {
		resp, _ := fetch(t, srv, "/apis/multicluster.x-k8s.io/v1beta1/serviceimports", http.Header{"Accept": {protobufType}})
		if resp.StatusCode != http.StatusNotAcceptable {
			t.Errorf("got %s", resp.Status)
		}
	})
	if n := srv.Requests()[Request{VerbWatchList, ServiceImports, jsonType}]; n != 2 {
		t.Errorf("%d streaming lists in %v", n, srv.Requests())
	}
}

// TestClusterProperty checks the one field that there is of it.
func TestClusterProperty(t *testing.T) {
	srv := start(t)
	property := func(name, value string) *ClusterProperty {
		return &ClusterProperty{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: ClusterPropertySpec{Value: value}}
	}
	put(t, srv, property("cluster.clusterset.k8s.io", "west.example"), property("other", "x"))
	resp, body := fetch(t, srv, "/apis/about.k8s.io/v1/clusterproperties?fieldSelector=metadata.name%3Dcluster.clusterset.k8s.io", nil)
	const want = `"items":[{"apiVersion":"about.k8s.io/v1","kind":"ClusterProperty","metadata":{"creationTimestamp":"2026-01-01T00:00:00Z","name":"cluster.clusterset.k8s.io",` +
		`"resourceVersion":"1001","uid":"00000000-0000-4000-8000-0000000003e9"},"spec":{"value":"west.example"}}]`
	if resp.StatusCode != http.StatusOK || !strings.Contains(body, want) {
		t.Errorf("got %s, %s", resp.Status, body)
	}
	if resp, _ := fetch(t, srv, "/apis/about.k8s.io/v1/namespaces/a/clusterproperties", nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("in a namespace: got %s", resp.Status)
	}
}

// TestServeVersions checks what clients see of a definition that changes.
func TestServeVersions(t *testing.T) {
	srv := start(t)
	ctx := context.Background()
	beta, alpha := betaClient(t, srv, protobufType).ServiceImports(""), alphaClient(t, srv).ServiceImports("")
	discover, err := discovery.NewDiscoveryClientForConfig(clientConfig(srv, ""))
	if err != nil {
		t.Fatal(err)
	}
	serve := func(resource string, versions ...string) {
		t.Helper()
		if err := srv.ServeVersions(resource, versions...); err != nil {
			t.Fatal(err)
		}
	}
	// served checks what is found by discovery and by lists: "" is nothing.
	served := func(version, want string) {
		t.Helper()
		list, err := discover.ServerResourcesForGroupVersion("multicluster.x-k8s.io/" + version)
		var names []string
		if err == nil {
			for _, r := range list.APIResources {
				names = append(names, r.Name)
			}
		}
		if got := strings.Join(names, " "); got != want || (err != nil) != (want == "") || err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("discovery of %s: %q, %v, want %q", version, got, err, want)
		}
		if version == "v1beta1" {
			_, err = beta.List(ctx, metav1.ListOptions{})
		} else {
			_, err = alpha.List(ctx, metav1.ListOptions{})
		}
		if listed := strings.Contains(want, "serviceimports"); (err == nil) != listed || !listed && !apierrors.IsNotFound(err) {
			t.Errorf("list of %s: %v", version, err)
		}
	}
	const imports, exports = "serviceimports serviceimports/status", "serviceexports serviceexports/status"
	put(t, srv, serviceImport("a", "one", "red"))
	served("v1beta1", imports)
	served("v1alpha1", imports)

	w := opened(t, beta, metav1.ListOptions{ResourceVersion: text(srv.ResourceVersion())})
	serve(ServiceImports, "v1alpha1")
	expectEnd(t, w)
	served("v1beta1", "")
	served("v1alpha1", imports)
	resp, body := fetch(t, srv, "/apis/multicluster.x-k8s.io", nil)
	if resp.StatusCode != http.StatusOK || !strings.Contains(body, `"preferredVersion":{"groupVersion":"multicluster.x-k8s.io/v1alpha1"`) || strings.Contains(body, "v1beta1") {
		t.Errorf("group: %s %s", resp.Status, body)
	}

	serve(ServiceImports)
	serve(ServiceExports, "v1beta1")
	served("v1beta1", exports)
	served("v1alpha1", "")
	serve(ServiceExports)
	served("v1beta1", "")
	if resp, body := fetch(t, srv, "/apis/multicluster.x-k8s.io", nil); resp.StatusCode != http.StatusNotFound || body != "404 page not found\n" {
		t.Errorf("group: %s %s", resp.Status, body)
	}
	put(t, srv, serviceImport("a", "two", "red"))
	serve(ServiceImports, "v1beta1")
	if list, err := beta.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 2 {
		t.Errorf("back again: %v, %v", list, err)
	}

	for _, err := range []error{srv.ServeVersions(Services), srv.ServeVersions("nothings"), srv.ServeVersions(ServiceImports, "v1")} {
		if err == nil {
			t.Error("what can't be was accepted")
		}
	}
	requests := srv.Requests()
	for kind, want := range map[Request]int{
		{VerbList, ServiceImports, jsonType}:                         8,
		{VerbDiscover, "multicluster.x-k8s.io", jsonType}:            2,
		{VerbDiscover, "multicluster.x-k8s.io/v1beta1", jsonType}:    4,
		{VerbDiscover, "multicluster.x-k8s.io/v1alpha1", jsonType}:   3,
		{VerbWatch, ServiceImports, jsonType}:                        1,
		{VerbDiscover, "multicluster.x-k8s.io/v1", jsonType}:         0,
		{VerbDiscover, "multicluster.x-k8s.io/nothings/x", jsonType}: 0,
	} {
		if requests[kind] != want {
			t.Errorf("%d of %v, want %d: %v", requests[kind], kind, want, requests)
		}
	}
}

// TestCustomFaults checks the faults of Server for discovery and for resources
// that are absent.
func TestCustomFaults(t *testing.T) {
	srv := start(t)
	ctx := context.Background()
	imports := betaClient(t, srv, "").ServiceImports("")
	if err := srv.ServeVersions(ServiceImports); err != nil {
		t.Fatal(err)
	}
	srv.Forbid(ServiceImports, true)
	if _, err := imports.List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want it to be forbidden: that comes before whether there is one", err)
	}
	const path = "/apis/multicluster.x-k8s.io"
	if resp, _ := fetch(t, srv, path, nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("discovery is for all: %s", resp.Status)
	}
	srv.Forbid(ServiceImports, false)
	srv.Refuse(true)
	if resp, _ := fetch(t, srv, path, nil); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("refusing: %s", resp.Status)
	}
	srv.Refuse(false)

	srv.Hang("", true)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(short, http.MethodGet, srv.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := http.DefaultTransport.RoundTrip(req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("hung: %v, %v", resp, err)
	}
	srv.Hang("", false)
	if resp, _ := fetch(t, srv, path, nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("after it hung: %s", resp.Status)
	}
}

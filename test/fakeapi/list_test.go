package fakeapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestListAndGet checks lists with selectors, single objects, and what is not
// there, in both encodings.
func TestListAndGet(t *testing.T) {
	for _, contentType := range []string{protobufType, jsonType} {
		t.Run(contentType, func(t *testing.T) {
			srv := start(t)
			c := client(t, srv, contentType)
			ctx := context.Background()
			red := service("a", "one", "red")
			red.Spec.ClusterIP = "10.0.0.1"
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
			slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "s"}, AddressType: discoveryv1.AddressTypeIPv4}
			put(t, srv, red, service("a", "two", "green"), service("b", "one", "red"), node, slice)

			for opts, want := range map[metav1.ListOptions]string{
				{}:                                         "a/one a/two b/one",
				{LabelSelector: "colour=red"}:              "a/one b/one",
				{FieldSelector: "metadata.name!=one"}:      "a/two",
				{FieldSelector: "metadata.namespace=b"}:    "b/one",
				{FieldSelector: "spec.clusterIP=10.0.0.1"}: "a/one",
				{LabelSelector: "colour=blue"}:             "",
			} {
				list, err := c.CoreV1().Services("").List(ctx, opts)
				if err != nil {
					t.Fatal(err)
				}
				if got := names(list.Items); got != want || list.ResourceVersion != text(srv.ResourceVersion()) {
					t.Errorf("%+v: got %q at %s, want %q", opts, got, list.ResourceVersion, want)
				}
			}
			list, err := c.CoreV1().Services("b").List(ctx, metav1.ListOptions{})
			if err != nil || names(list.Items) != "b/one" {
				t.Errorf("namespace b: %v, %v", list, err)
			}
			got, err := c.CoreV1().Services("a").Get(ctx, "one", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got.UID == "" || got.CreationTimestamp.IsZero() || got.ResourceVersion == "" || red.UID != "" {
				t.Errorf("not filled in, or not only in the copy: %v", got)
			}
			if !reflect.DeepEqual(got.Spec, red.Spec) {
				t.Errorf("got %v, want %v", got.Spec, red.Spec)
			}
			if _, err := c.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{}); err != nil {
				t.Errorf("node: %v", err)
			}
			if _, err := c.DiscoveryV1().EndpointSlices("a").Get(ctx, "s", metav1.GetOptions{}); err != nil {
				t.Errorf("slice: %v", err)
			}
			if _, err := c.CoreV1().Services("b").Get(ctx, "two", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("got %v, want it not to be found", err)
			}
			if _, err := c.CoreV1().ConfigMaps("").List(ctx, metav1.ListOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("got %v, want it not to be found", err)
			}
			if _, err := c.CoreV1().Services("").List(ctx, metav1.ListOptions{FieldSelector: "spec.colour=red"}); !apierrors.IsBadRequest(err) {
				t.Errorf("got %v, want a bad request", err)
			}
			if err := c.CoreV1().Services("a").Delete(ctx, "one", metav1.DeleteOptions{}); !apierrors.IsMethodNotSupported(err) {
				t.Errorf("got %v, want the method not to be allowed", err)
			}
		})
	}
}

func names(services []corev1.Service) string {
	var names []string
	for _, s := range services {
		names = append(names, s.Namespace+"/"+s.Name)
	}
	return strings.Join(names, " ")
}

// TestListPages checks that pages show the state at the first page, whatever
// happens in between, until the history is lost.
func TestListPages(t *testing.T) {
	srv := start(t)
	services := client(t, srv, protobufType).CoreV1().Services("")
	ctx := context.Background()
	for i := range 5 {
		put(t, srv, service("a", fmt.Sprint(i), "old"))
	}
	rv := text(srv.ResourceVersion())
	page, err := services.List(ctx, metav1.ListOptions{Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	if names(page.Items) != "a/0 a/1" || page.RemainingItemCount == nil || *page.RemainingItemCount != 3 {
		t.Fatalf("first page: %v", page)
	}
	put(t, srv, service("a", "3", "new"), service("a", "35", "new"))
	remove(t, srv, service("a", "2", ""), service("a", "4", ""))

	token := page.Continue
	var rest []corev1.Service
	for token != "" {
		page, err = services.List(ctx, metav1.ListOptions{Limit: 2, Continue: token})
		if err != nil {
			t.Fatal(err)
		}
		if page.ResourceVersion != rv {
			t.Errorf("a later page is at %s, want %s", page.ResourceVersion, rv)
		}
		rest = append(rest, page.Items...)
		token = page.Continue
	}
	if names(rest) != "a/2 a/3 a/4" || rest[1].Labels["colour"] != "old" {
		t.Errorf("later pages: %v", rest)
	}
	exact, err := services.List(ctx, metav1.ListOptions{ResourceVersion: rv, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err != nil || names(exact.Items) != "a/0 a/1 a/2 a/3 a/4" {
		t.Errorf("exactly at %s: %v, %v", rv, exact, err)
	}
	cached, err := services.List(ctx, metav1.ListOptions{ResourceVersion: "0", Limit: 2})
	if err != nil || names(cached.Items) != "a/0 a/1 a/3 a/35" {
		t.Errorf("from the cache: %v, %v", cached, err)
	}

	first, err := services.List(ctx, metav1.ListOptions{Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	srv.Expire()
	if _, err := services.List(ctx, metav1.ListOptions{Limit: 2, Continue: first.Continue}); !apierrors.IsResourceExpired(err) {
		t.Errorf("got %v, want it to be expired", err)
	}
	if _, err := services.List(ctx, metav1.ListOptions{Continue: "x"}); !apierrors.IsBadRequest(err) {
		t.Errorf("got %v, want a bad request", err)
	}
	_, err = services.List(ctx, metav1.ListOptions{ResourceVersion: "999999"})
	if !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		t.Errorf("got %v, want a too large resource version", err)
	}
}

// TestListCompressed checks that a large list comes whole through gzip.
func TestListCompressed(t *testing.T) {
	srv := start(t)
	for i := range 1000 {
		svc := service("a", fmt.Sprintf("svc-%04d", i), "red")
		svc.Annotations = map[string]string{"long": strings.Repeat("x", 200)}
		put(t, srv, svc)
	}
	for _, contentType := range []string{protobufType, jsonType} {
		list, err := client(t, srv, contentType).CoreV1().Services("").List(context.Background(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1000 {
			t.Errorf("%s: %v, %d objects", contentType, err, len(list.Items))
		}
		resp, _ := fetch(t, srv, "/api/v1/services", http.Header{"Accept": {contentType}, "Accept-Encoding": {"gzip"}})
		if resp.Header.Get("Content-Encoding") != "gzip" {
			t.Errorf("%s: not compressed", contentType)
		}
		resp, _ = fetch(t, srv, "/api/v1/namespaces/a/services/svc-0001", http.Header{"Accept": {contentType}, "Accept-Encoding": {"gzip"}})
		if resp.Header.Get("Content-Encoding") != "" {
			t.Errorf("%s: a small answer is compressed", contentType)
		}
	}
}

// TestNegotiation checks the answer's type for what clients accept.
func TestNegotiation(t *testing.T) {
	srv := start(t)
	put(t, srv, service("a", "one", "red"))
	for accept, want := range map[string]string{
		"":    jsonType,
		"*/*": jsonType,
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json": jsonType,
		protobufType + ", */*":                                            protobufType,
		"application/json;q=0.1," + protobufType:                          protobufType,
		"application/yaml":                                                "",
		protobufType + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1":     "", // that is for single objects
		protobufType + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1": protobufType,
	} {
		header := http.Header{}
		if accept != "" {
			header.Set("Accept", accept)
		}
		resp, body := fetch(t, srv, "/api/v1/services", header)
		if want == "" {
			if resp.StatusCode != http.StatusNotAcceptable || !strings.Contains(body, `"NotAcceptable"`) {
				t.Errorf("%q: got %s, %s", accept, resp.Status, body)
			}
			continue
		}
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != want {
			t.Errorf("%q: got %s, %s, want %s", accept, resp.Status, resp.Header.Get("Content-Type"), want)
		}
		if strings.HasPrefix(body, "k8s\x00") != (want == protobufType) {
			t.Errorf("%q: got %q", accept, body)
		}
	}
	if resp, body := fetch(t, srv, "/readyz", nil); resp.StatusCode != http.StatusOK || body != "ok" {
		t.Errorf("readyz: got %s, %s", resp.Status, body)
	}
}

// fetch gives the answer to a plain GET.
func fetch(t *testing.T, srv *Server, path string, header http.Header) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, srv.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
	}()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

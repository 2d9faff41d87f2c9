package fakeapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"sigs.k8s.io/mcs-api/config/crd"
	mcsclient "sigs.k8s.io/mcs-api/pkg/client/clientset/versioned/typed/apis/v1beta1"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/fakeapi"
)

const (
	mcsPath     = "/apis/multicluster.x-k8s.io"
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// discoveryQuestions ask which versions of the custom resources are served,
// and for the resources themselves.
func discoveryQuestions() (all []question) {
	for _, path := range []string{
		"", "/", "/v1beta1", "/v1alpha1", "/v1", "/v1beta1/x/y",
		"/v1beta1/serviceimports", "/v1alpha1/serviceimports", "/v1beta1/namespaces/a/serviceimports/none",
		"/v1/serviceimports", "/v1beta1/serviceexports", "/v1beta1/nothings",
		"/v1beta1/serviceimports?watch=true&timeoutSeconds=1",
	} {
		all = append(all, question{mcsPath + path, asJSON}, question{mcsPath + path, asProtobuf + "," + asJSON})
	}
	for _, path := range []string{"/apis/about.k8s.io", "/apis/about.k8s.io/v1", "/apis/about.k8s.io/v1/clusterproperties", "/nothing", "/nothing/v1/services"} {
		all = append(all, question{path, asJSON})
	}
	return all
}

// customQuestions are about ServiceImports in namespaces a and b. A real server
// writes them as JSON only.
func customQuestions() (all []question) {
	accepts := []string{asJSON, asProtobuf, asProtobuf + ",*/*", asJSON + ";q=0.5," + asProtobuf, "", "text/html", asProtobuf + metaOnly, asJSON + metaOnly}
	for _, path := range []string{
		"/v1beta1/serviceimports?labelSelector=colour",
		"/v1alpha1/serviceimports?labelSelector=colour%3Dred",
		"/v1alpha1/serviceimports?labelSelector=colour+notin+(red)",
		"/v1beta1/serviceimports?labelSelector=%3D%3D%3D",
		"/v1beta1/serviceimports?fieldSelector=metadata.name%3Dtwo",
		"/v1beta1/serviceimports?fieldSelector=spec.type%3DHeadless",
		"/v1beta1/namespaces/a/serviceimports",
		"/v1alpha1/namespaces/a/serviceimports?limit=1",
		"/v1beta1/namespaces/a/serviceimports?labelSelector=colour&limit=1",
		"/v1beta1/namespaces/a/serviceimports?limit=1&resourceVersion=0",
		"/v1beta1/namespaces/a/serviceimports?resourceVersion=x",
		"/v1beta1/namespaces/a/serviceimports?resourceVersion=1000000000",
		"/v1beta1/namespaces/a/serviceimports?continue=x",
		"/v1beta1/namespaces/none/serviceimports",
		"/v1beta1/namespaces/a/serviceimports/one",
		"/v1alpha1/namespaces/a/serviceimports/two",
		"/v1beta1/namespaces/a/serviceimports/none",
		"/v1beta1/serviceimports/one",
		"/v1beta1/namespaces/a/serviceimports?watch=true&timeoutSeconds=2",
		"/v1alpha1/namespaces/a/serviceimports?watch=1&timeoutSeconds=2&resourceVersion=0&labelSelector=colour%3Dred",
		"/v1beta1/namespaces/a/serviceimports?watch=true&timeoutSeconds=2&resourceVersion=x",
		"/v1alpha1/namespaces/a/serviceimports?watch=true&timeoutSeconds=2&allowWatchBookmarks=true" + initial,
		"/v1beta1/namespaces/a/serviceimports?watch=true&timeoutSeconds=2&fieldSelector=spec.type%3DHeadless",
	} {
		for _, accept := range accepts {
			all = append(all, question{mcsPath + path, accept})
		}
		if !strings.Contains(path, "watch=") {
			all = append(all, question{mcsPath + path, asProtobuf + metaList}, question{mcsPath + path, asJSON + metaList})
		}
	}
	return append(all, discoveryQuestions()...)
}

// real is the API of a real server as plain HTTP.
type real struct {
	client *http.Client
	config *rest.Config
}

func newReal(t *testing.T, plane *controlplane.ControlPlane) real {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", plane.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return real{client, config}
}

// do makes a request that must succeed, with a body of this type.
func (r real) do(t *testing.T, method, path, contentType string, body []byte) {
	t.Helper()
	req, err := http.NewRequest(method, r.config.Host+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := r.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		t.Fatalf("%s %s: %s\n%s", method, path, resp.Status, text)
	}
}

// define installs the definition of a custom resource.
func (r real) define(t *testing.T, definition []byte) {
	t.Helper()
	r.do(t, http.MethodPost, definitions, "application/yaml", definition)
}

// agree waits until a real server answers all of the questions as the fake one
// does: it carries out changes of definitions later.
func agree(t *testing.T, r real, srv *fakeapi.Server, questions []question) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for _, q := range questions {
		for {
			want, err1 := ask(r.client, r.config.Host, q)
			got, err2 := ask(http.DefaultClient, srv.URL(), q)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			if got == want {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("%s [%s]\nreal: %s\nfake: %s", q.path, q.accept, want, got)
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// fillCustom makes some ServiceImports in namespaces that there are, and in the
// fake server those that the real one makes of them.
func fillCustom(t *testing.T, r real, srv *fakeapi.Server) {
	t.Helper()
	ctx := context.Background()
	client, err := mcsclient.NewForConfig(r.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"a", "b"} {
		for name, spec := range map[string]mcsv1beta1.ServiceImportSpec{
			"one":   {Type: mcsv1beta1.Headless, Ports: []mcsv1beta1.ServicePort{}},
			"two":   {Type: mcsv1beta1.ClusterSetIP, IPs: []string{"10.0.0.1", "fd00::1"}, IPFamilies: []corev1.IPFamily{"IPv4", "IPv6"}, Ports: []mcsv1beta1.ServicePort{{Name: "http", Port: 80, Protocol: "TCP"}, {Name: "udp", Port: 80, Protocol: "UDP"}}},
			"three": {Type: mcsv1beta1.ClusterSetIP, Ports: []mcsv1beta1.ServicePort{{Port: 42}}},
		} {
			o := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"colour": map[string]string{"one": "red"}[name]}}, Spec: spec}
			if name == "three" {
				o.Labels, o.Annotations = nil, map[string]string{"b": `"<&>"`, "a": "ü"}
			}
			made, err := client.ServiceImports(ns).Create(ctx, o, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if name == "two" {
				made.Status.Clusters = []mcsv1beta1.ClusterStatus{{Cluster: "c1"}}
				if made, err = client.ServiceImports(ns).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			if err := srv.Put(made); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// testDefinitions changes which versions of ServiceImports there are on both
// servers, and compares what they say of it then, and that watches end.
func testDefinitions(t *testing.T, plane *controlplane.ControlPlane) {
	r := newReal(t, plane)
	srv := startFake(t)
	both := []string{"v1beta1", "v1alpha1"}
	remove := func(t *testing.T, resource string) {
		r.do(t, http.MethodDelete, definitions+"/"+resource+".multicluster.x-k8s.io", asJSON, nil)
	}
	serveV1alpha1 := func(t *testing.T, serve bool) {
		r.do(t, http.MethodPatch, definitions+"/serviceimports.multicluster.x-k8s.io", "application/json-patch+json",
			fmt.Appendf(nil, `[{"op":"replace","path":"/spec/versions/0/served","value":%t}]`, serve))
	}
	for _, step := range []struct {
		name     string
		real     func(t *testing.T)
		imports  []string
		exports  []string
		watching bool // ServiceImports of v1beta1 could be watched before
	}{
		// Never both resources: a real server lists them in any order.
		{"nothing", func(*testing.T) {}, nil, nil, false},
		{"exports", func(t *testing.T) { r.define(t, crd.ServiceExportCRD) }, nil, both, false},
		{"imports", func(t *testing.T) { remove(t, "serviceexports"); r.define(t, crd.ServiceImportCRD) }, both, nil, false},
		{"imports of one version", func(t *testing.T) { serveV1alpha1(t, false) }, both[:1], nil, true},
		{"both versions again", func(t *testing.T) { serveV1alpha1(t, true) }, both, nil, true},
		{"nothing again", func(t *testing.T) { remove(t, "serviceimports") }, nil, nil, true},
	} {
		t.Run(step.name, func(t *testing.T) {
			ended := make(chan string, 2)
			if step.watching {
				for _, at := range []struct {
					name, url string
					client    *http.Client
				}{{"real", r.config.Host, r.client}, {"fake", srv.URL(), http.DefaultClient}} {
					watch, err := at.client.Get(at.url + mcsPath + "/v1beta1/serviceimports?watch=true&timeoutSeconds=60")
					if err != nil {
						t.Fatal(err)
					}
					if watch.StatusCode != http.StatusOK {
						t.Fatalf("watch on the %s server: %s", at.name, watch.Status)
					}
					go func() {
						_, _ = io.Copy(io.Discard, watch.Body) // a fault of the connection is an end too
						_ = watch.Body.Close()
						ended <- at.name
					}()
				}
			}
			step.real(t)
			if err := errors.Join(srv.ServeVersions(fakeapi.ServiceImports, step.imports...), srv.ServeVersions(fakeapi.ServiceExports, step.exports...), srv.ServeVersions(fakeapi.ClusterProperties)); err != nil {
				t.Fatal(err)
			}
			agree(t, r, srv, discoveryQuestions())
			for range 2 {
				if !step.watching {
					break
				}
				select {
				case <-ended:
				case <-time.After(30 * time.Second):
					t.Fatal("a watch goes on after a change of the definition")
				}
			}
		})
	}
}

// startFake gives a listening server which ends with the test.
func startFake(t *testing.T) *fakeapi.Server {
	t.Helper()
	srv := fakeapi.New()
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

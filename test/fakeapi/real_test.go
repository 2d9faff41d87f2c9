package fakeapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/mcs-api/config/crd"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/fakeapi"
)

// question is a request which a real server and the fake one must answer
// alike.
type question struct{ path, accept string }

const (
	asJSON     = "application/json"
	asProtobuf = "application/vnd.kubernetes.protobuf"
	metaOnly   = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	metaList   = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	initial    = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
)

// questions are about Services in namespaces a and b, mostly.
func questions() []question {
	paths := []string{
		"/api/v1/services?labelSelector=colour",
		"/api/v1/services?labelSelector=colour%3Dred",
		"/api/v1/services?labelSelector=colour+notin+(red),colour",
		"/api/v1/services?labelSelector=%3D%3D%3D",
		"/api/v1/services?fieldSelector=metadata.name%3Done",
		"/api/v1/services?fieldSelector=spec.type%3DExternalName",
		"/api/v1/services?fieldSelector=spec.colour%3Dred",
		"/api/v1/services?fieldSelector=metadata.namespace%3Db",
		"/api/v1/namespaces/a/services",
		"/api/v1/namespaces/a/services?limit=2",
		"/api/v1/namespaces/a/services?limit=1&resourceVersion=0",
		"/api/v1/namespaces/a/services?labelSelector=colour&limit=1",
		"/api/v1/namespaces/a/services?resourceVersion=1000000000",
		"/api/v1/namespaces/a/services?resourceVersion=x",
		"/api/v1/namespaces/a/services?resourceVersionMatch=Exact",
		"/api/v1/namespaces/a/services?continue=x",
		"/api/v1/namespaces/a/services?sendInitialEvents=true",
		"/api/v1/namespaces/none/services",
		"/api/v1/namespaces/a/services/one",
		"/api/v1/namespaces/a/services/none",
		"/api/v1/namespaces/a",
		"/api/v1/namespaces?labelSelector=colour",
		"/api/v1/nodes?fieldSelector=spec.unschedulable%3Dtrue",
		"/api/v1/nodes?fieldSelector=metadata.namespace%3Da",
		"/api/v1/nodes/none",
		"/apis/discovery.k8s.io/v1/namespaces/a/endpointslices",
		"/apis/discovery.k8s.io/v1/endpointslices?fieldSelector=spec.x%3Dy",
		"/apis/discovery.k8s.io/v1/nothings",
		"/api/v1/namespaces/a/services?watch=true&timeoutSeconds=1",
		"/api/v1/namespaces/a/services?watch=1&timeoutSeconds=1&resourceVersion=0",
		"/api/v1/namespaces/a/services?watch=true&timeoutSeconds=1&resourceVersion=x",
		"/api/v1/namespaces/a/services?watch=true&timeoutSeconds=1&allowWatchBookmarks=true" + initial,
		"/api/v1/namespaces/a/services?watch=true&timeoutSeconds=1&allowWatchBookmarks=true&labelSelector=colour%3Dred" + initial,
		"/api/v1/namespaces/a/services?watch=true&timeoutSeconds=1" + initial,
		"/api/v1/namespaces/a/services?watch=true&timeoutSeconds=1&resourceVersion=0&allowWatchBookmarks=true" + initial,
		"/api/v1/namespaces/a/services?watch=true&timeoutSeconds=1&sendInitialEvents=true",
		"/api/v1/namespaces/a/services?watch=true&timeoutSeconds=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
		"/api/v1/namespaces/a/services?watch=true&timeoutSeconds=1&fieldSelector=spec.colour%3Dred",
		"/api/v1/namespaces/a/services?watch=true&timeoutSeconds=5&allowWatchBookmarks=true&resourceVersion=1000000000" + initial,
	}
	var all []question
	for _, p := range paths {
		all = append(all, question{p, asJSON}, question{p, asProtobuf})
		if strings.Contains(p, "watch=") || strings.Contains(p, "/one") {
			all = append(all, question{p, asProtobuf + metaOnly}, question{p, asJSON + metaOnly})
		} else {
			all = append(all, question{p, asProtobuf + metaList}, question{p, asJSON + metaList}, question{p, asJSON + metaOnly})
		}
	}
	for _, accept := range []string{
		"", "*/*", "text/html", "application/*", asProtobuf + ",*/*", asJSON + ";q=0.5," + asProtobuf,
		asProtobuf + metaOnly + "," + asJSON, asProtobuf + ";stream=watch",
	} {
		all = append(all, question{"/api/v1/namespaces/a/services", accept})
		all = append(all, question{"/api/v1/namespaces/a/services?watch=true&timeoutSeconds=1", accept})
	}
	return all
}

// TestAsRealServer compares the fake server to a real kube-apiserver.
func TestAsRealServer(t *testing.T) {
	plane := controlplane.Start(t)
	t.Run("definitions", func(t *testing.T) { testDefinitions(t, plane) })
	t.Run("answers", func(t *testing.T) { testAnswers(t, plane) })
	t.Run("changes", func(t *testing.T) { testChanges(t, plane) })
}

// testAnswers puts the objects of the real server into the fake one and
// compares their answers. Resource versions are left out, as the counters
// differ.
func testAnswers(t *testing.T, plane *controlplane.ControlPlane) {
	fill(t, plane.Client())
	srv := startFake(t)
	copyAll(t, plane.Client(), srv)
	r := newReal(t, plane)
	if err := srv.ServeVersions(fakeapi.ClusterProperties); err != nil {
		t.Fatal(err)
	}
	r.define(t, crd.ServiceImportCRD)
	agree(t, r, srv, discoveryQuestions())
	fillCustom(t, r, srv)
	compareAnswers(t, r, srv, questions())
	compareAnswers(t, r, srv, customQuestions())
}

// compareAnswers asks both servers all questions at once, as watches take a
// second each.
func compareAnswers(t *testing.T, r real, srv *fakeapi.Server, questions []question) {
	t.Helper()
	type answers struct {
		question
		real, fake       string
		realErr, fakeErr error
	}
	var wait sync.WaitGroup
	var all []*answers
	for _, q := range questions {
		a := &answers{question: q}
		all = append(all, a)
		wait.Go(func() { a.real, a.realErr = ask(r.client, r.config.Host, q) })
		wait.Go(func() { a.fake, a.fakeErr = ask(http.DefaultClient, srv.URL(), q) })
	}
	wait.Wait()
	for _, a := range all {
		t.Run(a.accept+" "+a.path, func(t *testing.T) {
			if err := errors.Join(a.realErr, a.fakeErr); err != nil {
				t.Fatal(err)
			}
			if a.fake != a.real {
				t.Errorf("\nreal: %s\nfake: %s", a.real, a.fake)
			}
		})
	}
}

// fill makes some objects of the kinds compared.
func fill(t *testing.T, c kubernetes.Interface) {
	t.Helper()
	ctx := context.Background()
	for _, ns := range []string{"a", "b"} {
		if _, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{"colour": "red"}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for name, colour := range map[string]string{"one": "red", "two": "green", "three": "blue"} {
			svc := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"colour": colour}},
				Spec:       corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 80, Name: "http"}}},
			}
			if name == "three" {
				svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"}
			}
			if _, err := c.CoreV1().Services(ns).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			ready := true
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
				AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.1.2.3"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}, {Addresses: []string{"10.1.2.4"}}},
			}
			if _, err := c.DiscoveryV1().EndpointSlices(ns).Create(ctx, slice, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range []string{"n1", "n2"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: name == "n1"}}
		if _, err := c.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// copyAll puts what a real server holds into the fake one.
func copyAll(t *testing.T, c kubernetes.Interface, srv *fakeapi.Server) {
	t.Helper()
	ctx := context.Background()
	var objs []runtime.Object
	services, err1 := c.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	namespaces, err2 := c.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	nodes, err3 := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	endpoints, err4 := c.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{})
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	for i := range services.Items {
		objs = append(objs, &services.Items[i])
	}
	for i := range namespaces.Items {
		objs = append(objs, &namespaces.Items[i])
	}
	for i := range nodes.Items {
		objs = append(objs, &nodes.Items[i])
	}
	for i := range endpoints.Items {
		objs = append(objs, &endpoints.Items[i])
	}
	if err := srv.Put(objs...); err != nil {
		t.Fatal(err)
	}
}

// compact gives JSON documents without blanks, one to a line. Errors are
// indented or not by the client's name.
func compact(body []byte) (string, error) {
	var out bytes.Buffer
	documents := json.NewDecoder(bytes.NewReader(body))
	for {
		var document json.RawMessage
		switch err := documents.Decode(&document); {
		case errors.Is(err, io.EOF):
			return out.String(), nil
		case err != nil:
			return "", fmt.Errorf("decode JSON: %w", err)
		}
		if err := json.Compact(&out, document); err != nil {
			return "", fmt.Errorf("compact JSON: %w", err)
		}
		out.WriteByte('\n')
	}
}

// unequal is what two servers with the same objects may differ in: resource
// versions, tokens made of them, and the hash of a version of the API.
var unequal = regexp.MustCompile(`("resourceVersion":|"continue":)"[^"]+"|resource version: \d+(, current: \d+| \(\d+\))?|,"storageVersionHash":"[^"]*"|"message":"[^"]*(Available representations|media types)[^"]*"`)

// withoutBookmarks leaves out the bookmarks of a watch, which a server may send
// at any time, but not the one at the end of the initial events.
func withoutBookmarks(documents string) string {
	var rest strings.Builder
	for line := range strings.Lines(documents) {
		if !strings.HasPrefix(line, `{"type":"BOOKMARK"`) || strings.Contains(line, metav1.InitialEventsAnnotationKey) {
			rest.WriteString(line)
		}
	}
	return rest.String()
}

// ask gives status, content type and body of an answer. Protobuf bodies are
// shown as JSON; those of watches only by whether they have content.
func ask(client *http.Client, url string, q question) (string, error) {
	req, err := http.NewRequest(http.MethodGet, url+q.path, nil)
	if err != nil {
		return "", err
	}
	if q.accept != "" {
		req.Header.Set("Accept", q.accept)
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return "", err
	}
	contentType := resp.Header.Get("Content-Type")
	text := string(body)
	switch {
	case contentType == asProtobuf:
		known := runtime.NewScheme()
		if err := errors.Join(scheme.AddToScheme(known), metav1.AddMetaToScheme(known)); err != nil {
			return "", err
		}
		metav1.AddToGroupVersion(known, metav1.Unversioned)
		obj, gvk, err := serializer.NewCodecFactory(known).UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return "", fmt.Errorf("show protobuf: %w", err)
		}
		b, err := json.Marshal(obj)
		if err != nil {
			return "", fmt.Errorf("show protobuf: %w", err)
		}
		text = fmt.Sprintf("%v %s", gvk, b)
	case contentType == asJSON:
		if text, err = compact(body); err != nil {
			return "", err
		}
		text = withoutBookmarks(text)
	case strings.HasPrefix(contentType, asProtobuf):
		text = fmt.Sprintf("content: %t", len(body) > 0)
	}
	return fmt.Sprintf("%d %s\n%s", resp.StatusCode, contentType, unequal.ReplaceAllString(text, "$1")), nil
}

// testChanges makes the same changes on both servers and compares what watches
// with selectors are told: types of events, objects, and the order of resource
// versions.
func testChanges(t *testing.T, plane *controlplane.ControlPlane) {
	srv := startFake(t)
	fake, err := kubernetes.NewForConfig(&rest.Config{Host: srv.URL()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	selectors := []metav1.ListOptions{
		{}, {LabelSelector: "colour=red"}, {LabelSelector: "colour!=red"}, {FieldSelector: "metadata.name=one"},
		{FieldSelector: "spec.type=ExternalName"}, {FieldSelector: "spec.clusterIP!=None"},
	}
	watches := map[kubernetes.Interface][]watch.Interface{}
	for _, c := range []kubernetes.Interface{plane.Client(), fake} {
		for _, opts := range selectors {
			w, err := c.CoreV1().Services("c").Watch(ctx, opts)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(w.Stop)
			watches[c] = append(watches[c], w)
		}
	}

	change(ctx, t, plane.Client(), srv)
	time.Sleep(time.Second) // for the real server to tell all
	for i, opts := range selectors {
		want, got := told(t, watches[plane.Client()][i]), told(t, watches[fake][i])
		if got != want || want == "" {
			t.Errorf("%v:\nreal:%s\nfake:%s", opts, want, got)
		}
	}
}

// change creates, updates and deletes Services of namespace c on both servers.
func change(ctx context.Context, t *testing.T, c kubernetes.Interface, srv *fakeapi.Server) {
	t.Helper()
	if _, err := c.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	services := c.CoreV1().Services("c")
	both := func(svc *corev1.Service, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if err := srv.Put(svc); err != nil {
			t.Fatal(err)
		}
	}
	create := func(name, colour, external string) {
		t.Helper()
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"colour": colour}}}
		svc.Spec = corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 80}}}
		if external != "" {
			svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: external}
		}
		both(services.Create(ctx, svc, metav1.CreateOptions{}))
	}
	paint := func(name, colour string) {
		t.Helper()
		svc, err := services.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		svc.Labels["colour"] = colour
		both(services.Update(ctx, svc, metav1.UpdateOptions{}))
	}
	remove := func(name string) {
		t.Helper()
		if err := services.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := srv.Delete(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "c", Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	create("one", "red", "")
	create("two", "green", "example.org")
	paint("one", "green")
	paint("two", "red")
	paint("two", "blue")
	paint("one", "red")
	remove("one")
	create("one", "blue", "example.net")
	paint("one", "red")
	remove("two")
	create("end", "green", "example.org")
	paint("end", "red")
	paint("one", "pink")
	remove("one")
	remove("end")
}

// told gives the events of a watch until it is still.
// Resource versions are given as their ranks among those seen.
func told(t *testing.T, w watch.Interface) string {
	t.Helper()
	var lines []string
	var rvs []uint64
	for {
		select {
		case e, ok := <-w.ResultChan():
			svc, isService := e.Object.(*corev1.Service)
			if !ok || !isService {
				t.Fatalf("watch gave %v, %t", e, ok)
			}
			rv, err := strconv.ParseUint(svc.ResourceVersion, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, fmt.Sprintf("%s %s %s %s %s", e.Type, svc.Name, svc.UID, svc.Labels["colour"], svc.Spec.ExternalName))
			rvs = append(rvs, rv)
			continue
		case <-time.After(100 * time.Millisecond):
		}
		break
	}
	seen := slices.Compact(slices.Sorted(slices.Values(rvs)))
	var out strings.Builder
	for i, line := range lines {
		fmt.Fprintf(&out, "\n%s @%d", line, slices.Index(seen, rvs[i]))
	}
	return out.String()
}

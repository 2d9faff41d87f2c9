package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// addressesOf returns the addresses of the endpoints of records.
func addressesOf(slices []*index.Slice) string {
	var all []string
	for _, s := range slices {
		for e := range s.All() {
			all = append(all, e.Addr.String())
		}
	}
	return strings.Join(all, " ")
}

func withConditions(address string, ready, terminating bool) discoveryv1.Endpoint {
	serving := true
	return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}}
}

func TestNotReady(t *testing.T) {
	api := kubeapi.New(t)
	a, b, other, imported, unselected := slice("web-a", "web"), slice("web-b", "web"), slice("db-a", "db"), slice("web-c", ""), slice("web-d", "web")
	a.Endpoints = []discoveryv1.Endpoint{withConditions("10.1.0.1", true, false), withConditions("10.1.0.2", false, false), withConditions("10.1.0.3", false, true)}
	b.Endpoints = []discoveryv1.Endpoint{withConditions("10.1.0.4", false, true), {Addresses: []string{"10.1.0.5"}}}
	other.Endpoints = []discoveryv1.Endpoint{withConditions("10.1.0.6", false, false)}
	imported.Labels = map[string]string{mcsv1beta1.LabelServiceName: "web", "team": "one"}
	imported.Endpoints = []discoveryv1.Endpoint{withConditions("10.1.0.7", false, false)}
	unselected.Endpoints = []discoveryv1.Endpoint{withConditions("10.1.0.8", false, false)}
	for _, s := range []*discoveryv1.EndpointSlice{a, b, other} {
		s.Labels["team"] = "one"
	}
	kit.Must(t, api.Load(namespace("shop"), a, b, other, imported, unselected))
	s, _ := run(t, api, source.Options{Endpoints: true, Imports: true, Labels: labels.SelectorFromSet(labels.Set{"team": "one"})}, nil)
	for name, c := range map[string]struct {
		imported            bool
		terminating, others string
	}{"Service": {false, "10.1.0.3 10.1.0.4", "10.1.0.2"}, "ServiceImport": {true, "", "10.1.0.7"}} {
		found, err := s.NotReady(t.Context(), "shop", "web", c.imported)
		if err != nil || found.Partial {
			t.Fatalf("%s: error %v, partial is %v", name, err, found.Partial)
		}
		if terminating, others := addressesOf(found.Terminating), addressesOf(found.Others); terminating != c.terminating || others != c.others {
			t.Errorf("%s: %q and %q, want %q and %q", name, terminating, others, c.terminating, c.others)
		}
	}
}

func TestNotReady_Limit(t *testing.T) {
	api := kubeapi.New(t)
	kit.Must(t, api.Load(namespace("shop")))
	for i := range maxInspected + 1 {
		s := slice(fmt.Sprintf("web-%d", i), "web")
		s.Endpoints = []discoveryv1.Endpoint{withConditions(fmt.Sprintf("10.1.0.%d", i), false, false)}
		kit.Must(t, api.Put(s))
	}
	s, _ := run(t, api, source.Options{Endpoints: true}, nil)
	found, err := s.NotReady(t.Context(), "shop", "web", false)
	if err != nil || !found.Partial || len(found.Others) != maxInspected {
		t.Errorf("%d EndpointSlices, partial is %v, error %v", len(found.Others), found.Partial, err)
	}
}

func TestNotReady_Failure(t *testing.T) {
	api := kubeapi.New(t)
	kit.Must(t, api.Load(namespace("shop"), service("web", corev1.ClusterIPNone, nil)))
	s, _ := run(t, api, source.Options{Endpoints: true}, nil)
	kit.Eventually(t, "the source is synced", func() bool { return synced(s) })
	api.Forbid(source.EndpointSlices, true)
	if _, err := s.NotReady(t.Context(), "shop", "web", false); !apierrors.IsForbidden(err) {
		t.Errorf("error %v, want that the request is forbidden", err)
	}
	api.Forbid(source.EndpointSlices, false)
	api.Hang(source.EndpointSlices, true)
	defer api.Hang(source.EndpointSlices, false)
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if _, err := s.NotReady(ctx, "shop", "web", false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want that of the context", err)
	}
}

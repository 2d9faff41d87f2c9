package fakeapi

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// TestReflectorsFollow has client-go's reflectors follow all resources through
// random changes and faults, in both encodings, with streaming lists and
// without.
func TestReflectorsFollow(t *testing.T) {
	for _, contentType := range []string{protobufType, jsonType} {
		for _, watchList := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/watchlist=%t", contentType, watchList), func(t *testing.T) {
				t.Parallel()
				srv := start(t)
				srv.SetBookmarkInterval(20 * time.Millisecond)
				srv.SetHistory(50)
				srv.DisableWatchList(!watchList)
				r := rand.New(rand.NewPCG(1, 2))
				put(t, srv, someObjects(r, 30)...)

				c := client(t, srv, contentType)
				stores := map[string]cache.Store{
					Services:       follow(t, c.CoreV1().Services(""), &corev1.Service{}, metav1.ListOptions{}),
					Pods:           follow(t, c.CoreV1().Pods(""), &corev1.Pod{}, metav1.ListOptions{}),
					Nodes:          follow(t, c.CoreV1().Nodes(), &corev1.Node{}, metav1.ListOptions{}),
					Namespaces:     follow(t, c.CoreV1().Namespaces(), &corev1.Namespace{}, metav1.ListOptions{}),
					EndpointSlices: follow(t, c.DiscoveryV1().EndpointSlices(""), &discoveryv1.EndpointSlice{}, metav1.ListOptions{}),
					ServiceImports: follow(t, betaClient(t, srv, contentType).ServiceImports(""), &mcsv1beta1.ServiceImport{}, metav1.ListOptions{}),
				}
				same := func() {
					t.Helper()
					for resource, store := range stores {
						eventually(t, func() string { return difference(t, srv, resource, store) })
					}
				}
				same()
				for range 60 {
					switch r.IntN(11) {
					case 0:
						srv.DropWatches("")
					case 1:
						srv.Expire()
						srv.DropWatches("")
					case 2:
						srv.Refuse(true)
						srv.DropWatches(Services)
						put(t, srv, someObjects(r, 3)...)
						srv.Refuse(false)
					case 3:
						srv.Freeze("", true)
						put(t, srv, someObjects(r, 3)...)
						srv.Freeze("", false)
					case 4:
						put(t, srv, someObjects(r, 100)...) // more than the history
					case 5:
						if err := srv.Replace(someObjects(r, 20)...); err != nil {
							t.Fatal(err)
						}
					case 6:
						remove(t, srv, someObjects(r, 20)...)
					case 7:
						err1 := srv.ServeVersions(ServiceImports)
						put(t, srv, someObjects(r, 3)...)
						err2 := srv.ServeVersions(ServiceImports, "v1beta1")
						if err := errors.Join(err1, err2); err != nil {
							t.Fatal(err)
						}
					default:
						put(t, srv, someObjects(r, 5)...)
					}
					if r.IntN(3) == 0 {
						same()
					}
				}
				same()
				requests := srv.Requests()
				streamed := requests[Request{VerbWatchList, Services, contentType}]
				listed := requests[Request{VerbList, Services, contentType}]
				if watchList && streamed < 2 || !watchList && listed < 2 {
					t.Errorf("%d streaming lists and %d lists", streamed, listed)
				}
			})
		}
	}
}

// someObjects gives n random objects of all resources out of a few names, with
// some more than once.
func someObjects(r *rand.Rand, n int) []runtime.Object {
	objs := make([]runtime.Object, n)
	for i := range objs {
		om := metav1.ObjectMeta{
			Namespace: fmt.Sprintf("ns%d", r.IntN(3)),
			Name:      fmt.Sprintf("name%d", r.IntN(12)),
			Labels:    map[string]string{"colour": []string{"red", "green", "blue"}[r.IntN(3)]},
		}
		switch r.IntN(6) {
		case 0:
			objs[i] = &corev1.Service{ObjectMeta: om, Spec: corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.0.0.%d", r.IntN(200))}}
		case 1:
			objs[i] = &corev1.Pod{ObjectMeta: om, Status: corev1.PodStatus{Phase: []corev1.PodPhase{corev1.PodRunning, corev1.PodSucceeded, corev1.PodPending}[r.IntN(3)]}}
		case 2:
			om.Namespace = ""
			objs[i] = &corev1.Node{ObjectMeta: om}
		case 3:
			om.Namespace = ""
			objs[i] = &corev1.Namespace{ObjectMeta: om}
		case 4:
			objs[i] = &discoveryv1.EndpointSlice{ObjectMeta: om, AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.1.0.%d", r.IntN(200))}}}}
		case 5:
			objs[i] = &mcsv1beta1.ServiceImport{ObjectMeta: om, Spec: mcsv1beta1.ServiceImportSpec{
				Type: mcsv1beta1.ClusterSetIP, IPs: []string{fmt.Sprintf("10.2.0.%d", r.IntN(200))}, Ports: []mcsv1beta1.ServicePort{}}}
		}
	}
	return objs
}

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/bench/child"
	"github.com/nearside-dns/nearside/test/bench/dnsperf"
	"github.com/nearside-dns/nearside/test/kubeapi"
)

// followed is a headless Service with one endpoint, whose address changes while a pod queries its name.
type followed struct {
	api             *kubeapi.Server
	number, changes int
}

// followedNamespace is the namespace of all followed Services.
const followedNamespace = "followed"

// newFollowed writes Services into an API server.
func newFollowed(api *kubeapi.Server, count int) (all []*followed, err error) {
	objects := []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: followedNamespace}}}
	for i := range count {
		f := &followed{api: api, number: i}
		all, objects = append(all, f), append(objects, f.service(), f.slice())
	}
	return all, api.Load(objects...)
}

func (f *followed) meta(suffix string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: followedNamespace, Name: fmt.Sprintf("followed-%d%s", f.number, suffix)}
}

func (f *followed) name() string {
	return f.meta("").Name + "." + followedNamespace + ".svc.cluster.local."
}

func (f *followed) service() *corev1.Service {
	return &corev1.Service{ObjectMeta: f.meta(""), Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, ClusterIPs: []string{corev1.ClusterIPNone}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
	}}
}

// address is the present address of the endpoint, of 198.18.0.0/15 (RFC 2544).
func (f *followed) address() string {
	return fmt.Sprintf("198.%d.%d.%d", 18+f.changes/250%2, f.number%256, 1+f.changes%250)
}

func (f *followed) slice() *discoveryv1.EndpointSlice {
	meta, ready := f.meta("-1"), true
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: f.meta("").Name}
	return &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{
		{Addresses: []string{f.address()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}},
	}}
}

// usedEvery is the time between two queries of a pod that uses a followed Service.
const usedEvery = time.Second

// follow changes the address for some time, at random moments, and returns the time of each change from the request to the API server
// to the answer that a pod gets. A change comes up to a TTL after the answer to the last one, so that a cached answer may have any age.
func (f *followed) follow(ctx context.Context, server string, during, ttl time.Duration, random *rand.Rand) (times []time.Duration, err error) {
	c, err := dial(server)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }() // nothing is lost
	for end := time.Now().Add(during); ; {
		for at := time.Now().Add(time.Duration(random.Int64N(int64(ttl)))); time.Now().Before(at); {
			if !time.Now().Before(end) {
				return times, nil
			}
			c.query(f.name(), aType)
			if err := child.Pause(ctx, min(usedEvery, time.Until(at))); err != nil {
				return nil, err
			}
		}
		took, err := f.change(ctx, c)
		if err != nil {
			return nil, err
		}
		times = append(times, took)
	}
}

// change gives the endpoint another address, and waits until a client has it.
func (f *followed) change(ctx context.Context, c *client) (time.Duration, error) {
	f.changes++
	requested := time.Now()
	if err := f.api.Apply(ctx, f.slice()); err != nil {
		return 0, err
	}
	for c.query(f.name(), aType) != f.address() {
		waited := time.Since(requested)
		if waited > startTimeout {
			return 0, fmt.Errorf("%s: %s is not the answer after %s", f.name(), f.address(), startTimeout)
		}
		if err := child.Pause(ctx, min(max(time.Millisecond, waited/followedPart), usedEvery)); err != nil {
			return 0, err
		}
	}
	return time.Since(requested), nil
}

// followedPart is the part of the time since a change after which its name is queried again: the error of a time is 5 %.
const followedPart = 20

// minForPercentile is the number of times from which the 99th percentile is printed.
const minForPercentile = 100

// followAll follows Services at the same time, and adds the times of their changes.
func followAll(ctx context.Context, all []*followed, server string, times sloTimes, setup string, to figures) error {
	results, errs := make([][]time.Duration, len(all)), make([]error, len(all))
	var running sync.WaitGroup
	for i, f := range all {
		random := rand.New(rand.NewPCG(1, uint64(i))) // #nosec G404 G115 -- the same moments for each setup
		running.Go(func() {
			results[i], errs[i] = f.follow(ctx, server, times.changes, time.Duration(times.ttl)*time.Second, random)
		})
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	took := slices.Sorted(slices.Values(slices.Concat(results...)))
	if len(took) == 0 {
		return fmt.Errorf("no change in %s", times.changes)
	}
	to.add(changedCount, setup, float64(len(took)))
	to.add(changed50, setup, dnsperf.Percentile(took, 50))
	if len(took) >= minForPercentile {
		to.add(changed99, setup, dnsperf.Percentile(took, 99))
	}
	return nil
}

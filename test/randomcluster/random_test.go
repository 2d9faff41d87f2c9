package randomcluster

import (
	"math/rand/v2"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearside-dns/nearside/test/property"
)

// TestRepeatable checks that the same seed gives the same clusters and updates.
func TestRepeatable(t *testing.T) {
	property.Seeds(t, 0, 20, func(t *testing.T, seed uint64) {
		a, b := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 0))
		n := int(seed % 20)
		one, two := Random(a, n), Random(b, n)
		if n%2 == 1 {
			one, two = Apply(one, Imports(a, n), nil), Apply(two, Imports(b, n), nil)
		}
		if !reflect.DeepEqual(one, two) {
			t.Fatal("clusters differ")
		}
		for range 20 {
			before := make([]runtime.Object, len(one))
			for i, obj := range one {
				before[i] = obj.DeepCopyObject()
			}
			changed, deleted := Mutate(a, one)
			changed2, deleted2 := Mutate(b, two)
			if !reflect.DeepEqual(one, before) {
				t.Fatal("Mutate changed its argument")
			}
			if !reflect.DeepEqual(changed, changed2) || !reflect.DeepEqual(deleted, deleted2) {
				t.Fatal("updates differ")
			}
			one, two = Apply(one, changed, deleted), Apply(two, changed2, deleted2)
		}
	})
}

// seen counts the features of random clusters.
type seen map[string]int

func (s seen) note(what string, is bool) {
	if is {
		s[what]++
	} else {
		s[what] += 0
	}
}

// check fails the test where something was looked for and never came up.
func (s seen) check(t *testing.T) {
	t.Helper()
	for what, n := range s {
		if n == 0 {
			t.Errorf("never: %s", what)
		}
	}
}

// TestVariety checks that the things worth comparing come up in a few small
// clusters.
func TestVariety(t *testing.T) {
	seen := seen{}
	note := seen.note
	r := rand.New(rand.NewPCG(3, 4))
	for range 30 {
		addresses := map[string]int{}
		services := map[string]int{}
		for _, obj := range Random(r, 20) {
			switch o := obj.(type) {
			case *corev1.Namespace:
				note("namespace with labels", len(o.Labels) > 0)
			case *corev1.Node:
				note("node with zone", o.Labels[corev1.LabelTopologyZone] != "")
			case *corev1.Pod:
				note("pod with two addresses", len(o.Status.PodIPs) == 2)
				note("pod on host network", o.Spec.HostNetwork)
				note("pod being deleted", o.DeletionTimestamp != nil)
				note("pod "+string(o.Status.Phase), true)
			case *corev1.Service:
				note("service "+string(o.Spec.Type), true)
				headless := o.Spec.ClusterIP == corev1.ClusterIPNone
				note("headless without ports", headless && len(o.Spec.Ports) == 0)
				note("headless without selector", headless && o.Spec.Selector == nil)
				note("headless of two families", headless && len(o.Spec.IPFamilies) == 2)
				note("publishes not ready", o.Spec.PublishNotReadyAddresses)
				note("dual stack", len(o.Spec.ClusterIPs) == 2)
				note("external addresses", len(o.Spec.ExternalIPs) > 0)
				note("ingress", len(o.Status.LoadBalancer.Ingress) > 0)
				note("loop", o.Spec.ExternalName == o.Name+"."+o.Namespace+".svc."+Zone)
				for _, p := range o.Spec.Ports {
					note("port on "+string(p.Protocol), true)
				}
				for _, ip := range o.Spec.ClusterIPs {
					services[ip]++
				}
			case *discoveryv1.EndpointSlice:
				note("slice "+string(o.AddressType), true)
				note("slice without service name", o.Labels[discoveryv1.LabelServiceName] == "")
				note("slice without ports", len(o.Ports) == 0)
				for _, e := range o.Endpoints {
					note("endpoint with hostname", e.Hostname != nil)
					note("endpoint not ready", e.Conditions.Ready != nil && !*e.Conditions.Ready)
					note("endpoint of unknown readiness", e.Conditions.Ready == nil)
					note("endpoint with long pod name", e.TargetRef != nil && len(e.TargetRef.Name) > 63)
					addresses[e.Addresses[0]]++
				}
			}
		}
		for _, n := range addresses {
			note("endpoint address used twice", n > 1)
		}
		for ip, n := range services {
			note("cluster address used twice", n > 1 && ip != corev1.ClusterIPNone)
		}
	}
	seen.check(t)
	for _, name := range podNames[6:7] {
		if len(name) != 63 {
			t.Errorf("%q has %d characters", name, len(name))
		}
	}
}

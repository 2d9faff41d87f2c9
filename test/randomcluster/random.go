// Package randomcluster makes random Kubernetes clusters for tests which
// compare two DNS servers: Namespaces, Services, EndpointSlices, Pods, Nodes and
// ServiceImports.
//
// The same source of randomness results in the same objects. Names, addresses,
// ports and zones are chosen from small sets, so that Services share addresses,
// slices repeat endpoints, and names refer to each other. Random and Imports make only what an API server stores. Mutate makes
// updates, and Apply carries them out on a list of objects.
package randomcluster

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Zone is the cluster's DNS zone, without the last dot, as in-zone
// ExternalNames use it.
const Zone = "cluster.local"

// Random returns a cluster of about size Services with the slices, pods, nodes
// and namespaces around them. No two objects have the same type, namespace and
// name. The order is that of creation: namespaces first.
func Random(r *rand.Rand, size int) []runtime.Object {
	m := maker{Rand: r, size: size}
	var objs []runtime.Object
	for _, name := range namespaceNames {
		// Namespaces which don't exist may hold objects all the same, as
		// while one is deleted or not seen yet.
		if m.chance(85) {
			objs = append(objs, m.namespace(name))
		}
	}
	for i := range 1 + m.IntN(len(nodeNames)) {
		objs = append(objs, m.node(nodeNames[i]))
	}
	for range size {
		svc := m.service(m.pick(namespaceNames), m.serviceName())
		objs = append(objs, svc)
		for range m.sliceCount(svc) {
			objs = append(objs, m.slice(svc))
		}
	}
	for range 1 + size/4 {
		objs = append(objs, m.strayslice())
	}
	for range 1 + size {
		objs = append(objs, m.pod(m.pick(namespaceNames), m.pick(podNames)))
	}
	return Apply(nil, objs, nil)
}

// The sets which names and values come from. Some are words which mean
// something in a cluster's DNS names.
var (
	namespaceNames = []string{"default", "kube-system", "ns-a", "ns-b", "svc", "pod", "3scale"}
	serviceNames   = []string{"web", "db", "api", "a", "kubernetes", "kube-dns", "svc", "pod", "endpoint", "dns-version", "any", "0x", "web-0"}
	nodeNames      = []string{"node-1", "node-2", "node-3.example.org", "node-4"}
	zoneNames      = []string{"zone-a", "zone-b", "eu-west.1a", "Zone-C", "pin"}
	hostnames      = []string{"web-0", "web-1", "db-0", "a", "10-1-0-1", "pin", "fd00--1"}
	portNames      = []string{"http", "https", "dns", "dns-tcp", "metrics", "a", "x--y", "1a"}
	portNumbers    = []int32{53, 80, 443, 8080, 9153, 65535}
	podNames       = []string{
		"web-0", "web-1", "db-0", "api-5d4f9c7b6-x2x9z", "a", "static.node-1",
		"a-name-of-exactly-sixty-three-characters-which-still-fits-label",
		"a-pod-name-longer-than-sixty-three-characters-which-is-no-dns-label-x7k2p",
	}
	colours = []string{"red", "green", "blue"}
)

// maker makes single objects.
type maker struct {
	*rand.Rand
	size int
}

// chance returns true with a probability in percent.
func (m maker) chance(percent int) bool { return m.IntN(100) < percent }

func (m maker) pick(from []string) string { return from[m.IntN(len(from))] }

// maybe returns a pointer to one of the values, or nil with a probability in
// percent.
func (m maker) maybe(from []string, nilPercent int) *string {
	if m.chance(nilPercent) {
		return nil
	}
	v := m.pick(from)
	return &v
}

func (m maker) maybeBool(truePercent, nilPercent int) *bool {
	if m.chance(nilPercent) {
		return nil
	}
	v := m.chance(truePercent)
	return &v
}

// serviceName picks a name; large clusters have more of them.
func (m maker) serviceName() string {
	name := m.pick(serviceNames)
	if m.size > 40 && m.chance(70) {
		return fmt.Sprintf("%s-%d", name, m.IntN(m.size/8))
	}
	return name
}

// labels returns none, an own colour, or an own colour and a tier.
func (m maker) labels() map[string]string {
	switch m.IntN(4) {
	case 0:
		return nil
	case 1:
		return map[string]string{"colour": m.pick(colours), "tier": "front"}
	}
	return map[string]string{"colour": m.pick(colours)}
}

func (m maker) namespace(name string) *corev1.Namespace {
	ns := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: m.labels()},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}
	if m.chance(10) {
		ns.Status.Phase = corev1.NamespaceTerminating
	}
	return ns
}

func (m maker) node(name string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	if zone := m.maybe(zoneNames, 15); zone != nil {
		node.Labels[corev1.LabelTopologyZone] = *zone
	}
	if m.chance(50) {
		node.Labels[corev1.LabelTopologyRegion] = "eu-west"
	}
	node.Labels[corev1.LabelHostname] = name
	node.Spec.Unschedulable = m.chance(10)
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: m.nodeIP(false)},
		{Type: corev1.NodeHostName, Address: name},
	}
	if m.chance(40) {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: m.nodeIP(true)})
	}
	return node
}

// clusterIP returns the address of a Service out of few, and now and then one of
// a pod.
func (m maker) clusterIP(six bool) string {
	if m.chance(8) {
		return m.podIP(six)
	}
	if six {
		return fmt.Sprintf("fd00:10::%x", 1+m.IntN(16))
	}
	return fmt.Sprintf("10.0.0.%d", 1+m.IntN(16))
}

// podIP returns the address of a pod out of few, and now and then one of a node.
func (m maker) podIP(six bool) string {
	switch {
	case m.chance(5):
		return m.nodeIP(six)
	case six:
		return fmt.Sprintf("fd00:1::%x", 1+m.IntN(24))
	}
	return fmt.Sprintf("10.1.0.%d", 1+m.IntN(24))
}

func (m maker) nodeIP(six bool) string {
	if six {
		return fmt.Sprintf("fd00:2::%x", 1+m.IntN(4))
	}
	return fmt.Sprintf("192.0.2.%d", 1+m.IntN(4))
}

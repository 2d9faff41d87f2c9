package randomcluster

import (
	"math/rand/v2"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Odd gives n objects which an API server would refuse, or of which DNS can't
// carry all: names and hostnames which are no labels or too long, addresses
// which are none, slices of names, ports out of range, empty names. Their
// names are those of Random's objects, so that they take the place of such.
func Odd(r *rand.Rand, n int) []runtime.Object {
	m := maker{Rand: r}
	objs := make([]runtime.Object, 0, n)
	for range n {
		objs = append(objs, m.odd())
	}
	return objs
}

// The values which DNS can't carry, or not as they stand.
var (
	oddNames = []string{
		"", "with.dot", "UPPER", "under_score", "sp ace", "quo\"te", `back\slash`, "*", "-", "ümlaut", "\x00",
		strings.Repeat("a", 64), strings.Repeat("a.", 130),
	}
	oddAddresses = []string{
		"", "10.1.0.256", "10.1", "010.001.000.001", "::ffff:10.1.0.1", "fe80::1%eth0", "name.example.org",
		"None", "0.0.0.0", "::", "10.1.0.1/24",
	}
	oddPorts = []int32{-1, 0, 65536, 1 << 30}
)

func (m maker) odd() runtime.Object {
	svc := m.service(m.pick(namespaceNames), m.pick(serviceNames))
	slice := m.slice(svc)
	if len(slice.Endpoints) == 0 {
		slice.Endpoints = append(slice.Endpoints, m.endpoint(false))
	}
	i := m.IntN(len(slice.Endpoints))
	name := m.pick(oddNames)
	switch m.IntN(11) {
	case 0:
		svc.Name = m.pick(oddNames[1:])
		return svc
	case 1:
		svc.Spec.ClusterIP = m.pick(oddAddresses)
		svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP, m.pick(oddAddresses)}
		return svc
	case 2:
		svc.Spec.Type, svc.Spec.ExternalName = corev1.ServiceTypeExternalName, name
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "", nil
		return svc
	case 3:
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Port: oddPorts[m.IntN(len(oddPorts))], Protocol: "ICMP"})
		return svc
	case 4:
		svc.Spec.ExternalIPs = append(svc.Spec.ExternalIPs, m.pick(oddAddresses))
		return svc
	case 5:
		slice.Endpoints[i].Hostname = &name
	case 6:
		slice.Endpoints[i].Addresses = []string{m.pick(oddAddresses)}
	case 7:
		slice.Endpoints[i].Addresses = nil
	case 8:
		slice.AddressType = discoveryv1.AddressTypeFQDN
		slice.Endpoints[i].Addresses = []string{"name.example.org"}
	case 9:
		slice.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: name}
		slice.Endpoints[i].Zone = &name
	default:
		pod := m.pod(m.pick(namespaceNames), m.pick(podNames))
		pod.Status.PodIPs = []corev1.PodIP{{IP: m.pick(oddAddresses)}}
		return pod
	}
	return slice
}

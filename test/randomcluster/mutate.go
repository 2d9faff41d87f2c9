package randomcluster

import (
	"fmt"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Mutate returns a few random updates of a cluster: objects which are new or
// changed, and objects which are gone. The given objects stay as they are, and
// those in deleted are some of them. No object is in both results.
func Mutate(r *rand.Rand, objs []runtime.Object) (changed, deleted []runtime.Object) {
	m := maker{Rand: r, size: countServices(objs)}
	touched := map[string]bool{}
	for range 1 + m.IntN(4) {
		if len(objs) == 0 || m.chance(20) {
			obj := m.addition(objs)
			if k := identity(obj); !touched[k] {
				touched[k] = true
				changed = append(changed, obj)
			}
			continue
		}
		old := objs[m.IntN(len(objs))]
		if k := identity(old); touched[k] {
			continue
		} else {
			touched[k] = true
		}
		if m.chance(20) {
			deleted = append(deleted, old)
			continue
		}
		changed = append(changed, m.changed(old))
	}
	return changed, deleted
}

// Apply returns the objects after an update: those changed take the place of the
// ones of the same type, namespace and name, and those deleted are left out.
// When changed holds an object twice, the later one counts.
func Apply(objs, changed, deleted []runtime.Object) []runtime.Object {
	gone := map[string]bool{}
	for _, obj := range deleted {
		gone[identity(obj)] = true
	}
	at := map[string]int{}
	var result []runtime.Object
	for _, obj := range slices.Concat(objs, changed) {
		k := identity(obj)
		if gone[k] {
			continue
		}
		if i, ok := at[k]; ok {
			result[i] = obj
			continue
		}
		at[k] = len(result)
		result = append(result, obj)
	}
	return result
}

// identity returns what makes an object the same one.
func identity(obj runtime.Object) string {
	m, err := meta.Accessor(obj)
	if err != nil {
		panic(err) // all objects of this package have metadata
	}
	return fmt.Sprintf("%T %s/%s", obj, m.GetNamespace(), m.GetName())
}

func countServices(objs []runtime.Object) int {
	n := 0
	for _, obj := range objs {
		if _, ok := obj.(*corev1.Service); ok {
			n++
		}
	}
	return n
}

// addition returns an object which may be new, or a quite different one in the
// place of one there is.
func (m maker) addition(objs []runtime.Object) runtime.Object {
	if hasImports(objs) && m.chance(25) {
		return m.importAddition(objs)
	}
	switch m.IntN(8) {
	case 0:
		return m.namespace(m.pick(namespaceNames))
	case 1:
		return m.node(m.pick(nodeNames))
	case 2:
		return m.pod(m.pick(namespaceNames), m.pick(podNames))
	case 3:
		return m.strayslice()
	case 4, 5:
		return m.service(m.pick(namespaceNames), m.serviceName())
	}
	var services []*corev1.Service
	for _, obj := range objs {
		if svc, ok := obj.(*corev1.Service); ok {
			services = append(services, svc)
		}
	}
	if len(services) == 0 {
		return m.strayslice()
	}
	return m.slice(services[m.IntN(len(services))])
}

// changed returns a copy of an object with something else about it.
func (m maker) changed(old runtime.Object) runtime.Object {
	if m.chance(10) {
		return m.annotated(old)
	}
	switch old := old.(type) {
	case *corev1.Namespace:
		return m.namespace(old.Name)
	case *corev1.Node:
		return m.node(old.Name)
	case *corev1.Pod:
		return m.pod(old.Namespace, old.Name)
	case *corev1.Service:
		return m.changedService(old)
	case *discoveryv1.EndpointSlice:
		if isImported(old) && m.chance(30) {
			return m.changedImported(old)
		}
		return m.changedSlice(old)
	case *mcsv1beta1.ServiceImport:
		return m.changedImport(old)
	}
	return old.DeepCopyObject()
}

// annotated changes nothing that matters to DNS.
func (m maker) annotated(old runtime.Object) runtime.Object {
	obj := old.DeepCopyObject()
	if meta, err := meta.Accessor(obj); err == nil {
		meta.SetAnnotations(map[string]string{"example.org/touched": fmt.Sprint(m.IntN(1000))})
	}
	return obj
}

func (m maker) changedService(old *corev1.Service) *corev1.Service {
	svc := old.DeepCopy()
	switch m.IntN(4) {
	case 0:
		svc.Spec.Ports = m.servicePorts()
	case 1:
		svc.Labels = m.labels()
	case 2:
		if svc.Spec.Type == corev1.ServiceTypeExternalName {
			svc.Spec.ExternalName = m.externalName(svc.Namespace, svc.Name)
		} else {
			svc.Spec.ExternalIPs = []string{m.externalIP()}
		}
	default:
		return m.service(old.Namespace, old.Name)
	}
	return svc
}

func (m maker) changedSlice(old *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	slice := old.DeepCopy()
	six := slice.AddressType == discoveryv1.AddressTypeIPv6
	i := 0
	if len(slice.Endpoints) > 0 {
		i = m.IntN(len(slice.Endpoints))
	}
	switch change := m.IntN(8); {
	case change == 0 && slice.Labels != nil:
		slice.Labels[discoveryv1.LabelServiceName] = m.pick(serviceNames) // moves to another Service
	case change == 1:
		slice.Ports = m.slicePorts(m.servicePorts())
	case change == 2 || len(slice.Endpoints) == 0:
		slice.Endpoints = append(slice.Endpoints, m.endpoint(six))
	case change == 3:
		slice.Endpoints = slices.Delete(slice.Endpoints, i, i+1)
	case change == 4:
		slice.Endpoints[i].Conditions.Ready = m.maybeBool(50, 10)
	case change == 5:
		slice.Endpoints[i].Hostname = m.maybe(hostnames, 30)
	case change == 6:
		m.Shuffle(len(slice.Endpoints), func(i, j int) {
			slice.Endpoints[i], slice.Endpoints[j] = slice.Endpoints[j], slice.Endpoints[i]
		})
	default:
		slice.Endpoints[i] = m.endpoint(six)
	}
	return slice
}

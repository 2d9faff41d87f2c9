package randomcluster

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sliceCount returns the number of slices of a Service: most have some, ExternalNames
// seldom.
func (m maker) sliceCount(svc *corev1.Service) int {
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		if m.chance(85) {
			return 0
		}
		return 1
	}
	return m.IntN(5)
}

// slice returns an EndpointSlice of a Service.
func (m maker) slice(svc *corev1.Service) *discoveryv1.EndpointSlice {
	six := len(svc.Spec.IPFamilies) > 0 && svc.Spec.IPFamilies[m.IntN(len(svc.Spec.IPFamilies))] == corev1.IPv6Protocol
	slice := m.emptySlice(svc.Namespace, svc.Name, six)
	slice.Ports = m.slicePorts(svc.Spec.Ports)
	if svc.Spec.ClusterIP == corev1.ClusterIPNone && m.chance(70) {
		slice.Labels[corev1.IsHeadlessService] = ""
	}
	return slice
}

// strayslice returns a slice which is no Service's: of a Service that isn't
// there, or of none.
func (m maker) strayslice() *discoveryv1.EndpointSlice {
	slice := m.emptySlice(m.pick(namespaceNames), m.pick([]string{"ghost", "web", "db"}), m.chance(30))
	slice.Ports = m.slicePorts(m.servicePorts())
	switch m.IntN(3) {
	case 0:
		delete(slice.Labels, discoveryv1.LabelServiceName)
	case 1:
		slice.Labels[discoveryv1.LabelServiceName] = "ghost"
	}
	return slice
}

// emptySlice returns a slice with endpoints of one family, without ports.
func (m maker) emptySlice(namespace, service string, six bool) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      fmt.Sprintf("%s-%05x", service, m.IntN(1<<20)),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: service,
				discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if m.chance(40) {
		slice.Labels["colour"] = m.pick(colours)
	}
	if six {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for range m.IntN(6) {
		slice.Endpoints = append(slice.Endpoints, m.endpoint(six))
	}
	return slice
}

// endpoint returns an endpoint with one address, seldom with more.
func (m maker) endpoint(six bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses: []string{m.endpointIP(six)},
		Conditions: discoveryv1.EndpointConditions{
			Ready:       m.maybeBool(75, 15),
			Serving:     m.maybeBool(80, 30),
			Terminating: m.maybeBool(15, 40),
		},
		Hostname: m.maybe(hostnames, 60),
		NodeName: m.maybe(nodeNames, 20),
		Zone:     m.maybe(zoneNames, 25),
	}
	for m.chance(8) {
		e.Addresses = append(e.Addresses, m.endpointIP(six))
	}
	if m.chance(70) {
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: m.pick(podNames), Namespace: m.pick(namespaceNames)}
	}
	if e.Zone != nil && m.chance(20) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: *e.Zone}}}
	}
	return e
}

// endpointIP returns the address of a pod, sometimes written in a way which is
// not the shortest.
func (m maker) endpointIP(six bool) string {
	ip := m.podIP(six)
	if six && m.chance(6) {
		ip = strings.ToUpper(strings.Replace(ip, "::", ":0:0::", 1))
	}
	return ip
}

// slicePorts returns the ports of a Service, some of them, none, or ones with
// parts left out.
func (m maker) slicePorts(ports []corev1.ServicePort) []discoveryv1.EndpointPort {
	switch m.IntN(12) {
	case 0:
		return nil
	case 1:
		return []discoveryv1.EndpointPort{}
	case 2:
		return []discoveryv1.EndpointPort{{}}
	}
	var result []discoveryv1.EndpointPort
	for _, p := range ports {
		if m.chance(10) {
			continue
		}
		port := discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port, AppProtocol: p.AppProtocol}
		if m.chance(15) {
			number := portNumbers[m.IntN(len(portNumbers))] // a target port of its own
			port.Port = &number
		}
		if m.chance(4) {
			port.Name = nil
		}
		if m.chance(4) {
			port.Protocol = nil
		}
		if m.chance(4) {
			port.Port = nil
		}
		result = append(result, port)
	}
	return result
}

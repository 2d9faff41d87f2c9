package manifests

import (
	"fmt"
	"net/netip"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// check refuses what an API server would refuse, as far as DNS reads it: a wrong address is an error
// at its line, and not a name without an address.
func check(n *yaml.Node, o apiObject) *problem {
	switch o := o.(type) {
	case *corev1.Service:
		return checkService(n, o)
	case *discoveryv1.EndpointSlice:
		return checkSlice(n, o)
	case *corev1.Pod:
		return checkPod(n, o)
	}
	return nil
}

func checkService(n *yaml.Node, o *corev1.Service) *problem {
	switch o.Spec.Type {
	case "", corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
	case corev1.ServiceTypeExternalName:
		return checkExternalName(n, o)
	default:
		return wrong(n, fmt.Sprintf("%q; want ClusterIP, NodePort, LoadBalancer or ExternalName", clip(string(o.Spec.Type))), "spec", "type")
	}
	if p := checkClusterIPs(n, o.Spec.ClusterIP, o.Spec.ClusterIPs); p != nil {
		return p
	}
	names := map[string]int{}
	for i := range o.Spec.Ports {
		port := &o.Spec.Ports[i]
		at := []any{"spec", "ports", i}
		if p := checkPort(n, at, port.Name, &port.Protocol, &port.Port, names, len(o.Spec.Ports)); p != nil {
			return p
		}
	}
	return nil
}

func checkExternalName(n *yaml.Node, o *corev1.Service) *problem {
	if o.Spec.ClusterIP != "" && o.Spec.ClusterIP != corev1.ClusterIPNone {
		return wrong(n, "an ExternalName has no address of its own; leave it out", "spec", "clusterIP")
	}
	name := strings.ToLower(strings.TrimSuffix(o.Spec.ExternalName, "."))
	if name == "" {
		return wrong(n, "is missing; want the domain name that this is an alias of", "spec", "externalName")
	}
	if problems := validation.IsDNS1123SubdomainWithUnderscore(name); len(problems) > 0 {
		return wrong(n, fmt.Sprintf("%q is not a domain name such as db.example.com", clip(o.Spec.ExternalName)), "spec", "externalName")
	}
	return nil
}

func checkClusterIPs(n *yaml.Node, one string, all []string) *problem {
	if one != "" && len(all) > 0 && all[0] != one {
		return wrong(n, fmt.Sprintf("%q; want %q first, as in clusterIP", clip(all[0]), clip(one)), "spec", "clusterIPs", 0)
	}
	if len(all) == 0 {
		if one == "" || one == corev1.ClusterIPNone {
			return nil
		}
		_, p := checkAddress(n, one, "spec", "clusterIP")
		return p
	}
	if len(all) == 1 && all[0] == corev1.ClusterIPNone {
		return nil
	}
	if len(all) > 2 {
		return wrong(n, "want one address, or one of IPv4 and one of IPv6", "spec", "clusterIPs", 2)
	}
	var first netip.Addr
	for i, text := range all {
		a, p := checkAddress(n, text, "spec", "clusterIPs", i)
		if p != nil {
			return p
		}
		if i > 0 && a.Is4() == first.Is4() {
			return wrong(n, "want one address, or one of IPv4 and one of IPv6", "spec", "clusterIPs", i)
		}
		first = a
	}
	return nil
}

func checkAddress(n *yaml.Node, text string, path ...any) (netip.Addr, *problem) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" {
		return a, wrong(n, fmt.Sprintf("%q is not an IP address such as 10.96.0.10 or fd00::10", clip(text)), path...)
	}
	return a.Unmap(), nil
}

// checkPort checks one of several ports at a path. names are those met, with their place in the list.
func checkPort(n *yaml.Node, at []any, name string, protocol *corev1.Protocol, number *int32, names map[string]int, of int) *problem {
	path := func(field string) []any { return append(at[:len(at):len(at)], field) }
	if first, ok := names[name]; ok && of > 1 {
		if name == "" {
			return wrong(n, "is missing; several ports need names", path("name")...)
		}
		return wrong(n, fmt.Sprintf("%q is the name of ports[%d] already", clip(name), first), path("name")...)
	}
	names[name] = len(names)
	if name != "" && !isLabel(name) {
		return wrong(n, fmt.Sprintf("%q; want lower-case letters, digits and dashes, 63 at most", clip(name)), path("name")...)
	}
	if protocol != nil {
		switch *protocol {
		case "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			return wrong(n, fmt.Sprintf("%q; want TCP, UDP or SCTP", clip(string(*protocol))), path("protocol")...)
		}
	}
	if number != nil && (*number < 1 || *number > 65535) {
		return wrong(n, fmt.Sprintf("%d; want a number from 1 to 65535", *number), path("port")...)
	}
	return nil
}

func checkSlice(n *yaml.Node, o *discoveryv1.EndpointSlice) *problem {
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN:
	case "":
		return wrong(n, "is missing; want IPv4 or IPv6", "addressType")
	default:
		return wrong(n, fmt.Sprintf("%q; want IPv4, IPv6 or FQDN", clip(string(o.AddressType))), "addressType")
	}
	names := map[string]int{}
	for i := range o.Ports {
		port := &o.Ports[i]
		var name string
		if port.Name != nil {
			name = *port.Name
		}
		if p := checkPort(n, []any{"ports", i}, name, port.Protocol, port.Port, names, len(o.Ports)); p != nil {
			return p
		}
	}
	for i := range o.Endpoints {
		if p := checkEndpoint(n, o, i); p != nil {
			return p
		}
	}
	return nil
}

func checkEndpoint(n *yaml.Node, o *discoveryv1.EndpointSlice, i int) *problem {
	e := &o.Endpoints[i]
	if len(e.Addresses) == 0 {
		return wrong(n, "is missing; want a list of one address", "endpoints", i, "addresses")
	}
	for j, text := range e.Addresses {
		if o.AddressType == discoveryv1.AddressTypeFQDN {
			break // not read
		}
		a, p := checkAddress(n, text, "endpoints", i, "addresses", j)
		if p != nil {
			return p
		}
		if a.Is4() != (o.AddressType == discoveryv1.AddressTypeIPv4) {
			return wrong(n, fmt.Sprintf("%s in a slice of addressType %s; each family has its own slices", a, o.AddressType), "endpoints", i, "addresses", j)
		}
	}
	if e.Hostname != nil && *e.Hostname != "" && !isLabel(*e.Hostname) {
		return wrong(n, fmt.Sprintf("%q; want one DNS label, such as db-0", clip(*e.Hostname)), "endpoints", i, "hostname")
	}
	return nil
}

func checkPod(n *yaml.Node, o *corev1.Pod) *problem {
	switch o.Status.Phase {
	case "", corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown:
	default:
		return wrong(n, fmt.Sprintf("%q; want Pending, Running, Succeeded, Failed or Unknown", clip(string(o.Status.Phase))), "status", "phase")
	}
	if o.Status.PodIP != "" {
		if _, p := checkAddress(n, o.Status.PodIP, "status", "podIP"); p != nil {
			return p
		}
	}
	for i, ip := range o.Status.PodIPs {
		if _, p := checkAddress(n, ip.IP, "status", "podIPs", i, "ip"); p != nil {
			return p
		}
	}
	if ips := o.Status.PodIPs; o.Status.PodIP != "" && len(ips) > 0 && ips[0].IP != o.Status.PodIP {
		return wrong(n, fmt.Sprintf("%q; want %q first, as in podIP", clip(ips[0].IP), clip(o.Status.PodIP)), "status", "podIPs", 0, "ip")
	}
	return nil
}

// doubt returns what is right for Kubernetes and still leads to no answer here, or "".
func doubt(o apiObject) string {
	switch o := o.(type) {
	case *corev1.Service:
		if o.Spec.Type != corev1.ServiceTypeExternalName && o.Spec.ClusterIP == "" && len(o.Spec.ClusterIPs) == 0 {
			return "has no address: a cluster would choose one, here spec.clusterIP must give it"
		}
	case *discoveryv1.EndpointSlice:
		if o.Labels[discoveryv1.LabelServiceName] == "" {
			return "belongs to no Service: its label " + discoveryv1.LabelServiceName + " must name one"
		}
	}
	return ""
}

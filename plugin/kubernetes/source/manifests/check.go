package manifests

import (
	"fmt"
	"net/netip"
	"strings"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// check refuses what an API server would refuse, as far as DNS reads it: a wrong address is an error
// at its line, and not a name without an address.
func check(n *yaml.Node, o apiObject) *problem {
	switch o := o.(type) {
	case *corev1.Service:
		return checkService(n, o)
	case *discoveryv1.EndpointSlice:
		return checkSlice(n, o)
	case *mcsv1beta1.ServiceImport:
		return checkImport(n, o)
	case *corev1.Pod:
		return checkPod(n, o)
	case *corev1.Node:
		return checkNode(n, o)
	case *clusterProperty:
		return checkProperty(n, o)
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
	if p := checkTraffic(n, o.Spec.InternalTrafficPolicy, o.Spec.TrafficDistribution); p != nil {
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

func checkImport(n *yaml.Node, o *mcsv1beta1.ServiceImport) *problem {
	switch o.Spec.Type {
	case mcsv1beta1.ClusterSetIP, mcsv1beta1.Headless:
	case "":
		return wrong(n, "is missing; want ClusterSetIP or Headless", "spec", "type")
	default:
		return wrong(n, fmt.Sprintf("%q; want ClusterSetIP or Headless", clip(string(o.Spec.Type))), "spec", "type")
	}
	if p := checkAddresses(n, o.Spec.IPs, "ips"); p != nil {
		return p
	}
	if p := checkTraffic(n, o.Spec.InternalTrafficPolicy, o.Spec.TrafficDistribution); p != nil {
		return p
	}
	if o.Spec.Ports == nil {
		return wrong(n, "is missing; want the ports of the Service, or [] for none", "spec", "ports")
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
	return checkAddresses(n, all, "clusterIPs")
}

// checkAddresses checks a field of the spec with at most one address of each family.
func checkAddresses(n *yaml.Node, all []string, field string) *problem {
	const want = "want one address, or one of IPv4 and one of IPv6"
	if len(all) > 2 {
		return wrong(n, want, "spec", field, 2)
	}
	var first netip.Addr
	for i, text := range all {
		a, p := checkAddress(n, text, "spec", field, i)
		if p != nil {
			return p
		}
		if i > 0 && a.Is4() == first.Is4() {
			return wrong(n, want, "spec", field, i)
		}
		first = a
	}
	return nil
}

func checkTraffic(n *yaml.Node, policy *corev1.ServiceInternalTrafficPolicy, distribution *string) *problem {
	if policy != nil {
		switch *policy {
		case corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal:
		default:
			return wrong(n, fmt.Sprintf("%q; want Cluster or Local", clip(string(*policy))), "spec", "internalTrafficPolicy")
		}
	}
	if distribution != nil {
		switch *distribution {
		case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode:
		default:
			return wrong(n, fmt.Sprintf("%q; want PreferSameZone, PreferSameNode or PreferClose", clip(*distribution)), "spec", "trafficDistribution")
		}
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

func checkNode(n *yaml.Node, o *corev1.Node) *problem {
	one, all := o.Spec.PodCIDR, o.Spec.PodCIDRs
	if one != "" {
		if _, p := checkRange(n, one, "spec", "podCIDR"); p != nil {
			return p
		}
	}
	if one != "" && len(all) > 0 && all[0] != one {
		return wrong(n, fmt.Sprintf("%q; want %q first, as in podCIDR", clip(all[0]), clip(one)), "spec", "podCIDRs", 0)
	}
	var first netip.Addr
	for i, text := range all {
		r, p := checkRange(n, text, "spec", "podCIDRs", i)
		if p != nil {
			return p
		}
		if i > 1 || i == 1 && r.Addr().Is4() == first.Is4() {
			return wrong(n, "want one range, or one of IPv4 and one of IPv6", "spec", "podCIDRs", i)
		}
		first = r.Addr()
	}
	return nil
}

func checkRange(n *yaml.Node, text string, path ...any) (netip.Prefix, *problem) {
	r, err := netip.ParsePrefix(text)
	if err != nil || r.Addr().Is4In6() {
		return r, wrong(n, fmt.Sprintf("%q is not a range of IP addresses such as 10.244.1.0/24 or fd00:10:244:1::/64", clip(text)), path...)
	}
	return r, nil
}

func checkProperty(n *yaml.Node, o *clusterProperty) *problem {
	switch {
	case o.Spec.Value == "":
		return wrong(n, "is missing; want the value of this property", "spec", "value")
	case o.Name == source.ClusterPropertyName && !source.IsClusterID(o.Spec.Value):
		return wrong(n, fmt.Sprintf("%q is not the ID of a cluster; want a DNS name, such as east or a.east", clip(o.Spec.Value)), "spec", "value")
	}
	return nil
}

// doubt returns what is right for Kubernetes and still leads to no answer here, or to another one than was
// perhaps meant, or "".
func (p parser) doubt(o apiObject) string {
	switch o := o.(type) {
	case *corev1.Service:
		if o.Spec.Type != corev1.ServiceTypeExternalName && o.Spec.ClusterIP == "" && len(o.Spec.ClusterIPs) == 0 {
			return "has no address: a cluster would choose one, here spec.clusterIP must give it"
		}
	case *mcsv1beta1.ServiceImport:
		if p.opts.Imports && o.Spec.Type == mcsv1beta1.ClusterSetIP && len(o.Spec.IPs) == 0 {
			return "has no address: in a cluster its controller would set one, here spec.ips must give it"
		}
	case *discoveryv1.EndpointSlice:
		imports := o.Labels[mcsv1beta1.LabelServiceName]
		switch {
		case o.Labels[discoveryv1.LabelServiceName] == "" && imports == "":
			return "belongs to no Service: its label " + discoveryv1.LabelServiceName + " must name one, or " + mcsv1beta1.LabelServiceName + " a ServiceImport"
		case p.opts.Imports && imports != "" && o.Labels[mcsv1beta1.LabelSourceCluster] == "":
			return "is of no cluster: the names of its endpoints have none, unless its label " + mcsv1beta1.LabelSourceCluster + " names one"
		}
	}
	return ""
}

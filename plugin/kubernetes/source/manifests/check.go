package manifests

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// check returns the errors for which an API server would refuse an object, as far as DNS reads it: a wrong address is an
// error, and does not become a name without an address.
func check(k *kind, o apiObject) field.ErrorList {
	errs := checkName(k, o.GetObjectMeta())
	switch o := o.(type) {
	case *corev1.Service:
		errs = append(errs, checkService(o)...)
	case *discoveryv1.EndpointSlice:
		errs = append(errs, checkSlice(o)...)
	case *mcsv1beta1.ServiceImport:
		errs = append(errs, checkImport(o)...)
	case *corev1.Pod:
		errs = append(errs, checkPod(o)...)
	case *corev1.Node:
		errs = append(errs, checkDual(field.NewPath("spec"), "podCIDR", o.Spec.PodCIDR, o.Spec.PodCIDRs, checkRange)...)
	case *clusterProperty:
		errs = append(errs, checkProperty(o)...)
	}
	return errs
}

func invalid(path *field.Path, value any, reasons ...string) (errs field.ErrorList) {
	for _, text := range reasons {
		errs = append(errs, field.Invalid(path, value, text))
	}
	return errs
}

func required(path *field.Path, want string) field.ErrorList {
	return field.ErrorList{field.Required(path, want)}
}

// oneOf checks a value that is one of several, or missing.
func oneOf[T ~string](path *field.Path, value T, all ...T) field.ErrorList {
	if value == "" || slices.Contains(all, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, all)}
}

func checkName(k *kind, m metav1.Object) (errs field.ErrorList) {
	path := field.NewPath("metadata")
	name, namespace := path.Child("name"), path.Child("namespace")
	switch {
	case m.GetName() == "":
		errs = required(name, "every object needs a name")
	case k.isLabel:
		errs = checkLabel(name, m.GetName())
	default:
		errs = invalid(name, m.GetName(), validation.IsDNS1123Subdomain(m.GetName())...)
	}
	switch {
	case k.namespaced:
		errs = append(errs, checkLabel(namespace, m.GetNamespace())...)
	case m.GetNamespace() != "":
		errs = append(errs, field.Forbidden(namespace, fmt.Sprintf("a %s is in no namespace; delete it", k.name)))
	}
	return errs
}

// checkLabel checks a name that is one DNS label, or missing.
func checkLabel(path *field.Path, name string) field.ErrorList {
	if name == "" {
		return nil
	}
	return invalid(path, name, validation.IsDNS1123Label(name)...)
}

func checkService(o *corev1.Service) field.ErrorList {
	spec := field.NewPath("spec")
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		return checkExternalName(spec, o)
	}
	errs := oneOf(spec.Child("type"), o.Spec.Type, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeExternalName)
	if one, all := o.Spec.ClusterIP, o.Spec.ClusterIPs; !isHeadless(one, all) {
		errs = append(errs, checkDual(spec, "clusterIP", one, all, checkAddress)...)
	}
	errs = append(errs, checkTraffic(spec, o.Spec.InternalTrafficPolicy, o.Spec.TrafficDistribution)...)
	return append(errs, checkPorts(spec.Child("ports"), len(o.Spec.Ports), func(i int) (string, corev1.Protocol, *int32) {
		p := &o.Spec.Ports[i]
		return p.Name, p.Protocol, &p.Port
	})...)
}

func isHeadless(one string, all []string) bool {
	none := []string{corev1.ClusterIPNone}
	return one == none[0] && len(all) == 0 || (one == "" || one == none[0]) && slices.Equal(all, none)
}

func checkExternalName(spec *field.Path, o *corev1.Service) field.ErrorList {
	path, name := spec.Child("externalName"), strings.ToLower(strings.TrimSuffix(o.Spec.ExternalName, "."))
	switch {
	case o.Spec.ClusterIP != "" && o.Spec.ClusterIP != corev1.ClusterIPNone:
		return field.ErrorList{field.Forbidden(spec.Child("clusterIP"), "an ExternalName has no address of its own; delete it")}
	case name == "":
		return required(path, "want the domain name that this is an alias of")
	case len(validation.IsDNS1123SubdomainWithUnderscore(name)) > 0:
		return invalid(path, o.Spec.ExternalName, "want a domain name such as db.example.com")
	}
	return nil
}

func checkImport(o *mcsv1beta1.ServiceImport) field.ErrorList {
	spec := field.NewPath("spec")
	errs := oneOf(spec.Child("type"), o.Spec.Type, mcsv1beta1.ClusterSetIP, mcsv1beta1.Headless)
	if o.Spec.Type == "" {
		errs = required(spec.Child("type"), "want ClusterSetIP or Headless")
	}
	errs = append(errs, checkDual(spec, "ip", "", o.Spec.IPs, checkAddress)...)
	errs = append(errs, checkTraffic(spec, o.Spec.InternalTrafficPolicy, o.Spec.TrafficDistribution)...)
	if o.Spec.Ports == nil {
		errs = append(errs, required(spec.Child("ports"), "want the ports of the Service, or [] for none")...)
	}
	return append(errs, checkPorts(spec.Child("ports"), len(o.Spec.Ports), func(i int) (string, corev1.Protocol, *int32) {
		p := &o.Spec.Ports[i]
		return p.Name, p.Protocol, &p.Port
	})...)
}

// checkDual checks a field of one value and its list form, such as clusterIP and clusterIPs. The list has one value, or
// one of IPv4 and one of IPv6, and begins with that of the field.
func checkDual(parent *field.Path, name, one string, all []string, check func(*field.Path, string) field.ErrorList) (errs field.ErrorList) {
	list := parent.Child(name + "s")
	if one != "" {
		errs = check(parent.Child(name), one)
	}
	for i, text := range all {
		at := list.Index(i)
		errs = append(errs, check(at, text)...)
		switch {
		case i == 0 && one != "" && one != text:
			errs = append(errs, field.Invalid(at, text, "want the value of "+name+" first"))
		case i > 1 || i == 1 && strings.Contains(all[0], ":") == strings.Contains(text, ":"):
			errs = append(errs, field.Invalid(at, text, "want one value, or one of IPv4 and one of IPv6"))
		}
	}
	return errs
}

func checkAddress(path *field.Path, text string) field.ErrorList {
	if a, err := netip.ParseAddr(text); err != nil || a.Zone() != "" {
		return invalid(path, text, "want an IP address such as 10.96.0.10 or fd00::10")
	}
	return nil
}

func checkRange(path *field.Path, text string) field.ErrorList {
	if r, err := netip.ParsePrefix(text); err != nil || r.Addr().Is4In6() {
		return invalid(path, text, "want a range of IP addresses such as 10.244.1.0/24 or fd00:10:244:1::/64")
	}
	return nil
}

func checkTraffic(spec *field.Path, policy *corev1.ServiceInternalTrafficPolicy, distribution *string) field.ErrorList {
	errs := oneOf(spec.Child("internalTrafficPolicy"), ptr.Deref(policy, ""), corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
	return append(errs, oneOf(spec.Child("trafficDistribution"), ptr.Deref(distribution, ""),
		corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode, corev1.ServiceTrafficDistributionPreferClose)...)
}

// checkPorts checks the ports of an object. A missing number means all ports.
func checkPorts(path *field.Path, n int, at func(i int) (name string, protocol corev1.Protocol, number *int32)) (errs field.ErrorList) {
	names := map[string]bool{}
	for i := range n {
		p := path.Index(i)
		name, protocol, number := at(i)
		switch {
		case names[name] && name == "":
			errs = append(errs, required(p.Child("name"), "several ports need names")...)
		case names[name]:
			errs = append(errs, field.Duplicate(p.Child("name"), name))
		}
		names[name] = true
		errs = append(errs, checkLabel(p.Child("name"), name)...)
		errs = append(errs, oneOf(p.Child("protocol"), protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
		if number != nil && (*number < 1 || *number > 65535) {
			errs = append(errs, field.Invalid(p.Child("port"), *number, "want 1-65535"))
		}
	}
	return errs
}

func checkSlice(o *discoveryv1.EndpointSlice) field.ErrorList {
	family := field.NewPath("addressType")
	errs := oneOf(family, o.AddressType, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)
	if o.AddressType == "" {
		errs = required(family, "want IPv4 or IPv6")
	}
	errs = append(errs, checkPorts(field.NewPath("ports"), len(o.Ports), func(i int) (string, corev1.Protocol, *int32) {
		p := &o.Ports[i]
		return ptr.Deref(p.Name, ""), ptr.Deref(p.Protocol, ""), p.Port
	})...)
	for i := range o.Endpoints {
		errs = append(errs, checkEndpoint(field.NewPath("endpoints").Index(i), &o.Endpoints[i], o.AddressType)...)
	}
	return errs
}

func checkEndpoint(path *field.Path, e *discoveryv1.Endpoint, family discoveryv1.AddressType) (errs field.ErrorList) {
	if len(e.Addresses) == 0 {
		errs = required(path.Child("addresses"), "want a list of one address")
	}
	for i, text := range e.Addresses {
		if family == discoveryv1.AddressTypeFQDN {
			break // not read
		}
		at := path.Child("addresses").Index(i)
		errs = append(errs, checkAddress(at, text)...)
		if a, err := netip.ParseAddr(text); err == nil && a.Unmap().Is4() != (family == discoveryv1.AddressTypeIPv4) {
			errs = append(errs, field.Invalid(at, text, fmt.Sprintf("want %s, the addressType of the slice", family)))
		}
	}
	return append(errs, checkLabel(path.Child("hostname"), ptr.Deref(e.Hostname, ""))...)
}

func checkPod(o *corev1.Pod) field.ErrorList {
	var ips []string
	for _, ip := range o.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	status := field.NewPath("status")
	errs := oneOf(status.Child("phase"), o.Status.Phase, corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown)
	return append(errs, checkDual(status, "podIP", o.Status.PodIP, ips, checkAddress)...)
}

func checkProperty(o *clusterProperty) field.ErrorList {
	path := field.NewPath("spec", "value")
	switch {
	case o.Spec.Value == "":
		return required(path, "want the value of this property")
	case o.Name == source.ClusterPropertyName && !source.IsClusterID(o.Spec.Value):
		return invalid(path, o.Spec.Value, "want the ID of a cluster, a DNS name such as east or a.east")
	}
	return nil
}

// warning returns the reason for which a valid object has no answer, or perhaps an unexpected one; "" for none.
func (p parser) warning(o apiObject) string {
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

package source

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	netutils "k8s.io/utils/net"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Stripper turns API objects into records. Records do not refer to the memory of the object, so that it can be freed.
// Objects, and parts of objects, that no DNS name can carry are left out, counted each time and logged once.
type Stripper struct {
	Options
	skipped    *skipped
	lastLabels *atomic.Pointer[index.PodLabels] // of the last pod
}

// NewStripper returns the Stripper of a source.
func NewStripper(o Options) Stripper {
	return Stripper{o, new(skipped), new(atomic.Pointer[index.PodLabels])}
}

// Service returns the record of a Service, or nil if DNS cannot carry its name.
func (s Stripper) Service(o *corev1.Service) *index.Service {
	skip := s.skipped.object(Services, o.Namespace, o.Name)
	if !skip.named() {
		return nil
	}
	r := &index.Service{
		Namespace: strings.Clone(o.Namespace),
		Name:      strings.Clone(o.Name),
		External:  external(o, skip),
	}
	switch {
	case o.Spec.Type == corev1.ServiceTypeExternalName:
		r.Kind = index.ExternalName
		r.Target = externalName(o.Spec.ExternalName, skip)
		if r.External == nil {
			return r // no name has its ports
		}
	case o.Spec.ClusterIP == corev1.ClusterIPNone || len(o.Spec.ClusterIPs) > 0 && o.Spec.ClusterIPs[0] == corev1.ClusterIPNone:
		r.Kind = index.Headless
		r.Topology = s.topology(o.Annotations, o.Spec.InternalTrafficPolicy, o.Spec.TrafficDistribution, skip)
		r.Wait = waitForNames(o.Annotations, skip)
	default:
		r.IPs = clusterIPs(o, skip)
	}
	for i := range o.Spec.Ports {
		p := &o.Spec.Ports[i]
		r.Ports = append(r.Ports, port(p.Name, p.Protocol, p.Port, skip))
	}
	return r
}

// external returns the external addresses and names of a Service, nil if there are none.
func external(o *corev1.Service, skip skippedObject) *index.External {
	texts := slices.Clone(o.Spec.ExternalIPs)
	var hosts []string
	for i := range o.Status.LoadBalancer.Ingress {
		switch in := &o.Status.LoadBalancer.Ingress[i]; {
		case in.IP != "":
			texts = append(texts, in.IP)
		case in.Hostname != "":
			if host := externalName(in.Hostname, skip); host != "" {
				hosts = append(hosts, host)
			}
		}
	}
	if len(texts)+len(hosts) == 0 {
		return nil
	}
	return &index.External{IPs: ips(texts, skip), Hosts: hosts}
}

func clusterIPs(o *corev1.Service, skip skippedObject) []netip.Addr {
	all := o.Spec.ClusterIPs
	if len(all) == 0 && o.Spec.ClusterIP != "" {
		all = []string{o.Spec.ClusterIP}
	}
	return ips(all, skip)
}

func ips(all []string, skip skippedObject) []netip.Addr {
	parsed := make([]netip.Addr, 0, len(all))
	for _, text := range all {
		if a, ok := address(text, skip); ok {
			parsed = append(parsed, a)
		}
	}
	return parsed
}

// externalName returns the fully qualified target of an ExternalName Service, or "" if no CNAME can point at it. An IP
// address, which the API allows, has no record, and is neither counted nor logged.
func externalName(name string, skip skippedObject) string {
	if _, err := netip.ParseAddr(name); err == nil {
		return ""
	}
	if _, ok := dns.IsDomainName(name); !ok || name == "" {
		skip.part("external name", fmt.Sprintf("%q is not a domain name", name))
		return ""
	}
	return dns.Fqdn(strings.Clone(name))
}

// maxPortLabel is the maximum length of the name and the protocol of a port: an underscore precedes them in a label of at most 63 octets
// (RFC 1035, section 2.3.4). The API server accepts names of 63.
const maxPortLabel = 62

// port returns the record of a port, without its name if that is too long for a label. A missing protocol is TCP, as in the API.
func port(name string, protocol corev1.Protocol, number int32, skip skippedObject) index.Port {
	if protocol == "" {
		protocol = corev1.ProtocolTCP
	}
	if len(name) > maxPortLabel {
		skip.part("port name", fmt.Sprintf("%q has more than %d characters, and an underscore precedes it in a label", name, maxPortLabel))
		name = ""
	}
	return index.Port{
		Name:     index.NewSymbol(strings.ToLower(name)),
		Protocol: index.NewSymbol(strings.ToLower(string(protocol))),
		Number:   number,
	}
}

// address parses an IP address as DNS can carry it: without a zone, and IPv4-mapped IPv6 as IPv4.
func address(text string, skip skippedObject) (netip.Addr, bool) {
	a, ok := parseAddress(text)
	if !ok {
		skip.part("address", fmt.Sprintf("%q is not an IP address", text))
	}
	return a, ok
}

// parseAddress parses an IP address as Kubernetes does: octets with leading zeros, which API servers before 1.36 store, are decimal.
func parseAddress(text string) (netip.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		a, _ = netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	}
	return a.Unmap(), a.IsValid() && a.Zone() == ""
}

func isLabel(s string) bool { return len(validation.IsDNS1123Label(s)) == 0 }

// Namespace returns the name of a namespace, or "" if DNS cannot carry it.
func (s Stripper) Namespace(o *corev1.Namespace) string {
	if !s.skipped.object(Namespaces, "", o.Name).named() {
		return ""
	}
	return strings.Clone(o.Name)
}

// podLabels returns the labels of a pod. Lists are ordered by name, so that the pods of a ReplicaSet, whose labels are equal, follow each other:
// they share the memory.
func (s Stripper) podLabels(labels map[string]string) index.PodLabels {
	l := index.NewPodLabels(labels)
	if last := s.lastLabels.Load(); last != nil && *last == l {
		return *last
	}
	s.lastLabels.Store(&l)
	return l
}

// Pod returns the record of a pod, or nil for one that has ended: another pod may have its address already.
func (s Stripper) Pod(o *corev1.Pod) *index.Pod {
	switch o.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown:
		return nil
	}
	skip := s.skipped.object(Pods, o.Namespace, o.Name)
	r := &index.Pod{
		Namespace: index.NewSymbol(o.Namespace).String(), // in memory once for all pods
		Name:      strings.Clone(o.Name),
	}
	if !s.PodsOnly {
		r.Labels = s.podLabels(o.Labels)
	}
	for _, ip := range o.Status.PodIPs {
		if a, ok := address(ip.IP, skip); ok {
			r.IPs = append(r.IPs, a)
		}
	}
	if s.Topology {
		r.Node = index.NewSymbol(o.Spec.NodeName)
	}
	if s.SearchPaths {
		r.HostNetwork = o.Spec.HostNetwork
		r.Ending = o.DeletionTimestamp != nil || !ownsAddresses(o, s.Booted)
		r.DNS, r.Ndots = podDNS(o), ndots(o)
	}
	return r
}

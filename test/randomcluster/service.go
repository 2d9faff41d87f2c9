package randomcluster

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// service returns a Service of a random kind.
func (m maker) service(namespace, name string) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: m.labels()}}
	spec := &svc.Spec
	if m.chance(70) {
		spec.Selector = map[string]string{"app": name}
	}
	spec.Ports = m.servicePorts()
	spec.PublishNotReadyAddresses = m.chance(15)
	spec.Type = corev1.ServiceTypeClusterIP
	if m.chance(20) {
		spec.SessionAffinity = corev1.ServiceAffinityClientIP
	} else {
		spec.SessionAffinity = corev1.ServiceAffinityNone
	}

	switch m.IntN(11) {
	case 0, 1:
		m.giveClusterIPs(spec, corev1.IPv4Protocol)
	case 2:
		m.giveClusterIPs(spec, corev1.IPv6Protocol)
	case 3:
		if m.chance(50) {
			m.giveClusterIPs(spec, corev1.IPv4Protocol, corev1.IPv6Protocol)
		} else {
			m.giveClusterIPs(spec, corev1.IPv6Protocol, corev1.IPv4Protocol)
		}
	case 4:
		spec.Type = corev1.ServiceTypeNodePort
		m.giveClusterIPs(spec, corev1.IPv4Protocol)
		for i := range spec.Ports {
			spec.Ports[i].NodePort = 30000 + int32(m.IntN(100))
		}
	case 5:
		spec.Type = corev1.ServiceTypeLoadBalancer
		m.giveClusterIPs(spec, corev1.IPv4Protocol)
		for range m.IntN(3) {
			svc.Status.LoadBalancer.Ingress = append(svc.Status.LoadBalancer.Ingress, m.ingress())
		}
	case 6, 7, 8:
		m.makeHeadless(spec)
	default:
		spec.Type = corev1.ServiceTypeExternalName
		spec.ExternalName = m.externalName(namespace, name)
		spec.PublishNotReadyAddresses = false
		if m.chance(60) {
			spec.Ports = nil
		}
		if m.chance(60) {
			spec.Selector = nil
		}
	}
	if spec.Type != corev1.ServiceTypeExternalName && m.chance(15) {
		for range 1 + m.IntN(2) {
			spec.ExternalIPs = append(spec.ExternalIPs, m.externalIP())
		}
	}
	return svc
}

// giveClusterIPs returns one address of each family, in that order.
func (m maker) giveClusterIPs(spec *corev1.ServiceSpec, families ...corev1.IPFamily) {
	policy := corev1.IPFamilyPolicySingleStack
	if len(families) > 1 {
		policy = corev1.IPFamilyPolicyPreferDualStack
	}
	spec.IPFamilyPolicy = &policy
	spec.IPFamilies = families
	for _, family := range families {
		spec.ClusterIPs = append(spec.ClusterIPs, m.clusterIP(family == corev1.IPv6Protocol))
	}
	spec.ClusterIP = spec.ClusterIPs[0]
	if m.chance(10) {
		spec.ClusterIPs = nil // as written before there were several
	}
}

// makeHeadless makes a Service headless: with ports or without, of one family
// or two.
func (m maker) makeHeadless(spec *corev1.ServiceSpec) {
	spec.ClusterIP = corev1.ClusterIPNone
	spec.ClusterIPs = []string{corev1.ClusterIPNone}
	spec.IPFamilies = [][]corev1.IPFamily{
		{corev1.IPv4Protocol},
		{corev1.IPv6Protocol},
		{corev1.IPv4Protocol, corev1.IPv6Protocol},
	}[m.IntN(3)]
	if m.chance(20) {
		spec.Ports = nil
	}
	if m.chance(20) {
		spec.PublishNotReadyAddresses = true
	}
}

// servicePorts returns one unnamed port, or some with names of their own, with
// the same number on several protocols at times.
func (m maker) servicePorts() []corev1.ServicePort {
	if m.chance(30) {
		return []corev1.ServicePort{m.servicePort("")}
	}
	var ports []corev1.ServicePort
	used := map[string]bool{}
	for range 1 + m.IntN(4) {
		name := m.pick(portNames)
		if used[name] {
			continue
		}
		used[name] = true
		ports = append(ports, m.servicePort(name))
	}
	if m.chance(25) && !used["dns"] && !used["dns-tcp"] {
		udp, tcp := m.servicePort("dns"), m.servicePort("dns-tcp")
		udp.Protocol, tcp.Protocol = corev1.ProtocolUDP, corev1.ProtocolTCP
		udp.Port, tcp.Port = 53, 53
		ports = append(ports, udp, tcp)
	}
	return ports
}

func (m maker) servicePort(name string) corev1.ServicePort {
	port := corev1.ServicePort{
		Name:     name,
		Port:     portNumbers[m.IntN(len(portNumbers))],
		Protocol: m.protocol(),
	}
	port.TargetPort = intstr.FromInt32(port.Port)
	if m.chance(20) {
		port.TargetPort = intstr.FromString("http")
	}
	if m.chance(10) {
		app := "kubernetes.io/h2c"
		port.AppProtocol = &app
	}
	return port
}

func (m maker) protocol() corev1.Protocol {
	switch m.IntN(6) {
	case 0:
		return corev1.ProtocolSCTP
	case 1, 2:
		return corev1.ProtocolUDP
	}
	return corev1.ProtocolTCP
}

func (m maker) ingress() corev1.LoadBalancerIngress {
	if m.chance(30) {
		return corev1.LoadBalancerIngress{Hostname: m.pick([]string{"lb.example.org", "LB-2.example.com"})}
	}
	return corev1.LoadBalancerIngress{IP: m.externalIP()}
}

// externalIP returns an address from outside out of few, and now and then one
// from inside.
func (m maker) externalIP() string {
	switch m.IntN(6) {
	case 0:
		return fmt.Sprintf("2001:db8::%x", 1+m.IntN(4))
	case 1:
		return m.clusterIP(false)
	}
	return fmt.Sprintf("203.0.113.%d", 1+m.IntN(4))
}

// externalName returns a name outside the zone, one of a Service in it (which may
// be an ExternalName again, or the very same), or an address.
func (m maker) externalName(namespace, name string) string {
	inZone := func(ns, svc string) string { return svc + "." + ns + ".svc." + Zone }
	switch m.IntN(12) {
	case 0:
		return "192.0.2.77"
	case 1:
		return "WWW.Example.ORG"
	case 2:
		return "www.example.com."
	case 3:
		return inZone(namespace, name) // a loop of one
	case 4:
		return inZone(namespace, "missing")
	case 5:
		return m.pick(hostnames) + "." + inZone(m.pick(namespaceNames), m.pick(serviceNames))
	case 6:
		return "localhost"
	case 7, 8, 9:
		return inZone(m.pick(namespaceNames), m.pick(serviceNames))
	}
	return m.pick([]string{"example.com", "db.example.net", "x.cluster.local.example.org"})
}

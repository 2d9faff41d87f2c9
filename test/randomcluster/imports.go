package randomcluster

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Imports returns about size ServiceImports, with EndpointSlices of the clusters
// that export them, for a cluster of Random. Some have the names of local
// Services, and some of their slices are a Service's as well; some are in
// namespaces that don't exist. Mutate changes such objects, and makes more,
// where there are any.
func Imports(r *rand.Rand, size int) []runtime.Object {
	m := maker{Rand: r, size: size}
	var objs []runtime.Object
	for range size {
		imp := m.serviceImport(m.importNamespace(), m.importName())
		objs = append(objs, imp)
		for _, cluster := range m.exporters(imp) {
			for range 1 + m.IntN(2) {
				objs = append(objs, m.importedSlice(imp, cluster))
			}
		}
	}
	// Slices of imports that don't exist, or not yet.
	for range 1 + size/6 {
		ghost := m.serviceImport(m.importNamespace(), "ghost")
		objs = append(objs, m.importedSlice(ghost, m.pick(clusterIDs)))
	}
	return Apply(nil, objs, nil)
}

var (
	importNames = []string{"web", "db", "api", "shop", "svc", "a", "web-0", "dns-version"}
	// clusterIDs are one label or two; some look like parts of other names.
	clusterIDs = []string{
		"west", "east-1", "c2", "3f2a9c1e-5d2f-4e6a-9b8c-1d2e3f4a5b6c", "0b1c7a3e-5d2f-4e6a-9b8c-1d2e3f4a5b6c",
		"eu.west", "prod.us-1", "tcp", "web-0", "svc",
	}
)

func (m maker) importName() string {
	name := m.pick(importNames)
	if m.size > 20 && m.chance(50) {
		return fmt.Sprintf("%s-%d", name, m.IntN(m.size/4))
	}
	return name
}

func (m maker) importNamespace() string {
	if m.chance(8) {
		return "nowhere" // no Random makes it
	}
	return m.pick(namespaceNames)
}

// serviceImport returns a ServiceImport of either type.
func (m maker) serviceImport(namespace, name string) *mcsv1beta1.ServiceImport {
	imp := &mcsv1beta1.ServiceImport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: m.labels()}}
	imp.Spec.Ports = m.importPorts()
	if m.chance(55) {
		imp.Spec.Type = mcsv1beta1.Headless
		return imp
	}
	imp.Spec.Type = mcsv1beta1.ClusterSetIP
	imp.Spec.IPs = m.importIPs()
	if m.chance(20) {
		imp.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	return imp
}

// importIPs returns no address, as while there is none yet, or one of a family
// or of each.
func (m maker) importIPs() []string {
	four, six := fmt.Sprintf("10.3.0.%d", 1+m.IntN(16)), fmt.Sprintf("fd00:30::%x", 1+m.IntN(16))
	if m.chance(10) {
		four = m.clusterIP(false)
	}
	return [][]string{nil, {four}, {four}, {six}, {four, six}, {six, four}}[m.IntN(6)]
}

// importPorts returns no port, one without a name, or up to three with names of
// their own, at times with the same number on two protocols.
func (m maker) importPorts() []mcsv1beta1.ServicePort {
	switch m.IntN(8) {
	case 0:
		return []mcsv1beta1.ServicePort{}
	case 1, 2:
		return []mcsv1beta1.ServicePort{m.importPort("", m.protocol())}
	case 3, 4:
		tcp, udp := m.importPort("dns-tcp", corev1.ProtocolTCP), m.importPort("dns", corev1.ProtocolUDP)
		tcp.Port, udp.Port = 42, 42
		ports := []mcsv1beta1.ServicePort{tcp, udp}
		if m.chance(30) {
			ports = append(ports, m.importPort("http", corev1.ProtocolTCP))
		}
		return ports
	}
	ports := []mcsv1beta1.ServicePort{m.importPort(m.pick(portNames[:4]), m.protocol())}
	if m.chance(50) {
		ports = append(ports, m.importPort(m.pick(portNames[4:]), m.protocol()))
	}
	return ports
}

// importPort returns a port, seldom without its protocol: the definition of the
// resource has no default for it.
func (m maker) importPort(name string, protocol corev1.Protocol) mcsv1beta1.ServicePort {
	if protocol == corev1.ProtocolTCP && m.chance(10) {
		protocol = ""
	}
	return mcsv1beta1.ServicePort{Name: name, Protocol: protocol, Port: portNumbers[m.IntN(len(portNumbers))]}
}

// exporters returns the IDs of the clusters whose endpoints of an import are
// known here: some for a headless one, and often none for another.
func (m maker) exporters(imp *mcsv1beta1.ServiceImport) []string {
	if imp.Spec.Type != mcsv1beta1.Headless && m.chance(50) {
		return nil
	}
	var ids []string
	for range 1 + m.IntN(3) {
		ids = append(ids, m.pick(clusterIDs)) // the same one twice is fine
	}
	return ids
}

// importedSlice returns an EndpointSlice with endpoints of an import in a
// cluster.
func (m maker) importedSlice(imp *mcsv1beta1.ServiceImport, cluster string) *discoveryv1.EndpointSlice {
	six := m.chance(30)
	slice := m.emptySlice(imp.Namespace, "imported-"+imp.Name, six)
	slice.Labels[mcsv1beta1.LabelServiceName] = imp.Name
	slice.Labels[discoveryv1.LabelManagedBy] = "exporter.example.org"
	switch m.IntN(8) {
	case 0, 1: // some implementations have a Service of another name for each import
		slice.Labels[discoveryv1.LabelServiceName] = "imported-" + imp.Name
	case 2: // of both
		slice.Labels[discoveryv1.LabelServiceName] = m.pick(serviceNames)
	default:
		delete(slice.Labels, discoveryv1.LabelServiceName)
	}
	m.setSource(slice, cluster)
	var ports []corev1.ServicePort
	for _, p := range imp.Spec.Ports {
		protocol := p.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		ports = append(ports, corev1.ServicePort{Name: p.Name, Protocol: protocol, Port: p.Port})
	}
	slice.Ports = m.slicePorts(ports)
	for i := range slice.Endpoints {
		m.importEndpoint(&slice.Endpoints[i], six)
	}
	return slice
}

// setSource names the cluster that a slice is from; seldom in a way that DNS
// can't carry, or not at all.
func (m maker) setSource(slice *discoveryv1.EndpointSlice, cluster string) {
	switch n := m.IntN(40); {
	case n == 0:
		delete(slice.Labels, mcsv1beta1.LabelSourceCluster)
		return
	case n == 1:
		cluster = "under_score"
	}
	slice.Labels[mcsv1beta1.LabelSourceCluster] = cluster
}

// importEndpoint makes an endpoint one of another cluster: with an address
// there, out of few, and a hostname more often than others have one.
func (m maker) importEndpoint(e *discoveryv1.Endpoint, six bool) {
	for i := range e.Addresses {
		switch {
		case m.chance(10): // clusters can have the same addresses
		case six:
			e.Addresses[i] = fmt.Sprintf("fd00:20::%x", 1+m.IntN(12))
		default:
			e.Addresses[i] = fmt.Sprintf("10.2.0.%d", 1+m.IntN(12))
		}
	}
	if e.Hostname == nil && m.chance(40) {
		e.Hostname = m.maybe(hostnames, 0)
	}
}

// hasImports reports whether some of the objects are ServiceImports.
func hasImports(objs []runtime.Object) bool {
	for _, obj := range objs {
		if _, ok := obj.(*mcsv1beta1.ServiceImport); ok {
			return true
		}
	}
	return false
}

// importAddition returns a ServiceImport, or a slice for one that there is.
func (m maker) importAddition(objs []runtime.Object) runtime.Object {
	var imports []*mcsv1beta1.ServiceImport
	for _, obj := range objs {
		if imp, ok := obj.(*mcsv1beta1.ServiceImport); ok {
			imports = append(imports, imp)
		}
	}
	if m.chance(40) {
		return m.serviceImport(m.importNamespace(), m.importName())
	}
	return m.importedSlice(imports[m.IntN(len(imports))], m.pick(clusterIDs))
}

func (m maker) changedImport(old *mcsv1beta1.ServiceImport) *mcsv1beta1.ServiceImport {
	imp := old.DeepCopy()
	switch m.IntN(4) {
	case 0:
		imp.Spec.Ports = m.importPorts()
	case 1:
		imp.Labels = m.labels()
	case 2:
		if imp.Spec.Type == mcsv1beta1.ClusterSetIP {
			imp.Spec.IPs = m.importIPs()
		}
	default:
		return m.serviceImport(old.Namespace, old.Name)
	}
	return imp
}

// isImported reports whether a slice is an import's.
func isImported(slice *discoveryv1.EndpointSlice) bool {
	return slice.Labels[mcsv1beta1.LabelServiceName] != ""
}

// changedImported returns an imported slice that belongs elsewhere.
func (m maker) changedImported(old *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	slice := old.DeepCopy()
	switch m.IntN(3) {
	case 0:
		slice.Labels[mcsv1beta1.LabelServiceName] = m.importName()
	case 1:
		delete(slice.Labels, mcsv1beta1.LabelServiceName)
	default:
		m.setSource(slice, m.pick(clusterIDs))
	}
	return slice
}

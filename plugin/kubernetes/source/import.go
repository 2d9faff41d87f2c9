package source

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// Import returns the record of a ServiceImport (KEP-1645), or nil if DNS cannot carry its name.
func (s Stripper) Import(o *mcsv1beta1.ServiceImport) *index.Service {
	skip := s.skipped.object(ServiceImports, o.Namespace, o.Name)
	if !skip.named() {
		return nil
	}
	r := &index.Service{
		Namespace: strings.Clone(o.Namespace),
		Name:      strings.Clone(o.Name),
	}
	if o.Spec.Type == mcsv1beta1.Headless {
		r.Kind = index.Headless
		r.Topology = s.topology(o.Annotations, o.Spec.InternalTrafficPolicy, o.Spec.TrafficDistribution, skip)
	} else {
		r.IPs = ips(o.Spec.IPs, skip)
	}
	for i := range o.Spec.Ports {
		if p := &o.Spec.Ports[i]; validPort(p, skip) {
			r.Ports = append(r.Ports, port(p.Name, p.Protocol, p.Port, skip))
		}
	}
	return r
}

// validPort reports whether SRV records can have a port: the API server does not check the ports of custom resources.
func validPort(p *mcsv1beta1.ServicePort, skip skippedObject) bool {
	switch {
	case p.Port < 1 || p.Port > 65535:
		skip.part("port", fmt.Sprintf("%d is not a number from 1 to 65535", p.Port))
	case p.Name != "" && !isLabel(strings.ToLower(p.Name)):
		skip.part("port", fmt.Sprintf("%q is not a DNS label", p.Name))
	case p.Protocol != "" && (len(p.Protocol) > maxPortLabel || !isLabel(strings.ToLower(string(p.Protocol)))):
		skip.part("port", fmt.Sprintf("%q is not a protocol", p.Protocol))
	default:
		return true
	}
	return false
}

// importOf returns the name of the ServiceImport that an EndpointSlice belongs to and the cluster that its endpoints are
// in, zero values if its labels have none.
func (s Stripper) importOf(o *discoveryv1.EndpointSlice, skip skippedObject) (name string, cluster index.Symbol) {
	name = o.Labels[mcsv1beta1.LabelServiceName]
	if !s.Imports || name == "" {
		return "", index.Symbol{}
	}
	if !isLabel(name) {
		skip.part("service import", fmt.Sprintf("%q is not a DNS label", name))
		return "", index.Symbol{}
	}
	return name, clusterID(o.Labels[mcsv1beta1.LabelSourceCluster], "source cluster", skip)
}

// clusterID returns the ID of a cluster in lower case, zero if it cannot be part of a name.
func clusterID(text, what string, skip skippedObject) index.Symbol {
	if text == "" {
		return index.Symbol{}
	}
	if !IsClusterID(text) {
		skip.part(what, fmt.Sprintf("%q is not a DNS name", text))
		return index.Symbol{}
	}
	return index.NewSymbol(strings.ToLower(text))
}

// IsClusterID reports whether text can be the ID of a cluster: one or more DNS labels, in either case (KEP-1645,
// "ClusterID"; KEP-2149).
func IsClusterID(text string) bool {
	if strings.ContainsFunc(text, func(r rune) bool { return r > unicode.MaxASCII }) {
		return false // the lower case of some letters, such as the Kelvin sign, is ASCII
	}
	text = strings.ToLower(text)
	return len(text) <= validation.DNS1123SubdomainMaxLength && !slices.ContainsFunc(strings.Split(text, "."), isNoLabel)
}

func isNoLabel(s string) bool { return !isLabel(s) }

// ClusterPropertyName is the name of the ClusterProperty whose value is the ID of the cluster (KEP-2149).
const ClusterPropertyName = "cluster.clusterset.k8s.io"

// ClusterProperty has the fields that all versions of the kind have (KEP-2149, group about.k8s.io).
type ClusterProperty struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              ClusterPropertySpec `json:"spec"`
}

// ClusterPropertySpec is the spec of a ClusterProperty.
type ClusterPropertySpec struct {
	Value string `json:"value"`
}

// DeepCopyObject implements runtime.Object.
func (o *ClusterProperty) DeepCopyObject() runtime.Object {
	c := *o
	c.ObjectMeta = *o.ObjectMeta.DeepCopy()
	return &c
}

// ClusterPropertyList is a list of ClusterProperties.
type ClusterPropertyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterProperty `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *ClusterPropertyList) DeepCopyObject() runtime.Object {
	c := *l
	c.ListMeta = *l.ListMeta.DeepCopy()
	c.Items = make([]ClusterProperty, 0, len(l.Items))
	for i := range l.Items {
		c.Items = append(c.Items, *l.Items[i].DeepCopyObject().(*ClusterProperty))
	}
	return &c
}

// ClusterIDOf returns the ID of the cluster from its ClusterProperty, in lower case, zero for another property and for a
// value that cannot be part of a name.
func (s Stripper) ClusterIDOf(o *ClusterProperty) index.Symbol {
	if o.Name != ClusterPropertyName {
		return index.Symbol{}
	}
	return clusterID(o.Spec.Value, "cluster ID", s.skipped.object(ClusterProperties, "", o.Name))
}

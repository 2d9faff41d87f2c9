package randomcluster

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Stored returns objects as an API server stores them: with default values, and without addresses in slices of names.
func Stored(objs []runtime.Object) []runtime.Object {
	for i, obj := range objs {
		s, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		s = s.DeepCopy()
		for j := range s.Ports {
			if s.Ports[j].Protocol == nil {
				tcp := corev1.ProtocolTCP
				s.Ports[j].Protocol = &tcp
			}
			if s.Ports[j].Name == nil {
				s.Ports[j].Name = new(string)
			}
		}
		for j := range s.Endpoints {
			for k, a := range s.Endpoints[j].Addresses {
				if _, err := netip.ParseAddr(a); err == nil && s.AddressType == discoveryv1.AddressTypeFQDN {
					s.Endpoints[j].Addresses[k] = "www.example.org"
				}
			}
		}
		objs[i] = s
	}
	return objs
}

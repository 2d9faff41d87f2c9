package apiserver

import (
	"context"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// NotReady implements source.Inspector.
func (s *Source) NotReady(ctx context.Context, namespace, service string) (addresses []string, err error) {
	var list discoveryv1.EndpointSliceList
	err = s.clients.discovery.Get().Namespace(namespace).Resource(source.EndpointSlices).
		Param("labelSelector", discoveryv1.LabelServiceName+"="+service).Do(ctx).Into(&list)
	for _, slice := range list.Items {
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				addresses = append(addresses, e.Addresses...)
			}
		}
	}
	return addresses, err
}

package apiserver

import (
	"context"
	"fmt"
	"strconv"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// maxInspected is the maximum number of EndpointSlices that are read for an explanation, with about 100 endpoints each.
const maxInspected = 20

// NotReady implements source.Inspector. The objects are requested as JSON, which is decoded whole.
func (s *Source) NotReady(ctx context.Context, namespace, name string, imported bool) (found source.NotReady, err error) {
	selector := discoveryv1.LabelServiceName + "=" + name
	if imported {
		selector = mcsv1beta1.LabelServiceName + "=" + name
	}
	if s.options.Labels != nil && !s.options.Labels.Empty() {
		selector += "," + s.options.Labels.String()
	}
	var list discoveryv1.EndpointSliceList
	err = s.clients.discovery.Get().Namespace(namespace).Resource(source.EndpointSlices).
		Param("labelSelector", selector).Param("limit", strconv.Itoa(maxInspected)).
		SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Into(&list)
	if err != nil {
		return found, fmt.Errorf("list endpointslices: %w", err)
	}
	found.Partial = list.Continue != ""
	for i := range list.Items {
		terminating, others := s.stripper.NotReady(&list.Items[i])
		if others != nil {
			found.Terminating, found.Others = append(found.Terminating, terminating), append(found.Others, others)
		}
	}
	return found, nil
}

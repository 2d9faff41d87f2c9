package differential

import (
	"slices"
	"strings"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/labels"
	mcsv1beta1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// importTransfers returns the intended differences in transfers of a zone of a clusterset.
func importTransfers() []allowedInTransfer {
	return []allowedInTransfer{
		{
			name:   "AXFR, labels of ServiceImports",
			reason: "see import: labels",
			explains: func(d *transferred) bool {
				imp, _ := d.serviceImport()
				return imp != nil && d.selected(imp, d.nsLabels) != d.selected(imp, d.variant.labels) && d.fromStock == d.selected(imp, d.nsLabels)
			},
		},
		{
			name:   "AXFR, noendpoints with imported endpoints",
			reason: "see import: noendpoints",
			explains: func(d *transferred) bool {
				imp, _ := d.serviceImport()
				return imp != nil && d.noEndpoints && d.fromStock && len(imp.Spec.IPs) == 0
			},
		},
		{
			name:   "AXFR, names of imported endpoints",
			reason: "a name has the ID of its cluster in it, as in the answer to a query. CoreDNS transfers names without, and SRV records that point at them",
			explains: func(d *transferred) bool {
				imp, below := d.serviceImport()
				if imp == nil {
					return false
				}
				if srv, ok := d.rr.(*dns.SRV); ok {
					return srv.Target != fullName(d.zone, imp.Name, imp.Namespace, "svc")
				}
				return len(below) > 0
			},
		},
		{
			name:   "AXFR, endpoints of an import that has no address yet",
			reason: "a name has the addresses of its ServiceImport, as in the answer to a query. CoreDNS transfers those of endpoints while there is none",
			explains: func(d *transferred) bool {
				imp, below := d.serviceImport()
				t := d.rr.Header().Rrtype
				return imp != nil && d.fromStock && imp.Spec.Type == mcsv1beta1.ClusterSetIP && len(imp.Spec.IPs) == 0 &&
					len(below) == 0 && (t == dns.TypeA || t == dns.TypeAAAA)
			},
		},
		{
			name:   "AXFR, port of an import without a protocol",
			reason: "see import: port without a protocol. CoreDNS transfers a label that is an underscore",
			explains: func(d *transferred) bool {
				imp, below := d.serviceImport()
				return imp != nil && d.rr.Header().Rrtype == dns.TypeSRV && len(below) == 2 &&
					slices.ContainsFunc(imp.Spec.Ports, func(p mcsv1beta1.ServicePort) bool {
						return p.Protocol == "" && below[1] == "_"+strings.ToLower(p.Name) && below[0] == map[bool]string{true: "_", false: "_tcp"}[d.fromStock]
					})
			},
		},
	}
}

// selected reports whether a ServiceImport matches a selector; all match none.
func (d *transferred) selected(imp *mcsv1beta1.ServiceImport, selector string) bool {
	return selector == "" || d.selector(selector).Matches(labels.Set(imp.Labels))
}

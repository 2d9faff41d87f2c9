package kubernetes

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// TestStored_ManyEndpoints: in a Service with many endpoints, a change of one ends the answers about it and about the Service, and not those
// about the others.
func TestStored_ManyEndpoints(t *testing.T) {
	const (
		all    = "many.shop.svc.cluster.local A"
		seven  = "pod-7.many.shop.svc.cluster.local A"
		eight  = "pod-8.many.shop.svc.cluster.local A"
		srv    = "pod-8.many.shop.svc.cluster.local SRV"
		dashed = "10-2-0-9.many.shop.svc.cluster.local A"
		none   = "pod-700.many.shop.svc.cluster.local A"
	)
	// changed replaces an endpoint of the first of 7 EndpointSlices with 100 endpoints, of which every third has no name.
	changed := func(at int, change func(*index.Endpoint)) func(*index.Index) {
		return func(ix *index.Index) {
			s := *ix.SliceRecord("shop", "many-0")
			s.Endpoints = slices.Collect(s.All())
			change(&s.Endpoints[at])
			ix.PutSlice(&s)
		}
	}
	move := func(e *index.Endpoint) { e.Addr = netip.MustParseAddr("10.9.0.1") }
	for _, c := range []struct {
		name, ask string
		change    func(*index.Index)
		outlives  bool
	}{
		{"the Service, an endpoint moves", all, changed(7, move), false},
		{"an endpoint that moves", seven, changed(7, move), false},
		{"another endpoint moves", eight, changed(7, move), true},
		{"SRV, another endpoint moves", srv, changed(7, move), true},
		{"SRV, the endpoint moves", srv, changed(8, move), false},
		{"address as the name, another endpoint moves", dashed, changed(7, move), true},
		{"address as the name, the endpoint moves", dashed, changed(9, move), false},
		{"address as the name, the endpoint gets a name", dashed, changed(9, func(e *index.Endpoint) { e.Name = "pod-9" }), false},
		{"NXDOMAIN, another endpoint moves", none, changed(7, move), true},
		{"NXDOMAIN, an endpoint gets the name", none, changed(7, func(e *index.Endpoint) { e.Name = "pod-700" }), false},
		{"an EndpointSlice is deleted", eight, func(ix *index.Index) { ix.DeleteSlice("shop", "many-0") }, false},
		{"another EndpointSlice is deleted", seven, func(ix *index.Index) { ix.DeleteSlice("shop", "many-3") }, true},
		{"the ports change", eight, func(ix *index.Index) {
			s := *ix.SliceRecord("shop", "many-0")
			s.Ports = nil
			ix.PutSlice(&s)
		}, false},
		{"the EndpointSlice passes to another Service", eight, func(ix *index.Index) {
			s := *ix.SliceRecord("shop", "many-0")
			s.Service = "web"
			ix.PutSlice(&s)
		}, false},
		{"the Service is deleted", eight, func(ix *index.Index) { ix.DeleteService("shop", "many") }, false},
		{"the Service has ClusterIPs", eight, func(ix *index.Index) {
			ix.PutService(&index.Service{Namespace: "shop", Name: "many", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.77")}})
		}, false},
		{"the namespace is deleted", eight, func(ix *index.Index) { ix.DeleteNamespace("shop") }, false},
		{"NXDOMAIN, the Service is deleted", none, func(ix *index.Index) { ix.DeleteService("shop", "many") }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			many := service("shop", "many", headless, tcp("sql", 5432))
			objects := append(storedObjects(), many)
			for i := range 7 {
				var endpoints []discoveryv1.Endpoint
				for j := range 100 {
					at := 100*i + j
					e := endpoint(fmt.Sprintf("10.2.%d.%d", at>>8, at&255))
					if at%3 != 0 {
						hostname(fmt.Sprint("pod-", at))(&e)
					}
					endpoints = append(endpoints, e)
				}
				objects = append(objects, slice(many, fmt.Sprint(i), endpoints...))
			}
			s, _ := newStoring(t, "kubernetes cluster.local", objects...)
			s.checkUntil(t, questionFor(t, c.ask), c.change, c.outlives)
		})
	}
}

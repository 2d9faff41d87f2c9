package kubernetes

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// BenchmarkEndpointName answers queries for single endpoints of a headless Service with 10,000, whose answers are not stored.
func BenchmarkEndpointName(b *testing.B) {
	const perSlice, slices = 100, 100
	k := smallCluster(b, "kubernetes cluster.local")
	indexOf(k).PutService(&index.Service{Namespace: "shop", Name: "many", Kind: index.Headless})
	addr := netip.MustParseAddr("10.128.0.1")
	for n := range slices {
		s := &index.Slice{Namespace: "shop", Name: fmt.Sprintf("many-%d", n), Service: "many", Ports: []index.Port{{Number: 80}}}
		for i := range perSlice {
			s.Endpoints = append(s.Endpoints, index.Endpoint{Addr: addr, Name: fmt.Sprintf("many-%d", n*perSlice+i)})
			addr = addr.Next()
		}
		indexOf(k).PutSlice(s)
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n = (n + 7919) % (perSlice * slices)
		r := new(dns.Msg).SetQuestion(fmt.Sprintf("many-%d.many.shop.svc.cluster.local.", n), dns.TypeA)
		if code, err := k.ServeDNS(context.Background(), &test.ResponseWriter{}, r); code != dns.RcodeSuccess || err != nil {
			b.Fatal(code, err)
		}
	}
}

package kubernetes

import (
	"context"
	"testing"

	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

// What a query may allocate, as measured: the records, the reply and the names that are cut from it.
func TestAllocations(t *testing.T) {
	k := smallCluster(t, "kubernetes cluster.local")
	for _, c := range []struct {
		name, owner string
		limit       float64
	}{
		{"ClusterIP A", "web.shop.svc.cluster.local.", 14},
		{"NXDOMAIN", "none.shop.svc.cluster.local.", 13},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := test.Case{Qname: c.owner, Qtype: dns.TypeA}.Msg()
			w := &test.ResponseWriter{}
			ctx := context.Background()
			if n := testing.AllocsPerRun(1000, func() {
				if _, err := k.ServeDNS(ctx, w, r); err != nil {
					t.Error(err)
				}
			}); n > c.limit {
				t.Errorf("%v allocations, the limit is %v", n, c.limit)
			}
		})
	}
}

package kubernetes

import (
	"context"
	"testing"

	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/fastpath/store"
)

// What a query may allocate, as measured: the records, the reply and the names that are cut from it. That
// answers can be kept costs nothing as long as nobody keeps them; keeping costs the packed form.
func TestAllocations(t *testing.T) {
	for _, c := range []struct {
		name, owner string
		kept        bool
		limit       float64
	}{
		{"ClusterIP A", "web.shop.svc.cluster.local.", false, 14},
		{"NXDOMAIN", "none.shop.svc.cluster.local.", false, 13},
		{"ClusterIP A, kept", "web.shop.svc.cluster.local.", true, 22},
		{"NXDOMAIN, kept", "none.shop.svc.cluster.local.", true, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := smallCluster(t, "kubernetes cluster.local")
			k.space = store.New(1 << 20).NewSpace()
			k.space.ByGeneration.Store(c.kept)
			r := test.Case{Qname: c.owner, Qtype: dns.TypeA}.Msg()
			w := &test.ResponseWriter{}
			ctx := context.Background()
			n := testing.AllocsPerRun(1000, func() {
				if _, err := k.ServeDNS(ctx, w, r); err != nil {
					t.Error(err)
				}
			})
			if n > c.limit {
				t.Errorf("%v allocations, the limit is %v", n, c.limit)
			}
		})
	}
}

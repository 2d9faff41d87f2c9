package kubernetes

import (
	"context"
	"testing"

	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/plugin/internal/store"
)

// Allocations of a query, as measured: the records, the reply and the names cut from it, and those of each candidate
// of a search list. Without a store, recording the dependencies of an answer costs nothing; storing costs the packed
// form.
func TestAllocations(t *testing.T) {
	for _, c := range []struct {
		name, owner string
		list        []string
		stored      bool
		limit       float64
	}{
		{"ClusterIP A", "web.shop.svc.cluster.local.", nil, false, 14},
		{"NXDOMAIN", "none.shop.svc.cluster.local.", nil, false, 13},
		{"ClusterIP A, stored", "web.shop.svc.cluster.local.", nil, true, 22},
		{"NXDOMAIN, stored", "none.shop.svc.cluster.local.", nil, true, 20},
		{"search list, the first", "web.shop.svc.cluster.local.", listShop, false, 46},
		{"search list, none", "www.example.org.shop.svc.cluster.local.", listShop, false, 58},
		{"search list, none, stored", "www.example.org.shop.svc.cluster.local.", listShop, true, 62},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := smallCluster(t, "kubernetes cluster.local")
			k.space = store.NewStore(1 << 20).NewKeyspace()
			k.space.ByGeneration.Store(c.stored)
			r := test.Case{Qname: c.owner, Qtype: dns.TypeA}.Msg()
			if c.list != nil {
				r = withList(t, r, c.list...)
			}
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

// TestAllocations_Topology has names whose answers depend on the caller. Explanations add nothing to ordinary queries. The limits are those
// under the race detector, which adds an allocation to some.
func TestAllocations_Topology(t *testing.T) {
	k := placed(t, "kubernetes cluster.local {\ntopology\n}")
	for _, c := range []struct {
		name, owner string
		list        []string
		limit       float64
	}{
		{"filtered", "auto.shop.svc.cluster.local.", nil, 22},
		{"alias", "alias.shop.svc.cluster.local.", nil, 40},
		{"search list", "host.shop.svc.cluster.local.", []string{"shop.svc.cluster.local.", "svc.cluster.local."}, 43},
		{"another zone", "example.org.", nil, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := test.Case{Qname: c.owner, Qtype: dns.TypeA}.Msg()
			if c.list != nil {
				r = withList(t, r, c.list...)
			}
			w := &test.ResponseWriter{RemoteIP: "10.240.1.9"}
			ctx := context.Background()
			n := testing.AllocsPerRun(1000, func() {
				_, _ = k.ServeDNS(ctx, w, r) // an error without a next plugin, for another zone
			})
			if n > c.limit {
				t.Errorf("%v allocations, the limit is %v", n, c.limit)
			}
		})
	}
}

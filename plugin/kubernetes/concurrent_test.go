package kubernetes

import (
	"slices"
	"strings"
	"sync"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// An answer is from one point in time: from before or after the replacement of a slice, never from both.
func TestServeDNS_WhileTheClusterChanges(t *testing.T) {
	db := service("shop", "db", headless, tcp("sql", 5432))
	versions := []*discoveryv1.EndpointSlice{
		slice(db, "a", endpoint("10.1.0.1"), endpoint("10.1.0.2")),
		slice(db, "a", endpoint("10.1.0.3"), endpoint("10.1.0.4"), endpoint("10.1.0.1")),
	}
	k := answering(t, allZones, namespace("shop"), db, versions[0])
	strip := source.NewStripper(k.source)
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	writers.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				put(k, strip, versions[i%2])
			}
		}
	})
	for range 2 {
		readers.Go(func() {
			for range 300 {
				var got []string
				for _, r := range ask(t, k, "db.shop.svc.cluster.local A").Answer {
					got = append(got, text(r)[strings.LastIndex(text(r), " ")+1:])
				}
				if !slices.Equal(got, []string{"10.1.0.1", "10.1.0.2"}) && !slices.Equal(got, []string{"10.1.0.3", "10.1.0.4", "10.1.0.1"}) {
					t.Errorf("A: %v", got)
				}
				srv := ask(t, k, "db.shop.svc.cluster.local SRV")
				if len(srv.Answer) != len(srv.Extra) || len(srv.Answer) < 2 {
					t.Errorf("SRV: %v", srv)
				}
				if ptr := ask(t, k, "1.0.1.10.in-addr.arpa PTR"); len(ptr.Answer) != 1 {
					t.Errorf("PTR of an address that is always there: %v", ptr)
				}
				ask(t, k, "cluster.local SOA")
			}
		})
	}
	readers.Wait()
	close(stop)
	writers.Wait()
}

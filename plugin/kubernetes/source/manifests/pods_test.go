package manifests

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
	"github.com/nearside-dns/nearside/plugin/kubernetes/source"
)

// podsOfNodes are manifests of pods of two nodes, and of a Service.
const podsOfNodes = `apiVersion: v1
kind: Pod
metadata: {name: here, namespace: shop, labels: {app: web}}
spec: {nodeName: node-1, hostNetwork: true, dnsPolicy: Default, dnsConfig: {searches: [a.example]}}
status: {podIP: 10.1.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: there, namespace: shop}
spec: {nodeName: node-2}
status: {podIP: 10.1.0.2}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: None}
`

func TestPodsOfNode(t *testing.T) {
	names := func(ix *index.Index) (all []string) {
		for _, ip := range []string{"10.1.0.1", "10.1.0.2"} {
			for _, p := range ix.PodsByIP(netip.MustParseAddr(ip)) {
				all = append(all, p.Name)
			}
		}
		return all
	}
	for name, tc := range map[string]struct {
		opts source.Options
		want []string
	}{
		"of every node":   {source.Options{Pods: true, PodsOnly: true, SearchPaths: true}, []string{"here", "there"}},
		"of one node":     {source.Options{Pods: true, PodsOnly: true, SearchPaths: true, Node: "node-1"}, []string{"here"}},
		"of no node":      {source.Options{Pods: true, PodsOnly: true, SearchPaths: true, Node: "node-3"}, nil},
		"pods unread":     {source.Options{Node: "node-1"}, nil},
		"beside the rest": {source.Options{Pods: true, Node: "node-2"}, []string{"there"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, ix, _ := load(t, tc.opts, map[string]string{"a.yaml": podsOfNodes})
			if got := names(ix); !slices.Equal(got, tc.want) {
				t.Errorf("pods %q, want %q", got, tc.want)
			}
			if read := ix.Service("shop", "web") != nil; read == tc.opts.PodsOnly {
				t.Errorf("services read: %t", read)
			}
			if read := ix.HasNamespace("shop"); read == tc.opts.PodsOnly {
				t.Errorf("namespaces read: %t", read)
			}
			if all := s.Status(); tc.opts.PodsOnly && (len(all) != 1 || all[0].Resource != source.Pods || !all[0].Synced) {
				t.Errorf("status %+v", all)
			}
		})
	}
	t.Run("fields that search lists depend on", func(t *testing.T) {
		_, ix, _ := load(t, source.Options{Pods: true, PodsOnly: true, SearchPaths: true}, map[string]string{"a.yaml": podsOfNodes})
		want := &index.Pod{
			Namespace: "shop", Name: "here", IPs: []netip.Addr{netip.MustParseAddr("10.1.0.1")},
			HostNetwork: true, DNS: &index.PodDNS{Policy: "Default", Searches: []string{"a.example"}}, Ndots: 1,
		}
		if got := ix.PodRecord("shop", "here"); !got.Equal(want) {
			t.Errorf("%+v", got)
		}
	})
}

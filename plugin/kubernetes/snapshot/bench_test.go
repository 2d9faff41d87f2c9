package snapshot

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/plugin/kubernetes/index"
)

// BenchmarkLarge writes, reads and restores 1,000,000 endpoints of 20,000 Services with zones, nodes and names of nodes as in a
// cluster with 15,000 nodes.
func BenchmarkLarge(b *testing.B) {
	const services, endpoints, nodes = 20_000, 50, 15_000
	ix := index.New()
	var all []*index.Node
	for i := range nodes {
		all = append(all, &index.Node{Name: index.NewSymbol(fmt.Sprintf("ip-10-0-%d-%d.compute.internal", i/256, i%256))})
	}
	ix.ReplaceNodes(all)
	pod := netip.MustParseAddr("10.128.0.1")
	for i := range services {
		namespace, name := fmt.Sprintf("ns-%03d", i%200), fmt.Sprintf("svc-%05d", i)
		ix.PutNamespace(namespace)
		ix.PutService(&index.Service{Namespace: namespace, Name: name, IPs: []netip.Addr{pod}})
		s := &index.Slice{Namespace: namespace, Name: name + "-abcde", Service: name}
		for e := range endpoints {
			s.Endpoints = append(s.Endpoints, index.Endpoint{Addr: pod, Zone: index.NewSymbol("zone-a"), Node: all[(i*endpoints+e)%nodes].Name})
			pod = pod.Next()
		}
		ix.PutSlice(s)
	}
	var data bytes.Buffer
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			data.Reset()
			if err := Write(&data, Header{Time: time.Now()}, ix.Contents()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(data.Len())/1e6, "MB")
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := Read(bytes.NewReader(data.Bytes()), int64(data.Len())); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("restore", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			_, c, err := Read(bytes.NewReader(data.Bytes()), int64(data.Len()))
			if err != nil {
				b.Fatal(err)
			}
			restored := index.New()
			b.StartTimer()
			restored.Restore(c)
		}
	})
}

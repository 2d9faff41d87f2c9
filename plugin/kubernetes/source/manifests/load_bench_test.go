package manifests

import (
	"fmt"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// BenchmarkNew reads 10,000 Services with an EndpointSlice of ten endpoints each, as documents and as a List.
// peak-MB is the largest heap during the benchmark.
func BenchmarkNew(b *testing.B) {
	const services = 10_000
	documents := make([]string, services)
	for i := range documents {
		documents[i] = largeService(i)
	}
	for name, files := range map[string]map[string]string{
		"100 files of documents": inFiles(documents, 100),
		"one List":               {"a.yaml": yamlList(documents)},
	} {
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			for name, text := range files {
				kit.Write(b, dir+"/"+name, text)
			}
			peak := watchHeap(b)
			for b.Loop() {
				if _, err := New(dir, everything); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(peak())/1e6, "peak-MB")
		})
	}
}

// largeService returns the documents of a Service and its EndpointSlice.
func largeService(i int) string {
	text := fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata:\n  name: s%[1]d\n  namespace: shop\n  labels:\n    app: s%[1]d\nspec:\n  clusterIP: None\n  ports:\n  - name: http\n    port: 80\n---\n"+
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: s%[1]d-1\n  namespace: shop\n  labels:\n    kubernetes.io/service-name: s%[1]d\naddressType: IPv4\nports:\n- name: http\n  port: 8080\nendpoints:\n", i)
	for j := range 10 {
		text += fmt.Sprintf("- addresses:\n  - 10.%d.%d.%d\n  conditions:\n    ready: true\n  nodeName: node-%d\n  zone: zone-a\n", i/256, i%256, j, j)
	}
	return text
}

func inFiles(documents []string, n int) map[string]string {
	files := map[string]string{}
	for i := range n {
		each := len(documents) / n
		files[fmt.Sprintf("%d.yaml", i)] = strings.Join(documents[i*each:(i+1)*each], "---\n")
	}
	return files
}

func yamlList(documents []string) string {
	var text strings.Builder
	text.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	for _, d := range documents {
		for _, object := range strings.Split(d, "---\n") {
			text.WriteString("- " + strings.ReplaceAll(strings.TrimSpace(object), "\n", "\n  ") + "\n")
		}
	}
	return text.String()
}

// watchHeap returns a function that returns the largest heap since its call, in bytes.
func watchHeap(b *testing.B) (peak func() uint64) {
	stop, result := make(chan struct{}), make(chan uint64)
	go func() {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		var highest uint64
		for {
			metrics.Read(sample)
			highest = max(highest, sample[0].Value.Uint64())
			select {
			case <-stop:
				result <- highest
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return func() uint64 { close(stop); return <-result }
}

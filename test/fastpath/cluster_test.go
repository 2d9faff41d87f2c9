//go:build linux

package fastpath

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

const demo = "../../deploy/demo"

// newCluster returns a folder with the manifests of the demo cluster, and of headless Services whose answers are too
// long for some clients.
func newCluster(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	files, err := filepath.Glob(filepath.Join(demo, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests in %s: %v", demo, err)
	}
	for _, path := range files {
		text := kit.Read(t, path)
		manifest(t, folder, filepath.Base(path), text)
	}
	// 12 addresses need compression for a client without EDNS, 60 are too many for it, 120 for nearly all.
	for _, n := range []int{12, 60, 120} {
		manifest(t, folder, fmt.Sprintf("many%d.yaml", n), headless(fmt.Sprintf("many%d", n), n))
	}
	return folder
}

// manifest writes a file into a folder of manifests.
func manifest(t *testing.T, folder, name, text string) {
	t.Helper()
	kit.Must(t, writeManifest(folder, name, text))
}

// writeManifest writes a file in one step, so that no reader sees a part of it.
func writeManifest(folder, name, text string) error {
	unread := filepath.Join(folder, name+".new") // a suffix that manifests do not have
	if err := os.WriteFile(unread, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(unread, filepath.Join(folder, name))
}

// clusterIP returns a Service with an address of its own.
func clusterIP(name, address string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop}
spec:
  clusterIP: %s
  clusterIPs: ["%[2]s"]
  ports: [{name: http, port: 80, protocol: TCP}]
`, name, address)
}

// balanced returns a Service with a load balancer.
func balanced(name, address string, external ...string) string {
	text := clusterIP(name, address) + "  type: LoadBalancer\nstatus:\n  loadBalancer:\n    ingress:\n"
	for _, a := range external {
		text += fmt.Sprintf("    - ip: %q\n", a)
	}
	return text
}

// external returns a Service of type ExternalName.
func external(name, target string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop}
spec: {type: ExternalName, externalName: %s}
`, name, target)
}

// headless returns a Service with count endpoints, the even ones with a hostname.
func headless(name string, endpoints int) string {
	var addresses []string
	for i := range endpoints {
		addresses = append(addresses, fmt.Sprintf("10.245.%d.%d", i/200, i%200+1))
	}
	return headlessAt(name, addresses...)
}

// headlessAt returns a headless Service with endpoints at these addresses, the even ones with a hostname.
func headlessAt(name string, addresses ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop}
spec:
  clusterIP: None
  ports: [{name: http, port: 80, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %[1]s-1
  namespace: shop
  labels: {kubernetes.io/service-name: %[1]s}
addressType: IPv4
ports: [{name: http, port: 80, protocol: TCP}]
endpoints:
`, name)
	for i, a := range addresses {
		fmt.Fprintf(&b, "- addresses: [%s]\n  conditions: {ready: true}\n", a)
		if i%2 == 0 {
			fmt.Fprintf(&b, "  hostname: ep-%d\n", i)
		}
	}
	if len(addresses) == 0 {
		b.WriteString("  []\n")
	}
	return b.String()
}

// clusterBlock is the server block of clusterdns in most tests, with the folder of its manifests.
func clusterBlock(folder string, more ...string) string {
	return fmt.Sprintf(`.:PORT {
    bind 127.0.0.1 ::1
    errors
    prometheus METRICS
    FASTPATH
    %s
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        manifests %s
        pods verified
        zonal
        ttl 30
    }
}
`, strings.Join(more, "\n    "), folder)
}

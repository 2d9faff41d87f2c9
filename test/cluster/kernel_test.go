//go:build linux

package cluster

import (
	"bufio"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
)

// component is the overlay kube-proxy with a component, in a folder of the test.
func component(name string) func(*testing.T, *cluster) []string {
	return func(t *testing.T, c *cluster) []string {
		deploy, err := filepath.Abs(filepath.Join(root, "deploy/overlays"))
		kit.Must(t, err)
		folder := filepath.Join(c.folder, name)
		relative, err := filepath.Rel(folder, deploy) // as kustomize requires
		kit.Must(t, err)
		kit.Must(t, os.MkdirAll(folder, 0o750))
		text := fmt.Sprintf("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [%s/kube-proxy]\ncomponents: [%s/components/%s]\n",
			relative, relative, name)
		kit.Write(t, filepath.Join(folder, "kustomization.yaml"), text)
		return []string{"-k", folder}
	}
}

// testKernel queries from a pod until the kernel answers. nodecache has the capability BPF, and is confined otherwise.
func (c *cluster) testKernel(t *testing.T) {
	nodecache := programsConfined[slices.IndexFunc(programsConfined, func(p confined) bool { return p.program == "nodecache" })]
	nodecache.capabilities = append(slices.Clone(nodecache.capabilities), unix.CAP_BPF)
	c.verifyConfined(t, nodecache)
	for _, name := range []string{"web.shop.svc.cluster.local", "www.example.test"} {
		before := c.metric(t, "nearside_kernel_answered_total")
		c.wait(t, name+" in the kernel", startTimeout, func() error {
			text, err := c.pod(t, "client").request("GET", "/ask", url.Values{"name": {name}})
			if err == nil && !strings.HasPrefix(text, "NOERROR") {
				err = fmt.Errorf("answer %q", text)
			}
			if err == nil && c.metric(t, "nearside_kernel_answered_total") == before {
				err = fmt.Errorf("the kernel has not answered")
			}
			return err
		})
	}
}

// metric returns the sum of the samples of a metric of nodecache.
func (c *cluster) metric(t *testing.T, metric string) (sum float64) {
	t.Helper()
	return c.metricAt(t, net.JoinHostPort(c.Node.IPv4.String(), "9253"), metric)
}

// metricAt returns the sum of the samples of a metric at an address.
func (c *cluster) metricAt(t *testing.T, address, metric string) (sum float64) {
	t.Helper()
	reply, err := c.Node.Client().Get("http://" + address + "/metrics")
	kit.Must(t, err)
	lines := bufio.NewScanner(reply.Body)
	for lines.Scan() {
		space := strings.LastIndexByte(lines.Text(), ' ')
		if name, _, _ := strings.Cut(lines.Text()[:max(space, 0)], "{"); name != metric {
			continue
		}
		n, err := strconv.ParseFloat(lines.Text()[space+1:], 64)
		kit.Must(t, err)
		sum += n
	}
	kit.Must(t, lines.Err())
	kit.Must(t, reply.Body.Close())
	return sum
}

//go:build linux

package cluster

import (
	"testing"

	_ "embed"
)

// coreDNSImage is that of testdata/coredns.yaml.
const coreDNSImage = "nearside.test/coredns:test"

//go:embed testdata/coredns.yaml
var coreDNS string

// clusterDNSLoads are sent while cluster DNS is replaced, without a cache on the node. More is lost where CoreDNS ends,
// as kube-proxy sends datagrams of old flows to it (see loads) and its readiness is probed only every ten seconds.
var clusterDNSLoads = []load{
	{"cluster name, UDP", "name=web.shop.svc.cluster.local", 0.02},
	{"cluster name, TCP", "name=web.shop.svc.cluster.local&network=tcp", 0},
	{"external names, UDP", "name=n#." + anyName, 0.02},
	{"external names, TCP", "name=t#." + anyName + "&network=tcp", 0},
}

// testMigration adds nodecache in front of CoreDNS, and removes it. Then it adds clusterdns beside CoreDNS, removes CoreDNS,
// and returns to CoreDNS, while pods query the Service of both.
func (c *cluster) testMigration(t *testing.T) {
	t.Cleanup(func() {
		if t.Failed() {
			c.showPods(t)
		}
	})
	before := c.state(t)
	c.importImage(t, writeImage(t, c.folder, coreDNSImage, c.binaries["coredns"]))
	c.apply(t, "kube-dns.yaml", kubeDNS)
	c.apply(t, "coredns.yaml", coreDNS)
	c.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=3m")
	c.waitAnswers(t)
	t.Run("nodecache on labelled nodes, and back", func(t *testing.T) { c.testLabelledNodes(t) })
	t.Run("back from 169.254.20.10", func(t *testing.T) { c.testWayBackFromLocalAddress(t) })
	c.kubectl(t, "label", "node", c.name, nodecacheLabel+"-")
	overlay := overlay("beside-coredns")(t, c)
	scale := func(replicas string) {
		old := c.podsOf(t, coreDNSPods)
		c.kubectl(t, "-n", "kube-system", "scale", "deployment/coredns", "--replicas="+replicas)
		if replicas == "0" {
			c.waitGone(t, coreDNSPods, old)
		}
		c.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=3m")
	}
	t.Run("to clusterdns", func(t *testing.T) {
		c.during(t, clusterDNSLoads, func() {
			c.kubectl(t, append([]string{"apply"}, overlay...)...)
			c.kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/clusterdns", "--timeout=3m")
			scale("0")
		})
	})
	t.Run("and back", func(t *testing.T) {
		c.during(t, clusterDNSLoads, func() {
			scale("2")
			old := c.podsOf(t, clusterdnsPods)
			c.kubectl(t, append([]string{"delete", "--wait", "--timeout=2m"}, overlay...)...)
			c.waitGone(t, clusterdnsPods, old)
		})
	})
	c.kubectl(t, "delete", "--wait", "--timeout=2m", "-f", c.folder+"/coredns.yaml", "-f", c.folder+"/kube-dns.yaml")
	c.waitNothingLeft(t, before)
}

// coreDNSPods selects the pods of CoreDNS, and not those of clusterdns, which the selector of the Service matches as
// well.
const coreDNSPods = "k8s-app=kube-dns,app.kubernetes.io/name!=clusterdns"

//go:build linux

package multicluster

import (
	"testing"
	"time"
)

// TestMulticluster runs two clusters, from before the definition of ServiceImports exists until after one has removed
// it.
func TestMulticluster(t *testing.T) {
	cs := start(t)
	cs.createServices(t)
	cs.west.createNodes(t)
	for _, c := range cs.all() {
		c.main = c.launchMain(t)
	}
	t.Run("definitions missing at the start", func(t *testing.T) { testMissing(t, cs) })
	variety := cs.west.launch(t, account, variants())
	begin := time.Now()
	cs.installDefinitions(t)
	cs.exportServices(t)
	cs.west.install(t, []byte(propertyDefinition), clusterProperties)
	denied := cs.east.launch(t, deniedAccount, setups{byProperty: imports("prefer-local-cluster")})
	if !t.Run("definitions installed later", func(t *testing.T) { testInstalled(t, cs, begin) }) {
		return // without it, the other tests would wait in vain
	}
	t.Run("definitions there", func(t *testing.T) {
		t.Run("denied", func(t *testing.T) { // which mostly waits
			t.Parallel()
			testDenied(t, cs, denied)
		})
		t.Run("names", func(t *testing.T) {
			t.Parallel()
			testNames(t, cs, variety)
		})
	})
	variety.Stop(t)
	t.Run("definitions change", func(t *testing.T) {
		t.Parallel()
		testVersions(t, cs)
	})
	t.Run("outage", func(t *testing.T) {
		t.Parallel()
		testOutage(t, cs)
	})
}

// testNames checks the answers without any failure.
func testNames(t *testing.T, cs *clusterset, variety *server) {
	t.Run("ClusterSetIP", func(t *testing.T) { testClusterSetIP(t, cs) })
	t.Run("headless", func(t *testing.T) { testHeadless(t, cs) })
	t.Run("specification", func(t *testing.T) { testSpecification(t, cs) })
	t.Run("directive", func(t *testing.T) { testDirective(t, cs, variety) })
	t.Run("topology", func(t *testing.T) { testTopology(t, cs, variety) })
	t.Run("nodecache", func(t *testing.T) { testNodecache(t, cs, variety) })
	t.Run("generations", func(t *testing.T) { testGenerations(t, cs, variety) })
}

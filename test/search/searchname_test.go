//go:build linux

package search

import (
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
)

// searchpath is the directive for search names.
const searchpath = `searchpath {
        zone cluster.local
    }`

// searchNamesBlock is the server block of nodecache for search names.
const searchNamesBlock = `ap.k8s.io:53 {
    errors
    bind ` + local + ` ` + local6 + `
    ` + searchpath + `
    prometheus :9253
}
`

// entry returns the only search entry of a pod.
func entry(namespace string) string { return "v1.search." + namespace + ".cluster.local.ap.k8s.io" }

// TestSearchNames has pods with one search entry, so that their resolvers query search names, with the plugin searchpath in
// nodecache or in clusterdns.
func TestSearchNames(t *testing.T) {
	w := newManifests(t)
	all := resolvers(t)
	t.Run("nodecache", func(t *testing.T) {
		n := w.newNode(t)
		server := w.startOurs(t)
		n.startCache(t, server, corefile("", searchNamesBlock))
		k := n.newSearchNamePods(t)
		k.lookUp(t, all, true)
		t.Run("queries for an external name", func(t *testing.T) { testExternal(t, w, server, k, all, 1) })
		t.Run("queries for a missing name", func(t *testing.T) { testMissing(t, w, server, k, all, 1) })
		t.Run("clients side by side", func(t *testing.T) {
			clients := n.clients(t, n.newKinds(t))
			for i := range clients {
				clients[i].list = nil // without autopath, lists have no effect
			}
			testSideBySide(t, n, clients, searchNameSuffixes, "searchpath")
		})
		t.Run("cluster DNS is down", func(t *testing.T) { testClusterDown(t, server, k, all) })
	})
	t.Run("clusterdns", func(t *testing.T) {
		n := w.newNode(t)
		host := kit.File(t, "resolv.conf", "search corp.example\n")
		expansion := strings.Replace(searchpath, "\n    }", "\n        resolv_conf "+host+"\n    }", 1)
		w.startCluster(t, daemon.Program(t, "clusterdns"), expansion, stock, stockTap)
		k := n.newSearchNamePods(t)
		for _, p := range []*pod{k.shop, k.bank} {
			p.server = stock
			p.configure(t, p.search...)
		}
		k.lookUp(t, all, true)
	})
}

// searchNameSuffixes are suffixes of search names and of other names.
var searchNameSuffixes = []string{
	".v1.search.shop.cluster.local.ap.k8s.io.", ".v1.search.bank.cluster.local.ap.k8s.io.",
	".search.shop.cluster.local.ap.k8s.io.", ".search.bank.cluster.local.ap.k8s.io.",
	".v2.search.shop.cluster.local.ap.k8s.io.", ".find.shop.cluster.local.ap.k8s.io.", ".cluster.local.ap.k8s.io.",
	".shop.svc.cluster.local.", ".svc.cluster.local.", ".corp.example.", ".",
}

// newSearchNamePods creates pods with one search entry. They are not in the API.
func (n *node) newSearchNamePods(t *testing.T) kinds {
	t.Helper()
	return kinds{shop: n.newPod(t, "carries-shop", shop, entry(shop)), bank: n.newPod(t, "carries-bank", bank, entry(bank))}
}

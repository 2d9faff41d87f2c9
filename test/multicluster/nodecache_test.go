//go:build linux

package multicluster

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/daemon"
)

// nodeBlock forwards names to cluster DNS, as the Corefile of node-local-dns forwards those of the cluster.
const nodeBlock = `ZONE:NODEPORT {
    bind 127.0.0.1
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    reload
    loop
    forward . CLUSTERDNS {
        force_tcp
    }
}
`

// startNode starts a nodecache with a clusterdns as cluster DNS, and a block for each zone, and waits until it answers.
func startNode(t *testing.T, upstream string, zones []string, args ...string) asking {
	t.Helper()
	port := strconv.Itoa(daemon.FreePort(t)) // also of blocks that nodecache adds
	corefile := "alive.invalid:PORT {\n    whoami\n}\n"
	for _, zone := range zones {
		corefile += strings.NewReplacer("ZONE", zone, "NODEPORT", port, "CLUSTERDNS", upstream).Replace(nodeBlock)
	}
	daemon.Start(t, daemon.Program(t, "nodecache"), corefile, append(args, "-dns.port", port)...)
	return at("127.0.0.1:" + port)
}

// testNodecache queries the caches of two nodes of west: names of the clusterset are forwarded like those of the
// cluster, by a flag or a block, with the node of the caller.
func testNodecache(t *testing.T, cs *clusterset, s *server) {
	w := cs.west
	hello, pods := w.importIPs(t, "hello"), cs.pods()
	v4, v6 := addresses(pods)
	all := []wish{
		answer("hello"+inSet, "A", hello[0]), answer("hello"+inSet, "AAAA", hello[1]), answer("hello"+inSet, "SRV", "42 hello"+inSet),
		answer("db"+inSet, "A", v4...), answer("db"+inSet, "AAAA", v6...), answer("db-0.east.prod.db"+inSet, "A", cs.east.v4(10)),
		{"west.db" + inSet, "A", "NXDOMAIN"}, {"pending" + inSet, "A", "NODATA"}, {"dns-version.clusterset.local.", "TXT", `"1.0.0"`},
		answer("hello"+inCluster, "A", w.clusterIPs(t, "hello")[0]), answer("db"+inCluster, "A", w.v4(10), w.v4(11)),
		{"dns-version.cluster.local.", "TXT", `"1.1.0"`},
	}
	for _, node := range []struct {
		name  string
		zones []string
		args  []string
		sees  sees
	}{
		{"n1", []string{"cluster.local"}, []string{"-clusterset-zone", "clusterset.local"}, sees{"near": "14", "auto": "8", "mixed": "5", "plain": "1234"}},
		{"n2", []string{"cluster.local", "clusterset.local"}, nil, sees{"near": "23", "auto": "7", "mixed": "6", "plain": "1234"}},
	} {
		t.Run(fmt.Sprint(node.name, " ", node.args), func(t *testing.T) {
			ask := startNode(t, s.upstream(byTopology), node.zones, append(node.args, "-node-name", node.name)...)
			ask.await(t, "nodecache answers", append(node.sees.wishes(w), all...)...)
		})
	}
}

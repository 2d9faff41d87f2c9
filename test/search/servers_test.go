//go:build linux

package search

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// maxWait bounds waiting for events that are due at once, on a busy machine.
const maxWait = 30 * time.Second

// world has the servers and objects that the nodes of a test share.
type world struct {
	plane     *controlplane.ControlPlane // nil if the objects are manifests
	manifests string                     // their directory then
	api
	dns      *netns.Namespace
	upstream *upstream
	nodes    int // number of nodes
}

// newWorld starts the shared servers, with the objects in a real API server.
func newWorld(t *testing.T) *world {
	t.Helper()
	netns.Require(t, "ip", "nft")
	w := &world{plane: controlplane.Start(t)}
	w.api = api{w.plane.Client()}
	w.fill(t)
	w.grant(t, clusterAccount,
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services", "namespaces", "pods"}},
		rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}})
	w.grant(t, nodeAccount, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}})
	w.dns = newServers(t)
	w.dns.Forward(t, strings.TrimPrefix(w.plane.URL(), "https://"))
	w.upstream = startUpstream(t, w.dns, upstreamIP)
	return w
}

// newManifests starts the shared servers, with the objects in files.
func newManifests(t *testing.T) *world {
	t.Helper()
	netns.Require(t, "ip", "nft")
	w := &world{manifests: t.TempDir(), dns: newServers(t)}
	for _, s := range services {
		for _, o := range s.objects() {
			w.writeManifest(t, o)
		}
	}
	w.upstream = startUpstream(t, w.dns, upstreamIP)
	return w
}

// writeManifest adds an object to the directory atomically.
func (w *world) writeManifest(t *testing.T, o any) {
	t.Helper()
	text, err := json.Marshal(o)
	kit.Must(t, err)
	f, err := os.CreateTemp(w.manifests, "*.new")
	kit.Must(t, err)
	_, err = f.Write(text)
	kit.Must(t, errors.Join(err, f.Close(), os.Rename(f.Name(), strings.TrimSuffix(f.Name(), "new")+"json")))
}

// source returns the option of a Corefile for the source of the objects, with an account.
func (w *world) source(account string) string {
	if w.plane == nil {
		return "manifests " + w.manifests
	}
	return "kubeconfig " + w.plane.KubeconfigFor(account)
}

// clusterCorefile is the Corefile of cluster DNS, clusterdns or CoreDNS. EXPANSION is the directive under test.
const clusterCorefile = `.:53 {
    bind ADDRESS
    errors
    ready ADDRESS:8181
    prometheus ADDRESS:9153
    EXPANSION
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        SOURCE
        ttl 30
    }
    cache 30
    forward . ` + upstreamIP + `
}
`

// clusterServer is cluster DNS with a tap in front, which the nodes query.
type clusterServer struct {
	*tap
	*netns.Process
}

// startCluster starts cluster DNS and waits until it is ready.
func (w *world) startCluster(t *testing.T, program, expansion, address, tapAddress string) *clusterServer {
	t.Helper()
	path := kit.File(t, "Corefile", strings.NewReplacer("ADDRESS", address, "SOURCE", w.source(clusterAccount), "EXPANSION", expansion).Replace(clusterCorefile))
	s := &clusterServer{Process: w.dns.Start(t, program, "-conf", path)}
	client := w.dns.Client()
	kit.Succeeds(t, maxWait, program+" is ready", func() error {
		_, err := kit.Get(client, "http://"+address+":8181/ready")
		return err
	})
	s.tap = startTap(t, w.dns, tapAddress, address)
	return s
}

// startOurs starts clusterdns.
func (w *world) startOurs(t *testing.T) *clusterServer {
	t.Helper()
	return w.startCluster(t, daemon.Program(t, "clusterdns"), "", ours, oursTap)
}

// startStock starts CoreDNS.
func (w *world) startStock(t *testing.T) *clusterServer {
	t.Helper()
	return w.startCluster(t, controlplane.RequireBinary(t, "coredns"), "", stock, stockTap)
}

// nodeCorefile is the Corefile of node-local-dns's manifest, except the sizes of the caches. EXPANSION is the directive
// under test.
const nodeCorefile = `cluster.local:53 {
    errors
    EXPANSION
    cache 30
    reload
    loop
    bind ` + local + ` ` + local6 + `
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    health ` + local + `:8080
    }
.:53 {
    errors
    cache 60
    reload
    loop
    bind ` + local + ` ` + local6 + `
    forward . __PILLAR__UPSTREAM__SERVERS__
    prometheus :9253
    }
BLOCKS
`

// corefile returns a Corefile of nodecache with a directive in the block of the cluster's zone and with further blocks.
func corefile(expansion, blocks string) string {
	return strings.NewReplacer("EXPANSION", expansion, "BLOCKS", blocks).Replace(nodeCorefile)
}

// startCache starts nodecache on the node, with the command line of the manifest except paths and rules, and waits until
// it answers.
func (n *node) startCache(t *testing.T, server *clusterServer, corefile string) {
	t.Helper()
	folder := t.TempDir()
	base := filepath.Join(folder, "Corefile.base")
	kit.Write(t, base, corefile)
	host, _, _ := strings.Cut(server.address, ":")
	environment := []string{"KUBE_DNS_UPSTREAM_SERVICE_HOST=" + host, "NODE_NAME=" + n.name}
	n.cache = n.StartWith(t, environment, daemon.Program(t, "nodecache"),
		"-localip", local+","+local6,
		"-setupiptables=false", // with rules, cluster DNS would answer while the machine is too busy to renew the lease
		"-conf", filepath.Join(folder, "Corefile"),
		"-upstreamsvc", "kube-dns-upstream",
		"-pidfile", filepath.Join(folder, "node-cache.pid"),
		"-basecorefile", base)
	for _, address := range []string{local, local6} {
		for _, network := range []string{"udp", "tcp"} {
			kit.Succeeds(t, maxWait, "nodecache answers on "+n.name, func() error {
				select {
				case <-n.cache.Ended():
					t.Fatalf("nodecache ended:\n%s", n.cache.Output())
				default:
				}
				return querier{from: n.Namespace, server: address, network: network, timeout: time.Second}.check("both-0."+outside, "A", "192.0.2.1 at both-0."+outside)
			})
		}
	}
}

// metrics returns the metrics of the node's nodecache.
func (n *node) metrics(t *testing.T) daemon.Samples {
	t.Helper()
	return daemon.Scrape(t, n.Client(), "127.0.0.1:9253")
}

//go:build linux

package topology

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/controlplane"
	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// maxWait bounds waiting for events that are due at once or within the TTL, on a busy machine.
const maxWait = 30 * time.Second

// Accounts of clusterdns.
const (
	account      = "system:serviceaccount:kube-system:clusterdns"
	blindAccount = "system:serviceaccount:kube-system:clusterdns-without-nodes"
)

// cluster is a cluster with its network, API server and programs.
type cluster struct {
	*bed
	api
	plane    *controlplane.ControlPlane
	programs map[string]string // paths
	server   *clusterServer    // with the address clusterDNS
}

// start starts a cluster, until the end of the test.
func start(t *testing.T) *cluster {
	t.Helper()
	netns.Require(t, "ip", "nft", "dig")
	c := &cluster{plane: controlplane.Start(t), programs: map[string]string{}}
	for _, name := range []string{"clusterdns", "nodecache"} {
		c.programs[name] = daemon.Program(t, name)
	}
	c.api = api{c.plane.Client()}
	c.grant(t, "clusterdns", account, "get", "list", "watch")
	c.grant(t, "clusterdns-without-nodes", blindAccount)
	c.fill(t)
	c.bed = newBed(t)
	c.dns.Forward(t, strings.TrimPrefix(c.plane.URL(), "https://"))
	// Only the option of nodes is trusted: pods that query clusterdns directly could send any.
	c.server = c.startCluster(t, account, "topology\n        trust "+nodeRange, clusterDNS, clusterDNS6)
	for i := range nodes {
		c.startNode(t, i+1)
	}
	return c
}

// corefile is the Corefile of clusterdns. The TTL is the default, 5 seconds, which is the min TTL of cache and bounds the age
// of answers of nodecache.
const corefile = `.:53 {
    bind ADDRESSES
    errors
    ready ADDRESS:8181
    prometheus ADDRESS:9153
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        kubeconfig KUBECONFIG
        OPTIONS
    }
    cache 30
}
`

// clusterServer is a running clusterdns.
type clusterServer struct {
	*netns.Process
	from    *netns.Namespace
	address string
}

// startCluster starts clusterdns on addresses, and waits until it is ready and answers.
func (c *cluster) startCluster(t *testing.T, user, options string, addresses ...string) *clusterServer {
	t.Helper()
	path := filepath.Join(t.TempDir(), "Corefile")
	kit.Write(t, path, strings.NewReplacer("ADDRESSES", strings.Join(addresses, " "), "ADDRESS", addresses[0],
		"KUBECONFIG", c.plane.KubeconfigFor(user), "OPTIONS", options).Replace(corefile))
	s := &clusterServer{from: c.dns, address: addresses[0], Process: c.dns.Start(t, c.programs["clusterdns"], "-conf", path)}
	kit.Succeeds(t, maxWait, "clusterdns is ready", func() error {
		_, err := get(s.from, "http://"+addresses[0]+":8181/ready")
		return err
	})
	for _, a := range addresses {
		kit.Succeeds(t, maxWait, "clusterdns answers", func() error { return querier{from: s.from, server: a}.check(common) })
	}
	return s
}

// template is the Corefile of node-local-dns's manifest, with one listen address.
const template = `cluster.local:53 {
    errors
    cache {
            success 9984 30
            denial 9984 5
    }
    reload
    loop
    bind 169.254.20.10
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    health 169.254.20.10:8080
    }
in-addr.arpa:53 ip6.arpa:53 {
    errors
    cache 30
    reload
    loop
    bind 169.254.20.10
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    }
.:53 {
    errors
    cache 30
    reload
    loop
    bind 169.254.20.10
    forward . __PILLAR__UPSTREAM__SERVERS__
    prometheus :9253
    }
`

// startNode starts nodecache on a node, with the command line of the manifest except paths, and waits until it receives the
// pod's queries. Each node's name is set in another way: by a flag, or by variables without and with the zone.
func (c *cluster) startNode(t *testing.T, node int) {
	t.Helper()
	folder, name := t.TempDir(), fmt.Sprint("n", node)
	kit.Write(t, filepath.Join(folder, "Corefile.base"), template)
	n := c.node[node-1]
	n.Etc(t, "resolv.conf", "nameserver "+clusterDNS+"\n")
	environment := []string{"KUBE_DNS_UPSTREAM_SERVICE_HOST=" + clusterDNS}
	args := []string{
		"-localip", local,
		"-conf", filepath.Join(folder, "Corefile"),
		"-upstreamsvc", "kube-dns-upstream",
		"-pidfile", filepath.Join(folder, "node-cache.pid"),
		"-basecorefile", filepath.Join(folder, "Corefile.base"),
	}
	switch node {
	case 1:
		args = append(args, "-node-name", name)
	case 2:
		environment = append(environment, "NODE_NAME="+name)
	default:
		environment = append(environment, "NODE_NAME="+name, "NODE_ZONE="+zones[node-1])
	}
	n.StartWith(t, environment, c.programs["nodecache"], args...)
	kit.Succeeds(t, maxWait, "nodecache has a lease on "+name, func() error {
		if c.cacheMetric(t, node, `nearside_nodelocal_lease{address="`+local+`"} `) != 1 {
			return fmt.Errorf("no lease on %s", name)
		}
		return nil
	})
}

// cacheMetric returns the sum of the metrics of a nodecache with a prefix; 0 before it runs.
func (c *cluster) cacheMetric(t *testing.T, node int, prefix string) int {
	t.Helper()
	page, err := get(c.node[node-1], "http://127.0.0.1:9253/metrics")
	if err != nil {
		return 0
	}
	return sum(t, page, prefix)
}

// sum returns the sum of the values of the lines with a prefix.
func sum(t *testing.T, page, prefix string) (total int) {
	t.Helper()
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		fields := strings.Fields(line)
		v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		total += int(v)
	}
	return total
}

// get requests a URL from a namespace, and returns the page. Another status than 200 is an error.
func get(from *netns.Namespace, url string) (page string, err error) {
	return kit.Get(from.Client(), url)
}

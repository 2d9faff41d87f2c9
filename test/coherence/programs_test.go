//go:build linux

package coherence

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/kubeapi"
	"github.com/nearside-dns/nearside/test/netns"
)

// maxWait bounds the wait for an event that is due at once, on a busy machine.
const maxWait = 20 * time.Second

func TestMain(m *testing.M) { kubeapi.Main(m) }

// ttl is that of the answers of clusterdns.
const ttl = 2 * time.Second

// clusterCorefile is the Corefile of clusterdns. COHERENT is the option under test, NAMESPACES an option or nothing.
const clusterCorefile = `.:PORT {
    bind 127.0.0.1
    prometheus METRICS
    kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {
        endpoint API
        pods verified
        endpoint_pod_names
        topology
        multicluster clusterset.local
        ttl 2
        startup_timeout WAIT
        NAMESPACES
        COHERENT
    }
}
`

// nodeCorefile is the Corefile of a node's cache. COMMENT changes with a reload. It serves no stale answers while the upstream
// fails, as caches do by default: they would be older than their TTL. It does not cache failures, which would conceal answers after a
// fault.
const nodeCorefile = `# COMMENT
ap.k8s.io:PORT {
    bind 127.0.0.1
    prometheus METRICS
    searchpath {
        zone cluster.local
        resolv_conf /dev/null
    }
}
cluster.local:PORT clusterset.local:PORT in-addr.arpa:PORT ip6.arpa:PORT {
    bind 127.0.0.1
    prometheus METRICS
    cache {
        success 9984 30 1
        denial 9984 30 1
        servfail 0
        serve_stale off
    }
    forward . UPSTREAM {
        force_tcp
        caller NODE east
        COHERENT
    }
}
`

// program is a running program with metrics.
type program struct {
	*daemon.Process
	corefile string // with what PORT stands for, and what changes
	metrics  string // address
	clock    wallClock
}

// launch starts a program with a Corefile, in which METRICS stands for the address of metrics. It waits as start does.
func launch(t testing.TB, path, corefile string, start func(t testing.TB, path, corefile string, args ...string) *daemon.Process) *program {
	t.Helper()
	p := &program{metrics: "127.0.0.1:" + strconv.Itoa(daemon.FreePort(t))}
	p.corefile = strings.ReplaceAll(corefile, "METRICS", p.metrics)
	p.Process = start(t, path, p.corefile)
	return p
}

// startAccepting starts a clusterdns and waits until it accepts a session. Before its fast path has taken over CoreDNS's own
// listener, connections to that get NOTIMP: the cache then uses TTLs for 10 s and longer.
func startAccepting(t testing.TB, path, corefile string, args ...string) *daemon.Process {
	t.Helper()
	p := daemon.Launch(t, path, corefile, args...)
	kit.Eventually(t, "session", func() bool { return acceptsSession(p.Addr) })
	return p
}

// sessionRequest is a request for a session with its length: plugin/internal/dso/README.md.
var sessionRequest = []byte{0, 17, 0, 1, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf8, 0xa0, 0, 1, 1}

// acceptsSession reports whether a server answers a request for a session without an error.
func acceptsSession(address string) bool {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }() // the server may have closed it
	var response [6]byte
	if c.SetDeadline(time.Now().Add(time.Second)) != nil {
		return false
	}
	if _, err := c.Write(sessionRequest); err != nil {
		return false
	}
	_, err = io.ReadFull(c, response[:])
	return err == nil && response[5]&0xf == dns.RcodeSuccess
}

// samples returns the metrics of the program.
func (p *program) samples(t testing.TB) daemon.Samples {
	t.Helper()
	return daemon.Scrape(t, &http.Client{Transport: &p.clock}, p.metrics)
}

// reload has the program read another Corefile, and returns when it has.
func (p *program) reload(t testing.TB, replacements ...string) {
	t.Helper()
	const line = "[INFO] Reloading complete"
	p.Configure(t, strings.NewReplacer(replacements...).Replace(p.corefile))
	before := strings.Count(p.Output(), line)
	p.Signal(t, syscall.SIGUSR1)
	kit.Eventually(t, "reload", func() bool { return strings.Count(p.Output(), line) > before })
}

// kill ends the program with SIGKILL.
func (p *program) kill(t testing.TB) {
	t.Helper()
	p.Signal(t, syscall.SIGKILL)
	if _, err := p.Wait(maxWait); err != nil {
		t.Fatal(err)
	}
}

// binaries are the paths of the programs of a history.
type binaries struct{ clusterdns, nodecache string }

// replica is a clusterdns whose events are recorded.
type replica struct {
	*program
	events string // file
	view
}

// startReplica starts a clusterdns and waits until it answers.
func (h *history) startReplica() *replica {
	h.t.Helper()
	return h.start(maxWait, daemon.Start)
}

// startUnread starts a clusterdns that answers before it has read the cluster, and waits until it accepts sessions.
func (h *history) startUnread() *replica {
	h.t.Helper()
	return h.start(0, startAccepting)
}

// start starts a clusterdns that waits before it answers until it has read the cluster, at most for a time.
func (h *history) start(wait time.Duration, start func(t testing.TB, path, corefile string, args ...string) *daemon.Process) *replica {
	h.t.Helper()
	r := &replica{events: filepath.Join(h.t.TempDir(), "events"), view: view{from: monotonic(), to: forever}}
	kit.Must(h.t, os.Setenv("NEARSIDE_RECORD", r.events))
	defer func() {
		if err := os.Unsetenv("NEARSIDE_RECORD"); err != nil {
			h.t.Error(err)
		}
	}()
	replaced := strings.NewReplacer("API", h.api.URL(), "WAIT", wait.String(), "NAMESPACES", "", "COHERENT", h.option)
	r.program = launch(h.t, h.binaries.clusterdns, replaced.Replace(clusterCorefile), start)
	h.replicas = append(h.replicas, r)
	return r
}

// startCache starts the cache of a node behind a proxy of its own.
func (h *history) startCache(node string) {
	h.t.Helper()
	inKernel := h.node != nil && len(h.caches) == kernelCache
	var in *netns.Namespace
	if inKernel {
		in = h.node.Node
	}
	p := startProxyIn(h.t, in, h.replicas[0].Addr)
	corefile := strings.NewReplacer("UPSTREAM", p.address, "NODE", node, "COHERENT", h.option).Replace(nodeCorefile)
	var c *program
	if inKernel {
		c = launch(h.t, h.binaries.nodecache, h.node.corefile(corefile), h.node.start)
		c.clock.transport = in.Client().Transport
		h.inKernel = c.awaitKernel(h.t)
	} else {
		c = launch(h.t, h.binaries.nodecache, corefile, daemon.Start)
	}
	h.proxies, h.caches = append(h.proxies, p), append(h.caches, c)
	h.askers = append(h.askers, asker{node: node, zone: "east"})
}

// String returns the name of a replica for reports.
func (r *replica) String() string { return fmt.Sprint("clusterdns on ", r.Addr) }

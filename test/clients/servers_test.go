//go:build linux

package clients

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/dnssec/keyfile"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// The addresses of the servers, which both use port 53.
const (
	clusterIP = "10.96.0.10"
	nodeIP    = "169.254.20.10"
)

// maxWait bounds the wait for a server, on a busy machine.
const maxWait = 30 * time.Second

// TestMain writes the page of results.
func TestMain(m *testing.M) {
	code := m.Run()
	if path := os.Getenv(resultsVariable); path != "" && code == 0 {
		if err := page.write(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// clusterCorefile is the Corefile of cluster DNS. MANIFESTS is the folder of the objects, ROOT a file, and KEY its key.
const clusterCorefile = `cluster.local:53 in-addr.arpa:53 ip6.arpa:53 {
    bind ` + clusterIP + `
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {
        manifests MANIFESTS
        ttl 30
    }
}
.:53 {
    bind ` + clusterIP + `
    dnssec {
        key file KEY
    }
    file ROOT .
}
`

// rootZone is a root zone: ldns-test-edns queries its keys, and the DS record of se.
const rootZone = `$TTL 3600
@ IN SOA a.root. mail.root. 1 7200 3600 1209600 300
@ IN NS a.root.
a.root. IN A 192.0.2.53
se. IN NS a.root.
se. IN DS 59407 13 2 67FB5BBF3DB0F9CFC0BD1A15E1BC5B5F5D6A8A39C7B1B4A2BE6B0E06DE9B1C2D
`

// nodeCorefile is the Corefile of nodecache.
const nodeCorefile = `.:53 {
    bind ` + nodeIP + `
    errors
    cache {
        success 9984 30
        denial 9984 5
    }
    reload
    loop
    forward . ` + clusterIP + ` {
        force_tcp
    }
}
`

// server is a server under test.
type server struct {
	name, address string
	// The ranges of TTLs: of records of the cluster, of its version, and of the SOA records of denials.
	ttl, version, denial [2]int
}

var servers = []server{
	{"clusterdns", clusterIP, [2]int{30, 30}, [2]int{28800, 28800}, [2]int{30, 30}},
	{"nodecache", nodeIP, [2]int{0, 30}, [2]int{0, 28800}, [2]int{0, 5}},
}

// start starts both servers in a new network namespace, until the end of the test, and waits until they answer.
func start(t *testing.T) *netns.Namespace {
	t.Helper()
	netns.Require(t, "ip", "nft", "dig")
	n := netns.Add(t, "clients")
	n.Run(t, "ip", "addr", "add", clusterIP+"/32", "dev", "lo")
	// The search list must not be that of the machine.
	n.Etc(t, "nsswitch.conf", "hosts: files dns\n")
	n.Start(t, daemon.Program(t, "clusterdns"), "-conf", clusterConfig(t, clusterCorefile))
	await(t, n, clusterIP)
	n.StartWith(t, []string{"KUBE_DNS_SERVICE_HOST=" + clusterIP, "NODE_NAME=", "NODE_ZONE="}, daemon.Program(t, "nodecache"),
		"-conf", corefile(t, nodeCorefile), "-localip", nodeIP, "-syncinterval", "1")
	await(t, n, nodeIP)
	return n
}

// clusterConfig writes the Corefile of cluster DNS and its files.
func clusterConfig(t *testing.T, text string) string {
	t.Helper()
	public, private := keyfile.New(t, ".", keyfile.KeySigning, dns.ECDSAP256SHA256)
	key := keyfile.Write(t, t.TempDir(), public, private)
	files := strings.NewReplacer("MANIFESTS", writeManifests(t), "KEY", key, "ROOT", kit.File(t, "root", rootZone))
	return corefile(t, files.Replace(text))
}

func corefile(t *testing.T, text string) string {
	t.Helper()
	return kit.File(t, "Corefile", text)
}

// await waits until a server has the records of the cluster.
func await(t *testing.T, n *netns.Namespace, address string) {
	t.Helper()
	kit.Succeeds(t, maxWait, address+" answers", func() error {
		out, err := n.Try("dig", "@"+address, "+time=1", "+tries=1", "+short", "web"+inServices)
		if err == nil && strings.TrimSpace(out) != webIPv4 {
			return errors.New(out)
		}
		return err
	})
}

// resolvConf makes a server the resolver of the programs that are started afterwards.
func resolvConf(t *testing.T, n *netns.Namespace, address string, options ...string) {
	t.Helper()
	n.Etc(t, "resolv.conf", fmt.Sprintf("nameserver %s\noptions %s\n", address, strings.Join(append(options, "ndots:1"), " ")))
}

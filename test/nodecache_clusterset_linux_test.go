package test

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// callerOption is the code of the EDNS option with the node of the caller.
const callerOption = 65313

// reporting answers every question with a TXT record: the server's name, the transport, and the content of the caller option.
func reporting(who string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, m *dns.Msg) {
		caller := ""
		if o := m.IsEdns0(); o != nil {
			for _, option := range o.Option {
				if local, ok := option.(*dns.EDNS0_LOCAL); ok && local.Code == callerOption {
					caller += hex.EncodeToString(local.Data)
				}
			}
		}
		r := new(dns.Msg).SetReply(m)
		r.Answer = []dns.RR{&dns.TXT{
			Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 5},
			Txt: []string{who, w.LocalAddr().Network(), caller},
		}}
		_ = w.WriteMsg(r) // the client may have closed its socket
	}
}

// serveReporting starts a server in a namespace, on port 53 of an address that it adds to the namespace.
func serveReporting(t *testing.T, n *netns.Namespace, who, address string) {
	t.Helper()
	n.Run(t, "ip", "addr", "add", address+"/32", "dev", "eth0")
	n.Serve(t, address+":53", reporting(who))
}

// Answers of the servers of stockNode, with the caller option of the nodecache there.
const (
	ofCluster       = "cluster tcp 01066e6f64652d61067a6f6e652d31"
	ofClusterUntold = "cluster tcp "
	ofOthers        = "resolver tcp "
)

// stockTemplate is the Corefile of node-local-dns in Kubernetes' manifest.
func stockTemplate(t *testing.T) string {
	t.Helper()
	return kit.Read(t, filepath.Join(root, "cmd", "internal", "dropin", "testdata", "render", "stock.base"))
}

// stockNode is a node with nodecache, with the command line of node-local-dns's manifest, and a pod that sends queries.
type stockNode struct {
	bed     *netns.Bed
	process *netns.Process
	base    string // the path of the template
	asked   int
}

// startStock starts nodecache on a node, with a template and more flags. Cluster DNS and the node's resolver are servers
// of serveReporting.
func startStock(t *testing.T, program, template string, args ...string) *stockNode {
	t.Helper()
	folder := t.TempDir()
	n := &stockNode{bed: netns.New(t), base: filepath.Join(folder, "Corefile.base")}
	serveReporting(t, n.bed.Upstream, "cluster", "10.96.0.11")
	serveReporting(t, n.bed.Upstream, "resolver", "10.2.0.53")
	n.bed.Node.Etc(t, "resolv.conf", "nameserver 10.2.0.53\n")
	kit.Write(t, n.base, template)
	n.process = n.bed.Node.StartWith(t, []string{"KUBE_DNS_UPSTREAM_SERVICE_HOST=10.96.0.11"}, program, append([]string{
		"-localip", "169.254.20.10,10.96.0.10", "-upstreamsvc", "kube-dns-upstream", "-conf", filepath.Join(folder, "Corefile"),
		"-basecorefile", n.base, "-node-name", "node-a", "-node-zone", "zone-1",
	}, args...)...)
	return n
}

// ask queries a new name of a zone.
func (n *stockNode) ask(network, address, zone string) string {
	n.asked++
	record, err := n.bed.Pod[0].Ask(network, netip.MustParseAddr(address), fmt.Sprintf("q%d.%s", n.asked, zone), 5*time.Second)
	if err != nil {
		return err.Error()
	}
	return strings.Join(record, " ")
}

// await waits until names of a zone have this answer.
func (n *stockNode) await(t *testing.T, zone, want string) {
	t.Helper()
	kit.Eventually(t, zone+" is answered by "+want, func() bool { return n.ask("udp", "169.254.20.10", zone) == want })
}

// TestNodecacheClusterset runs the stock template of node-local-dns on a node, with -clusterset-zone: the zone is
// forwarded like the cluster's, and no other is.
func TestNodecacheClusterset(t *testing.T) {
	stock := stockTemplate(t)
	n := startStock(t, daemon.Program(t, "nodecache"), stock, "-clusterset-zone", "clusterset.local,Mesh.Example.")
	n.await(t, "clusterset.local.", ofCluster)
	for zone, want := range map[string]string{
		"clusterset.local.":              ofCluster,
		"web.shop.svc.ClusterSet.local.": ofCluster,
		"web.shop.svc.mesh.example.":     ofCluster,
		"web.shop.svc.cluster.local.":    ofCluster,
		"10.in-addr.arpa.":               ofClusterUntold,
		"local.":                         ofOthers,
		"aclusterset.local.":             ofOthers,
		"clusterset.local.example.":      ofOthers,
		"example.":                       ofOthers,
	} {
		for _, network := range []string{"udp", "tcp"} {
			for _, address := range []string{"169.254.20.10", "10.96.0.10"} {
				if got := n.ask(network, address, zone); got != want {
					t.Errorf("%s over %s from %s: %q, want %q", zone, network, address, got, want)
				}
			}
		}
	}

	kit.Write(t, n.base, stock+"clusterset.local:53 {\n    bind __PILLAR__LOCAL__DNS__\n    forward . 10.2.0.53\n}\n")
	n.await(t, "clusterset.local.", "resolver udp ")
	if got := n.ask("udp", "169.254.20.10", "mesh.example."); got != ofCluster {
		t.Errorf("the other zone: %q", got)
	}
	kit.Write(t, n.base, stock)
	n.await(t, "clusterset.local.", ofCluster)
	line := "no block for clusterset.local of -clusterset-zone is added, it is a zone of " + n.base + ":"
	if count := strings.Count(n.process.Output(), line); count != 1 {
		t.Errorf("%d lines of it", count)
	}
}

// TestNodecacheClustersetWrong has values and Corefiles that conflict with -clusterset-zone: one line that names the
// flag.
func TestNodecacheClustersetWrong(t *testing.T) {
	path := daemon.Program(t, "nodecache")
	const corefile = ".:PORT {\n    bind 127.0.0.1\n    forward . 192.0.2.1\n}\n"
	for _, tc := range []struct {
		name, value, clusterDNS string
		code                    int
		want                    string
	}{
		{"value", "clusterset local", "10.96.0.11", 2, `"clusterset local" is not a domain name`},
		{"nothing forwards", "clusterset.local", "10.96.0.11", 1, "Corefile: no server block on port 53 forwards a zone of the cluster to cluster DNS, 10.96.0.11, alone, so -clusterset-zone has no model for clusterset.local"},
		{"no cluster DNS", "clusterset.local", "", 1, "-clusterset-zone clusterset.local: __PILLAR__CLUSTER__DNS__ is the address of cluster DNS, which the variable KUBE_DNS_SERVICE_HOST"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("KUBE_DNS_SERVICE_HOST", tc.clusterDNS)
			p := daemon.Launch(t, path, corefile, "-clusterset-zone", tc.value)
			code, err := p.Wait(daemonEnds)
			output := p.Output()
			if err != nil || code != tc.code || !strings.Contains(output, tc.want) || !strings.Contains(output, "-clusterset-zone") || strings.Count(output, "\n") != 1 {
				t.Errorf("exit code %d, error %v and %q, want %d and one line with %q", code, err, output, tc.code, tc.want)
			}
		})
	}
}

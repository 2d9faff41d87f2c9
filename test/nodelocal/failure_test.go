//go:build linux

package nodelocal

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// before and after are the times of load before the failure of nodecache, and after it.
const before, after = time.Second, 4 * time.Second

// gapBar is the maximum time without an answer while the traffic of an address moves to another server. A second is the
// lease, as in the figures of test/bench; a busy machine adds some. Without a fallback, queries get no answer until
// nodecache runs again.
const gapBar = after - time.Second

// everywhere is all addresses of a node cache in a cluster.
var everywhere = []netip.Addr{local4, local6, kubeDNS4, kubeDNS6}

// fallback is the option with the server of the link-local addresses without nodecache. For the cluster IPs, kube-proxy
// has rules.
var fallback = fmt.Sprintf("fallback %v %v except %v %v", upstream4, upstream6, kubeDNS4, kubeDNS6)

// target is the server and the sender of one stream of a load.
type target struct {
	from    string // "pod" or "node"
	network string
	address netip.Addr
}

func (g target) String() string {
	return fmt.Sprintf("%v over %s from a %s", g.address, g.network, g.from)
}

// rates are the queries per second of a stream; they limit the precision of a measured gap.
var rates = []struct {
	from, network string
	perSecond     int
}{
	{"pod", "udp", 100}, {"pod", "tcp", 50}, {"node", "udp", 25}, {"node", "tcp", 25},
}

// load is a stream of queries to each target.
type load map[target]*netns.Stream

// startLoad queries each address over UDP and TCP, from a pod and from the node itself.
func (n *node) startLoad(t *testing.T, addresses ...netip.Addr) load {
	t.Helper()
	l := load{}
	for i, a := range addresses {
		sources := map[string]*netns.Namespace{"pod": n.Pod[i%len(n.Pod)], "node": n.Node}
		for _, r := range rates {
			stream := netns.Load{From: sources[r.from], Network: r.network, Server: a, PerSecond: r.perSecond}
			l[target{r.from, r.network, a}] = stream.Start(t)
		}
	}
	return l
}

// stop ends all streams at once.
func (l load) stop() map[target]netns.Report {
	all := map[target]netns.Report{}
	done := make(chan struct{})
	for _, s := range l {
		go func() { s.Stop(); done <- struct{}{} }()
	}
	for range l {
		<-done
	}
	for g, s := range l {
		all[g] = s.Stop()
	}
	return all
}

// TestKubeProxy stops nodecache in several ways, with a real kube-proxy behind it, and counts the lost queries of the
// pods. In iptables mode kube-proxy drops untracked packets to the loopback address, as the kubelet does on every node.
func TestKubeProxy(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) { takeAway(t, newKubernetesNode(t, mode)) })
	}
}

func takeAway(t *testing.T, n *node) {
	keep := []string{fallback, "keep"}
	for _, c := range []struct {
		name    string
		options []string
		hit     func(*netns.Process)
		back    func(*netns.Process) // nil if nodecache must be started again
		served  []netip.Addr         // addresses that are answered without nodecache
	}{
		{"clean stop", []string{fallback}, func(p *netns.Process) { p.Stop(t) }, nil, []netip.Addr{kubeDNS4, kubeDNS6}},
		{"clean stop that keeps the rules", keep, func(p *netns.Process) { p.Stop(t) }, nil, everywhere},
		{"SIGKILL", []string{fallback}, func(p *netns.Process) { p.Kill(t) }, nil, everywhere},
		{"SIGSTOP", []string{fallback}, func(p *netns.Process) { p.Freeze(t) }, func(p *netns.Process) { p.Thaw(t) }, everywhere},
	} {
		t.Run(c.name, func(t *testing.T) {
			configured := cache{who: "local", addresses: everywhere, options: c.options}
			p := n.run(t, configured)
			streams := n.startLoad(t, c.served...)
			time.Sleep(before)
			start := time.Now()
			c.hit(p)
			time.Sleep(time.Until(start.Add(after)))
			if c.back != nil {
				c.back(p)
			} else {
				p = n.start(t, configured)
			}
			for _, a := range everywhere {
				n.waitAnswer(t, startTimeout, a, "local")
			}
			settled := time.Now()
			time.Sleep(before)
			for g, r := range streams.stop() {
				judge(t, g, r, start, settled)
			}
			p.Stop(t)
		})
	}
}

// judge checks the result of one stream: the cache answers before its failure and once it runs again, and cluster DNS in
// between.
func judge(t *testing.T, g target, r netns.Report, start, settled time.Time) {
	t.Helper()
	away := r.Since(start)
	away = away[:len(away)-len(r.Since(settled))]
	t.Logf("%v: away: %v; in all: %v", g, away, r)
	if first := r.DoneBefore(start); first.By()["local"] == 0 || len(first.By()) != 1 {
		t.Errorf("%v: with nodecache: %v", g, first)
	}
	if last := r.Since(settled); last.By()["local"] == 0 || len(last.By()) != 1 {
		t.Errorf("%v: with nodecache again: %v", g, last)
		for _, q := range last {
			if q.By != "local" {
				t.Logf("sent after %v, done after %v: answered by %q, error %v", q.Sent.Sub(settled), q.Done.Sub(settled), q.By, q.Err)
			}
		}
	}
	if r.Gap() > gapBar {
		t.Errorf("%v: no answer for %v, want at most %v", g, r.Gap(), gapBar)
	}
	if away.By()["upstream"] == 0 {
		t.Errorf("%v: cluster DNS did not answer: %v", g, away)
	}
}

// TestFallbackOfBothFamilies freezes nodecache on addresses of both families. The environment has only the IPv4 address
// of cluster DNS, as the kubelet sets it; cluster DNS has a record of the other.
func TestFallbackOfBothFamilies(t *testing.T) {
	n := newNode(t)
	n.restartClusterDNS(t, fmt.Sprintf("kube-dns-upstream.kube-system.svc.cluster.local 5 IN AAAA %v", n.Upstream.IPv6))
	p := n.startDualStack(t, n.Upstream.IPv4)
	for _, a := range []netip.Addr{local4, local6} {
		kit.Succeeds(t, startTimeout, "the lease", func() error { return n.leased(a) })
	}
	p.Freeze(t)
	for _, a := range []netip.Addr{local4, local6} {
		for _, network := range []string{"udp", "tcp"} {
			kit.Succeeds(t, startTimeout, fmt.Sprintf("cluster DNS to answer on %v over %s", a, network), func() error {
				record, err := n.Pod[0].Ask(network, a, "frozen.cluster.local.", time.Second)
				if err == nil && record[0] != "upstream" {
					return fmt.Errorf("%q answers", record)
				}
				return err
			})
		}
	}
	p.Thaw(t)
	if strings.Contains(p.Output(), "has no fallback") {
		t.Error("the log warns of an address that has a fallback")
	}
}

// TestFallbackOfEarlierFlows queries from the same ports before there are rules and while the server does not answer.
// Connection tracking has entries of the first queries, without a translation, and NAT does not see the first packet of
// the later ones. A resolver repeats its queries from the same port.
func TestFallbackOfEarlierFlows(t *testing.T) {
	n := newNode(t)
	flows := []struct {
		local  net.Addr
		server netip.Addr
	}{
		{&net.UDPAddr{Port: 5301}, local4}, {&net.TCPAddr{Port: 5301}, local4},
		{&net.UDPAddr{Port: 5302}, local6}, {&net.TCPAddr{Port: 5302}, local6},
	}
	for _, f := range flows {
		if record, err := n.Pod[0].AskFrom(f.local, f.local.Network(), f.server, "early.test.", 200*time.Millisecond); err == nil {
			t.Fatalf("%q answers before nodecache runs", record)
		}
	}
	p := n.run(t, cache{
		who: "local", addresses: []netip.Addr{local4, local6},
		options: []string{fmt.Sprintf("fallback %v %v", n.Upstream.IPv4, n.Upstream.IPv6)},
	})
	p.Freeze(t)
	for _, f := range flows {
		n.waitAnswer(t, startTimeout, f.server, "upstream")
		record, err := n.Pod[0].AskFrom(f.local, f.local.Network(), f.server, "late.test.", bounded)
		if err != nil || record[0] != "upstream" {
			t.Errorf("%s from port %v: %q answers, error %v; want cluster DNS", f.local.Network(), f.local, record, err)
		}
	}
	p.Thaw(t)
}

// TestNoFallback has cluster DNS with one family: the log names the address of the other, once.
func TestNoFallback(t *testing.T) {
	n := newNode(t)
	n.restartClusterDNS(t, fmt.Sprintf("kube-dns-upstream.kube-system.svc.cluster.local 5 IN A %v", n.Upstream.IPv4))
	p := n.startDualStack(t, n.Upstream.IPv4)
	const line = "Address fd00:53::10 has no fallback: while nodecache does not answer there, pods get no answer"
	waitLog(t, startTimeout, p, line)
	// kube-proxy adds the address.
	n.Node.Run(t, "nft", "add table ip6 kube-proxy; add map ip6 kube-proxy service-ips { type ipv6_addr . inet_proto . inet_service : verdict; }; "+
		"add chain ip6 kube-proxy s; add element ip6 kube-proxy service-ips { fd00:53::10 . udp . 53 : goto s }")
	waitLog(t, startTimeout, p, "Every address is answered without a lease as well")
	if out := p.Output(); strings.Count(out, "has no fallback") != 1 {
		t.Errorf("the log names an address more than once, or one that has a fallback:\n%s", out)
	}
}

// restartClusterDNS gives cluster DNS one record for the name of its own Service, and no other of that Service.
func (n *node) restartClusterDNS(t *testing.T, record string) {
	t.Helper()
	n.dns.Stop(t)
	fields := strings.Fields(record)
	reverse := fmt.Sprintf("template IN PTR in-addr.arpa {\n        match ^2\\.0\\.2\\.10\\.\n        answer \"{{ .Name }} 5 IN PTR %s.\"\n        fallthrough\n    }", fields[0])
	forward := fmt.Sprintf("template IN ANY %s {\n        answer \"%s. 5 IN %s %s\"\n    }", fields[0], fields[0], fields[3], fields[4])
	n.dns = n.Upstream.Start(t, program(t), "-conf", corefile(t, reverse, forward, answering("upstream")))
	kit.Succeeds(t, startTimeout, "cluster DNS to answer", func() error {
		_, err := n.Upstream.Ask("tcp", n.Upstream.IPv6, "up.test.", time.Second)
		return err
	})
}

// startDualStack starts nodecache with the command line of node-local-dns on addresses of both families.
func (n *node) startDualStack(t *testing.T, cluster netip.Addr) *netns.Process {
	t.Helper()
	folder := t.TempDir()
	template := filepath.Join(folder, "Corefile.base")
	kit.Write(t, template, ".:53 {\n    errors\n    cache 30\n    bind __PILLAR__LOCAL__DNS__\n    forward . __PILLAR__CLUSTER__DNS__\n}\n")
	return n.Node.StartWith(t, []string{"KUBE_DNS_UPSTREAM_SERVICE_HOST=" + cluster.String()}, program(t),
		"-localip", local4.String()+","+local6.String(), "-upstreamsvc", "kube-dns-upstream", "-syncinterval", "1",
		"-conf", filepath.Join(folder, "Corefile"), "-basecorefile", template)
}

//go:build linux

package nodelocal

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/netns"
)

// before and after are how long the load runs before nodecache is hit, and after.
const before, after = time.Second, 4 * time.Second

// gapBar is how long no query may be answered while the traffic of an address changes hands. A second is
// the lease, and what the figures of test/bench show; a busy machine takes its time as well. Where
// nobody takes the traffic over, nothing is answered until nodecache is back.
const gapBar = after - time.Second

// everywhere is all addresses of a node cache in a cluster.
var everywhere = []netip.Addr{local4, local6, kubeDNS4, kubeDNS6}

// fallback is the option that tells where packets to the link-local addresses go without nodecache.
// kube-proxy knows where those to the cluster IPs go.
var fallback = fmt.Sprintf("fallback %v %v except %v %v", upstream4, upstream6, kubeDNS4, kubeDNS6)

// target is what one stream of a load asks, and where from.
type target struct {
	from    string // "pod" or "node"
	network string
	address netip.Addr
}

func (g target) String() string {
	return fmt.Sprintf("%v over %s from a %s", g.address, g.network, g.from)
}

// rates are the queries in a second; they set how exactly a gap is measured.
var rates = []struct {
	from, network string
	perSecond     int
}{
	{"pod", "udp", 100}, {"pod", "tcp", 50}, {"node", "udp", 25}, {"node", "tcp", 25},
}

// load is a stream of queries to each target.
type load map[target]*netns.Stream

// startLoad asks each address over UDP and TCP, from a pod and from the node itself.
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

// TestKubeProxy takes nodecache away from a node in the ways in which it can go, with a real
// kube-proxy behind it, and counts what the pods lose. In iptables mode kube-proxy drops untracked
// packets to the loopback address, as the kubelet does on every node.
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
		back    func(*netns.Process) // nil where nodecache has to be started again
		served  []netip.Addr         // the addresses that are answered without nodecache
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

// judge looks at what became of one stream: the cache answers before it is hit at start and once it
// is back, and cluster DNS in between.
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

package inkernel

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// bounded limits the wait for an event, on a busy machine and with the race detector.
const bounded = 60 * time.Second

// The node-local addresses.
var (
	local4 = netip.MustParseAddr("169.254.20.10")
	local6 = netip.MustParseAddr("fd00:53::10")
	locals = []netip.Addr{local4, local6}
)

// node is a node in a network namespace, with an upstream to which nodecache forwards, and pods.
type node struct {
	*netns.Namespace
	upstream *upstream

	pods     int // pods that were added
	bridge   bool
	programs int // instances of nodecache that were started
}

// newNode makes a node without pods and without nodecache, until the end of the test.
func newNode(t testing.TB) *node {
	t.Helper()
	netns.Require(t, "ip", "nft")
	n := &node{Namespace: netns.Add(t, "node")}
	n.Forwards(t)
	// The default route is what makes the node answer ARP requests for the gateway of its pods.
	batch(t, n.Namespace, "link add uplink type bridge", "link set uplink up", "addr add 10.2.0.1/24 dev uplink",
		"addr add fd02::1/64 dev uplink nodad", "route add default via 10.2.0.2")
	n.upstream = startUpstream(t, n.Namespace)
	return n
}

// batch runs lines of "ip -batch" in a namespace.
func batch(t testing.TB, n *netns.Namespace, lines ...string) {
	t.Helper()
	c := exec.Command("ip", "-n", n.Name, "-batch", "-")
	c.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("ip in %s: %v\n%s\n%s", n.Name, err, out, strings.Join(lines, "\n"))
	}
}

// shape is how a network plugin connects a pod with the node.
type shape int

// Shapes.
const (
	// routed pods have an address without neighbors and a gateway that no interface has, for which the node answers ARP requests,
	// as with Calico.
	routed shape = iota
	// bridged pods are on a bridge with the gateway's address, as with the plugin bridge and flannel.
	bridged
)

func (s shape) String() string { return []string{"routed", "bridged"}[s] }

// shapes are all shapes.
var shapes = []shape{routed, bridged}

// pod is the network namespace of a pod. IPv4 and IPv6 are its addresses; its interface is eth0.
type pod struct {
	*netns.Namespace
	node *node
	// device is the name of the host side of its veth.
	device  string
	bridged bool // the shape
}

// addPod adds a pod, until the end of the test or remove.
func (n *node) addPod(t testing.TB, s shape) *pod {
	t.Helper()
	n.pods++
	p := &pod{Namespace: netns.Add(t, fmt.Sprint("pod", n.pods)), node: n, device: fmt.Sprint("veth", n.pods), bridged: s == bridged}
	high, low := n.pods/200, n.pods%200+2
	p.IPv4 = netip.AddrFrom4([4]byte{10, byte(100 + s), byte(high), byte(low)})
	p.IPv6 = netip.MustParseAddr(fmt.Sprintf("fd01:%d::%x", s, n.pods+1))
	pair := fmt.Sprintf("link add %s type veth peer name eth0 netns %s", p.device, p.Name)
	if s == bridged {
		if !n.bridge {
			n.bridge = true
			// A bridge without an address of its own takes the lowest of its ports, so that each pod that comes or goes could change
			// the address which the others have in their tables of neighbors.
			batch(t, n.Namespace, "link add cni0 address 02:00:00:00:00:01 type bridge", "link set cni0 up", "addr add 10.101.0.1/16 dev cni0",
				"addr add fd01:1::1/64 dev cni0 nodad")
		}
		batch(t, n.Namespace, pair, fmt.Sprintf("link set %s master cni0 up", p.device))
		batch(t, p.Namespace, "link set eth0 up", fmt.Sprintf("addr add %v/16 dev eth0", p.IPv4),
			fmt.Sprintf("addr add %v/64 dev eth0 nodad", p.IPv6), "route add default via 10.101.0.1", "route add ::/0 via fd01:1::1")
		return p
	}
	batch(t, n.Namespace, pair, fmt.Sprintf("link set %s address ee:ee:ee:ee:ee:ee up", p.device),
		fmt.Sprintf("addr add fe80::1/64 dev %s nodad", p.device),
		fmt.Sprintf("route add %v/32 dev %s", p.IPv4, p.device), fmt.Sprintf("route add %v/128 dev %s", p.IPv6, p.device))
	n.Sysctl(t, "net/ipv4/conf/"+p.device+"/proxy_arp", "1")
	batch(t, p.Namespace, "link set eth0 up", fmt.Sprintf("addr add %v/32 dev eth0", p.IPv4),
		fmt.Sprintf("addr add %v/128 dev eth0 nodad", p.IPv6), "route add 169.254.1.1 dev eth0 scope link",
		"route add default via 169.254.1.1", "route add ::/0 via fe80::1 dev eth0")
	return p
}

// remove removes the pod as a container runtime does: with its namespace, whose interface the kernel removes later. The kernel
// keeps a namespace with open sockets.
func (p *pod) remove(t testing.TB) {
	t.Helper()
	kit.Output(t, exec.Command("ip", "netns", "del", p.Name))
}

// config is the configuration of a nodecache.
type config struct {
	kernel    string         // argument of the option kernel, empty for off
	addresses []netip.Addr   // node-local addresses, nil for both
	cache     string         // arguments of cache
	plugins   []string       // further plugins
	ofZones   []string       // further plugins of zones
	nodelocal []string       // options of nodelocal
	zones     []string       // zones with server blocks of their own, besides the one for all other names
	metrics   int            // port, 0 for 9153
	forward   netip.AddrPort // 0 for the upstream of the node
}

// withKernel returns a copy with another argument of the option kernel.
func (c config) withKernel(kernel string) config {
	c.kernel = kernel
	return c
}

// text returns the Corefile.
func (c config) text(n *node) string {
	c.addresses = c.local()
	var list []string
	for _, a := range c.addresses {
		list = append(list, a.String())
	}
	forward := c.forward
	if !forward.IsValid() {
		forward = n.upstream.address
	}
	var text strings.Builder
	for i, zone := range append([]string{"."}, c.zones...) {
		lines := []string{
			"bind " + strings.Join(list, " "), "errors", "prometheus " + c.metricsAddress(),
			"fastpath {\n        kernel " + cmp.Or(c.kernel, "off") + "\n    }", "cache " + c.cache, "forward . " + forward.String(),
		}
		if i == 0 {
			lines = append(lines, "nodelocal "+strings.Join(list, " ")+" {\n        "+strings.Join(c.nodelocal, "\n        ")+"\n    }")
		}
		if i > 0 {
			lines = append(lines, c.ofZones...)
		}
		fmt.Fprintf(&text, "%s:53 {\n    %s\n}\n", zone, strings.Join(append(lines, c.plugins...), "\n    "))
	}
	return text.String()
}

func (c config) local() []netip.Addr {
	if c.addresses == nil {
		return locals
	}
	return c.addresses
}

func (c config) metricsAddress() string { return fmt.Sprintf("127.0.0.1:%d", cmp.Or(c.metrics, 9153)) }

// instance is a nodecache that runs on a node.
type instance struct {
	*netns.Process
	node     *node
	config   config
	corefile string // path
}

// launch starts a nodecache and does not wait.
func (n *node) launch(t testing.TB, c config) *instance {
	t.Helper()
	n.programs++
	i := &instance{node: n, corefile: filepath.Join(t.TempDir(), fmt.Sprintf("Corefile%d", n.programs))}
	i.configure(t, c)
	i.Process = n.Start(t, daemon.Program(t, "nodecache"), "-conf", i.corefile)
	return i
}

// start starts a nodecache, and waits until it has its leases and its metrics.
func (n *node) start(t testing.TB, c config) *instance {
	t.Helper()
	i := n.launch(t, c)
	i.ready(t)
	return i
}

// ready waits until the program has its leases and its metrics.
func (i *instance) ready(t testing.TB) {
	t.Helper()
	i.eventually(t, "the metrics", func() error {
		_, err := kit.Get(i.node.Client(), "http://"+i.config.metricsAddress()+"/metrics")
		return err
	})
	for _, a := range i.config.local() {
		i.eventually(t, fmt.Sprintf("the lease of %v", a), func() error { return i.node.leased(a) })
	}
}

// leased reports whether the rules of the node direct packets to an address to its nodecache.
func (n *node) leased(address netip.Addr) error {
	set := "lease4"
	if address.Is6() {
		set = "lease6"
	}
	text, err := n.Try("nft", "list", "set", "inet", "nearside-nodelocaldns", set)
	if err == nil && !strings.Contains(text, " "+address.String()+" ") {
		return fmt.Errorf("%v has no lease:\n%s", address, text)
	}
	return err
}

// eventually waits until a check has no error, and fails if it does not in time or if the program has ended.
func (i *instance) eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	i.Succeeds(t, bounded, what, check)
}

// configure writes the Corefile.
func (i *instance) configure(t testing.TB, c config) {
	t.Helper()
	i.config = c
	kit.Must(t, os.WriteFile(i.corefile, []byte(c.text(i.node)), 0o600))
}

// reload has the program read another configuration, and waits until it has.
func (i *instance) reload(t testing.TB, c config) {
	t.Helper()
	const line = "[INFO] Reloading complete"
	i.configure(t, c)
	before := strings.Count(i.Output(), line)
	i.Signal(t, syscall.SIGUSR1)
	i.eventually(t, "the reload", func() error {
		if strings.Count(i.Output(), line) == before {
			return errors.New("no line in the log")
		}
		return nil
	})
}

// scrape returns the metrics.
func (i *instance) scrape(t testing.TB) daemon.Samples {
	t.Helper()
	c := i.node.Client()
	c.Timeout = bounded
	return daemon.Scrape(t, c, i.config.metricsAddress())
}

// Names of metrics.
const (
	answeredTotal = "nearside_kernel_answered_total"
	passedTotal   = "nearside_kernel_passed_total"
	interfaces    = "nearside_kernel_interfaces"
)

// answered returns the number of queries that the kernel has answered.
func (i *instance) answered(t testing.TB) int {
	t.Helper()
	return int(i.scrape(t).Sum(answeredTotal))
}

// steady runs a function, again if the kernel had no lease for one of its queries, and returns the increase of the metrics. On a
// starved machine a lease expires, and the kernel passes the queries on until it is acquired again.
func (i *instance) steady(t testing.TB, run func()) daemon.Samples {
	t.Helper()
	const tries = 10
	for range tries {
		before := i.scrape(t)
		run()
		since := i.scrape(t).Since(before)
		if since.Sum(passedTotal, "reason", "no_lease") == 0 {
			return since
		}
		i.ready(t)
	}
	t.Fatalf("a lease expired in each of %d runs", tries)
	return nil
}

// settled returns the number of queries that the kernel has answered, or passed on since their checksum is ambiguous: one query
// in 65,536 with a random ID or port.
func settled(since daemon.Samples) int {
	return int(since.Sum(answeredTotal) + since.Sum(passedTotal, "reason", "checksum"))
}

// waitInterfaces waits until a number of interfaces have a state, such as "attached".
func (i *instance) waitInterfaces(t testing.TB, state string, number int) {
	t.Helper()
	i.eventually(t, fmt.Sprintf("%d interfaces with the state %s", number, state), func() error {
		if now := i.scrape(t).Sum(interfaces, "state", state); int(now) != number {
			return fmt.Errorf("%v", now)
		}
		return nil
	})
}

// heat has the kernel answer queries from a namespace to each of some addresses: it sends them until the kernel has answered all.
func (i *instance) heat(t testing.TB, from *netns.Namespace, queries [][]byte, servers ...netip.Addr) {
	t.Helper()
	for _, server := range servers {
		c := dial(t, from, server)
		what := fmt.Sprintf("answers of the kernel at %v to %d queries from %s", server, len(queries), from.Name)
		i.eventually(t, what, func() error {
			before := i.answered(t)
			for _, q := range queries {
				if _, err := c.exchange(q); err != nil {
					return err
				}
			}
			if n := i.answered(t) - before; n < len(queries) {
				return fmt.Errorf("%d answers", n)
			}
			return nil
		})
	}
}

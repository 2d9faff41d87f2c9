//go:build linux

package coherence

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// kernelCache is the cache for which the kernel answers queries, see kernelNode.
const kernelCache = 0

// minKernelShare is the minimum share of the queries to kernelCache that the kernel answers. A third of them are over TCP.
const minKernelShare = 0.3

// kernelAddresses are the node-local addresses of kernelCache.
var kernelAddresses = []netip.Addr{netip.MustParseAddr("169.254.20.10"), netip.MustParseAddr("fd00:53::10")}

// kernelNode is the network of kernelCache: a node, and pods with its clients, each at a veth of the node. Its connections to
// clusterdns begin at a proxy in the network of the node, and end in that of the test.
type kernelNode struct{ *netns.Bed }

// newKernelNode returns the network, nil if the test may not make one.
func newKernelNode(t testing.TB) *kernelNode {
	t.Helper()
	_, err := exec.LookPath("ip")
	if os.Geteuid() != 0 {
		err = errors.New("it needs root")
	}
	if err != nil {
		withoutKernel(t, err.Error())
		return nil
	}
	return &kernelNode{netns.New(t)}
}

// withoutKernel logs why the kernel answers no queries. If kit.RequireAll is set, it fails the test.
func withoutKernel(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv(kit.RequireAll) == "1" {
		t.Fatalf("the kernel answers no queries: %s", reason)
	}
	t.Logf("the history is one of sockets only, the kernel answers no queries: %s", reason)
}

// within calls a function in a namespace, or in the network of the test without one.
func within(n *netns.Namespace, f func() error) error {
	if n == nil {
		return f()
	}
	return n.Do(f)
}

// corefile returns the Corefile of a node's cache, which is one of the addresses above, with answers in the kernel.
func (n *kernelNode) corefile(corefile string) string {
	addresses := fmt.Sprint(kernelAddresses[0], " ", kernelAddresses[1])
	corefile = strings.ReplaceAll(corefile, "bind 127.0.0.1", "bind "+addresses+"\n    fastpath {\n        kernel on\n    }")
	return strings.Replace(corefile, "    forward .", "    nodelocal "+addresses+"\n    forward .", 1)
}

// start starts a nodecache on the node, and waits until it answers the pods.
func (n *kernelNode) start(t testing.TB, path, corefile string, args ...string) *daemon.Process {
	t.Helper()
	var p *daemon.Process
	// A process has the network of the thread that starts it.
	kit.Must(t, n.Node.Do(func() error { p = daemon.Launch(t, path, corefile, args...); return nil }))
	for i, a := range kernelAddresses {
		address := net.JoinHostPort(a.String(), strconv.Itoa(p.Port))
		kit.Eventually(t, "answer at "+address, func() bool { return n.answers(i, address) })
	}
	return p
}

// answers reports whether a server answers a pod.
func (n *kernelNode) answers(pod int, address string) bool {
	c, err := dialFrom(n.Pod[pod], "udp", address)
	if err != nil {
		return false
	}
	conn := dns.Conn{Conn: c}
	defer func() { _ = conn.Close() }() // nothing waits
	if conn.SetDeadline(time.Now().Add(time.Second)) != nil || conn.WriteMsg(new(dns.Msg).SetQuestion("cluster.local.", dns.TypeNS)) != nil {
		return false
	}
	_, err = conn.ReadMsg()
	return err == nil
}

// dialFrom connects to an address from a namespace, or from the network of the test without one.
func dialFrom(n *netns.Namespace, network, address string) (c net.Conn, err error) {
	err = within(n, func() (err error) {
		c, err = net.DialTimeout(network, address, time.Second)
		return err
	})
	return c, err
}

// awaitKernel waits until the interfaces of the pods of a cache have the program that answers in the kernel. It returns false if
// the program cannot be loaded.
func (p *program) awaitKernel(t testing.TB) bool {
	t.Helper()
	const refused = "The kernel answers no queries: "
	kit.Eventually(t, "interfaces with the program", func() bool {
		return strings.Contains(p.Output(), refused) || p.samples(t).Sum("nearside_kernel_interfaces", "state", "attached") >= 1+netns.Pods
	})
	_, reason, found := strings.Cut(p.Output(), refused)
	if found {
		reason, _, _ = strings.Cut(reason, "\n")
		withoutKernel(t, reason)
	}
	return !found
}

// source is from where a client sends queries, and to which address.
type source struct {
	cache   uint8
	network string // udp or tcp
	from    *netns.Namespace
	address string
	skewed  bool // most queries have a few of the questions, as those of pods: the kernel has copies of popular answers
}

// sources returns those of all clients: one over UDP and one over TCP for each cache, and for the cache of a kernelNode one over
// UDP for each family.
func (h *history) sources() (all []source) {
	for n, cache := range h.caches {
		i := uint8(n) // #nosec G115 -- small
		if h.node != nil && i == kernelCache {
			port := strconv.Itoa(cache.Port)
			for j, network := range []string{"udp", "tcp"} {
				all = append(all, source{i, network, h.node.Pod[j], net.JoinHostPort(kernelAddresses[0].String(), port), true})
			}
			all = append(all, source{i, "udp", h.node.Pod[1], net.JoinHostPort(kernelAddresses[1].String(), port), true})
			continue
		}
		all = append(all, source{i, "udp", nil, cache.Addr, false}, source{i, "tcp", nil, cache.Addr, false})
	}
	return all
}

// cacheStopped stops the cache for which the kernel answers, with SIGSTOP. The program in the kernel remains, and answers until
// the lease ends, within a second.
func cacheStopped(h *history) {
	c := h.caches[kernelCache]
	c.Signal(h.t, syscall.SIGSTOP)
	time.Sleep(stopTime)
	c.Signal(h.t, syscall.SIGCONT)
	h.awaitSessions()
}

// leaseEnded reports whether the program in the kernel has passed queries on because of the lease, if it has answered any.
func leaseEnded(caches, _ daemon.Samples) error {
	if caches.Sum("nearside_kernel_answered_total") > 0 && caches.Sum("nearside_kernel_passed_total", "reason", "no_lease") == 0 {
		return errors.New("the lease has not ended in the kernel")
	}
	return nil
}

// stopTime is the time for which cacheStopped stops a cache, longer than the TTL.
const stopTime = 3 * time.Second

// unmetByKernel returns a report if the kernel has answered too few of the queries of a history, "" otherwise.
func (c *checker) unmetByKernel() string {
	var all mark
	for i := range c.marks {
		all.inKernel, all.asked = all.inKernel+c.marks[i].inKernel, all.asked+c.marks[i].asked
	}
	if share := all.shareOfKernel(); c.byKernel && share < minKernelShare {
		return fmt.Sprintf("the kernel answered %.1f %% of %d queries, want %.0f %%", 100*share, all.asked, 100*minKernelShare)
	}
	return ""
}

// TestKernelShare checks that a history with too few answers in the kernel is noticed, and a stopped cache whose lease does not end.
func TestKernelShare(t *testing.T) {
	few := &checker{marks: []mark{{inKernel: 10, tally: tally{asked: 100}}, {inKernel: 40, tally: tally{asked: 100}}}}
	if w := few.unmetByKernel(); w != "" {
		t.Errorf("%q, although the kernel answers no queries", w)
	}
	few.byKernel = true
	if few.unmetByKernel() == "" {
		t.Error("25 % suffice")
	}
	few.marks[1].inKernel = 60
	if w := few.unmetByKernel(); w != "" {
		t.Errorf("%q of 35 %%", w)
	}
	const answered, passed = `nearside_kernel_answered_total`, `nearside_kernel_passed_total{reason="no_lease"}`
	for _, tt := range []struct {
		caches daemon.Samples
		ended  bool
	}{{daemon.Samples{}, true}, {daemon.Samples{answered: 1}, false}, {daemon.Samples{answered: 1, passed: 1}, true}} {
		if err := leaseEnded(tt.caches, nil); (err == nil) != tt.ended {
			t.Errorf("%v: %v", tt.caches, err)
		}
	}
}

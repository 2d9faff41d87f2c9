//go:build linux

package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"
)

// namePrefix is the prefix of the names of all namespaces of this package; the process ID of the test follows.
const namePrefix = "nearside-test-"

// pinned is the folder of ip's named namespaces.
const pinned = "/run/netns"

// Pods is the number of pods in a bed.
const Pods = 2

// PodCIDRs are the ranges of all pods' addresses, in the form of kube-proxy's --cluster-cidr.
const PodCIDRs = "10.1.0.0/16,fd01::/32"

// count numbers the beds of this process.
var count atomic.Int64

// Bed is the network of one node.
type Bed struct {
	// Node is the host network of the node, for nodecache and kube-proxy. It forwards between the other namespaces. IPv4
	// and IPv6 are its addresses on the link to Upstream.
	Node *Namespace
	// Pod are the pods of the node. Each has its own link to the node.
	Pod [Pods]*Namespace
	// Upstream is the host at the node's default route, for cluster DNS.
	Upstream *Namespace

	number int64
}

// New sets up a bed, which is removed at the end of the test. It skips the test without root or ip (see Require).
func New(t testing.TB) *Bed {
	t.Helper()
	Require(t, "ip")
	removeLeftovers(t)
	b := &Bed{number: count.Add(1)}
	b.Node = b.add(t, "node", "10.2.0.1", "fd02::1")
	b.Upstream = b.add(t, "upstream", "10.2.0.2", "fd02::2")
	for i := range b.Pod {
		b.Pod[i] = b.add(t, fmt.Sprintf("pod%d", i), fmt.Sprintf("10.1.%d.2", i), fmt.Sprintf("fd01:0:0:%d::2", i))
		b.join(t, b.Pod[i], netip.MustParseAddr(fmt.Sprintf("10.1.%d.1", i)), netip.MustParseAddr(fmt.Sprintf("fd01:0:0:%d::1", i)))
	}
	b.join(t, b.Upstream, b.Node.IPv4, b.Node.IPv6)
	b.Node.ip(t, "route add default via "+b.Upstream.IPv4.String()+"\nroute add ::/0 via "+b.Upstream.IPv6.String())
	b.Node.Sysctl(t, "net/ipv4/ip_forward", "1")
	b.Node.Sysctl(t, "net/ipv6/conf/all/forwarding", "1")
	return b
}

// add makes a namespace with only a loopback interface; join adds its addresses.
func (b *Bed) add(t testing.TB, role, v4, v6 string) *Namespace {
	t.Helper()
	n := add(t, fmt.Sprintf("%s%d-%d-%s", namePrefix, os.Getpid(), b.number, role))
	n.IPv4, n.IPv6 = netip.MustParseAddr(v4), netip.MustParseAddr(v6)
	return n
}

// join links a namespace with the node. v4 and v6 are the node's addresses on the link. The interface is eth0 in the
// namespace; in the node its name is the namespace's role.
func (b *Bed) join(t testing.TB, n *Namespace, v4, v6 netip.Addr) {
	t.Helper()
	role := n.Name[strings.LastIndexByte(n.Name, '-')+1:]
	b.Node.ip(t, fmt.Sprintf("link add %s type veth peer name eth0 netns %s", role, n.Name),
		fmt.Sprintf("addr add %v/24 dev %s", v4, role),
		fmt.Sprintf("addr add %v/64 dev %s nodad", v6, role),
		fmt.Sprintf("link set %s up", role))
	n.ip(t, fmt.Sprintf("addr add %v/24 dev eth0", n.IPv4),
		fmt.Sprintf("addr add %v/64 dev eth0 nodad", n.IPv6),
		"link set eth0 up",
		fmt.Sprintf("route add default via %v", v4),
		fmt.Sprintf("route add ::/0 via %v", v6))
}

// removeLeftovers removes the namespaces of test processes that have ended.
func removeLeftovers(t testing.TB) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(pinned, namePrefix+"*"))
	kit.Must(t, err)
	for _, path := range all {
		name := filepath.Base(path)
		text, _, _ := strings.Cut(strings.TrimPrefix(name, namePrefix), "-")
		pid, err := strconv.Atoi(text)
		if err != nil || !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			continue
		}
		if err := remove(name); err != nil {
			t.Logf("namespace of an earlier run: %v", err)
		}
	}
}

// remove removes a namespace and its files of Etc.
func remove(name string) error {
	var problem error
	if out, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
		// Another test process may have removed the same leftover.
		if _, statErr := os.Stat(filepath.Join(pinned, name)); !errors.Is(statErr, fs.ErrNotExist) {
			problem = fmt.Errorf("ip netns del %s: %w\n%s", name, err, out)
		}
	}
	return errors.Join(problem, os.RemoveAll(filepath.Join(ownFiles, name)))
}

//go:build linux

package nodelocal

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/daemon"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// bounded limits the wait for an event that is due at once or within a second.
const bounded = 3 * time.Second

// startTimeout bounds the start of a program on a busy machine.
const startTimeout = 30 * time.Second

// The addresses that nodecache listens on. The cluster IPs are those of the Service kube-dns.
var (
	local4   = netip.MustParseAddr("169.254.20.10")
	local6   = netip.MustParseAddr("fd00:53::10")
	kubeDNS4 = netip.MustParseAddr("10.96.0.10")
	kubeDNS6 = netip.MustParseAddr("fd00:96::a")
)

// The cluster IPs of the Service kube-dns-upstream, on which no nodecache listens.
var (
	upstream4 = netip.MustParseAddr("10.96.0.11")
	upstream6 = netip.MustParseAddr("fd00:96::b")
)

// Names of interface and tables of nodecache.
const (
	device = "nodelocaldns"
	table  = "nearside-nodelocaldns"
)

// program returns the path of nodecache.
func program(t *testing.T) string {
	t.Helper()
	return daemon.Program(t, "nodecache")
}

// node is a node with pods and, behind it, cluster DNS. Every answer is a TXT record with the names of the server and of
// the sender of the query.
type node struct {
	*netns.Bed
	dns *netns.Process // cluster DNS
}

// newNode makes a node without configuration, and starts cluster DNS.
func newNode(t *testing.T) *node {
	t.Helper()
	netns.Require(t, "ip", "nft", "iptables", "conntrack", "dig")
	n := &node{Bed: netns.New(t)}
	n.dns = n.Upstream.Start(t, program(t), "-conf", corefile(t, answering("upstream")))
	kit.Succeeds(t, startTimeout, "cluster DNS to answer", func() error {
		_, err := n.Upstream.Ask("tcp", n.Upstream.IPv6, "up.test.", time.Second)
		return err
	})
	// The kernel tracks connections only if rules use them.
	n.Node.Run(t, "nft", "add table inet control; "+
		"add chain inet control in { type filter hook prerouting priority 0; }; add rule inet control in ct state new counter; "+
		"add chain inet control out { type filter hook output priority 0; }; add rule inet control out ct state new counter")
	return n
}

// answering is the plugin that answers every query with the names of server and sender.
func answering(who string) string {
	return fmt.Sprintf("template IN ANY . {\n        answer \"{{ .Name }} 5 IN TXT %s {{ .Remote }}\"\n    }", who)
}

// server is the configuration of one server for all names.
func server(plugins ...string) string {
	return ".:53 {\n    " + strings.Join(plugins, "\n    ") + "\n}\n"
}

// corefile writes the configuration of one server for all names to a new file and returns its path.
func corefile(t *testing.T, plugins ...string) string {
	t.Helper()
	path := kit.File(t, "Corefile", server(plugins...))
	return path
}

// cache is the configuration of a nodecache.
type cache struct {
	// who is the name in its answers.
	who string
	// addresses are the node-local addresses.
	addresses []netip.Addr
	// bind are the arguments of bind, empty for those of nodelocal.
	bind string
	// options are the lines in the block of nodelocal.
	options []string
	// more are further plugins.
	more []string
}

// whos are the names in the answers; each has its own port behind the cache.
var whos = []string{"local", "first", "second", "third", "bystander"}

// text is the Corefile. The answers are cached, so that the fast path has the addresses, and made by a server block of
// the same process.
func (c cache) text() string {
	list := addressList(c.addresses)
	return server(append([]string{
		"bind " + cmp.Or(c.bind, list), "errors",
		"nodelocal " + list + " {\n        " + strings.Join(c.options, "\n        ") + "\n    }",
		"cache", fmt.Sprintf("forward . 127.0.0.1:%d", c.port()),
	}, c.more...)...) + c.behind()
}

// behind is the server block to which it forwards.
func (c cache) behind() string {
	return strings.Replace(server("bind 127.0.0.1", answering(c.who)), ":53", fmt.Sprintf(":%d", c.port()), 1)
}

func (c cache) port() int { return 5300 + slices.Index(whos, c.who) }

// start starts nodecache on the node and does not wait.
func (n *node) start(t *testing.T, c cache) *netns.Process {
	t.Helper()
	path := kit.File(t, "Corefile", c.text())
	return n.Node.Start(t, program(t), "-conf", path)
}

// run starts nodecache and waits until it answers a pod on each of its addresses and has their leases.
func (n *node) run(t *testing.T, c cache) *netns.Process {
	t.Helper()
	p := n.start(t, c)
	for _, a := range c.addresses {
		n.waitAnswer(t, startTimeout, a, c.who)
		if c.hasLease() {
			kit.Succeeds(t, startTimeout, "the lease", func() error { return n.leased(a) })
		}
	}
	return p
}

// hasLease reports whether the rules of this configuration have a lease.
func (c cache) hasLease() bool {
	for _, without := range []string{"backend iptables", "backend none", "setup none", "setup interface"} {
		if slices.Contains(c.options, without) {
			return false
		}
	}
	return true
}

// waitAnswer waits until this server answers the pods on an address.
func (n *node) waitAnswer(t *testing.T, timeout time.Duration, address netip.Addr, who string) {
	t.Helper()
	kit.Succeeds(t, timeout, fmt.Sprintf("%s to answer on %v", who, address), func() error {
		record, err := n.Pod[0].Ask("udp", address, "wait.test.", 500*time.Millisecond)
		if err == nil && record[0] != who {
			return fmt.Errorf("%q answers", record)
		}
		return err
	})
}

func addressList(all []netip.Addr) string {
	var text []string
	for _, a := range all {
		text = append(text, a.String())
	}
	return strings.Join(text, " ")
}

// waitLog waits until a program's output contains a text, and fails with all of the output.
func waitLog(t *testing.T, timeout time.Duration, p *netns.Process, text string) {
	t.Helper()
	kit.Succeeds(t, timeout, fmt.Sprintf("%q in the log", text), func() error {
		if !strings.Contains(p.Output(), text) {
			return errors.New(p.Output())
		}
		return nil
	})
}

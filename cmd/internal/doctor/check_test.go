//go:build linux

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
	"github.com/nearside-dns/nearside/plugin/fastpath/kernel"
	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules/firewall"
)

var (
	four    = netip.MustParseAddr("169.254.20.10")
	six     = netip.MustParseAddr("fd00::a")
	service = netip.MustParseAddr("10.96.0.10")
)

// machine is the node of a test.
type machine struct {
	files     map[string]string // below /proc
	setup     setup
	links     []link.Link
	matched   map[string][]netip.Addr // of nodecache's table, by chain
	rulesErr  error
	iptables  []rules.PredecessorRule
	modes     []string // of kube-proxy
	legacyErr error
	instances int
	leases    map[netip.Addr]time.Duration
	suspects  []firewall.Suspect
	traffic   map[string]rules.Traffic
	unread    error // of the packet filters, and of kube-proxy's rules
	proxied   []netip.Addr
	obstacles []kernel.Obstacle
}

func (m machine) node(t *testing.T) *node {
	t.Helper()
	files, err := proc.Open(tree(t, m.files))
	kit.Must(t, err)
	n := newNode(options{port: 53, timeout: time.Second, domain: "cluster.local."}, files, nil)
	n.modules = files.Path("lib/modules")
	if m.setup.iface == "" {
		m.setup.iface = "nodelocaldns"
	}
	n.setup = func() setup { return m.setup }
	n.links = func() ([]link.Link, error) { return m.links, nil }
	n.matched = func() (map[string][]netip.Addr, error) { return m.matched, m.rulesErr }
	n.proxy = func() (rules.KubeProxy, error) {
		return rules.KubeProxy{Modes: m.modes, Services: m.proxied}, cmp.Or(m.unread, m.legacyErr)
	}
	n.instances = func(string) (int, error) { return m.instances, nil }
	n.leases = func(string) (map[netip.Addr]time.Duration, error) { return m.leases, nil }
	n.suspects = func(context.Context, []firewall.Packet) ([]firewall.Suspect, error) { return m.suspects, m.unread }
	n.traffic = func(string) (map[string]rules.Traffic, error) { return m.traffic, nil }
	n.predecessors = func() ([]rules.PredecessorRule, error) { return m.iptables, m.legacyErr }
	n.ingresses = func(context.Context, []firewall.Packet) ([]rules.Ingress, error) { return nil, nil }
	n.fallback = func(string) []netip.Addr { return nil }
	n.routed = func() (map[int]bool, error) { return nil, nil }
	n.obstacles = func() ([]kernel.Obstacle, error) { return m.obstacles, m.unread }
	return n
}

// brief returns a line as the tests write it.
func brief(l Line) string { return fmt.Sprintf("%s | %s | %s", l.Verdict, l.Check, l.Value) }

// device is an interface of a kind that is up.
func device(name, kind string, addresses ...string) link.Link {
	l := link.Link{Name: name, Kind: kind, Index: len(name), Up: true}
	for _, a := range addresses {
		l.Addresses = append(l.Addresses, link.Address{Prefix: netip.MustParsePrefix(a)})
	}
	return l
}

// table is nodecache's table, which matches addresses, some of them with a fallback.
func table(matched, withFallback []netip.Addr) map[string][]netip.Addr {
	chains := map[string][]netip.Addr{"prerouting": nil, "output": matched}
	if withFallback != nil {
		chains["fallback-prerouting"] = withFallback
	}
	return chains
}

func TestChecks(t *testing.T) {
	addresses := setup{addresses: []netip.Addr{four, six}}
	linkLocal := setup{addresses: []netip.Addr{four}}
	nodecache := proc.Command{Process: proc.Process{PID: 7, Name: "nodecache"}}
	predecessor := proc.Command{Process: proc.Process{PID: 7, Name: "node-cache"}}
	oldRule := rules.PredecessorRule{Family: "ip", Table: "raw", Chain: "PREROUTING", Addresses: []netip.Addr{four}}
	filter := func(family, table, name string) firewall.Suspect {
		return firewall.Suspect{Chain: firewall.Chain{Family: family, Table: table, Name: name, Hook: "input"}, Rule: "its policy drops", Packets: firewall.Packets([]netip.Addr{four}, 53)}
	}
	legacyFilter := filter("ip", "filter", "INPUT")
	legacyFilter.Chain.Legacy = true
	inFw := []firewall.Suspect{filter("inet", "fw", "in")}
	bothLeased := map[netip.Addr]time.Duration{four: time.Second, six: time.Second}
	pair := []link.Link{device("nodelocaldns-q1", "veth")}
	symbols := ""
	for _, name := range []string{"nft_do_chain", "nf_conntrack_in", "nft_notrack_eval", "nft_nat_eval", "nft_masq_eval", "nft_socket_eval", "br_dev_xmit", "veth_xmit.cold"} {
		symbols += "ffffffff81dbd870 t " + name + "\n"
	}
	modules := func(builtin, loadable string) map[string]string {
		path := func(name string) string { return "kernel/net/" + strings.ReplaceAll(name, "_", "-") + ".ko" }
		files := map[string]string{"modules": "", "sys/kernel/osrelease": "6.1\n"}
		for _, name := range strings.Fields(builtin) {
			files["lib/modules/6.1/modules.builtin"] += path(name) + "\n"
		}
		for _, name := range strings.Fields(loadable) {
			files["lib/modules/6.1/modules.dep"] += path(name) + ".xz: kernel/net/ipv4/other.ko.xz\n"
		}
		return files
	}
	udp := func(rows ...string) map[string]string {
		return map[string]string{"net/udp": "heading\n" + strings.Join(rows, ""), "net/tcp": ""}
	}
	row := func(address string, inode, drops int) string {
		return fmt.Sprintf("  1: %s:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 %d 2 0 %d\n", address, inode, drops)
	}
	for _, c := range []struct {
		name    string
		machine machine
		look    func(*node, context.Context) []Line
		want    []string
		advice  string // part of the first line's
	}{
		{"no instance", machine{}, (*node).checkInstances, []string{"fail | nodecache | not running here"}, "kubectl"},
		{"one instance", machine{instances: 1, setup: setup{running: []proc.Command{nodecache}}}, (*node).checkInstances,
			[]string{"ok | nodecache | one instance: nodecache (pid 7)"}, ""},
		{"an instance of another process namespace", machine{instances: 1}, (*node).checkInstances, []string{"ok | nodecache | one instance"}, ""},
		{"two instances", machine{instances: 2}, (*node).checkInstances, []string{"warn | nodecache | 2 instances"}, "upgrade"},
		{"node-local-dns", machine{setup: setup{running: []proc.Command{predecessor}}}, (*node).checkInstances,
			[]string{"warn | nodecache | node-local-dns: node-cache (pid 7)"}, "nodecache cleanup"},
		{"without the plugin", machine{setup: setup{running: []proc.Command{nodecache}}}, (*node).checkInstances,
			[]string{"warn | nodecache | nodecache (pid 7), without the plugin nodelocal"}, "-localip"},
		{"unreadable configuration", machine{instances: 1, setup: setup{problem: fs.ErrNotExist}}, (*node).checkInstances,
			[]string{"ok | nodecache | one instance", "skip | configuration | file does not exist"}, ""},

		{"kernel 5.1", machine{files: map[string]string{"sys/kernel/osrelease": "5.1.21-x\n"}}, (*node).checkKernel,
			[]string{"warn | kernel release | 5.1.21-x"}, "5.2"},
		{"kernel 5.2", machine{files: map[string]string{"sys/kernel/osrelease": "5.2.0\n"}}, (*node).checkKernel, []string{"ok | kernel release | 5.2.0"}, ""},
		{"kernel 6.1", machine{files: map[string]string{"sys/kernel/osrelease": "6.1\n"}}, (*node).checkKernel, []string{"ok | kernel release | 6.1"}, ""},
		{"features of a kernel without modules", machine{files: map[string]string{"kallsyms": symbols}}, (*node).checkFeatures,
			[]string{"ok | kernel features | all 8"}, ""},
		{"features that a kernel without modules lacks", machine{files: map[string]string{"kallsyms": strings.Replace(symbols, "veth_xmit.cold", "other", 1)}}, (*node).checkFeatures,
			[]string{"warn | kernel feature veth | not in this kernel"}, "use lo"},
		{"features that can be loaded", machine{files: modules("nf_tables nf_conntrack", "nft_ct nft_nat nft_masq nft_socket dummy veth")}, (*node).checkFeatures,
			[]string{"ok | kernel features | all 8"}, ""},
		{"features without a module", machine{files: modules("nf_tables nf_conntrack", "nft_ct nft_nat nft_masq veth")}, (*node).checkFeatures,
			[]string{"warn | kernel feature nft_socket | not in this kernel", "warn | kernel feature dummy | not in this kernel"}, "until its lease expires"},
		{"modules that are not visible", machine{files: map[string]string{"modules": "nf_tables 1 0\nnft_ct 1 0\n"}}, (*node).checkFeatures,
			[]string{"skip | kernel features | not known from here: nf_conntrack, nft_nat, nft_masq, nft_socket, dummy, veth"}, "/lib/modules"},
		{"kernel without a number", machine{files: map[string]string{"sys/kernel/osrelease": "next\n"}}, (*node).checkKernel, []string{"skip | kernel release | next"}, ""},

		{"no CAP_NET_ADMIN", machine{files: map[string]string{"self": "-> 1", "1/status": "CapEff:\t0000000000000400\n"}}, func(n *node, ctx context.Context) []Line {
			lines := n.checkPrivileges(ctx)
			lines[0].Value = lines[0].Value[strings.Index(lines[0].Value, "without"):] // the user before it differs
			return lines
		}, []string{"warn | privileges | without CAP_NET_ADMIN"}, "as root"},

		{"no interface", machine{setup: addresses}, (*node).checkInterface, []string{"fail | interface nodelocaldns | missing"}, "start nodecache"},
		{"configured without an interface", machine{setup: setup{noIface: true}}, (*node).checkInterface, []string{"ok | interface nodelocaldns | none, as configured"}, ""},
		{"on lo", machine{setup: addresses, links: []link.Link{device("lo", "device", "127.0.0.1/8", "169.254.20.10/32", "fd00::a/128")}}, (*node).checkInterface,
			[]string{"ok | interface nodelocaldns | none; the addresses are on lo"}, ""},
		{"one of two on lo", machine{setup: addresses, links: []link.Link{device("lo", "device", "169.254.20.10/32")}}, (*node).checkInterface,
			[]string{"fail | interface nodelocaldns | missing"}, ""},
		{"dummy", machine{links: []link.Link{device("nodelocaldns", "dummy")}}, (*node).checkInterface, []string{"ok | interface nodelocaldns | dummy, up"}, ""},
		{"with a pair", machine{links: []link.Link{device("nodelocaldns", "dummy"), device("nodelocaldns-q1", "veth")}}, (*node).checkInterface,
			[]string{"ok | interface nodelocaldns | dummy, up; queries to itself arrive on nodelocaldns-q1"}, ""},
		{"veth", machine{links: []link.Link{device("nodelocaldns", "veth")}}, (*node).checkInterface,
			[]string{"fail | interface nodelocaldns | a veth, not a dummy or bridge"}, "-interfacename"},
		{"down", machine{links: []link.Link{{Name: "nodelocaldns", Kind: "dummy"}}}, (*node).checkInterface, []string{"fail | interface nodelocaldns | dummy, down"}, "ip link set"},
		{"bridge with a port", machine{links: []link.Link{device("nodelocaldns", "bridge"), {Name: "eth1", Index: 99, Master: len("nodelocaldns")}}}, (*node).checkInterface,
			[]string{"fail | interface nodelocaldns | a bridge with the port eth1"}, ""},

		{"no address", machine{}, (*node).checkAddresses, []string{"skip | addresses | none known"}, "-localip"},
		{"addresses", machine{setup: addresses, links: []link.Link{device("nodelocaldns", "dummy", "169.254.20.10/32", "fd00::a/128", "fe80::1/64")}}, (*node).checkAddresses,
			[]string{"ok | address 169.254.20.10 | on nodelocaldns", "ok | address fd00::a | on nodelocaldns"}, ""},
		{"address missing", machine{setup: linkLocal}, (*node).checkAddresses, []string{"fail | address 169.254.20.10 | on no interface"}, ""},
		{"address of eth0", machine{setup: linkLocal, links: []link.Link{device("eth0", "device", "169.254.20.10/16")}}, (*node).checkAddresses,
			[]string{"fail | address 169.254.20.10 | on eth0"}, "another interface"},
		{"address of eth0, without an interface of nodecache", machine{setup: setup{addresses: []netip.Addr{four}, noIface: true}, links: []link.Link{device("eth0", "device", "169.254.20.10/16")}}, (*node).checkAddresses,
			[]string{"ok | address 169.254.20.10 | on eth0"}, ""},
		{"address of IPVS", machine{setup: setup{addresses: []netip.Addr{service}}, links: []link.Link{device("nodelocaldns", "dummy", "10.96.0.10/32"), device("kube-ipvs0", "dummy", "10.96.0.10/32")}}, (*node).checkAddresses,
			[]string{"fail | address 10.96.0.10 | on nodelocaldns and kube-ipvs0"}, "link-local address only"},
		{"address twice", machine{setup: linkLocal, links: []link.Link{device("nodelocaldns", "dummy", "169.254.20.10/32"), device("eth0", "device", "169.254.20.10/32")}}, (*node).checkAddresses,
			[]string{"warn | address 169.254.20.10 | on nodelocaldns and eth0"}, ""},
		{"address with a prefix", machine{setup: linkLocal, links: []link.Link{device("nodelocaldns", "dummy", "169.254.20.10/24")}}, (*node).checkAddresses,
			[]string{"warn | address 169.254.20.10 | on nodelocaldns, with a prefix of 24"}, "/32"},
		{"address too many", machine{setup: linkLocal, links: []link.Link{device("nodelocaldns", "dummy", "169.254.20.10/32", "10.96.0.10/32")}}, (*node).checkAddresses,
			[]string{"ok | address 169.254.20.10 | on nodelocaldns", "warn | address 10.96.0.10 | on nodelocaldns, not configured"}, ""},
		{"tentative", machine{setup: setup{addresses: []netip.Addr{six}}, links: []link.Link{{Name: "nodelocaldns", Addresses: []link.Address{{Prefix: netip.MustParsePrefix("fd00::a/128"), Tentative: true}}}}}, (*node).checkAddresses,
			[]string{"fail | address fd00::a | on nodelocaldns, tentative"}, ""},
		{"IPv6 is off", machine{setup: setup{addresses: []netip.Addr{six}}, files: map[string]string{"sys/net/ipv6/conf/all/disable_ipv6": "1\n"}}, (*node).checkAddresses,
			[]string{"fail | address fd00::a | IPv6 is switched off"}, "disable_ipv6=0"},

		{"rules not readable", machine{rulesErr: fs.ErrPermission}, (*node).checkRules, []string{"skip | rules | permission denied"}, "as root"},
		{"no rules", machine{}, (*node).checkRules, []string{"fail | rules | none: no table inet nearside-nodelocaldns"}, ""},
		{"configured without rules", machine{setup: setup{noRules: true}}, (*node).checkRules, []string{"ok | rules | none, as configured"}, ""},
		{"iptables", machine{iptables: []rules.PredecessorRule{oldRule, oldRule}}, (*node).checkRules, []string{"warn | rules | 2 of iptables; no lease"}, "backend nftables"},
		{"iptables cannot be read", machine{legacyErr: errors.New("no\nprogram")}, (*node).checkRules, []string{"skip | rules | no program"}, ""},
		{"rules, with and without lease", machine{
			setup: addresses, matched: table([]netip.Addr{four, six}, []netip.Addr{four}), leases: map[netip.Addr]time.Duration{four: 701 * time.Millisecond},
		}, (*node).checkRules, []string{
			"ok | rules | nftables, table inet nearside-nodelocaldns", "ok | lease 169.254.20.10 | in, 700ms left",
			"fail | lease fd00::a | out", "ok | fallback 169.254.20.10 | cluster DNS, while the lease is out", "warn | fallback fd00::a | none",
		}, ""},
		{"fallback of a Service", machine{
			setup: addresses, matched: table([]netip.Addr{four, six}, []netip.Addr{four}), leases: map[netip.Addr]time.Duration{four: time.Second, six: time.Second},
			proxied: []netip.Addr{six},
		}, (*node).checkRules, []string{
			"ok | rules | nftables, table inet nearside-nodelocaldns", "ok | lease 169.254.20.10 | in, 1s left",
			"ok | lease fd00::a | in, 1s left", "ok | fallback 169.254.20.10 | cluster DNS, while the lease is out", "ok | fallback fd00::a | kube-proxy, while the lease is out",
		}, ""},
		{"fallback not known", machine{setup: linkLocal, unread: fs.ErrPermission, matched: table([]netip.Addr{four}, nil), leases: map[netip.Addr]time.Duration{four: time.Second}}, (*node).checkRules,
			[]string{"ok | rules | nftables, table inet nearside-nodelocaldns", "ok | lease 169.254.20.10 | in, 1s left", "skip | fallback 169.254.20.10 | permission denied"}, ""},
		{"no fallback", machine{setup: linkLocal, matched: table([]netip.Addr{four}, nil), leases: map[netip.Addr]time.Duration{four: time.Second}}, (*node).checkRules,
			[]string{"ok | rules | nftables, table inet nearside-nodelocaldns", "ok | lease 169.254.20.10 | in, 1s left", "warn | fallback 169.254.20.10 | none"}, ""},
		{"a chain is missing", machine{matched: map[string][]netip.Addr{"output": nil}}, (*node).checkRules, []string{"fail | rules | nftables, table inet nearside-nodelocaldns without chain prerouting"}, "restart it"},
		{"an address is missing", machine{setup: setup{addresses: []netip.Addr{six}}, matched: table([]netip.Addr{four}, nil), leases: map[netip.Addr]time.Duration{six: time.Second}}, (*node).checkRules,
			[]string{"fail | rules | nftables, table inet nearside-nodelocaldns without fd00::a", "ok | lease fd00::a | in, 1s left", "warn | fallback fd00::a | none"}, ""},
		{"rules, configured without", machine{setup: setup{noRules: true}, matched: table(nil, nil)}, (*node).checkRules, []string{"warn | rules | nftables, table inet nearside-nodelocaldns"}, "cleanup"},

		{"no leftovers", machine{}, (*node).checkLeftovers, []string{"ok | rules of node-local-dns | none"}, ""},
		{"leftovers beside our table", machine{matched: table(nil, nil), iptables: []rules.PredecessorRule{oldRule}}, (*node).checkLeftovers,
			[]string{"warn | rules of node-local-dns | 1, beside the table of nodecache"}, "cleanup -only iptables"},
		{"leftovers that only accept", machine{matched: table(nil, nil), iptables: []rules.PredecessorRule{{Family: "ip", Table: "filter", Chain: "INPUT"}}}, (*node).checkLeftovers,
			[]string{"ok | rules of node-local-dns | 1, which only accept DNS"}, ""},
		{"leftovers that no process uses", machine{iptables: []rules.PredecessorRule{oldRule}}, (*node).checkLeftovers, []string{"warn | rules of node-local-dns | 1"}, "nodecache cleanup"},
		{"iptables in use", machine{iptables: []rules.PredecessorRule{oldRule}, setup: setup{running: []proc.Command{predecessor}}}, (*node).checkLeftovers, []string{"ok | rules of node-local-dns | 1, in use"}, ""},

		{"no filter drops", machine{setup: addresses}, (*node).checkFirewall, []string{"ok | rules of others | none rejects DNS to the addresses"}, ""},
		{"addresses not known", machine{}, (*node).checkFirewall, []string{"skip | rules of others | the addresses are not known"}, "-localip"},
		{"filters not readable", machine{setup: addresses, unread: fs.ErrPermission}, (*node).checkFirewall, []string{"skip | rules of others | permission denied"}, "as root"},
		{"a firewall", machine{setup: addresses, suspects: inFw}, (*node).checkFirewall,
			[]string{"warn | rules of others | chain inet fw in, its policy drops: UDP and TCP to 169.254.20.10"}, "nft insert rule inet fw in ip daddr 169.254.20.10 udp dport 53 accept; nft insert rule inet fw in ip daddr 169.254.20.10 tcp dport 53 accept"},
		{"a firewall that lets self-queries pass", machine{setup: addresses, suspects: inFw, matched: table(nil, nil), leases: bothLeased, links: pair}, (*node).checkFirewall,
			[]string{"ok | rules of others | chain inet fw in, its policy drops: UDP and TCP to 169.254.20.10; queries arrive, so that it drops at most those of some pods"}, ""},
		{"a firewall, and one address without a lease", machine{setup: addresses, suspects: inFw, matched: table(nil, nil), leases: map[netip.Addr]time.Duration{six: time.Second}, links: pair}, (*node).checkFirewall,
			[]string{"warn | rules of others | chain inet fw in, its policy drops: UDP and TCP to 169.254.20.10"}, "to let DNS through"},
		{"a firewall that lets queries of pods pass", machine{setup: addresses, suspects: inFw, matched: table(nil, nil), leases: bothLeased, traffic: map[string]rules.Traffic{"udp4": {LetIn: 2, Arrived: 2}, "tcp6": {LetIn: 1, Arrived: 1}}}, (*node).checkFirewall,
			[]string{"ok | rules of others | chain inet fw in, its policy drops: UDP and TCP to 169.254.20.10; queries arrive, so that it drops at most those of some pods"}, ""},
		{"a firewall, and self-queries over lo without queries of pods", machine{setup: addresses, suspects: inFw, matched: table(nil, nil), leases: bothLeased, traffic: map[string]rules.Traffic{"udp4": {LetIn: 2, Arrived: 2}, "udp6": {LetIn: 1}}}, (*node).checkFirewall,
			[]string{"warn | rules of others | chain inet fw in, its policy drops: UDP and TCP to 169.254.20.10"}, ""},
		{"a firewall of iptables", machine{setup: addresses, suspects: []firewall.Suspect{filter("ip", "filter", "INPUT")}}, (*node).checkFirewall,
			[]string{"warn | rules of others | chain ip filter INPUT, its policy drops: UDP and TCP to 169.254.20.10"}, "iptables -I INPUT -d 169.254.20.10 -p udp --dport 53 -j ACCEPT; iptables -I INPUT -d 169.254.20.10 -p tcp"},
		{"a firewall of the old iptables", machine{setup: linkLocal, suspects: []firewall.Suspect{legacyFilter}, unread: fs.ErrPermission}, (*node).checkFirewall, []string{
			"warn | rules of others | iptables-legacy, chain ip filter INPUT, its policy drops: UDP and TCP to 169.254.20.10", "skip | rules of others | permission denied",
		}, "iptables-legacy -I INPUT -d 169.254.20.10"},

		{"no process on the port", machine{setup: linkLocal, files: udp()}, (*node).checkPort, []string{"fail | port 53 on 169.254.20.10 | no process"}, ""},
		{"nodecache with UDP alone", machine{setup: setup{addresses: []netip.Addr{four}, running: []proc.Command{nodecache}}, files: map[string]string{
			"net/udp": "heading\n" + row("0A14FEA9", 101, 0), "net/tcp": "", "7/fd/3": "-> socket:[101]", "7/comm": "nodecache\n",
		}}, (*node).checkPort, []string{"fail | port 53 on 169.254.20.10 | nodecache (pid 7), udp", "ok | port 53 lost datagrams | 0"}, "only udp"},
		{"another on our address", machine{setup: linkLocal, files: map[string]string{
			"net/udp": "heading\n" + row("0A14FEA9", 101, 3), "net/tcp": "", "9/fd/3": "-> socket:[101]", "9/comm": "dnsmasq\n",
		}}, (*node).checkPort, []string{"fail | port 53 on 169.254.20.10 | dnsmasq (pid 9), udp", "warn | port 53 lost datagrams | 3"}, "instead of nodecache"},
		{"dnsmasq everywhere", machine{setup: linkLocal, files: map[string]string{
			"net/udp": "heading\n" + row("00000000", 101, 0), "net/tcp": "", "9/fd/3": "-> socket:[101]", "9/comm": "dnsmasq\n",
		}}, (*node).checkPort, []string{"warn | port 53 on 0.0.0.0 | dnsmasq (pid 9), udp", "ok | port 53 lost datagrams | 0"}, "bind-interfaces"},
		{"systemd-resolved on its own address", machine{files: map[string]string{
			"net/udp": "heading\n" + row("3500007F", 101, 9), "net/tcp": "", "9/fd/3": "-> socket:[101]", "9/comm": "systemd-resolve\n",
		}}, (*node).checkPort, []string{"ok | port 53 on 127.0.0.53 | systemd-resolve (pid 9), udp"}, ""},
		{"a process of another namespace", machine{setup: linkLocal, files: udp(row("0A14FEA9", 101, 0), row("00000000", 102, 0))}, (*node).checkPort, []string{
			"warn | port 53 on 0.0.0.0 | a process not seen from here, udp", "fail | port 53 on 169.254.20.10 | a process not seen from here, udp", "ok | port 53 lost datagrams | 0",
		}, ""},

		{"IPVS of another program", machine{setup: addresses, files: map[string]string{"net/ip_vs": "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n" +
			"  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\nTCP  0A600001:01BB rr\n  -> 0AF40003:01BB      Masq    1      0          0\n"}}, (*node).checkProxy,
			[]string{"fail | kube-proxy | ipvs"}, "link-local"},
		{"no proxy", machine{}, (*node).checkProxy, []string{"warn | kube-proxy | no rules of it: none here, or another proxy (eBPF)"}, ""},
		{"Cilium", machine{links: []link.Link{device("cilium_host", "veth")}}, (*node).checkProxy, []string{"warn | kube-proxy | none; Cilium is here (eBPF)"}, "local redirect"},
		{"nftables mode", machine{modes: []string{"nftables"}}, (*node).checkProxy, []string{"ok | kube-proxy | nftables"}, ""},
		{"iptables mode", machine{modes: []string{"iptables"}}, (*node).checkProxy, []string{"ok | kube-proxy | iptables"}, ""},
		{"two modes", machine{modes: []string{"nftables", "iptables"}}, (*node).checkProxy,
			[]string{"warn | kube-proxy | rules of several modes: nftables, iptables"}, "--cleanup"},
		{"IPVS mode and a Service's address", machine{setup: setup{addresses: []netip.Addr{four, service}}, modes: []string{"ipvs"}}, (*node).checkProxy,
			[]string{"fail | kube-proxy | ipvs"}, "not 10.96.0.10"},
		{"IPVS mode", machine{setup: linkLocal, modes: []string{"ipvs"}}, (*node).checkProxy,
			[]string{"ok | kube-proxy | ipvs"}, ""},
		{"rules cannot be read", machine{legacyErr: fs.ErrPermission}, (*node).checkProxy, []string{"skip | kube-proxy | permission denied"}, "as root"},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines := c.look(c.machine.node(t), context.Background())
			var got []string
			for _, l := range lines {
				got = append(got, brief(l))
				if bad := l.Verdict == Warn || l.Verdict == Fail; bad && l.Advice == "" || l.Verdict == OK && l.Advice != "" {
					t.Errorf("%s: advice %q", brief(l), l.Advice)
				}
			}
			if strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
			if !strings.Contains(lines[0].Advice, c.advice) {
				t.Errorf("advice %q has no %q", lines[0].Advice, c.advice)
			}
		})
	}
}

func TestSysctls(t *testing.T) {
	files := map[string]string{
		"sys/net/netfilter/nf_conntrack_max": "100\n", "sys/net/netfilter/nf_conntrack_count": "79\n",
		"sys/net/core/rmem_default": "212992\n", "sys/net/core/rmem_max": "212992\n",
		"sys/net/ipv4/udp_mem": "100 200 300\n", "net/sockstat": "UDP: inuse 3 mem 7\n",
		"sys/net/ipv4/conf/all/rp_filter": "2\n", "sys/net/ipv4/conf/default/rp_filter": "0\n",
		"sys/net/ipv4/tcp_migrate_req": "0\n",
	}
	for _, c := range []struct {
		name, file, text string
		want             string // the line that differs from the good ones
	}{
		{"good", "net/sockstat", files["net/sockstat"], ""},
		{"connection tracking at 80 %", "sys/net/netfilter/nf_conntrack_count", "80\n", "warn | net.netfilter.nf_conntrack_max | 100, 80 in use (80 %)"},
		{"connection tracking is full", "sys/net/netfilter/nf_conntrack_count", "100\n", "fail | net.netfilter.nf_conntrack_max | 100, 100 in use (100 %)"},
		{"connection tracking without a limit", "sys/net/netfilter/nf_conntrack_max", "0\n", ""},
		{"no connection tracking", "sys/net/netfilter/nf_conntrack_max", "", ""},
		{"small buffer", "sys/net/core/rmem_default", "65536\n", "warn | net.core.rmem_default | 65536 bytes"},
		{"buffer not shown", "sys/net/core/rmem_max", "", "skip | net.core.rmem_max | not seen in this network namespace"},
		{"UDP memory nearly used", "net/sockstat", "UDP: inuse 3 mem 240\n", "warn | net.ipv4.udp_mem | 300 pages, 240 in use"},
		{"two numbers", "sys/net/ipv4/udp_mem", "1 2\n", "skip | net.ipv4.udp_mem | 2 numbers, not 3"},
		{"strict, nothing dropped", "sys/net/ipv4/conf/all/rp_filter", "1\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := map[string]string{}
			for name, text := range files {
				changed[name] = text
			}
			if changed[c.file] = c.text; c.text == "" {
				delete(changed, c.file)
			}
			lines := machine{files: changed, setup: setup{addresses: []netip.Addr{six}}}.node(t).checkSysctls(context.Background())
			var bad []string
			for _, l := range lines {
				if l.Verdict != OK {
					bad = append(bad, brief(l))
				}
			}
			if len(lines) != 7 || strings.Join(bad, "\n") != c.want {
				t.Errorf("%d lines, got %q, want %q", len(lines), bad, c.want)
			}
		})
	}
	for _, c := range []struct{ text, verdict, value string }{
		{"0\n", "ok", "0: an upgrade with surge may reset"},
		{"1\n", "ok", "1: in an upgrade with surge new TCP connections move"},
		{"", "ok", "not in this kernel"},
		{"x\n", "skip", ""},
	} {
		t.Run("tcp_migrate_req "+strings.TrimSpace(c.text), func(t *testing.T) {
			files := map[string]string{"sys/net/ipv4/tcp_migrate_req": c.text}
			if c.text == "" {
				files = nil
			}
			l := machine{files: files}.node(t).checkMigrate()
			if string(l.Verdict) != c.verdict || !strings.HasPrefix(l.Value, c.value) {
				t.Errorf("got %+v", l)
			}
		})
	}
	t.Run("strict, and packets dropped", func(t *testing.T) {
		n := machine{files: map[string]string{"sys/net/ipv4/conf/all/rp_filter": "1\n", "self": "-> 1", "1/net/netstat": "TcpExt: IPReversePathFilter\nTcpExt: 5\n"}}.node(t)
		if l := n.checkReversePath("net.ipv4.conf.all.rp_filter"); l.Verdict != Warn || l.Value != "1 (strict), 5 packets dropped" {
			t.Errorf("got %+v", l)
		}
	})
}

// TestMayList: nftables is listed only where that can't load its module.
func TestMayList(t *testing.T) {
	for _, c := range []struct {
		name      string
		loaded    bool
		instances int
		want      bool
	}{
		{"loaded", true, 0, true},
		{"not known to be loaded, and no instance", false, 0, false},
		{"not known to be loaded, and an instance has listed it", false, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := machine{instances: c.instances}.node(t)
			n.tablesLoaded = func() bool { return c.loaded }
			if got := n.mayList(); got != c.want {
				t.Errorf("got %t, want %t", got, c.want)
			}
		})
	}
}

func TestResolvers(t *testing.T) {
	for _, c := range []struct{ name, conf, want string }{
		{"two", "nameserver 192.0.2.1\nnameserver 192.0.2.2\n", "ok | resolvers | FILE: 192.0.2.1, 192.0.2.2"},
		{"a loopback one", "nameserver 127.0.0.53\nnameserver 192.0.2.2\n", "warn | resolvers | FILE: 127.0.0.53, 192.0.2.2"},
		{"nodecache itself", "nameserver 169.254.20.10\n", "fail | resolvers | FILE: 169.254.20.10"},
		{"none", "search example.com\n", "fail | resolvers | FILE names none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := tree(t, map[string]string{"resolv.conf": c.conf}) + "/resolv.conf"
			n := machine{setup: setup{addresses: []netip.Addr{four}, resolvConf: path}}.node(t)
			if got := brief(n.checkResolvers(context.Background())[0]); got != strings.ReplaceAll(c.want, "FILE", path) {
				t.Errorf("got %s", got)
			}
		})
	}
	t.Run("no file", func(t *testing.T) {
		n := machine{setup: setup{resolvConf: t.TempDir() + "/none"}}.node(t)
		if l := n.checkResolvers(context.Background())[0]; l.Verdict != Fail || l.Advice == "" {
			t.Errorf("got %+v", l)
		}
	})
}

// TestResolversOfTheNode reads the root of a nodecache with and without the node's folders mounted.
func TestResolversOfTheNode(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"copy", map[string]string{"etc/resolv.conf": "nameserver 192.0.2.1\n"}, "ok | resolvers | /etc/resolv.conf: 192.0.2.1"},
		{"copy with a stub", map[string]string{"etc/resolv.conf": "nameserver 127.0.0.53\n"}, "fail | resolvers | /etc/resolv.conf: 127.0.0.53"},
		{"mounted", map[string]string{"etc/resolv.conf": "nameserver 192.0.2.1\n", "host/etc/resolv.conf": "nameserver 192.0.2.2\n"},
			"ok | resolvers | /host/etc/resolv.conf: 192.0.2.2"},
		{"mounted, with a stub", map[string]string{"etc/resolv.conf": "nameserver 127.0.0.53\n", "host/etc/resolv.conf": "nameserver 127.0.0.53\n", "host/run/systemd/resolve/resolv.conf": "nameserver 192.0.2.2\n"},
			"ok | resolvers | /host/run/systemd/resolve/resolv.conf: 192.0.2.2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := tree(t, c.files)
			n := machine{setup: setup{resolvConf: defaultResolvConf, root: root}}.node(t)
			if got := brief(n.checkResolvers(context.Background())[0]); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestBounded: a check that never returns does not stop the others.
func TestBounded(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	n := machine{}.node(t)
	n.options.timeout = time.Millisecond
	lines := parallel([]check{
		{"hangs", func(*node, context.Context) []Line { <-never; return nil }},
		{"works", func(*node, context.Context) []Line { return one("works", "1", OK, "") }},
	}, n.bounded)
	if len(lines) != 2 || lines[0].Check != "hangs" || lines[0].Verdict != Skip || lines[1].Check != "works" {
		t.Errorf("got %v", lines)
	}
}

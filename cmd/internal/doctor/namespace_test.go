//go:build linux

package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"github.com/nearside-dns/nearside/cmd/internal/doctor/proc"
	"github.com/nearside-dns/nearside/plugin/nodelocal/link"
	"github.com/nearside-dns/nearside/plugin/nodelocal/rules"
	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// actAsNodecache is the environment variable that makes the test's program a stand-in for nodecache: it
// answers on the addresses of -localip and announces itself as an instance until its input ends.
const actAsNodecache = "NEARSIDE_TEST_NODECACHE"

func TestMain(m *testing.M) {
	if os.Getenv(actAsNodecache) != "" {
		if err := standIn(flagValues(os.Args[1:])["localip"]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func standIn(localip string) error {
	addresses, err := parseAddresses(localip)
	if err != nil {
		return err
	}
	instance, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: "@nearside-nodelocal/nodelocaldns/00000000000000000001-000001-1"})
	if err != nil {
		return err
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		if name := r.Question[0].Name; strings.HasSuffix(name, ".nodelocal-health.") {
			answer(dns.RcodeSuccess, name+" 0 IN TXT nearside")(w, r)
			return
		}
		found(w, r)
	})
	for _, a := range addresses {
		for _, network := range []string{"udp", "tcp"} {
			started := make(chan error, 1)
			s := &dns.Server{Addr: netip.AddrPortFrom(a, 53).String(), Net: network, Handler: handler, NotifyStartedFunc: func() { started <- nil }}
			go func() { started <- s.ListenAndServe() }()
			if err := <-started; err != nil {
				return err
			}
		}
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, instance.Close())
}

// startStandIn runs the stand-in as a process with the name nodecache.
func startStandIn(t *testing.T, args ...string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nodecache")
	self, err := os.Executable()
	kit.Must(t, err)
	kit.Must(t, os.Symlink(self, path))
	c := exec.Command(path, args...)
	c.Env = append(os.Environ(), actAsNodecache+"=1")
	in, err := c.StdinPipe()
	kit.Must(t, err)
	out, err := c.StdoutPipe()
	kit.Must(t, err)
	kit.Must(t, c.Start())
	printed := make([]byte, 200)
	n, err := out.Read(printed)
	if err != nil || string(printed[:n]) != "ready\n" {
		t.Fatalf("the stand-in printed %q, %v", printed[:n], err)
	}
	t.Cleanup(func() {
		if err := errors.Join(in.Close(), c.Wait()); err != nil {
			t.Error(err)
		}
	})
}

// TestNamespaceNode runs doctor on a node that is set up well and on one that is not, and checks that it
// changes nothing.
func TestNamespaceNode(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	addresses := []netip.Addr{four, six}
	if _, err := link.New("nodelocaldns").Ensure(addresses, true); err != nil {
		t.Fatal(err)
	}
	config := rules.Config{Interface: "nodelocaldns", Addresses: addresses, Port: 53, Fallback: []netip.Addr{netip.MustParseAddr("10.96.0.11")}}
	kit.Must(t, rules.NewNFTables(config).Apply())
	netns.Run(t, "nft", "add element inet nearside-nodelocaldns lease4 { 169.254.20.10 timeout 60s }; add element inet nearside-nodelocaldns lease6 { fd00::a timeout 60s }")
	folder := tree(t, map[string]string{"resolv.conf": "nameserver fd00::a\nnameserver 127.0.0.1\n"})
	conf := filepath.Join(folder, "Corefile")
	kit.Write(t, conf, ".:53 {\n forward . "+folder+"/resolv.conf\n}\n")
	clusterDNS := netip.MustParseAddrPort("10.96.0.11:53")
	netns.Run(t, "ip", "address", "add", clusterDNS.Addr().String()+"/32", "dev", "lo")
	kit.Serve(t, clusterDNS.String(), found)
	t.Run("dead nodecache", func(t *testing.T) {
		expect(t, doctor(t, 1, "-localip", "169.254.20.10,fd00::a"),
			"fail | nodecache | not running here",
			"ok | query cluster DNS 10.96.0.11 udp | 10.96.0.1 in N ms",
			"ok | query cluster DNS 10.96.0.11 tcp | 10.96.0.1 in N ms",
		)
	})
	startStandIn(t, "-localip", "169.254.20.10,fd00::a", "-conf", conf)

	t.Run("good", func(t *testing.T) {
		lines := doctor(t, 1)
		expect(t, lines,
			"ok | nodecache | one instance: nodecache (pid N)",
			"ok | address 169.254.20.10 | on nodelocaldns",
			"ok | address fd00::a | on nodelocaldns",
			"ok | rules | nftables, table inet nearside-nodelocaldns",
			"ok | fallback 169.254.20.10 | cluster DNS, while the lease is out",
			"ok | rules of node-local-dns | none",
			"ok | rules of others | none rejects DNS to the addresses",
			"ok | port 53 on 169.254.20.10 | nodecache (pid N), udp and tcp",
			"ok | port 53 on fd00::a | nodecache (pid N), udp and tcp",
			"ok | port 53 lost datagrams | 0",
			"fail | resolvers | "+folder+"/resolv.conf: fd00::a, 127.0.0.1", // its own address and a loopback one
			"ok | nodecache itself on 169.254.20.10 | answers in N ms",
			"ok | query 169.254.20.10 udp | 10.96.0.1 in N ms from nodecache",
			"ok | query fd00::a tcp | 10.96.0.1 in N ms from nodecache",
		)
		for _, l := range lines {
			if l.Verdict == Fail && l.Check != "resolvers" {
				t.Errorf("got %s", brief(l))
			}
		}
	})
	t.Run("wrong", func(t *testing.T) {
		netns.Run(t, "ip", "address", "del", "fd00::a/128", "dev", "nodelocaldns")
		netns.Run(t, "ip", "link", "add", "kube-ipvs0", "type", "bridge")
		netns.Run(t, "ip", "address", "add", "10.96.0.10/32", "dev", "kube-ipvs0")
		netns.Run(t, "nft", "flush set inet nearside-nodelocaldns lease4; flush chain inet nearside-nodelocaldns output")
		netns.Run(t, "nft", "add table inet fw; add chain inet fw in { type filter hook input priority 10; policy drop; }; add rule inet fw in iif lo accept")
		netns.Run(t, "iptables-nft", "-t", "raw", "-A", "PREROUTING", "-d", "169.254.20.10", "-j", "NOTRACK", "-m", "comment", "--comment", "NodeLocal DNS Cache: skip conntrack")
		p, err := net.ListenPacket("udp", "10.96.0.10:53")
		kit.Must(t, err)
		defer func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}()
		expect(t, doctor(t, 1, "-localip", "169.254.20.10,fd00::a,10.96.0.10"),
			"fail | address fd00::a | on no interface",
			"fail | address 10.96.0.10 | on kube-ipvs0",
			"fail | rules | nftables, table inet nearside-nodelocaldns without 169.254.20.10, fd00::a, 10.96.0.10",
			"fail | lease 169.254.20.10 | out",
			"warn | rules of node-local-dns | 1, beside the table of nodecache",
			"warn | rules of others | chain inet fw in, its policy drops: UDP and TCP to 169.254.20.10, fd00::a, 10.96.0.10",
			"fail | port 53 on 10.96.0.10 | doctor.test (pid N), udp",
			"fail | kube-proxy | ipvs",
		)
	})
	t.Run("nothing is changed", func(t *testing.T) {
		before := everything(t)
		doctor(t, 1)
		if after := everything(t); before != after {
			t.Errorf("before\n%s\nafter\n%s", before, after)
		}
	})
}

// doctor runs the command and returns its lines.
func doctor(t *testing.T, code int, args ...string) []Line {
	t.Helper()
	var out, complaints bytes.Buffer
	if got := command(append([]string{"-o", "json"}, args...), "/proc", &out, &complaints); got != code || complaints.Len() > 0 {
		t.Errorf("exit code %d, want %d; printed %q", got, code, complaints.String())
	}
	var lines []Line
	kit.Must(t, json.Unmarshal(out.Bytes(), &lines))
	return lines
}

// expect fails the test if lines are missing. Times and process numbers are replaced by N.
func expect(t *testing.T, lines []Line, wanted ...string) {
	t.Helper()
	var got []string
	for _, l := range lines {
		text := times.ReplaceAllString(brief(l), "N ms")
		if before, after, ok := strings.Cut(text, "(pid "); ok {
			_, rest, _ := strings.Cut(after, ")")
			text = before + "(pid N)" + rest
		}
		got = append(got, text)
	}
	all := "\n" + strings.Join(got, "\n") + "\n"
	for _, w := range wanted {
		if !strings.Contains(all, "\n"+w+"\n") {
			t.Errorf("no line %q in%s", w, all)
		}
	}
}

// everything returns the state of the network that doctor might change.
func everything(t *testing.T) string {
	t.Helper()
	text := netns.Run(t, "nft", "-s", "list", "ruleset") + netns.Run(t, "ip", "address")
	for _, path := range []string{"/proc/modules", "/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"} {
		content, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		text += path + ":\n" + string(content)
	}
	return text
}

// TestNamespaceReversePath has pods with an interface each, one of them without a route, in a kernel with a strict rp_filter.
func TestNamespaceReversePath(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	strictOn := func(iface string) {
		t.Helper()
		kit.Must(t, os.WriteFile("/proc/sys/net/ipv4/conf/"+iface+"/rp_filter", []byte("1"), 0o600))
	}
	for _, pod := range []string{"routed", "port", "vlan.7"} {
		netns.Run(t, "ip", "link", "add", pod, "type", "veth", "peer", "name", "e-"+pod)
		netns.Run(t, "ip", "link", "set", pod, "up")
	}
	netns.Run(t, "ip", "route", "add", "10.1.0.2/32", "dev", "routed", "table", "7")
	netns.Run(t, "ip", "link", "add", "bridge0", "type", "bridge")
	netns.Run(t, "ip", "link", "set", "port", "master", "bridge0")
	lines := func(localIP string) []Line {
		o, err := parse([]string{"-localip", localIP}, io.Discard)
		kit.Must(t, err)
		fs, err := proc.Open("/proc")
		kit.Must(t, err)
		return newNode(o, fs, nil).checkPodReversePath()
	}
	expect(t, lines("169.254.20.10"), "ok | rp_filter of pods' interfaces | strict on none")
	strictOn("routed")
	strictOn("port")
	expect(t, lines("169.254.20.10"), "ok | rp_filter of pods' interfaces | strict on 1, each with a route")
	strictOn("vlan.7")
	got := lines("169.254.20.10")
	expect(t, got, "warn | rp_filter of pods' interfaces | strict without an IPv4 route: vlan.7")
	if !strings.Contains(got[0].Advice, "net/ipv4/conf/vlan.7/rp_filter=2") {
		t.Errorf("advice %q", got[0].Advice)
	}
	if got := lines("fd00::a"); got != nil {
		t.Errorf("pods without IPv4: %v", got)
	}
	kit.Must(t, os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("2"), 0o600))
	expect(t, lines("169.254.20.10"), "ok | rp_filter of pods' interfaces | strict on none")
}

// TestNamespaceFirewall has a firewall whose last rule rejects packets of pods, while its policy accepts.
func TestNamespaceFirewall(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	netns.Run(t, "nft", `add table inet firewalld; add chain inet firewalld filter_INPUT { type filter hook input priority filter + 10; policy accept; }
add rule inet firewalld filter_INPUT ct state { established, related } accept
add rule inet firewalld filter_INPUT iifname "lo" accept
add rule inet firewalld filter_INPUT reject with icmpx admin-prohibited`)
	args := []string{"-localip", "169.254.20.10,fd00::a", "-timeout", "20s"} // other tests may use nftables at the same time
	lines := doctor(t, 1, args...)
	expect(t, lines, "warn | rules of others | chain inet firewalld filter_INPUT, rule with handle 5 rejects: UDP and TCP to 169.254.20.10, fd00::a")
	for _, l := range lines {
		if l.Check == "rules of others" && !strings.Contains(l.Advice, `firewall-cmd --permanent --add-rich-rule='rule family="ipv6" destination address="fd00::a" port port="53" protocol="udp" accept'`) {
			t.Errorf("advice %q", l.Advice)
		}
	}
	netns.Run(t, "nft", `insert rule inet firewalld filter_INPUT iifname "cni0" accept`)
	expect(t, doctor(t, 1, args...), "warn | rules of others | chain inet firewalld filter_INPUT, rule with handle 5 rejects: UDP and TCP to 169.254.20.10, fd00::a")
	netns.Run(t, "nft", `insert rule inet firewalld filter_INPUT th dport 53 accept`)
	expect(t, doctor(t, 1, args...), "ok | rules of others | none rejects DNS to the addresses")
	netns.Run(t, "ip", "link", "add", "vn0", "type", "veth", "peer", "name", "eth0")
	for _, family := range []string{"netdev", "inet"} {
		netns.Run(t, "nft", "add table "+family+" guard; add chain "+family+" guard dns; add rule "+family+" guard dns udp dport 53 counter drop; add rule "+family+" guard dns tcp dport 22 drop; "+
			"add chain "+family+" guard in { type filter hook ingress device vn0 priority 0; }; add rule "+family+" guard in jump dns")
		expect(t, doctor(t, 1, args...), "fail | rules of others | chain "+family+" guard in, hook ingress of vn0, rule with handle 2 of chain dns drops")
		netns.Run(t, "nft", "insert rule "+family+" guard in ip daddr 169.254.20.10 udp dport 53 accept; insert rule "+family+" guard in ip6 daddr fd00::a udp dport 53 accept")
		expect(t, doctor(t, 1, args...), "ok | rules of others | none rejects DNS to the addresses")
		netns.Run(t, "nft", "delete", "table", family, "guard")
	}
	netns.Run(t, "iptables-legacy", "-A", "INPUT", "-i", "lo", "-j", "ACCEPT")
	netns.Run(t, "iptables-legacy", "-A", "INPUT", "-j", "REJECT")
	expect(t, doctor(t, 1, args...), `warn | rules of others | iptables-legacy, chain ip filter INPUT, rule "-A INPUT -j REJECT --reject-with icmp-port-unreachable" rejects: UDP and TCP to 169.254.20.10`)
}

// TestNamespaceKernelAnswers has obstacles of answers in the kernel, which doctor finds in the network namespace.
func TestNamespaceKernelAnswers(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	conf := filepath.Join(tree(t, map[string]string{"Corefile": ".:53 {\n fastpath {\n  kernel on\n }\n prometheus 127.0.0.1:1\n}\n"}), "Corefile")
	args := []string{"-localip", "169.254.20.10", "-conf", conf, "-timeout", "20s"} // other tests may use nftables at the same time
	expect(t, doctor(t, 1, args...),
		"ok | kernel answers obstacles | none",
		"skip | kernel answers interfaces | metrics of nodecache at 127.0.0.1:1: connection refused")
	netns.Run(t, "nft", "add table ip filter; add chain ip filter cali-FORWARD")
	netns.Run(t, "ip", "link", "set", "lo", "mtu", "1000")
	expect(t, doctor(t, 1, args...),
		"warn | kernel answers obstacles | Calico (chain cali-FORWARD of table ip filter)",
		"warn | kernel answers obstacles | lo: its MTU is below 1280")
}

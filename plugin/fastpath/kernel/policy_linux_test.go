//go:build amd64 || arm64

package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"testing"
	"time"

	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// TestPolicyEngine detaches from all interfaces when a policy engine appears, and attaches again when it is gone.
func TestPolicyEngine(t *testing.T) {
	kit.Require(t, "nft")
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	ns := h.newNamespace()
	h.addPod("pod0", ns)
	p := h.load()
	const calico = "Calico (chain cali-FORWARD of table ip filter)"
	attached := func(h *host, i *Interfaces, n int) func() bool {
		return func() bool {
			s := i.State()
			return s.Attached == n && s.Policy == "" && len(s.Refused) == 0 && h.has("pod0") && h.has("lo")
		}
	}
	refused := func(h *host, i *Interfaces, n int) func() bool {
		return func() bool {
			s := i.State()
			return s.Attached == 0 && s.Policy == calico && s.Refused[ReasonPolicy] == n && len(h.ids("pod0")) == 0 && len(h.ids("lo")) == 0
		}
	}
	for _, mode := range modes(t) {
		t.Run(mode.name, func(t *testing.T) {
			h := newHost(t)
			o := h.quick()
			o.clsact = mode.clsact
			i := h.follow(p, o)
			h.run("nft", "add table ip filter")
			h.run("nft", "add chain ip filter KUBE-FORWARD")
			time.Sleep(10 * o.tick)
			if !attached(h, i, 2)() {
				t.Fatalf("state %+v with chains of kube-proxy", i.State())
			}
			for n := range 2 {
				h.run("nft", "add chain ip filter cali-FORWARD")
				h.eventually("refused", refused(h, i, 2))
				l := h.addPod("pod1", ns)
				h.eventually("refused, with a new pod", refused(h, i, 3))
				h.must(netlink.LinkDel(l))
				h.eventually("refused, without the pod", refused(h, i, 2))
				h.run("nft", "delete chain ip filter cali-FORWARD")
				h.eventually("attached without the engine", attached(h, i, 2))
				if lines := strings.Count(h.log.String(), "\n") + 1; lines != 2*(n+1) || h.log.count("No answers in the kernel: "+calico) != n+1 || h.log.count("kernel force") != n+1 {
					t.Errorf("%d lines\n%s", lines, &h.log)
				}
			}
			h.run("nft", "delete table ip filter")
		})
	}
	t.Run("before the start", func(t *testing.T) {
		h := newHost(t)
		h.run("nft", "add table ip filter")
		h.run("nft", "add chain ip filter cali-FORWARD")
		i := h.follow(p, h.quick())
		if !refused(h, i, 2)() {
			t.Errorf("state %+v", i.State())
		}
		found, err := Obstacles()
		h.must(err)
		if len(found) != 1 || found[0] != (Obstacle{Reason: ReasonPolicy, Text: calico}) {
			t.Errorf("obstacles %+v", found)
		}
	})
	t.Run("force", func(t *testing.T) {
		h := newHost(t)
		o := h.quick()
		o.Force = true
		i := h.follow(p, o)
		if s := i.State(); s.Attached != 2 || s.Policy != calico || len(s.Refused) != 0 {
			t.Errorf("state %+v", s)
		}
		if n := h.log.count("network policies do not apply"); n != 1 {
			t.Errorf("%d lines in\n%s", n, &h.log)
		}
	})
}

// TestUnreadable refuses all interfaces while the packet filters have never been read, and later after two minutes without a reading.
func TestUnreadable(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	var engine Engine
	failure := errors.New("no memory")
	now := time.Now()
	o := h.quick()
	o.now = func() time.Time { return now }
	o.findEngine = func() (Engine, error) { return engine, failure }
	f, err := newFollower(h.load(), o)
	h.must(err)
	h.Cleanup(func() { h.must(f.end()) })
	for _, tc := range []struct {
		name     string
		engine   Engine
		failure  error
		policy   string
		attached int
	}{
		{"unreadable", Engine{}, failure, "An unknown policy engine (no memory)", 0},
		{"no engine", Engine{}, nil, "", 1},
		{"unreadable again", Engine{}, failure, "", 1},
		{"unreadable for longer", Engine{}, failure, "An unknown policy engine (no memory)", 0},
		{"an engine", Engine{"Calico", "chain cali-FORWARD"}, nil, "Calico (chain cali-FORWARD)", 0},
		{"unreadable with an engine", Engine{}, failure, "Calico (chain cali-FORWARD)", 0},
		{"unreadable for longer with an engine", Engine{}, failure, "Calico (chain cali-FORWARD)", 0},
		{"unreadable, still", Engine{}, failure, "Calico (chain cali-FORWARD)", 0},
		{"the engine's other chain", Engine{"Calico", "chain cali-INPUT"}, nil, "Calico (chain cali-INPUT)", 0},
		{"without the engine", Engine{}, nil, "", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			engine, failure = tc.engine, tc.failure
			now = now.Add(time.Minute)
			f.tick()
			f.publish()
			if s := f.State(); s.Policy != tc.policy || s.Attached != tc.attached || s.Refused[ReasonPolicy] != 1-tc.attached {
				t.Errorf("state %+v", s)
			}
		})
	}
	if lines := strings.Count(h.log.String(), "\n") + 1; lines != 6 {
		t.Errorf("%d lines\n%s", lines, &h.log)
	}
	const line = "the last known policy engine is"
	for hours := range 3 {
		if n := h.log.count(line); n != 1+hours {
			t.Errorf("%d lines with %q after %d hours", n, line, hours)
		}
		failure = nil
		f.readPolicy()
		failure = errors.New("no memory")
		now = now.Add(time.Minute)
		f.readPolicy()
		now = now.Add(logInterval)
		failure = nil
		f.readPolicy()
		failure = errors.New("no memory")
		f.readPolicy()
	}
}

// TestFindEngine finds policy engines by what they leave in the kernel.
func TestFindEngine(t *testing.T) {
	kit.Require(t, "nft", "iptables-legacy", "ip6tables-legacy", "iptables-nft")
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	nft := func(lines ...string) func() {
		return func() { h.run("nft", strings.Join(lines, "\n")) }
	}
	run := func(words string) func() {
		return func() { h.run(strings.Fields(words)[0], strings.Fields(words)[1:]...) }
	}
	for _, tc := range []struct {
		name string
		set  func()
		want string
	}{
		{"nothing", func() {}, ""},
		{"kube-proxy and nodecache", nft("add table ip nat", "add chain ip nat KUBE-SERVICES", "add table inet kube-proxy", "add chain inet kube-proxy services", "add table inet nearside-nodelocaldns", "add chain inet nearside-nodelocaldns input { type filter hook input priority 0; }", "add table ip filter", "add chain ip filter KUBE-FIREWALL"), ""},
		{"Calico, nftables", nft("add table ip calico", "add chain ip calico filter-FORWARD"), "Calico (table ip calico of nftables)"},
		{"Calico, iptables-nft", run("ip6tables-nft -t raw -N cali-PREROUTING"), "Calico (chain cali-PREROUTING of table ip6 raw)"},
		{"kube-router", nft("add table ip filter", "add chain ip filter KUBE-NWPLCY-ABCDEFGH"), "kube-router (chain KUBE-NWPLCY-ABCDEFGH of table ip filter)"},
		{"kube-network-policies", nft("add table inet kube-network-policies", "add chain inet kube-network-policies postrouting { type filter hook postrouting priority 95; }"), "kube-network-policies (table inet kube-network-policies of nftables)"},
		{"kindnet", nft("add table inet kindnet-network-policies", "add chain inet kindnet-network-policies postrouting { type filter hook postrouting priority 95; }"), "kube-network-policies (table inet kindnet-network-policies of nftables)"},
		{"Cilium", nft("add table ip mangle", "add chain ip mangle CILIUM_PRE_mangle"), "Cilium (chain CILIUM_PRE_mangle of table ip mangle)"},
		{"other chains of iptables-legacy", run("iptables-legacy -N KUBE-FIREWALL"), ""},
		{"Weave Net, iptables-legacy", run("iptables-legacy -N WEAVE-NPC"), "Weave Net (chain WEAVE-NPC of table ip filter of iptables-legacy)"},
		{"kube-router, iptables-legacy", run("ip6tables-legacy -N KUBE-POD-FW-ABCDEFGHIJKLMNOP"), "kube-router (chain KUBE-POD-FW-ABCDEFGHIJKLMNOP of table ip6 filter of iptables-legacy)"},
		{"Azure, iptables-legacy, with rules", func() {
			run("iptables-legacy -N A-CHAIN")()
			run("iptables-legacy -A A-CHAIN -s 10.0.0.0/8 -p udp --dport 53 -m comment --comment ERROR -j ACCEPT")()
			run("iptables-legacy -A FORWARD -i veth+ -j A-CHAIN")()
			run("iptables-legacy -N AZURE-NPM-INGRESS")()
		}, "Azure Network Policy Manager (chain AZURE-NPM-INGRESS of table ip filter of iptables-legacy)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.set()
			engine, err := FindEngine()
			h.must(err)
			if got := engine.String(); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
			h.run("nft", "flush ruleset")
			for _, program := range []string{"iptables-legacy", "ip6tables-legacy"} {
				h.run(program, "-F")
				h.run(program, "-X")
			}
		})
	}
	t.Run("netfilter queue", func(t *testing.T) {
		c, err := mdlayher.Dial(unix.NETLINK_NETFILTER, nil)
		h.must(err)
		defer func() { h.must(c.Close()) }()
		bindQueue(t, c, 100)
		engine, err := FindEngine()
		h.must(err)
		if want := "a process that filters packets (netfilter queue 100)"; engine.String() != want {
			t.Errorf("%q, want %q", engine, want)
		}
	})
}

// bindQueue receives the packets of a netfilter queue.
func bindQueue(t *testing.T, c *mdlayher.Conn, number uint16) {
	t.Helper()
	const (
		subsystem, config = 3, 2 // NFNL_SUBSYS_QUEUE, NFQNL_MSG_CONFIG
		attribute, bind   = 1, 1 // NFQA_CFG_CMD, NFQNL_CFG_CMD_BIND
	)
	data := []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0}
	data = binary.BigEndian.AppendUint16(data, number)
	attributes, err := mdlayher.MarshalAttributes([]mdlayher.Attribute{{Type: attribute, Data: []byte{bind, 0, 0, 0}}})
	kit.Must(t, err)
	m := mdlayher.Message{Header: mdlayher.Header{Type: subsystem<<8 | config, Flags: mdlayher.Request | mdlayher.Acknowledge}, Data: append(data, attributes...)}
	_, err = c.Execute(m)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
		t.Skipf("the kernel has no netfilter queues: %v", err)
	}
	kit.Must(t, err)
}

// TestManyChains finds the last one of many chains while another process changes the rules.
func TestManyChains(t *testing.T) {
	kit.Require(t, "nft")
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	const chains = 3000
	var lines strings.Builder
	lines.WriteString("add table ip nat\n")
	for n := range chains {
		fmt.Fprintf(&lines, "add chain ip nat KUBE-SVC-%d\n", n)
	}
	c := exec.Command("nft", "-f", "-")
	c.Stdin = strings.NewReader(lines.String())
	kit.Output(t, c)
	if engine, err := FindEngine(); err != nil || engine != (Engine{}) {
		t.Fatalf("%+v, %v", engine, err)
	}
	h.run("nft", "add table ip6 filter")
	h.run("nft", "add chain ip6 filter cali-last")
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
				command := []string{"add", "delete"}[n%2]
				_ = exec.Command("nft", command+" chain ip nat KUBE-SEP").Run() // the kernel may be busy
			}
		}
	}()
	for range 20 {
		if engine, err := FindEngine(); err != nil || engine.Name != "Calico" {
			t.Errorf("%+v, %v", engine, err)
		}
	}
	close(stop)
	<-ended
}

// TestSwitched refuses ports of Open vSwitch.
func TestSwitched(t *testing.T) {
	attrs := func(index, master int) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Index, a.MasterIndex, a.MTU, a.NetNsID = index, master, 1500, 0
		return a
	}
	port, other := &netlink.Veth{LinkAttrs: attrs(5, 9)}, &netlink.Veth{LinkAttrs: attrs(6, 8)}
	found := switches([]netlink.Link{
		port, other,
		&netlink.Bridge{LinkAttrs: attrs(8, 0)},
		&netlink.GenericLink{LinkAttrs: attrs(9, 0), LinkType: "openvswitch"},
	})
	for _, tc := range []struct {
		name  string
		link  netlink.Link
		force bool
		want  Reason
	}{
		{"port of Open vSwitch", port, false, ReasonPolicy},
		{"port of a bridge", other, false, ""},
		{"with force", port, true, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := obstacleBefore(tc.link, Engine{}, found, tc.force); got.reason != tc.want {
				t.Errorf("%+v, want %q", got, tc.want)
			}
		})
	}
}

// FuzzLegacyChains parses entries that the kernel would not send.
func FuzzLegacyChains(f *testing.F) {
	entry := make([]byte, 112+64)
	binary.NativeEndian.PutUint16(entry[88:], 112)
	binary.NativeEndian.PutUint16(entry[90:], uint16(len(entry)))
	copy(entry[114:], "ERROR\x00")
	copy(entry[144:], "cali-FORWARD\x00")
	f.Add(entry, false)
	f.Add(entry[:len(entry)-1], false)
	f.Add(make([]byte, 200), true)
	f.Fuzz(func(t *testing.T, entries []byte, six bool) {
		family := legacyFamilies[0]
		if six {
			family = legacyFamilies[1]
		}
		names, err := family.chains(entries)
		if err == nil && len(names)*chainHeadLength > len(entries) {
			t.Errorf("%d chains in %d bytes", len(names), len(entries))
		}
	})
	if names, err := legacyFamilies[0].chains(entry); err != nil || len(names) != 1 || names[0] != "cali-FORWARD" {
		f.Errorf("chains %q, %v", names, err)
	}
}

// chainHeadLength is the min. length in bytes of an entry that begins a chain.
const chainHeadLength = 62

package firewall

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/netns"
	"github.com/nearside-dns/nearside/test/property"
)

// witness is a table that counts the packets of the pod which have passed all rules of a test. Its own rules
// exclude packets from connection tracking, as those of nodecache do. The counter "after" counts a datagram to
// port 7 that is sent after the others, before any rule: the kernel processes the packets of one link in order.
const witness = `table inet nearside-witness {
	counter udp4 { }
	counter udp6 { }
	counter tcp4 { }
	counter tcp6 { }
	counter after { }
	chain first { type filter hook prerouting priority -1000; policy accept; 
		udp dport 7 counter name after drop
	}
	chain raw { type filter hook prerouting priority raw; policy accept; 
		th dport 53 notrack
	}
	chain last { type filter hook input priority 1000; policy accept; 
		ip daddr 169.254.20.10 udp dport 53 counter name udp4
		ip6 daddr fd00::10 udp dport 53 counter name udp6
		ip daddr 169.254.20.10 tcp dport 53 counter name tcp4
		ip6 daddr fd00::10 tcp dport 53 counter name tcp6
	}
}
`

// grammar makes random rules for packets of a pod.
type grammar struct{ *rand.Rand }

func (g grammar) pick(choices ...string) string { return choices[g.IntN(len(choices))] }

// match returns the matches of a rule; nft accepts only one that names a protocol.
func (g grammar) match() string {
	any := g.pick("", "", `iifname "lo"`, `iifname != "lo"`, `iifname "pod"`, `iifname "p*"`, `iifname { "lo", "eth1" }`, "iif lo", "iif != lo", "iiftype loopback",
		"ct state established,related", "ct state new", "ct state invalid", "ct state untracked", "ct state { new, untracked }", "ct state != { established, related }", "ct status dnat", "ct mark 0", "ct direction original",
		"meta pkttype host", "meta pkttype multicast", "meta mark 0", "meta mark & 1 == 1", "meta length > 50", "fib daddr type local", "fib saddr type local", "limit rate 1000/second", "limit rate over 1000/second")
	return any + " " + g.pick("", "udp dport 53", "tcp dport 53", "th dport { 22, 53 }", "th dport 50-60", "tcp dport != 53", "udp dport 54-65535",
		"ip daddr 169.254.20.10", "ip daddr 169.254.0.0/16", "ip daddr != 10.0.0.0/8", "ip6 daddr fd00::10", "ip6 daddr fd00::/64", "ip6 daddr { fe80::/10, fd00::10 }",
		"ip saddr 10.0.0.0/8", "ip saddr 192.168.0.0/16", "ip6 saddr fd01::/64", "ip saddr . udp dport { 10.1.0.2 . 53, 10.9.0.0/16 . 1-99 }", `iifname . udp dport { "lo" . 53, "pod" . 53 }`,
		"meta l4proto udp", "meta l4proto { tcp, udp }", "meta l4proto != tcp", "meta nfproto ipv4", "meta nfproto ipv6", "meta protocol ip",
		"tcp flags & (fin | syn | rst | ack) == syn", "tcp flags syn", "ip ttl 64", "ip6 nexthdr udp", "ip protocol tcp", "ip frag-off & 0x1fff != 0", "udp length > 8", "th sport > 1024",
		"ip daddr . meta l4proto . th dport { 169.254.20.10 . udp . 53 }", "ip daddr @four", "ip6 daddr != @six", "th dport @ports")
}

// verdict returns the end of a rule, in a chain that may call others.
func (g grammar) verdict(chains ...string) string {
	all := []string{"accept", "accept", "drop", "reject", "return", "continue", "counter", "meta mark set 1",
		"th dport vmap { 53 : accept, 54 : drop }", "meta l4proto . th dport vmap { tcp . 53 : drop, udp . 50-60 : accept }", `iifname vmap { "lo" : drop, "pod" : accept }`, "ct state vmap { untracked : accept, invalid : drop }",
		"reject with icmpx admin-prohibited"}
	for _, c := range chains {
		all = append(all, "jump "+c, "jump "+c, "goto "+c, "meta nfproto vmap { ipv4 : jump "+c+", ipv6 : goto "+c+" }")
	}
	return g.pick(all...)
}

// rules returns up to n rules of a chain.
func (g grammar) rules(n int, chains ...string) string {
	var b strings.Builder
	for range g.IntN(n + 1) {
		b.WriteString(g.match() + " " + g.verdict(chains...) + "\n")
	}
	return b.String()
}

// table returns a random table.
func (g grammar) table(name string) string {
	priority := g.pick("-5", "0", "10")
	hook := g.pick("input", "input", "prerouting")
	return fmt.Sprintf(`table inet %s {
	set four { type ipv4_addr; flags interval; elements = { 10.0.0.0/8, 169.254.20.0/24 }
}
	set six { type ipv6_addr; elements = { fd00::10, fd00::11 }
}
	set ports { type inet_service; elements = { 53, 80 }
}
	chain b { %s }
	chain a { %s }
	chain in { type filter hook %s priority %s; policy %s;
%s }
}
`, name, g.rules(3), g.rules(4, "b"), hook, priority, g.pick("accept", "drop"), g.rules(6, "a", "b"))
}

// TestFirewallAsTheKernel compares the verdict on packets with the kernel's on packets of a
// pod, for random rulesets.
func TestFirewallAsTheKernel(t *testing.T) {
	netns.Require(t, "ip", "nft")
	node, pod := netns.Add(t, "node"), netns.Add(t, "pod")
	pod.Join(t, node, "pod", "10.1.0.%d/24", "fd01::%d/64")
	node.Run(t, "ip", "addr", "add", "169.254.20.10/32", "dev", "lo")
	node.Run(t, "ip", "addr", "add", "fd00::10/128", "dev", "lo")
	// The rules would also drop neighbor discovery, which the packets of the test depend on.
	for _, at := range []struct {
		self, other           *netns.Namespace
		selfDevice, otherLink string
		addresses             []string
	}{{pod, node, "eth0", "pod", []string{"10.1.0.1", "fd01::1"}}, {node, pod, "pod", "eth0", []string{"10.1.0.2", "fd01::2"}}} {
		link := at.other.Run(t, "cat", "/sys/class/net/"+at.otherLink+"/address")
		for _, a := range at.addresses {
			at.self.Run(t, "ip", "neigh", "replace", a, "lladdr", strings.TrimSpace(link), "dev", at.selfDevice, "nud", "permanent")
		}
	}
	node.Run(t, "nft", format(witness))
	property.Seeds(t, 1, 1, func(t *testing.T, seed uint64) {
		sets := 60
		if testing.Short() {
			sets = 10
		}
		g := grammar{rand.New(rand.NewPCG(seed, 0))}
		count := map[Verdict]int{}
		for tested, refused := 0, 0; tested < sets; {
			ruleset := format(g.table("one") + g.table("two"))
			node.Run(t, "nft", "add table inet one; delete table inet one; add table inet two; delete table inet two; reset counters")
			if _, err := node.Try("nft", ruleset); err != nil {
				if refused++; refused > 20*sets {
					t.Fatalf("%d rulesets are refused, the last: %v", refused, err)
				}
				continue // nft or the kernel refuses the rules
			}
			tested++
			var verdicts []Verdict
			if err := node.Do(func() error {
				ctx, cancel := context.WithTimeout(t.Context(), checkWait)
				defer cancel()
				bases, err := tableBases(ctx)
				if err == nil {
					verdicts, err = verdictsOf(bases, queries)
				}
				return err
			}); err != nil {
				t.Fatalf("%v\n%s", err, ruleset)
			}
			arrived := send(t, node, pod)
			for i, p := range queries {
				count[verdicts[i]]++
				if verdicts[i] == Rejected && arrived[p] || verdicts[i] == Accepted && !arrived[p] {
					t.Errorf("%s: verdict %d, and the kernel accepted it: %t\n%s", p, verdicts[i], arrived[p], ruleset)
				}
			}
		}
		t.Logf("accepted %d, rejected %d, depends %d", count[Accepted], count[Rejected], count[Depends])
		if !testing.Short() && min(count[Accepted], count[Rejected]) == 0 {
			t.Error("no verdict that is certain")
		}
	})
}

// Verdict is what the chains do with a packet.
type Verdict int

const (
	// Accepted: no chain can drop or reject the packet.
	Accepted Verdict = iota
	// Depends: the verdict depends on unknown parts of the packet.
	Depends
	// Rejected: a chain drops or rejects the packet for certain.
	Rejected
)

// verdictsOf returns the verdicts on packets.
func verdictsOf(bases []base, packets []Packet) ([]Verdict, error) {
	verdicts := make([]Verdict, len(packets))
	for _, b := range bases {
		for i, p := range packets {
			if !b.sees(p) {
				continue
			}
			r := b.walk(p)
			switch {
			case r.err != nil:
				return nil, r.err
			case r.may.reject && !r.may.accept:
				verdicts[i] = Rejected
			case r.may.reject:
				verdicts[i] = max(verdicts[i], Depends)
			}
		}
	}
	return verdicts, nil
}

// send sends each of the packets from the pod, and returns which of them passed all rules.
func send(t *testing.T, node, pod *netns.Namespace) map[Packet]bool {
	t.Helper()
	if err := pod.Do(func() error {
		for _, p := range queries {
			if err := dispatch(p.Protocol, netip.AddrPortFrom(p.Address, p.Port)); err != nil {
				return err
			}
		}
		return dispatch(UDP, netip.AddrPortFrom(four, 7))
	}); err != nil {
		t.Fatal(err)
	}
	const wait = 10 * time.Second
	for end := time.Now().Add(wait); ; time.Sleep(time.Millisecond) {
		counters := packets(node.Run(t, "nft", "list", "counters", "table", "inet", "nearside-witness"))
		if counters["after"] > 0 {
			return map[Packet]bool{queries[0]: counters["udp4"] > 0, queries[1]: counters["tcp4"] > 0, queries[2]: counters["udp6"] > 0, queries[3]: counters["tcp6"] > 0}
		}
		if time.Now().After(end) {
			t.Fatalf("the packets of the pod did not arrive in %s", wait)
		}
	}
}

// dispatch sends a datagram, or the first segment of a connection, and does not wait.
func dispatch(protocol uint8, to netip.AddrPort) error {
	family, kind := unix.AF_INET, unix.SOCK_DGRAM
	var address unix.Sockaddr
	if to.Addr().Is4() {
		address = &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	} else {
		family, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	}
	if protocol == TCP {
		kind = unix.SOCK_STREAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if protocol == TCP {
		if err = unix.Connect(fd, address); errors.Is(err, unix.EINPROGRESS) {
			err = nil
		}
	} else {
		err = unix.Sendto(fd, []byte("query"), 0, address)
	}
	return errors.Join(err, unix.Close(fd))
}

var counterLine = regexp.MustCompile(`counter (\w+) \{\s+packets (\d+)`)

// packets reads counters as nft prints them.
func packets(text string) map[string]int {
	all := map[string]int{}
	for _, m := range counterLine.FindAllStringSubmatch(text, -1) {
		var n int
		_, _ = fmt.Sscan(m[2], &n) // digits
		all[m[1]] = n
	}
	return all
}

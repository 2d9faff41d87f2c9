//go:build linux

package nodelocal

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"
)

// both is one address of each family.
var both = []netip.Addr{local4, local6}

// TestTeardown compares the kernel's state after a clean stop with the state before the start.
func TestTeardown(t *testing.T) {
	for _, backend := range []string{"nftables", "iptables", "none"} {
		t.Run(backend, func(t *testing.T) {
			n := newNode(t)
			if backend == "iptables" {
				n.touchIPTables(t)
			}
			before := n.kernelState(t)
			p := n.run(t, cache{who: "local", addresses: both, options: []string{"backend " + backend}})
			if n.kernelState(t) == before {
				t.Fatal("nodecache has changed nothing in the kernel while it ran")
			}
			if code := p.Stop(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if after := n.kernelState(t); after != before {
				t.Errorf("after the end:\n%s\nbefore the start:\n%s", after, before)
			}
		})
	}
	t.Run("keep", func(t *testing.T) {
		n := newNode(t)
		p := n.run(t, cache{who: "local", addresses: both, options: []string{"keep"}})
		before := n.kernelState(t)
		p.Stop(t)
		if after := n.kernelState(t); after != before {
			t.Errorf("after the end:\n%s\nbefore:\n%s", after, before)
		}
	})
}

// touchIPTables makes the empty tables that any use of iptables leaves behind.
func (n *node) touchIPTables(t *testing.T) {
	t.Helper()
	for _, program := range []string{"iptables", "ip6tables"} {
		for table, chains := range map[string][]string{"raw": {"PREROUTING", "OUTPUT"}, "filter": {"INPUT", "OUTPUT"}} {
			for _, chain := range chains {
				for _, operation := range []string{"-A", "-D"} {
					n.Node.Run(t, program, "-t", table, operation, chain, "-p", "udp", "-j", "ACCEPT")
				}
			}
		}
	}
}

// TestAdopt kills nodecache and starts it again: the new process adopts interface and rules.
func TestAdopt(t *testing.T) {
	n := newNode(t)
	configured := cache{who: "local", addresses: both}
	p := n.run(t, configured)
	link, rules := n.links(t), n.rules()
	p.Kill(t)
	if got := n.links(t); len(got) != 1 {
		t.Errorf("after SIGKILL: interfaces %v", got)
	}
	p = n.run(t, configured)
	if got := n.links(t); len(got) != 1 || !slices.Equal(got[0].prefixes(), link[0].prefixes()) {
		t.Errorf("interfaces %v, want %v", got, link)
	}
	if got := n.rules(); got != rules || got == "" {
		t.Errorf("rules:\n%s\nwant\n%s", got, rules)
	}
	if got := strings.Count(n.Node.Run(t, "nft", "list", "tables"), "nearside"); got != 1 {
		t.Errorf("%d tables", got)
	}
	p.Stop(t)
	if got := n.links(t); len(got) != 0 || n.rules() != "" {
		t.Errorf("after the end: interfaces %v, rules\n%s", got, n.rules())
	}
}

// TestRepair removes parts of nodecache's setup, and waits until they are repaired. The interval of the full
// verification is a minute, so that only the kernel's notifications can lead to a repair that soon.
func TestRepair(t *testing.T) {
	n := newNode(t)
	n.run(t, cache{who: "local", addresses: both})
	link, rules := n.links(t)[0], n.rules()
	if rules == "" {
		t.Fatal("no rules")
	}
	for _, damage := range []string{
		"nft flush ruleset",
		"nft delete table inet " + table,
		"nft flush table inet " + table,
		"nft add chain inet " + table + " another { type filter hook input priority 0 ; policy drop ; }",
		"ip link del " + device,
		"ip link set " + device + " down",
		fmt.Sprintf("ip addr del %v/32 dev %s", local4, device),
		fmt.Sprintf("ip addr del %v/128 dev %s", local6, device),
		fmt.Sprintf("ip addr flush dev %s", device),
	} {
		t.Run(damage, func(t *testing.T) {
			words := strings.Fields(damage)
			n.Node.Run(t, words[0], words[1:]...)
			start := time.Now()
			kit.Succeeds(t, bounded, "the repair", func() error {
				all := n.links(t)
				if len(all) != 1 || !slices.Equal(all[0].prefixes(), link.prefixes()) || !slices.Contains(all[0].Flags, "UP") {
					return fmt.Errorf("interfaces %v", all)
				}
				if n.rules() != rules {
					return errors.New("the rules are not there:\n" + n.rules())
				}
				return nil
			})
			for _, a := range both {
				n.waitAnswer(t, bounded, a, "local")
			}
			t.Logf("repaired after %v", time.Since(start).Round(time.Millisecond))
		})
	}
}

// TestOverlap starts a second nodecache while the first one runs, stops the first, and asserts that every query of a
// load is answered. They also share the ports of health, readiness and metrics.
func TestOverlap(t *testing.T) {
	n := newNode(t)
	// Otherwise the kernel resets connections that a listener has not accepted when it is closed, although another
	// listener could accept them (tcp_migrate_req in Linux' ip-sysctl).
	n.Node.Sysctl(t, "net/ipv4/tcp_migrate_req", "1")
	configured := cache{
		who: "first", addresses: both, options: []string{"health 8080"},
		more: []string{fmt.Sprintf("health %v", netip.AddrPortFrom(local4, 8080)), "ready", "prometheus :9253"},
	}
	first := n.run(t, configured)
	for _, generation := range []string{"second", "third"} {
		configured.who = generation
		streams := n.startLoad(t, both...)
		time.Sleep(before / 2)
		next := n.start(t, configured)
		// With IPv6 the kernel gives the second instance no datagram while the first has sockets: those of the fast path
		// are another group, after that of the first.
		kit.Succeeds(t, startTimeout, generation+" to serve", func() error {
			for _, a := range both {
				if !strings.Contains(next.Output(), fmt.Sprintf("Lease of %v acquired", a)) {
					return errors.New(next.Output())
				}
			}
			return nil
		})
		time.Sleep(before / 2)
		first.Stop(t)
		left := time.Now()
		time.Sleep(before)
		wantAll(t, streams, left, generation, 0)
		if strings.Contains(first.Output(), "accept tcp") {
			t.Errorf("the leaving one logs the end of its listener as an error:\n%s", first.Output())
		}
		if len(n.links(t)) != 1 || n.rules() == "" {
			t.Errorf("the leaving one took something along: %v\n%s", n.links(t), n.rules())
		}
		first = next
	}
	first.Stop(t)
	if len(n.links(t)) != 0 || n.rules() != "" {
		t.Errorf("the last one left something: %v\n%s", n.links(t), n.rules())
	}
}

// waitAll waits until this server has answered a query of each stream.
func waitAll(t *testing.T, streams load, who string) {
	t.Helper()
	for _, s := range streams {
		kit.Succeeds(t, startTimeout, who+" to answer a query of the load", func() error {
			if s.Report().By()[who] == 0 {
				return errors.New(s.Report().String())
			}
			return nil
		})
	}
}

// resetByReload is the maximum number of TCP queries of each stream that a reload may lose: CoreDNS closes connections
// that the old server has accepted and not read from yet.
const resetByReload = 2

// wantAll ends a load of which no query may be lost, except a number over TCP, and which only this server may have
// answered since start.
func wantAll(t *testing.T, streams load, start time.Time, who string, lostTCP int) {
	t.Helper()
	for g, r := range streams.stop() {
		t.Logf("%v: %v", g, r)
		maxLost := 0
		if strings.Contains(fmt.Sprint(g), "tcp") {
			maxLost = lostTCP
		}
		if r.Lost() > maxLost {
			t.Errorf("%v: lost %d queries: %v", g, r.Lost(), r)
		}
		if by := r.Since(start).By(); by[who] == 0 || len(by) != 1 {
			t.Errorf("%v: %s should be alone: %v", g, who, by)
		}
	}
}

// TestReload has nodecache read other configurations under load: a valid one and an invalid one.
func TestReload(t *testing.T) {
	for name, bind := range map[string]string{"its addresses": "", "all addresses": "0.0.0.0 ::"} {
		t.Run(name, func(t *testing.T) { testReload(t, bind) })
	}
}

func testReload(t *testing.T, bind string) {
	t.Helper()
	n := newNode(t)
	path := filepath.Join(t.TempDir(), "Corefile")
	configured := cache{who: "first", addresses: both, bind: bind}
	kit.Write(t, path, configured.text())
	p := n.Node.Start(t, program(t), "-conf", path)
	for _, a := range both {
		n.waitAnswer(t, startTimeout, a, "first")
		kit.Succeeds(t, startTimeout, "the lease", func() error { return n.leased(a) })
	}
	link, rules := n.links(t), n.rules()
	streams := n.startLoad(t, both...)
	time.Sleep(before / 2)
	behind := configured.behind() // stays, for queries of the first configuration in progress
	configured.who = "second"
	kit.Write(t, path, configured.text()+behind)
	p.Signal(t, syscall.SIGUSR1)
	waitAll(t, streams, "second")
	reloaded := time.Now()
	kit.Write(t, path, server("nodelocal nowhere"))
	p.Signal(t, syscall.SIGUSR1)
	waitLog(t, startTimeout, p, "nowhere")
	time.Sleep(2 * before) // longer than a lease
	wantAll(t, streams, reloaded, "second", resetByReload)
	if got := n.links(t); len(got) != 1 || !slices.Equal(got[0].prefixes(), link[0].prefixes()) || n.rules() != rules {
		t.Errorf("interfaces %v, rules\n%s\nwant %v\n%s", got, n.rules(), link, rules)
	}
	for _, a := range both {
		if err := n.leased(a); err != nil {
			t.Error(err)
		}
	}
	p.Stop(t)
	if len(n.links(t)) != 0 || n.rules() != "" {
		t.Errorf("left: %v\n%s", n.links(t), n.rules())
	}
}

// TestIPTables has the rules of node-local-dns: twelve for each address, of which two are for the health port.
func TestIPTables(t *testing.T) {
	n := newNode(t)
	configured := cache{who: "local", addresses: both, options: []string{"backend iptables", "health 8080"}}
	p := n.run(t, configured)
	var rules []string
	kit.Succeeds(t, startTimeout, "the rules", func() error { // it answers while they are set
		rules = n.iptables(t)
		if want := 12 * len(both); len(rules) != want {
			return fmt.Errorf("%d rules, want %d:\n%s", len(rules), want, strings.Join(rules, "\n"))
		}
		return nil
	})
	if !strings.Contains(p.Output(), "iptables") {
		t.Errorf("nodecache does not log that it uses iptables:\n%s", p.Output())
	}
	for i, a := range both {
		n.Node.Run(t, "conntrack", "-F")
		ask(t, n.Pod[i], "udp", a, 10)
		ask(t, n.Pod[i], "tcp", a, 10)
		if got := n.tracked(t, a); len(got) != 0 {
			t.Errorf("%v: %d connections are tracked:\n%s", a, len(got), strings.Join(got, ""))
		}
	}
	p.Kill(t)
	p = n.run(t, configured)
	t.Run("adopt", func(t *testing.T) {
		if got := n.iptables(t); !slices.Equal(got, rules) {
			t.Errorf("rules:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(rules, "\n"))
		}
	})
	t.Run("clean stop", func(t *testing.T) {
		p.Stop(t)
		if got := n.iptables(t); len(got) != 0 || len(n.links(t)) != 0 {
			t.Errorf("left: %v, %q", n.links(t), got)
		}
	})
}

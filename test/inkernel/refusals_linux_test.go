package inkernel

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/netns"
)

// foreign attaches a program of another process, which passes every packet, to the ingress of an interface of the node, and
// returns the function that detaches it.
func (n *node) foreign(t *testing.T, device string, clsact bool) (detach func()) {
	t.Helper()
	const pass = -1
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: ebpf.SchedCLS, License: "MIT", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, pass), asm.Return()},
	})
	kit.Must(t, err)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	var attached link.Link
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
	err = n.Do(func() error {
		i, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		if !clsact {
			attached, err = link.AttachTCX(link.TCXOptions{Interface: i.Index, Program: p, Attach: ebpf.AttachTCXIngress})
			return err
		}
		qdisc.LinkIndex = i.Index
		filter := &netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{
				LinkIndex: i.Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL,
			},
			Fd: p.FD(), Name: "foreign", DirectAction: true,
		}
		if err := netlink.QdiscAdd(qdisc); err != nil {
			return err
		}
		return netlink.FilterAdd(filter)
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		t.Skipf("attach a program to %s: %v", device, err)
	}
	if err != nil {
		t.Fatalf("attach a program to %s: %v", device, err)
	}
	return func() {
		err := n.Do(func() error {
			if clsact {
				return netlink.QdiscDel(qdisc)
			}
			return attached.Close()
		})
		if err != nil {
			t.Errorf("detach a program from %s: %v", device, err)
		}
	}
}

// answers sends queries from a namespace to all addresses, and returns the number of those that the kernel has answered. Each is
// answered.
func (i *instance) answers(t *testing.T, from *netns.Namespace) (kernel int) {
	t.Helper()
	since := i.steady(t, func() {
		for _, server := range locals {
			c := dial(t, from, server)
			for range repeatedQueries / len(locals) {
				if _, err := c.exchange(query(t, "web.test.", dns.TypeA, nil)); err != nil {
					t.Fatalf("query from %s: %v", from.Name, err)
				}
			}
		}
	})
	return int(since.Sum(answeredTotal))
}

// repeatedQueries is the number of queries of answers.
const repeatedQueries = 20

// logged waits until the log has a text.
func (i *instance) logged(t *testing.T, text string) {
	t.Helper()
	i.eventually(t, fmt.Sprintf("%q in the log", text), func() error {
		if !strings.Contains(i.Output(), text) {
			return errors.New(i.Output())
		}
		return nil
	})
}

// refusedInterfaces is the metric's sum of all interfaces without the program.
func (i *instance) refusedInterfaces(t *testing.T) int {
	t.Helper()
	all := i.scrape(t)
	return int(all.Sum(interfaces) - all.Sum(interfaces, "state", "attached"))
}

// TestForeignProgram has a program of another process at the interface of one pod: that interface is counted and logged, and the
// kernel answers the other pods and the host. With force it answers that pod as well.
func TestForeignProgram(t *testing.T) {
	for _, kind := range []string{"clsact", "tcx"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel() // most of the time, it waits
			n := newNode(t)
			filtered, other := n.addPod(t, routed), n.addPod(t, bridged)
			detach := n.foreign(t, filtered.device, kind == "clsact")
			i := n.start(t, config{kernel: "on"})
			message := [][]byte{query(t, "web.test.", dns.TypeA, nil)}
			i.waitInterfaces(t, "attached", 2)
			i.waitInterfaces(t, "program", 1)
			i.logged(t, fmt.Sprintf("No answers in the kernel on interface %s", filtered.device))
			i.heat(t, other.Namespace, message, locals...)
			if kernel := i.answers(t, filtered.Namespace); kernel != 0 {
				t.Errorf("the kernel has answered %d queries of the pod with another program", kernel)
			}
			for _, from := range []*netns.Namespace{other.Namespace, n.Namespace} {
				if kernel := i.answers(t, from); kernel != repeatedQueries {
					t.Errorf("the kernel has answered %d of %d queries from %s", kernel, repeatedQueries, from.Name)
				}
			}

			i.reload(t, i.config.withKernel("force"))
			i.waitInterfaces(t, "attached", 3)
			i.heat(t, other.Namespace, message, locals...)
			if kernel := i.answers(t, filtered.Namespace); kernel != repeatedQueries {
				t.Errorf("with force, the kernel has answered %d of %d queries", kernel, repeatedQueries)
			}
			if refused := i.refusedInterfaces(t); refused != 0 {
				t.Errorf("with force, %d interfaces are without the program", refused)
			}

			i.reload(t, i.config.withKernel("on"))
			i.waitInterfaces(t, "program", 1)
			i.waitInterfaces(t, "attached", 2)
			if kernel := i.answers(t, filtered.Namespace); kernel != 0 {
				t.Errorf("without force again, the kernel has answered %d queries", kernel)
			}
			detach()
			i.waitInterfaces(t, "attached", 3)
			i.heat(t, other.Namespace, message, locals...)
			if kernel := i.answers(t, filtered.Namespace); kernel != repeatedQueries {
				t.Errorf("without another program, the kernel has answered %d of %d queries", kernel, repeatedQueries)
			}

			detach = n.foreign(t, other.device, kind == "clsact")
			i.waitInterfaces(t, "program", 1)
			i.waitInterfaces(t, "attached", 2)
			if kernel := i.answers(t, other.Namespace); kernel != 0 {
				t.Errorf("the kernel has answered %d queries of the pod that got another program", kernel)
			}
			detach()
		})
	}
}

// TestPolicyEngine has the chains of a policy engine on the node: no program is attached, and the log and a metric have the
// reason. With force the kernel answers nevertheless. The log has a line about attached programs only once there are some.
func TestPolicyEngine(t *testing.T) {
	for _, tc := range []struct {
		name, program string
		set, remove   []string
		engine        string // in the log
	}{
		{
			"nftables", "nft", []string{"add table ip filter; add chain ip filter cali-FORWARD"}, []string{"delete table ip filter"},
			"Calico (chain cali-FORWARD of table ip filter)",
		},
		{
			"iptables-legacy", "iptables-legacy", []string{"-N", "KUBE-ROUTER-INPUT"}, []string{"-X", "KUBE-ROUTER-INPUT"},
			"kube-router (chain KUBE-ROUTER-INPUT of table ip filter of iptables-legacy)",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			netns.Require(t, tc.program)
			n := newNode(t)
			places := []*netns.Namespace{n.Namespace, n.addPod(t, routed).Namespace, n.addPod(t, bridged).Namespace}
			n.Run(t, tc.program, tc.set...)
			i := n.start(t, config{kernel: "on"})
			i.waitInterfaces(t, "policy", len(places))
			i.logged(t, "No answers in the kernel: "+tc.engine+" may enforce network policies")
			for _, place := range places {
				if kernel := i.answers(t, place); kernel != 0 {
					t.Errorf("the kernel has answered %d queries from %s", kernel, place.Name)
				}
			}
			if attached := i.scrape(t).Sum(interfaces, "state", "attached"); attached != 0 {
				t.Errorf("%v interfaces have the program", attached)
			}
			if out := i.Output(); strings.Contains(out, " attached ") {
				t.Errorf("no interface has the program, and the log has:\n%s", out)
			}

			i.reload(t, i.config.withKernel("force"))
			i.waitInterfaces(t, "attached", len(places))
			i.logged(t, `since "kernel force" is set`)
			i.logged(t, fmt.Sprintf("The program that answers in the kernel is attached to %d interfaces by ", len(places)))
			i.heat(t, places[0], [][]byte{query(t, "web.test.", dns.TypeA, nil)}, locals...)
			for _, place := range places {
				if kernel := i.answers(t, place); kernel != repeatedQueries {
					t.Errorf("with force, the kernel has answered %d of %d queries from %s", kernel, repeatedQueries, place.Name)
				}
			}

			i.reload(t, i.config.withKernel("on"))
			i.waitInterfaces(t, "policy", len(places))
			if kernel := i.answers(t, places[1]); kernel != 0 {
				t.Errorf("without force again, the kernel has answered %d queries", kernel)
			}
			n.Run(t, tc.program, tc.remove...)
			i.waitInterfaces(t, "attached", len(places))
			i.heat(t, places[1], [][]byte{query(t, "web.test.", dns.TypeA, nil)}, locals...)
		})
	}
}

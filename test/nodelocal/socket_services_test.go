//go:build linux

package nodelocal

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	bpflink "github.com/cilium/ebpf/link"

	"github.com/nearside-dns/nearside/test/kit"
	"github.com/nearside-dns/nearside/test/netns"
)

// translateSockets makes a control group in which sockets that are connected to a Service's address get a replica, as
// Cilium's replacement of kube-proxy does, and getpeername hides it. It returns the file that moves processes there.
func translateSockets(t *testing.T, service, replica netip.Addr) (procs string) {
	t.Helper()
	root := t.TempDir()
	kit.Must(t, syscall.Mount("cgroup2", root, "cgroup2", 0, ""))
	group := filepath.Join(root, fmt.Sprintf("nearside-test-%d", os.Getpid()))
	kit.Must(t, os.Mkdir(group, 0o755))
	t.Cleanup(func() {
		kit.Succeeds(t, bounded, "the end of the control group", func() error { return os.Remove(group) })
		if err := syscall.Unmount(root, 0); err != nil {
			t.Error(err)
		}
	})
	for kind, pair := range map[ebpf.AttachType][2]netip.Addr{
		ebpf.AttachCGroupInet4Connect:     {service, replica},
		ebpf.AttachCgroupInet4GetPeername: {replica, service},
	} {
		const userIP4 = 4 // in struct bpf_sock_addr
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupSockAddr, AttachType: kind, License: "GPL", Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, userIP4, asm.Word),
			asm.LoadImm(asm.R3, number(pair[0]), asm.DWord),
			asm.JNE.Reg(asm.R2, asm.R3, "end"),
			asm.LoadImm(asm.R3, number(pair[1]), asm.DWord),
			asm.StoreMem(asm.R1, userIP4, asm.R3, asm.Word),
			asm.Mov.Imm(asm.R0, 1).WithSymbol("end"),
			asm.Return(),
		}})
		kit.Must(t, err)
		l, err := bpflink.AttachCgroup(bpflink.CgroupOptions{Path: group, Attach: kind, Program: p})
		kit.Must(t, err)
		t.Cleanup(func() { _, _ = l.Close(), p.Close() })
	}
	return filepath.Join(group, "cgroup.procs")
}

// number returns an IPv4 address as the kernel has it in memory.
func number(a netip.Addr) int64 {
	four := a.As4()
	return int64(binary.NativeEndian.Uint32(four[:]))
}

// TestServicesTranslatedAtSockets runs nodecache where no kube-proxy translates packets: only sockets of the node are
// translated, so that a pod's query that the rules send to a Service's address is lost. There it may also be a pod to
// which the network plugin directs queries.
func TestServicesTranslatedAtSockets(t *testing.T) {
	n := newNode(t)
	procs := translateSockets(t, upstream4, n.Upstream.IPv4)
	inGroup := func(args ...string) []string {
		return append([]string{"-c", `echo $$ > ` + procs + ` && exec "$0" "$@"`}, args...)
	}
	start := func(t *testing.T, c cache) *netns.Process {
		path := kit.File(t, "Corefile", c.text())
		return n.Node.Start(t, "sh", inGroup(program(t), "-conf", path)...)
	}
	doctor := func() string {
		out, _ := n.Node.Try("sh", inGroup(program(t), "doctor", "-timeout", "500ms", "-domain", "test", "-clusterdns", upstream4.String())...)
		return out
	}
	t.Run("a replica answers pods while nodecache hangs", func(t *testing.T) {
		p := start(t, cache{who: "local", addresses: []netip.Addr{local4}, options: []string{fmt.Sprintf("fallback %v", upstream4)}})
		n.waitAnswer(t, startTimeout, local4, "local")
		kit.Succeeds(t, startTimeout, "the lease", func() error { return n.leased(local4) })
		waitLog(t, bounded, p, "sent to the replica "+n.Upstream.IPv4.String())
		if out := doctor(); !doctorSays(out, "ok", "fallback 169.254.20.10", "cluster DNS") {
			t.Errorf("doctor:\n%s", out)
		}
		p.Freeze(t)
		n.waitAnswer(t, bounded, local4, "upstream")
		for _, network := range []string{"udp", "tcp"} {
			record, err := n.Pod[0].Ask(network, local4, "hangs.test.", time.Second)
			if err != nil || len(record) != 2 || record[1] != n.Node.IPv4.String() {
				t.Errorf("over %s: %q, %v; want an answer of the replica to the node", network, record, err)
			}
		}
		p.Thaw(t)
		p.Stop(t)
	})
	t.Run("doctor fails for a fallback that is translated only for sockets", func(t *testing.T) {
		p := n.start(t, cache{who: "local", addresses: []netip.Addr{local4}, options: []string{fmt.Sprintf("fallback %v", upstream4)}})
		kit.Succeeds(t, startTimeout, "the lease", func() error { return n.leased(local4) })
		if out := doctor(); !doctorSays(out, "fail", "fallback 169.254.20.10", "lost") {
			t.Errorf("doctor:\n%s", out)
		}
		p.Stop(t)
	})
	t.Run("the address of a Service is never in service, for the true reason", func(t *testing.T) {
		p := start(t, cache{who: "local", addresses: []netip.Addr{upstream4}, options: []string{"question lo"}})
		waitLog(t, startTimeout, p, "Address 10.96.0.11 gets no queries: the address is a Service's, and the network plugin's load balancing of Services at sockets")
		out := doctor()
		if !doctorSays(out, "fail", "lease 10.96.0.11", "load balancing") {
			t.Errorf("doctor:\n%s", out)
		}
		for _, wrong := range []string{"does not answer itself", "kube-proxy does not know this address", "it gets no lease"} {
			if strings.Contains(out, wrong) {
				t.Errorf("doctor says %q:\n%s", wrong, out)
			}
		}
		for _, wrong := range []string{"has no fallback", "another table of nftables"} {
			if strings.Contains(p.Output(), wrong) {
				t.Errorf("%q in the log", wrong)
			}
		}
		p.Stop(t)
	})
	t.Run("doctor queries a nodecache that sets up nothing, and fails only if it hangs", func(t *testing.T) { n.testRedirected(t, "127.0.0.1") })
	t.Run("doctor queries a nodecache of Cilium's overlay, and fails only if it hangs", func(t *testing.T) {
		own := n.Pod[1].IPv4.String()
		n.testRedirected(t, own, "nodelocal "+own+" {\nsetup none\n}")
	})
}

// testRedirected runs nodecache with directives as a pod to which a local redirect policy directs queries, and doctor beside it,
// which queries an address.
func (n *node) testRedirected(t *testing.T, queried string, directives ...string) {
	pod := n.Pod[1]
	pod.Etc(t, "resolv.conf", fmt.Sprintf("nameserver %v\n", n.Upstream.IPv4))
	p := pod.Start(t, program(t), "-conf", corefile(t, append(directives, "errors", "cache", fmt.Sprintf("forward . %v", n.Upstream.IPv4))...))
	doctor := func() (string, error) {
		return pod.Try(program(t), "doctor", "-timeout", "500ms", "-clusterdns", n.Upstream.IPv4.String())
	}
	n.waitAnswer(t, startTimeout, pod.IPv4, "upstream")
	out, err := doctor()
	if err != nil || !doctorSays(out, "ok", "query "+queried+" udp", "in ") || !doctorSays(out, "ok", "rules", "none, as configured") {
		t.Errorf("%v; doctor:\n%s", err, out)
	}
	p.Freeze(t)
	if out, err = doctor(); err == nil || !doctorSays(out, "fail", "query "+queried+" udp", "no answer") {
		t.Errorf("%v; doctor of a nodecache that hangs:\n%s", err, out)
	}
	p.Thaw(t)
	p.Stop(t)
}

// doctorSays returns whether a line of doctor's output has the verdict, the check and a text.
func doctorSays(out, verdict, check, text string) bool {
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, verdict+" ") && strings.Contains(line, check+" ") {
			return strings.Contains(line, text)
		}
	}
	return false
}

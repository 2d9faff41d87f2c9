//go:build amd64 || arm64

package kernel

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	mdlayher "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/netns"
)

// TestInterfaces attaches to lo and pods' interfaces, and to no others, such as those of default routes.
func TestInterfaces(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	for _, mode := range modes(t) {
		t.Run(mode.name, func(t *testing.T) {
			h := newHost(t)
			ns := h.newNamespace()
			others := []string{"bridge0", "node-q0", "node-q1"}
			removed := []netlink.Link{
				h.addPod("pod0", ns),
				h.add(&netlink.Bridge{LinkAttrs: attrsOf("bridge0")}),
				h.add(&netlink.Veth{LinkAttrs: attrsOf("node-q0"), PeerName: "node-q1"}),
			}
			switch err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: attrsOf("dummy0")}); {
			case err == nil:
				others, removed = append(others, "dummy0"), append(removed, h.link("dummy0"))
			case !errors.Is(err, unix.EOPNOTSUPP): // the kernel has no dummy driver
				t.Fatal(err)
			}
			h.Cleanup(func() {
				for _, l := range removed {
					h.must(netlink.LinkDel(l))
				}
			})
			p := h.load()
			o := h.quick()
			o.clsact = mode.clsact
			i := h.begin(p, o)
			for _, name := range []string{"lo", "pod0"} {
				if !h.has(name) {
					t.Errorf("%s has programs %q", name, h.names(name))
				}
			}
			for _, name := range others {
				if got := h.names(name); len(got) != 0 {
					t.Errorf("%s has programs %q", name, got)
				}
			}
			if s := i.State(); s.Attached != 2 || len(s.Refused) != 0 || s.Policy != "" || s.Mode != mode.name {
				t.Errorf("state %+v, want 2 attached with %s", s, mode.name)
			}

			added := h.addPod("pod1", ns)
			h.eventually("a new pod", func() bool { return h.has("pod1") })
			h.must(netlink.LinkSetMaster(added, h.link("bridge0").(*netlink.Bridge)))
			h.must(netlink.LinkSetUp(added))
			h.eventually("3 attached", func() bool { return i.State().Attached == 3 })
			h.must(netlink.LinkDel(added))
			h.eventually("the pod is counted no longer", func() bool { return i.State().Attached == 2 })

			h.must(netlink.LinkSetMTU(h.link("pod0"), minMTU-1))
			h.eventually("no program with a small MTU", func() bool { return len(h.ids("pod0")) == 0 && i.State().Refused[ReasonMTU] == 1 })
			h.must(netlink.LinkSetMTU(h.link("pod0"), minMTU))
			h.eventually("the program with a larger MTU", func() bool { return h.has("pod0") && len(i.State().Refused) == 0 })

			for _, to := range []string{"0.0.0.0/0", "::/0"} {
				_, all, err := net.ParseCIDR(to)
				h.must(err)
				route := netlink.Route{LinkIndex: h.link("pod0").Attrs().Index, Dst: all, Scope: netlink.SCOPE_LINK}
				h.must(netlink.LinkSetUp(h.link("pod0")))
				h.must(netlink.RouteAdd(&route))
				h.eventually("no program with a default route", func() bool { return len(h.ids("pod0")) == 0 && i.State().Attached == 1 })
				h.must(netlink.RouteDel(&route))
				h.eventually("the program without the default route", func() bool { return h.has("pod0") && i.State().Attached == 2 })
			}

			h.must(i.Exit())
			for name, e := range i.retained { // only links outlive it, until the process ends
				if mode.clsact || !h.has(e.link.Attrs().Name) {
					t.Errorf("interface %d is retained with programs %q", name, h.names(e.link.Attrs().Name))
				}
				h.must(e.attached.link.Close())
			}
			if !mode.clsact && len(i.retained) != 2 {
				t.Errorf("%d attachments are retained, want 2", len(i.retained))
			}
			h.must(i.Close())
			for _, name := range []string{"lo", "pod0"} {
				if got := h.names(name); len(got) != 0 {
					t.Errorf("%s has programs %q after the end", name, got)
				}
				if qdiscs := h.ingressQdiscs(name); qdiscs != 0 {
					t.Errorf("%s has %d qdiscs at the ingress after the end", name, qdiscs)
				}
			}
		})
	}
}

// ingressQdiscs returns the number of qdiscs clsact and ingress of an interface.
func (h *host) ingressQdiscs(name string) (n int) {
	h.Helper()
	all, err := netlink.QdiscList(h.link(name))
	h.must(err)
	for _, q := range all {
		if q.Attrs().Parent == netlink.HANDLE_INGRESS {
			n++
		}
	}
	return n
}

// TestPeerMoves moves the peer of a veth to a pod and back, as some network plugins create it in the node's namespace.
func TestPeerMoves(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	ns := h.newNamespace()
	o := h.quick()
	o.resync = 50 * time.Millisecond
	i := h.follow(h.load(), o)
	h.add(&netlink.Veth{LinkAttrs: attrsOf("pod0"), PeerName: "peer0"})
	h.must(netlink.LinkSetNsFd(h.link("peer0"), int(ns.Fd())))
	h.eventually("attached", func() bool { return h.has("pod0") && i.State().Attached == 2 })
	own, err := os.Open("/proc/thread-self/ns/net")
	h.must(err)
	defer func() { h.must(own.Close()) }()
	h.must(inNamespace(ns, func() error {
		l, err := netlink.LinkByName("peer0")
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(l, int(own.Fd()))
	}))
	h.eventually("detached", func() bool { return len(h.ids("pod0")) == 0 && i.State().Attached == 1 })
}

// inNamespace calls a function in a network namespace.
func inNamespace(ns *os.File, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// TestPodsComeAndGo adds and removes pods one by one and many at once, and counts descriptors and goroutines.
func TestPodsComeAndGo(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	const pods = 100
	for _, mode := range modes(t) {
		t.Run(mode.name, func(t *testing.T) {
			h := newHost(t)
			ns := h.newNamespace()
			p := h.load()
			goroutines, descriptors := runtime.NumGoroutine(), openFiles(t)
			o := h.quick()
			o.clsact = mode.clsact
			i := h.begin(p, o)
			attached := func(n int) {
				t.Helper()
				h.eventually(fmt.Sprintf("%d attached", n), func() bool { return i.State().Attached == n })
			}
			running := openFiles(t)
			for n := range pods {
				l := h.addPod(fmt.Sprint("pod", n), ns)
				if n%2 == 0 { // the others are removed at any time
					attached(2)
				}
				h.must(netlink.LinkDel(l))
			}
			attached(1)
			for n := range pods {
				h.addPod(fmt.Sprint("pod", n), ns)
			}
			attached(1 + pods)
			for n := range pods {
				if name := fmt.Sprint("pod", n); !h.has(name) {
					t.Fatalf("%s has programs %q", name, h.names(name))
				}
			}
			for n := range pods {
				h.must(netlink.LinkDel(h.link(fmt.Sprint("pod", n))))
			}
			attached(1)
			h.eventually(fmt.Sprintf("%d open files, as before the pods", running), func() bool { return openFiles(t) <= running })
			if s := i.State(); len(s.Refused) != 0 {
				t.Errorf("state %+v, want none refused", s)
			}
			h.must(i.Close())
			if n := openFiles(t); n != descriptors {
				t.Errorf("%d open files after the end, %d before", n, descriptors)
			}
			h.eventually("the goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
		})
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	all, err := filepath.Glob("/proc/self/fd/*")
	kit.Must(t, err)
	return len(all)
}

// TestLostEvents lists the interfaces again if the kernel discards notifications, or the socket fails.
func TestLostEvents(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	ns := h.newNamespace()
	p := h.load()

	t.Run("discarded", func(t *testing.T) {
		o := h.quick()
		o.buffer = 1 // the kernel's minimum: one notification
		f, err := newFollower(p, o)
		h.must(err)
		h.must(f.sync())
		const pods = 50
		for n := range pods {
			h.addPod(fmt.Sprint("pod", n), ns)
		}
		go f.run()
		h.eventually("all pods", func() bool { return f.State().Attached == 1+pods })
		if n := h.log.count(unix.ENOBUFS.Error()); n != 1 {
			t.Errorf("%d lines of %q in\n%s", n, unix.ENOBUFS.Error(), &h.log)
		}
		for n := range pods {
			h.must(netlink.LinkDel(h.link(fmt.Sprint("pod", n))))
		}
		h.eventually("no pods", func() bool { return f.State().Attached == 1 })
		h.must(f.Close())
	})
	t.Run("socket", func(t *testing.T) {
		f, err := newFollower(p, h.quick())
		h.must(err)
		socket := f.subscription.socket
		go f.run()
		<-f.synced
		h.must(socket.Close())
		h.addPod("pod0", ns)
		h.eventually("the pod", func() bool { return f.State().Attached == 2 })
		h.addPod("pod1", ns)
		h.eventually("a pod by a notification", func() bool { return f.State().Attached == 3 })
		h.must(f.Close())
	})
}

// TestRefusedByKernel attaches to the other interfaces if the kernel refuses one, and retries.
func TestRefusedByKernel(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	ns := h.newNamespace()
	l := h.addPod("pod0", ns)
	other := h.addPod("pod1", ns)
	// A filter of another kind has the priority that the program's filter would have.
	h.must(netlink.QdiscAdd(qdisc(l)))
	u32 := &netlink.U32{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: firstPriority, Protocol: unix.ETH_P_ALL,
	}, ClassId: 1}
	h.must(netlink.FilterAdd(u32))
	o := h.quick()
	o.clsact, o.Force, o.resync = true, true, 50*time.Millisecond
	i := h.follow(h.load(), o)
	if s := i.State(); s.Attached != 2 || s.Refused[ReasonError] != 1 {
		t.Fatalf("state %+v, want 2 attached and 1 refused", s)
	}
	h.addPod("pod2", ns)
	h.must(netlink.LinkDel(other))
	h.eventually("another pod", func() bool { return h.has("pod2") && i.State().Attached == 2 })
	time.Sleep(5 * o.resync) // retries, which log nothing
	if n := h.log.count("attach nearside_answer to interface pod0: "); n != 1 {
		t.Errorf("%d lines in\n%s", n, &h.log)
	}
	h.must(netlink.FilterDel(u32))
	h.eventually("the refused interface", func() bool { return h.has("pod0") && i.State().Attached == 3 })
}

// TestSettles waits for network plugins before it attaches to a new interface.
func TestSettles(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	ns := h.newNamespace()
	h.addPod("pod0", ns)
	o := h.quick()
	o.settle = time.Minute
	now := time.Now()
	o.now = func() time.Time { return now }
	f, err := newFollower(h.load(), o)
	h.must(err)
	h.Cleanup(func() { h.must(f.end()) })
	f.tick()
	if !h.has("pod0") {
		t.Error("a pod that has run before has no program")
	}
	f.update(h.addPod("pod1", ns))
	f.tick()
	if got := h.names("pod1"); len(got) != 0 {
		t.Errorf("a new pod has programs %q", got)
	}
	now = now.Add(o.settle)
	f.tick()
	if !h.has("pod1") {
		t.Error("a pod has no program after the wait")
	}
}

// TestEvents reads notifications. A bridge reports its ports in messages without the attributes of the interface.
func TestEvents(t *testing.T) {
	link := func(family byte) []byte {
		b := make([]byte, unix.SizeofIfInfomsg)
		b[0], b[4] = family, 7
		return b
	}
	filter := make([]byte, 20)
	filter[4] = 7
	for _, tc := range []struct {
		name    string
		kind    mdlayher.HeaderType
		data    []byte
		want    bool
		removed bool
	}{
		{"interface", unix.RTM_NEWLINK, link(unix.AF_UNSPEC), true, false},
		{"removed interface", unix.RTM_DELLINK, link(unix.AF_UNSPEC), true, true},
		{"port of a bridge", unix.RTM_NEWLINK, link(unix.AF_BRIDGE), false, false},
		{"removed port of a bridge", unix.RTM_DELLINK, link(unix.AF_BRIDGE), false, false},
		{"short", unix.RTM_NEWLINK, link(unix.AF_UNSPEC)[1:], false, false},
		{"filter", unix.RTM_NEWTFILTER, filter, true, false},
		{"removed qdisc", unix.RTM_DELQDISC, filter, true, false},
		{"short filter", unix.RTM_NEWTFILTER, filter[1:], false, false},
		{"address", unix.RTM_NEWADDR, link(unix.AF_UNSPEC), false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, ok := newEvent(mdlayher.Message{Header: mdlayher.Header{Type: tc.kind}, Data: tc.data})
			if ok != tc.want || ok && e.index != 7 || e.removed != tc.removed || e.err != nil {
				t.Errorf("%+v, %t", e, ok)
			}
		})
	}
}

func TestCandidates(t *testing.T) {
	attrs := func(change func(*netlink.LinkAttrs)) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.MTU = 1500
		change(&a)
		return a
	}
	pod := func(a *netlink.LinkAttrs) { a.NetNsID = 0 }
	for _, tc := range []struct {
		name string
		link netlink.Link
		want bool
	}{
		{"veth of a pod", &netlink.Veth{LinkAttrs: attrs(pod)}, true},
		{"netkit of a pod", &netlink.Netkit{LinkAttrs: attrs(pod)}, true},
		{"veth in the node's namespace", &netlink.Veth{LinkAttrs: attrs(func(*netlink.LinkAttrs) {})}, false},
		{"veth of a namespace that ends", &netlink.Veth{LinkAttrs: attrs(func(a *netlink.LinkAttrs) { a.NetNsID = math.MaxUint32 })}, false},
		{"veth of a default route", &netlink.Veth{LinkAttrs: attrs(func(a *netlink.LinkAttrs) { a.NetNsID, a.Index = 0, 7 })}, false},
		{"VLAN of an interface in another namespace", &netlink.Vlan{LinkAttrs: attrs(pod)}, false},
		{"hardware", &netlink.Device{LinkAttrs: attrs(func(*netlink.LinkAttrs) {})}, false},
		{"lo", &netlink.Device{LinkAttrs: attrs(func(a *netlink.LinkAttrs) { a.Flags = 4 })}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := candidate(tc.link, map[int]bool{7: true}); got != tc.want {
				t.Errorf("%t, want %t", got, tc.want)
			}
		})
	}
}

func TestKernelError(t *testing.T) {
	err := fmt.Errorf("start: %w", &KernelError{"attach nearside_answer to interface veth1", unix.EPERM})
	if want := "start: attach nearside_answer to interface veth1: operation not permitted"; err.Error() != want || !errors.Is(err, unix.EPERM) {
		t.Errorf("%q, want %q", err, want)
	}
}

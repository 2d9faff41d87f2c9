//go:build amd64 || arm64

package kernel

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearside-dns/nearside/test/netns"
)

// TestTwoInstances runs two instances, as during an update. Each detaches only its own program.
func TestTwoInstances(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	for _, mode := range modes(t) {
		t.Run(mode.name, func(t *testing.T) {
			h := newHost(t)
			l := h.addPod("pod0", h.newNamespace())
			h.Cleanup(func() { h.must(netlink.LinkDel(l)) })
			o := h.quick()
			o.clsact, o.resync = mode.clsact, 50*time.Millisecond
			older := h.begin(h.load(), o)
			before := h.ids("pod0")
			newer := h.begin(h.load(), o)
			time.Sleep(5 * o.resync) // each examines the other's program
			for name, i := range map[string]*Interfaces{"older": older, "newer": newer} {
				if s := i.State(); s.Attached != 2 || len(s.Refused) != 0 {
					t.Errorf("state of the %s instance %+v, want 2 attached", name, s)
				}
			}
			both := h.ids("pod0")
			if len(both) != 2 {
				t.Fatalf("pod0 has programs %v", both)
			}
			h.must(older.Close())
			for _, name := range []string{"lo", "pod0"} {
				after := h.ids(name)
				if len(after) != 1 || slices.Contains(after, before[0]) || !slices.Contains(both, after[0]) {
					t.Errorf("%s has programs %v after the end of %v, with %v before", name, after, before, both)
				}
			}
			time.Sleep(5 * o.resync)
			if s := newer.State(); s.Attached != 2 || len(s.Refused) != 0 {
				t.Errorf("state %+v, want 2 attached", s)
			}
			h.must(newer.Close())
			if got := h.names("pod0"); len(got) != 0 {
				t.Errorf("pod0 has programs %q", got)
			}
		})
	}
}

// obstacle is a program or filter of another process.
type obstacle struct {
	name, text string // text is a part of a log line
	add        func(*host, netlink.Link) (remove func() error)
}

// obstacles are programs and filters of other processes: each function adds one to an interface, and returns the function that
// removes it.
var obstacles = []obstacle{
	{"tcx ingress", "program foreign (tcx ingress)", func(h *host, l netlink.Link) func() error { return h.foreignTCX(l, ebpf.AttachTCXIngress) }},
	{"tcx egress", "program foreign (tcx egress)", func(h *host, l netlink.Link) func() error { return h.foreignTCX(l, ebpf.AttachTCXEgress) }},
	{"filter at the ingress", "program some-filter (clsact ingress)", func(h *host, l netlink.Link) func() error {
		return h.foreignFilter(l, netlink.HANDLE_MIN_INGRESS)
	}},
	{"filter at the egress", "program some-filter (clsact egress)", func(h *host, l netlink.Link) func() error {
		return h.foreignFilter(l, netlink.HANDLE_MIN_EGRESS)
	}},
	{"filter without a program", "a filter of kind u32 (clsact ingress)", func(h *host, l netlink.Link) func() error {
		h.ensureQdisc(l)
		f := &netlink.U32{FilterAttrs: netlink.FilterAttrs{
			LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 7, Protocol: unix.ETH_P_ALL,
		}, ClassId: 1}
		h.must(netlink.FilterAdd(f))
		return func() error { return netlink.FilterDel(f) }
	}},
	{"XDP", "program foreign (XDP)", func(h *host, l netlink.Link) func() error {
		const generic = 1 << 1 // XDP_FLAGS_SKB_MODE
		h.must(netlink.LinkSetXdpFdWithFlags(l, h.foreign(ebpf.XDP).FD(), generic))
		return func() error { return netlink.LinkSetXdpFdWithFlags(l, -1, generic) }
	}},
}

// obstacles returns the obstacles that the kernel has.
func (h *host) obstacles() []obstacle {
	return slices.DeleteFunc(slices.Clone(obstacles), func(o obstacle) bool { return !h.lister.tcx && strings.HasPrefix(o.name, "tcx") })
}

func (h *host) foreignTCX(l netlink.Link, at ebpf.AttachType) (remove func() error) {
	h.Helper()
	attached, err := link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: h.foreign(ebpf.SchedCLS), Attach: at})
	h.must(err)
	return attached.Close
}

func (h *host) ensureQdisc(l netlink.Link) {
	h.Helper()
	if h.ingressQdiscs(l.Attrs().Name) == 0 {
		h.must(netlink.QdiscAdd(qdisc(l)))
	}
}

func (h *host) foreignFilter(l netlink.Link, parent uint32) (remove func() error) {
	h.Helper()
	h.ensureQdisc(l)
	f := &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: parent, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
		Fd:          h.foreign(ebpf.SchedCLS).FD(), Name: "some-filter", DirectAction: true,
	}
	h.must(netlink.FilterAdd(f))
	return func() error { return netlink.FilterDel(f) }
}

// TestForeignPrograms does not attach beside programs of other processes, before and after they appear.
func TestForeignPrograms(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	ns := h.newNamespace()
	p := h.load()
	for _, mode := range modes(t) {
		for _, tc := range h.obstacles() {
			t.Run(mode.name+"/"+tc.name, func(t *testing.T) {
				h := newHost(t)
				l := h.addPod("pod0", ns)
				h.Cleanup(func() { h.must(netlink.LinkDel(l)) })
				remove := tc.add(h, l)
				o := h.quick()
				o.clsact, o.resync = mode.clsact, 50*time.Millisecond
				i := h.follow(p, o)
				refused := func() bool {
					s := i.State()
					return len(h.ids("pod0")) == 0 && h.has("lo") && s.Attached == 1 && s.Refused[ReasonProgram] == 1
				}
				if !refused() {
					t.Fatalf("state %+v, programs %q", i.State(), h.names("pod0"))
				}
				found, err := Obstacles()
				h.must(err)
				if len(found) != 1 || found[0].Interface != "pod0" || found[0].Reason != ReasonProgram || !strings.Contains(found[0].Text, tc.text) {
					t.Errorf("obstacles %+v, want %q at pod0", found, tc.text)
				}
				h.must(remove())
				h.eventually("attached without the other program", func() bool { return h.has("pod0") && i.State().Attached == 2 })
				h.must(tc.add(h, h.link("pod0"))())
				h.must(tc.add(h, h.link("pod0"))()) // events of programs that have ended
				h.eventually("attached without the other program", func() bool { return h.has("pod0") && i.State().Attached == 2 })
				remove = tc.add(h, h.link("pod0"))
				h.eventually("detached", refused)
				if n := h.log.count(tc.text); n != 1 || h.log.count("kernel force") != 1 {
					t.Errorf("%d lines with %q in\n%s", n, tc.text, &h.log)
				}
				h.must(remove())
			})
		}
	}
}

// TestForeignEvents detaches from an interface, and attaches again, between listings of all interfaces: by the kernel's
// notifications, and by examinations of attached interfaces.
func TestForeignEvents(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	l := h.addPod("pod0", h.newNamespace())
	h.must(netlink.LinkSetUp(l)) // the kernel reports XDP only of interfaces that are up
	i := h.follow(h.load(), h.quick())
	for _, o := range h.obstacles() {
		t.Run(o.name, func(t *testing.T) {
			h := newHost(t)
			remove := o.add(h, l)
			h.eventually("detached", func() bool { return len(h.ids("pod0")) == 0 && i.State().Refused[ReasonProgram] == 1 })
			h.must(remove())
			if strings.HasPrefix(o.name, "tcx") { // the kernel does not report it
				h.foreignFilter(l, netlink.HANDLE_MIN_EGRESS)
				h.must(netlink.QdiscDel(qdisc(l)))
			}
			h.eventually("attached", func() bool { return h.has("pod0") && i.State().Attached == 2 })
		})
	}
}

// TestForce attaches before the programs of other processes.
func TestForce(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	ns := h.newNamespace()
	p := h.load()
	for _, mode := range modes(t) {
		for _, tc := range h.obstacles() {
			t.Run(mode.name+"/"+tc.name, func(t *testing.T) {
				h := newHost(t)
				l := h.addPod("pod0", ns)
				h.Cleanup(func() { h.must(netlink.LinkDel(l)) })
				remove := tc.add(h, l)
				o := h.quick()
				o.clsact, o.Force = mode.clsact, true
				i := h.follow(p, o)
				if s := i.State(); s.Attached != 2 || len(s.Refused) != 0 || !h.has("pod0") {
					t.Errorf("state %+v, programs %q", s, h.names("pod0"))
				}
				if place := map[bool]string{false: "tcx ingress", true: "filter at the ingress"}[mode.clsact]; tc.name == place {
					programs, err := h.lister.list(l, true)
					h.must(err)
					programs = slices.DeleteFunc(programs, func(p Program) bool { return !strings.HasSuffix(p.Place, " ingress") })
					if len(programs) != 2 || !programs[0].Own {
						t.Errorf("programs %v, want ours first", programs)
					}
				}
				h.must(remove())
			})
		}
	}
}

// TestQdiscOfOthers removes neither a qdisc of another process nor one with its filters, and attaches to a qdisc of kind
// ingress.
func TestQdiscOfOthers(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	ns := h.newNamespace()
	p := h.load()
	o := h.quick()
	o.clsact = true
	clsact, ingress, shared := h.addPod("clsact", ns), h.addPod("ingress", ns), h.addPod("shared", ns)
	h.must(netlink.QdiscAdd(qdisc(clsact)))
	h.must(netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ingress.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}}))
	o.Force = true
	i := h.begin(p, o)
	for _, l := range []netlink.Link{clsact, ingress, shared} {
		if name := l.Attrs().Name; !h.has(name) {
			t.Errorf("%s has programs %q", name, h.names(name))
		}
	}
	h.foreignFilter(shared, netlink.HANDLE_MIN_EGRESS)
	h.must(i.Close())
	for name, want := range map[string]int{"clsact": 0, "ingress": 0, "shared": 1} {
		if got := h.names(name); len(got) != want || h.ingressQdiscs(name) != 1 {
			t.Errorf("%s has programs %q and %d qdiscs", name, got, h.ingressQdiscs(name))
		}
	}
	if n := h.ingressQdiscs("lo"); n != 0 {
		t.Errorf("lo has %d qdiscs at the ingress", n)
	}
}

// TestRemovedByOthers attaches again if another process has removed the program.
func TestRemovedByOthers(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	for _, mode := range modes(t) {
		t.Run(mode.name, func(t *testing.T) {
			h := newHost(t)
			l := h.addPod("pod0", h.newNamespace())
			h.Cleanup(func() { h.must(netlink.LinkDel(l)) })
			o := h.quick()
			o.clsact = mode.clsact
			i := h.follow(h.load(), o)
			if mode.clsact {
				h.must(netlink.QdiscDel(qdisc(l)))
			} else {
				h.detachTCX(l)
			}
			h.eventually("the program", func() bool { return h.has("pod0") && i.State().Attached == 2 })
		})
	}
}

// detachTCX detaches the first link of tcx.
func (h *host) detachTCX(l netlink.Link) {
	h.Helper()
	result, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
	h.must(err)
	id, _ := result.Programs[0].LinkID()
	attached, err := link.NewFromID(id)
	h.must(err)
	h.must(attached.Detach())
	h.must(attached.Close())
}

// Environment variables of a second process of the tests.
const (
	childMode    = "NEARSIDE_TEST_KERNEL_MODE"    // tcx or clsact
	childStub    = "NEARSIDE_TEST_KERNEL_STUB"    // 1: other programs instead of those of answer.c
	childLimited = "NEARSIDE_TEST_KERNEL_LIMITED" // 1: it has few capabilities
)

// TestChild is the second process. It attaches, writes its state and waits for its end.
func TestChild(t *testing.T) {
	mode := os.Getenv(childMode)
	if mode == "" {
		t.Skip("runs as a second process of other tests")
	}
	h := newHost(t)
	o := h.quick()
	o.clsact = mode == "clsact"
	spec, err := loadAnswer()
	h.must(err)
	if os.Getenv(childStub) == "1" {
		spec = stub()
	}
	if os.Getenv(childLimited) == "1" {
		h.verifyLimited()
	}
	i := h.begin(h.loadSpec(spec), o)
	fmt.Printf("state %+v\n", i.State())
	<-t.Context().Done() // the test is killed
}

// child is the second process of a test.
type child struct {
	*exec.Cmd
	state string // the line that it has written
}

// start starts the second process in the namespace of the host.
func (h *host) start(environment ...string) (*child, error) {
	c := &child{Cmd: exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v")}
	c.Env = append(os.Environ(), environment...)
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.Stderr = c.Stdout
	if err := c.Start(); err != nil {
		return nil, err
	}
	h.Cleanup(func() {
		_ = c.Process.Kill() // it may have ended
		_ = c.Wait()
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	var all []string
	for lines.Scan() {
		all = append(all, lines.Text())
		if strings.HasPrefix(lines.Text(), "state ") {
			c.state = lines.Text()
			return c, nil
		}
	}
	return nil, fmt.Errorf("second process:\n%s", strings.Join(all, "\n"))
}

// TestProcessEnd kills a process that has attached: the kernel detaches links, and a filter passes every packet until the next
// process replaces it.
func TestProcessEnd(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	for _, mode := range modes(t) {
		t.Run(mode.name, func(t *testing.T) {
			h := newHost(t)
			l := h.addPod("pod0", h.newNamespace())
			h.Cleanup(func() { h.must(netlink.LinkDel(l)) })
			c, err := h.start(childMode + "=" + mode.name)
			h.must(err)
			if !h.has("lo") || !h.has("pod0") || !h.received() {
				t.Fatalf("programs %q of lo and %q of pod0 with %s", h.names("lo"), h.names("pod0"), c.state)
			}
			before := h.ids("pod0")
			h.must(c.Process.Kill())
			_ = c.Wait() // the error is the signal
			if !mode.clsact {
				h.eventually("no programs", func() bool { return len(h.names("lo")) == 0 && len(h.names("pod0")) == 0 })
				return
			}
			if got := h.ids("pod0"); !slices.Equal(got, before) {
				t.Errorf("filters %v after the end, want %v", got, before)
			}
			h.lister.forget()
			if programs, err := h.lister.list(l, true); err != nil || len(programs) != 1 || !programs[0].leftover() || programs[0].foreign() {
				t.Errorf("programs %+v (%v), want a leftover", programs, err)
			}
			if !h.received() {
				t.Error("the filter of a process that has ended does not pass packets")
			}
			o := h.quick()
			o.clsact = true
			i := h.begin(h.load(), o)
			if after := h.ids("pod0"); len(after) != 1 || after[0] == before[0] {
				t.Errorf("filters %v of the next process, %v before", after, before)
			}
			h.must(i.Close())
			if got := h.names("pod0"); len(got) != 0 {
				t.Errorf("pod0 has filters %q", got)
			}
		})
	}
}

// TestLeftovers removes the filters of another instance that has been killed.
func TestLeftovers(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	h := newHost(t)
	h.addPod("pod0", h.newNamespace())
	c, err := h.start(childMode + "=clsact")
	h.must(err)
	older := h.ids("pod0")
	o := h.quick()
	o.clsact, o.resync = true, 50*time.Millisecond
	i := h.follow(h.load(), o)
	if s := i.State(); s.Attached != 2 || len(h.ids("pod0")) != 2 {
		t.Fatalf("state %+v, programs %v", s, h.ids("pod0"))
	}
	h.must(c.Process.Kill())
	_ = c.Wait() // the error is the signal
	h.eventually("one filter", func() bool {
		ids := h.ids("pod0")
		return len(ids) == 1 && ids[0] != older[0]
	})
	if s := i.State(); s.Attached != 2 || len(s.Refused) != 0 {
		t.Errorf("state %+v", s)
	}
}

// TestFilterCalls counts the packets of a listener that the program processes, called by the filter or attached with tcx.
func TestFilterCalls(t *testing.T) {
	if !netns.Inside(t) {
		return
	}
	for _, mode := range modes(t) {
		t.Run(mode.name, func(t *testing.T) {
			h := newHost(t)
			var objects answerObjects
			h.must(loadAnswerObjects(&objects, nil))
			defer func() { h.must(objects.Close()) }()
			const port = 5300
			swapped := uint16(port>>8 | port&0xff<<8) // network order on a little-endian processor
			h.must(objects.Control.Put(uint32(0), answerControl{Ports: [4]uint16{swapped}}))
			h.must(objects.Listeners.Put(answerListenerKey{Address: [4]uint32{0, 0, 0xffff0000, 0x0100007f}, Port: swapped}, uint32(0)))
			processed := func() (n uint64) {
				var perCPU []uint64
				h.must(objects.Counters.Lookup(uint32(passedNoLease), &perCPU))
				for _, c := range perCPU {
					n += c
				}
				return n
			}
			send := func() {
				c, err := net.Dial("udp", fmt.Sprintf("127.0.0.1:%d", port))
				h.must(err)
				_, err = c.Write(make([]byte, 40))
				h.must(err)
				h.must(c.Close())
			}
			p := Programs{Answer: objects.NearsideAnswer, Filter: objects.NearsideFilter, Tail: objects.Program}
			o := h.quick()
			o.clsact = mode.clsact
			i := h.begin(p, o)
			send()
			if n := processed(); n != 1 {
				t.Errorf("%d packets processed, want 1", n)
			}
			h.must(i.Close())
			send()
			if n := processed(); n != 1 {
				t.Errorf("%d packets processed after the end, want 1", n)
			}
		})
	}
}

// TestIdentify: while a process of nearside ends, its program is listed without a name and an announcement. It is no program that
// may enforce network policies.
func TestIdentify(t *testing.T) {
	requireRoot(t)
	h := newHost(t)
	const id = 1<<31 - 1 // no such program
	l := &h.lister
	announced, err := announce(id)
	h.must(err)
	if i := l.identify(id); !i.own {
		t.Errorf("announced: %+v", i)
	}
	h.must(announced.Close())
	l.forget()
	i := l.identify(id)
	if (Program{ID: id, Name: i.name, Own: i.own}).foreign() || i.own {
		t.Errorf("ended: %+v", i)
	}
	if other := l.identify(id - 1); !(Program{ID: id - 1, Name: other.name, Own: other.own}).foreign() {
		t.Errorf("never announced: %+v", other)
	}
}

//go:build amd64 || arm64

package kernel

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearside-dns/nearside/test/kit"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// waitLimit bounds the wait for a change.
const waitLimit = 20 * time.Second

// host is the network namespace of a test, which stands for that of a node.
type host struct {
	testing.TB
	lister lister
	log    journal
}

// journal has the lines that Interfaces have logged.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) write(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

// count returns the number of lines with a text.
func (j *journal) count(text string) (n int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, l := range j.lines {
		if strings.Contains(l, text) {
			n++
		}
	}
	return n
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, "\n")
}

// newHost returns the namespace of the process, which namespace.Inside has made.
func newHost(t testing.TB) *host {
	t.Helper()
	l, err := openLister()
	kit.Must(t, err)
	t.Cleanup(l.close)
	return &host{TB: t, lister: l}
}

// must fails the test with an error.
func (h *host) must(err error) {
	h.Helper()
	kit.Must(h, err)
}

// eventually waits for a condition.
func (h *host) eventually(what string, condition func() bool) {
	h.Helper()
	for end := time.Now().Add(waitLimit); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			h.Fatalf("not within %s: %s\n%s", waitLimit, what, &h.log)
		}
	}
}

// load loads answer.c.
func (h *host) load() Programs {
	h.Helper()
	spec, err := loadAnswer()
	h.must(err)
	return h.loadSpec(spec)
}

func (h *host) loadSpec(spec *ebpf.CollectionSpec) Programs {
	h.Helper()
	c, err := ebpf.NewCollection(spec)
	if refused := (*ebpf.VerifierError)(nil); errors.As(err, &refused) {
		const lines = 40
		h.Fatalf("the kernel refuses the programs: %v\n%s", err, strings.Join(refused.Log[max(len(refused.Log)-lines, 0):], "\n"))
	}
	h.must(err)
	h.Cleanup(c.Close)
	return Programs{Answer: c.Programs[answerName], Filter: c.Programs[filterName], Tail: c.Maps[answerMapProgram]}
}

// quick are options with which a change is noticed soon, and without listings of all interfaces except the first one.
func (h *host) quick() Options {
	return Options{Log: h.log.write, tick: 10 * time.Millisecond, resync: time.Hour, policyPause: 100 * time.Millisecond}
}

// begin calls Follow, and returns when all interfaces have been examined.
func (h *host) begin(p Programs, o Options) *Interfaces {
	h.Helper()
	i, err := Follow(p, o)
	h.must(err)
	<-i.synced
	return i
}

// follow is begin with Close at the end of the test.
func (h *host) follow(p Programs, o Options) *Interfaces {
	h.Helper()
	i := h.begin(p, o)
	h.Cleanup(func() { h.must(i.Close()) })
	return i
}

// newNamespace returns another network namespace, which ends with the test.
func (h *host) newNamespace() *os.File {
	h.Helper()
	var file *os.File
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			file, err = os.Open("/proc/thread-self/ns/net")
		}
		done <- err
	}()
	h.must(<-done)
	h.Cleanup(func() { h.must(file.Close()) })
	return file
}

// addPod adds a veth whose peer is in a pod's namespace.
func (h *host) addPod(name string, ns *os.File) netlink.Link {
	h.Helper()
	return h.add(&netlink.Veth{LinkAttrs: attrsOf(name), PeerName: "e-" + name, PeerNamespace: netlink.NsFd(ns.Fd())})
}

func attrsOf(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// add adds an interface and returns it.
func (h *host) add(l netlink.Link) netlink.Link {
	h.Helper()
	h.must(netlink.LinkAdd(l))
	return h.link(l.Attrs().Name)
}

func (h *host) link(name string) netlink.Link {
	h.Helper()
	l, err := netlink.LinkByName(name)
	h.must(err)
	return l
}

// names returns the names of the BPF programs and the kinds of the filters at an interface, sorted.
func (h *host) names(name string) (all []string) {
	h.Helper()
	programs, err := h.lister.list(h.link(name), true)
	h.must(err)
	for _, p := range programs {
		all = append(all, p.Name)
	}
	slices.Sort(all)
	return all
}

// ids returns the IDs of nearside's programs at an interface.
func (h *host) ids(name string) (all []ebpf.ProgramID) {
	h.Helper()
	programs, err := h.lister.list(h.link(name), true)
	h.must(err)
	for _, p := range programs {
		if p.Name == answerName || p.Name == filterName {
			all = append(all, p.ID)
		}
	}
	return all
}

// has reports whether exactly one program of nearside is at an interface.
func (h *host) has(name string) bool {
	h.Helper()
	return len(h.ids(name)) == 1
}

// foreign loads a program of another process.
func (h *host) foreign(kind ebpf.ProgramType) *ebpf.Program {
	h.Helper()
	const passXDP, passTC = 2, -1
	verdict := int32(passTC)
	if kind == ebpf.XDP {
		verdict = passXDP
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "foreign", Type: kind, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()},
	})
	h.must(err)
	h.Cleanup(func() { h.must(p.Close()) })
	return p
}

// run runs a program of the system, such as nft.
func (h *host) run(program string, args ...string) {
	h.Helper()
	kit.Output(h, exec.Command(program, args...))
}

// received sends a datagram to a socket on lo and reports whether it has arrived.
func (h *host) received() bool {
	h.Helper()
	receiver, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	h.must(err)
	defer func() { h.must(receiver.Close()) }()
	sender, err := net.DialUDP("udp", nil, receiver.LocalAddr().(*net.UDPAddr))
	h.must(err)
	defer func() { h.must(sender.Close()) }()
	_, err = sender.Write(make([]byte, 64))
	h.must(err)
	h.must(receiver.SetReadDeadline(time.Now().Add(waitLimit)))
	n, err := receiver.Read(make([]byte, 512))
	return err == nil && n == 64
}

// mode is a way of attaching.
type mode struct {
	name   string
	clsact bool
}

// modes returns the ways of attaching that the kernel has.
func modes(t testing.TB) []mode {
	t.Helper()
	all := []mode{{"clsact", true}}
	has, err := hasTCX()
	kit.Must(t, err)
	if has {
		all = append(all, mode{"tcx", false})
	}
	return all
}
